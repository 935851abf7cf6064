#!/bin/sh
# Runs the kernels' tests with the AVX-512 kernels compiled on SIMDe, for machines that lack AVX-512. Slow; not part of
# the regular checks. PYTHON chooses the interpreter. Needs SIMDe's headers (libsimde-dev).
#
#   tests/native/emulate_avx512.sh [pytest arguments]
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
work=$root/build/emulate
generator=$(command -v ninja >/dev/null && echo Ninja || echo "Unix Makefiles")
cmake -S "$root" -B "$work" -G "$generator" -DPython_EXECUTABLE="$(command -v "$python")" \
    -DCHERENKOV_EMULATE_AVX512=ON -DCMAKE_CXX_FLAGS_RELEASE="-O0 -Wno-psabi" >/dev/null
cmake --build "$work" --parallel
rm -rf "$work/package"
mkdir -p "$work/package/cherenkov"
ln -s "$root"/cherenkov/* "$work/package/cherenkov/"
rm -f "$work"/package/cherenkov/_native*.so
cp "$work"/_native*.so "$work/package/cherenkov/"
cd "$root"
PYTHONSAFEPATH=1 PYTHONPATH="$work/package:$root" "$python" -m pytest -q -o pythonpath= -p no:cacheprovider --timeout=600 "$@" \
    tests/backends/test_native_matrices.py tests/backends/test_native_operations.py \
    tests/backends/test_native_independence.py tests/backends/test_native_limits.py
