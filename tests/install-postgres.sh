#!/usr/bin/env bash
# Debian's PostgreSQL server, for the tests that start one of their own; without it they are skipped.
set -euo pipefail

if command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then
  exit 0
fi
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
  echo "PostgreSQL is not here and apt-get not ours to use: its tests will be skipped"
  exit 0
fi
echo "installing postgresql"
# The server must not start by itself, and no default cluster is created.
mkdir -p /etc/postgresql-common
[[ -e /etc/postgresql-common/createcluster.conf ]] ||
  echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends postgresql; } \
  >/dev/null 2>&1 || echo "PostgreSQL cannot be installed: its tests will be skipped"
