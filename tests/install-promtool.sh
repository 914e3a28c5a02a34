#!/usr/bin/env bash
# Debian's promtool, unpacked into .promtool/ and not installed: nothing is to start a Prometheus.
# Without it the tests of alerts are skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if command -v promtool >/dev/null || [[ -x .promtool/usr/bin/promtool ]]; then
  exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  echo "promtool is not here and there is no apt-get: its tests will be skipped"
  exit 0
fi
echo "fetching promtool"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
[[ $(id -u) != 0 ]] || apt-get update >/dev/null 2>&1 || true
{ (cd "$folder" && apt-get download prometheus) && dpkg-deb -x "$folder"/prometheus_*.deb "$folder/x"; } \
  >/dev/null 2>&1 || { echo "promtool cannot be fetched: its tests will be skipped"; exit 0; }
mkdir -p .promtool/usr/bin
mv "$folder/x/usr/bin/promtool" .promtool/usr/bin/
