#!/bin/sh
# Compiles the kernels as for Linux on 64-bit ARM and runs their self-contained tests there, under an emulator where
# this machine is another. Needs g++-aarch64-linux-gnu and qemu-user-static of Debian, or an ARM machine; says so and
# succeeds where they are missing.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$root/build/aarch64
if [ "$(uname -m)" = aarch64 ]; then
    compiler=${CXX:-c++} run=
else
    compiler=aarch64-linux-gnu-g++
    run=$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)
    for needed in "$compiler" "${run:-qemu-aarch64-static}"; do
        command -v "$needed" >/dev/null || { echo "skipped: no $needed"; exit 0; }
    done
fi
mkdir -p "$work"

# Everything but the Python module and other machines' instruction sets, with the flags of CMakeLists.txt.
objects=
for source in "$root"/kernels/cpu/*.cpp "$root"/kernels/io/*.cpp; do
    name=$(basename "$source" .cpp)
    case $name in
        bindings* | isa_avx*) continue ;;
    esac
    "$compiler" -std=c++20 -O3 -ffp-contract=off -fPIC -Wall -Wextra -Werror -c "$source" -o "$work/$name.o"
    objects="$objects $work/$name.o"
done

# The portable kernels are loops over small arrays; they are only fast if the compiler makes vectors of them.
if command -v aarch64-linux-gnu-objdump >/dev/null; then
    vectors=$(aarch64-linux-gnu-objdump -d "$work/isa_portable.o" | grep -cE 'f(mul|add|mla)[[:space:]].*\.4s' || true)
    echo "isa_portable.cpp: $vectors multiplications and additions of four numbers at once"
    [ "$vectors" -gt 500 ] || { echo "failed: the portable kernels were not vectorised"; exit 1; }
fi

# shellcheck disable=SC2086 # lists of words
for test in kernels_test pool_test reads_test; do
    "$compiler" -std=c++20 -O2 -ffp-contract=off -static -pthread -Wall -Wextra -Werror -I "$root/kernels/cpu" -I "$root/kernels/io" \
        "$root/tests/native/$test.cpp" $objects -o "$work/$test"
    $run "$work/$test"
done
