#!/usr/bin/env bash
# Release check: wheel and sdist, the wheel in an empty environment with the hashes of
# requirements.lock, the repository's demo run with it, a bill of materials, and an audit.
# `make release` calls it with the folder of a tool environment and a Python; results are in dist/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tools=$1/bin python=$2
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT

rm -rf dist
"$tools/python" -m build --quiet --outdir dist .
wheel=$(ls dist/*.whl)
echo "built $wheel and $(ls dist/*.tar.gz)"

"$python" -m venv "$empty/venv"
bin=$empty/venv/bin
"$bin/pip" install --quiet torch==2.13.0 ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
"$bin/pip" install --quiet --no-deps --require-hashes --requirement requirements.lock
"$bin/pip" install --quiet --no-deps "$wheel"
"$bin/pip" check
mkdir "$empty/app" && touch "$empty/app/__init__.py"  # another package of this name, found first
PYTHONPATH=$empty "$bin/racer" --version
echo "installed in an empty environment, every package but torch by its hash"

"$tools/cyclonedx-py" environment --pyproject pyproject.toml --output-reproducible --validate \
  --output-file dist/racer-gateway.cdx.json "$bin/python"
echo "wrote dist/racer-gateway.cdx.json, $(grep -c '"purl"' dist/racer-gateway.cdx.json) components"

# Its exit code is 1 where it found something: audit.py says what.
{ "$tools/pip-audit" --requirement requirements.lock --no-deps --disable-pip --progress-spinner off \
  --format json 2>/dev/null || true; } | "$tools/python" deploy/release/audit.py

# The demo serves its models with what the extra `demo` brings.
"$bin/pip" install --quiet --constraint constraints.txt "$wheel[demo]"
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$bin/racer" demo --once --queries 50 --port "$port"
echo "the demo of the repository ran with the installed wheel"
