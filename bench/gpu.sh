#!/usr/bin/env bash
# Measures a GPU: correctness, the table, then a worker over gRPC, in under 4 minutes. See bench/gpu/__main__.py.
#
#   bench/gpu.sh [--budget-s 225] [--only PART] [--out FOLDER]     on the machine with the GPU; needs no network
#   bench/gpu.sh --interpret                                       every line at tiny shapes, without a GPU
#   bench/gpu.sh bring [PYTHON_VERSION]                            on a machine with a network, before; default 3.12
#
# Kernels need torch and triton alone. The worker needs a few packages more, which the GPU machine may lack:
# `bring` downloads the pinned wheels for Linux on x86-64 and that Python into build/gpu-packages, which is taken
# along with the checkout and goes before what is installed there. Most are pure; grpcio, protobuf, orjson and
# MarkupSafe are not, so they fit that one Python version, and generated code needs grpcio and protobuf at least
# as new as ours. Where they are missing or do not fit, the parts that need them say so and the rest is measured.
#
# What overruns the budget all the same (a compiler or a device that hangs) is cut at a twentieth beyond it, with all
# that it has started; what was found until then is written. Status 124, or 137 where it had to be killed.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
packages=build/gpu-packages

if [[ ${1:-} == bring ]]; then
  rm -rf "$packages" build/gpu-wheels
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version "${2:-3.12}" --implementation cp \
    --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux_2_28_x86_64 \
    -c constraints.txt -d build/gpu-wheels -r bench/gpu/packages.txt
  mkdir -p "$packages"
  for wheel in build/gpu-wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$packages"; done
  du -sh "$packages"
  exit
fi

# Nothing is written to the home folder, and the worker finds what the rows before it have compiled.
cache=build/gpu-cache
mkdir -p "$cache" 2>/dev/null && [[ -w $cache ]] || cache=$(mktemp -d)
cache=$(cd "$cache" && pwd)
export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-$cache/triton}" QUIRE_CACHE="${QUIRE_CACHE:-$cache}"
export PYTHONUNBUFFERED=1
export PYTHONPATH="$PWD/$packages:$PWD${PYTHONPATH:+:$PYTHONPATH}"

budget=225 previous=
for argument in "$@"; do
  case $previous in --b*) budget=$argument ;; esac
  case $argument in --b*=*) budget=${argument#*=} ;; esac
  previous=$argument
done
[[ $budget =~ ^[0-9]+ ]] && budget=${BASH_REMATCH[0]} || budget=225
limit=$((10#$budget * 21 / 20 + 1))

# In the background, so that this shell can hand an interrupt on: `timeout` leaves the terminal's group.
timeout --kill-after=2 "$limit" "$python" -m bench.gpu "$@" &
pid=$!
trap 'kill "$pid" 2>/dev/null' INT TERM
status=0
wait "$pid" || status=$?
[[ $status != 124 && $status != 137 ]] || echo "cut: longer than $limit s, or killed; what was found until then is kept" >&2
exit "$status"
