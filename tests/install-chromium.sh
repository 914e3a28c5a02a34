#!/usr/bin/env bash
# Debian's Chromium, for the tests that click through the page; without it they are skipped.
set -euo pipefail

if command -v chromium >/dev/null; then
  exit 0
fi
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
  echo "Chromium is not here and apt-get not ours to use: its tests will be skipped"
  exit 0
fi
echo "installing chromium"
{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends chromium fonts-dejavu-core; } \
  >/dev/null 2>&1 || echo "Chromium cannot be installed: its tests will be skipped"
