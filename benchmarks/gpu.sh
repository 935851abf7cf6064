#!/usr/bin/env bash
# Everything that needs an NVIDIA GPU: correctness first, then speed. Each part is a process of its own with a time limit, and
# writes its results as it goes, so that one that fails leaves the others.
#   benchmarks/gpu.sh OUT [PART[+PART...][:SECONDS]...]      # leaves OUT/gpu.tar.gz
# Parts joined by + run side by side: what is not timed. `wait` waits until the C++ kernels are built.
# With PAYLOAD set to a folder of wheels and an MLX archive, they are unpacked first (a machine without a network).
set -uo pipefail
cd "$(dirname "$0")/.."
kept=$1
shift
out=${SCRATCH:-/tmp/gpu-out}
mkdir -p "$out" "$kept"
python=${PYTHON:-python3}
if [ -n "${PAYLOAD:-}" ]; then
  site=${SITE:-/tmp/site}
  if [ ! -e "$site/ready" ]; then
    mkdir -p "$site"
    "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$PAYLOAD"/wheels/*.whl
    tar -xJf "$PAYLOAD"/payload-mlx-sm90.tar.xz -C "$site"
    nvidia=$("$python" -c 'import os, nvidia; print(os.path.dirname(list(nvidia.__path__)[0]) + "/nvidia")')
    [ -e "$site/nvidia" ] || ln -s "$nvidia" "$site/nvidia"
    touch "$site/ready"
  fi
  export PYTHONPATH="$site:$PWD"
  LD_LIBRARY_PATH=$(find -L "$site/nvidia" -maxdepth 3 -name lib -type d | paste -sd:)
  export LD_LIBRARY_PATH
else
  export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
fi
export PYTHONUNBUFFERED=1 XDG_CACHE_HOME=${XDG_CACHE_HOME:-/tmp/gpu-cache} XDG_DATA_HOME=${XDG_DATA_HOME:-/tmp/gpu-data}
# C++ kernels, for the reader threads; without them records are read by Python's.
if ! ls cherenkov/_native*.so >/dev/null 2>&1 && command -v cmake >/dev/null; then
  (cmake -S . -B /tmp/gpu-build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCHERENKOV_AVX512=OFF \
    -DPython_EXECUTABLE="$(command -v "$python")" >"$out/build.log" 2>&1 &&
    timeout 240 cmake --build /tmp/gpu-build >>"$out/build.log" 2>&1 &&
    cp /tmp/gpu-build/_native*.so cherenkov/) &
  building=$!
fi
for part in "${@:-probe}"; do
  name=${part%%:*}
  limit=${part#*:}
  [ "$limit" = "$part" ] && limit=120
  if [ "$name" = wait ]; then
    [ -n "${building:-}" ] && wait "$building"
    continue
  fi
  begun=$SECONDS
  running=()
  for each in ${name//+/ }; do
    timeout -k 5 "$limit" "$python" benchmarks/gpu.py "$each" "$out" >"$out/$each.log" 2>&1 &
    running+=("$each:$!")
  done
  for each in "${running[@]}"; do
    wait "${each#*:}"
    echo "== ${each%%:*}: exit $? after $((SECONDS - begun)) s"
    tail -n "${LINES_EACH:-12}" "$out/${each%%:*}.log" | cut -c1-900
  done
  tar -czf "$kept/gpu.tar.gz" -C "$out" . # one file, and again after every part: what follows may be cut off
done
