#!/bin/sh
# Builds the kernels with AddressSanitizer and UndefinedBehaviorSanitizer and runs their tests on that build; then the
# thread pool and the reads of records under ThreadSanitizer.
#
#   tests/native/sanitize.sh [pytest arguments]
#
# PYTHON chooses the interpreter, which needs NumPy, nanobind and pytest. Needs GCC or Clang, CMake and Ninja or make.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
work=$root/build/sanitize
generator=$(command -v ninja >/dev/null && echo Ninja || echo "Unix Makefiles")

# -O1: the sanitizers' own cost dominates, and the compiler's at -O3. What cannot run here need not be compiled.
avx512=OFF
! grep -qs avx512_vnni /proc/cpuinfo || avx512=ON
cmake -S "$root" -B "$work/make" -G "$generator" -DPython_EXECUTABLE="$(command -v "$python")" \
    -DCHERENKOV_SANITIZE=address,undefined -DCHERENKOV_AVX512=$avx512 -DCMAKE_CXX_FLAGS_RELEASE=-O1 >/dev/null
cmake --build "$work/make" --parallel

# The package as it is, beside the sanitized extension.
rm -rf "$work/package"
mkdir -p "$work/package/cherenkov"
ln -s "$root"/cherenkov/* "$work/package/cherenkov/"
rm -f "$work"/package/cherenkov/_native*.so
cp "$work"/make/_native*.so "$work/package/cherenkov/"

compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$work/make/CMakeCache.txt")
runtime=$("$compiler" -print-file-name=libasan.so)
[ -f "$runtime" ] || runtime=$("$compiler" -print-file-name="libclang_rt.asan-$(uname -m).so")
# The sanitizer looks for __cxa_throw when it starts, before anything else has brought the C++ library along.
library=$("$compiler" -print-file-name=libstdc++.so.6)
[ -f "$library" ] || library=
# Leaks are the interpreter's own; PYTHONSAFEPATH keeps the working tree's package out of the way.
cd "$root"
LD_PRELOAD="$runtime $library" ASAN_OPTIONS=detect_leaks=0:halt_on_error=1 UBSAN_OPTIONS=print_stacktrace=1 \
    PYTHONSAFEPATH=1 PYTHONPATH="$work/package:$root" PYTHONMALLOC=malloc \
    "$python" -m pytest -q -o pythonpath= -p no:cacheprovider --timeout=600 "$@" \
    tests/backends/test_native_matrices.py tests/backends/test_native_operations.py \
    tests/backends/test_native_independence.py tests/backends/test_native_limits.py \
    tests/backends/test_layer_steps.py tests/unit/test_passes.py

"$compiler" -std=c++20 -O1 -g -fsanitize=thread -pthread -I "$root/kernels/cpu" \
    "$root/tests/native/pool_test.cpp" "$root/kernels/cpu/steal_pool.cpp" "$root/kernels/cpu/ahead.cpp" -o "$work/pool_test"
"$work/pool_test"

"$compiler" -std=c++20 -O1 -g -fsanitize=thread -pthread -I "$root/kernels/io" "$root/tests/native/reads_test.cpp" \
    "$root/kernels/io/read_queue.cpp" "$root/kernels/io/record_file.cpp" "$root/kernels/io/xxh3.cpp" -o "$work/reads_test"
"$work/reads_test"
