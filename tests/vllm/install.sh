#!/usr/bin/env bash
# Makes a virtual environment with vLLM for the CPU, every version pinned:
#   install.sh FOLDER PYTHON [TORCH_INDEX]
# vLLM never shares an environment with the gateway: it wants other versions of much.
set -euo pipefail
folder=$1 python=$2 index=${3:-}
here=$(dirname "${BASH_SOURCE[0]}")

"$python" -m venv --clear "$folder"
# torch first and alone, so that nothing else decides which build it is.
"$folder/bin/python" -m pip install --quiet --constraint "$here/requirements.txt" torch \
  ${index:+--no-deps --index-url "$index"}
# Not what vLLM itself asks for: that is one build of torch under its full name, and more.
"$folder/bin/python" -m pip install --quiet --no-deps --requirement "$here/requirements.txt"
