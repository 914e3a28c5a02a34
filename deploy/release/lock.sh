#!/usr/bin/env bash
# Writes requirements.lock: the image's packages with the hashes of their files; versions are those of
# constraints.txt. `make lock` calls it with the folder of an environment with uv.
#
# Without torch and the packages of its CUDA builds: they come from the index in the build argument
# TORCH_INDEX, and each index has different files.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

{
  echo "# What the image installs beside torch, with hashes. Written by \`make lock\`."
  "$1/bin/uv" pip compile pyproject.toml --extra label --extra otel --extra parquet --extra postgres --extra s3 \
    --constraint constraints.txt --generate-hashes --no-header --no-annotate --quiet \
    --python-version 3.11 --python-platform x86_64-manylinux_2_28 --no-emit-package torch |
    awk '/^[a-z]/ { keep = !/^(nvidia-|cuda-|triton)/ } keep'
} >requirements.lock.new
mv requirements.lock.new requirements.lock
