#!/usr/bin/env bash
# Debian's Chromium, for the tests that click through the page; without it they are skipped. The
# headless shell takes half of the CPU time of the whole browser.
set -euo pipefail

if command -v chromium-headless-shell >/dev/null; then
  exit 0
fi
if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
  echo "installing chromium-headless-shell"
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends chromium-headless-shell fonts-dejavu-core; } \
    >/dev/null 2>&1 && exit 0
fi
command -v chromium >/dev/null || echo "Chromium is not here and cannot be installed: its tests will be skipped"
