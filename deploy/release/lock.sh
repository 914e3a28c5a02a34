#!/usr/bin/env bash
# Writes requirements.lock: what the image installs, each with the hashes of its files; versions are
# those of constraints.txt. `make lock` calls it with the folder of an environment with uv.
#
# torch is not in it, nor what only its CUDA builds need: they come from the index that the build
# argument TORCH_INDEX names, and each index has files of its own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

{
  echo "# What the image installs beside torch, with hashes. Written by \`make lock\`."
  "$1/bin/uv" pip compile pyproject.toml --extra label --extra otel --extra parquet --extra postgres \
    --constraint constraints.txt --generate-hashes --no-header --no-annotate --quiet \
    --python-version 3.11 --python-platform x86_64-manylinux_2_28 --no-emit-package torch |
    awk '/^[a-z]/ { keep = !/^(nvidia-|cuda-|triton)/ } keep'
} >requirements.lock.new
mv requirements.lock.new requirements.lock
