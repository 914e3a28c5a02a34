#!/usr/bin/env bash
# Debian's PostgreSQL server and PgBouncer, for the tests that start their own; without them these
# are skipped.
set -euo pipefail

missing=()
command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null ||
  missing+=(postgresql)
[[ -x /usr/sbin/pgbouncer ]] || command -v pgbouncer >/dev/null || missing+=(pgbouncer)
if [[ ${#missing[@]} == 0 ]]; then
  exit 0
fi
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
  echo "${missing[*]}: not here, and apt-get not ours to use: their tests will be skipped"
  exit 0
fi
echo "installing ${missing[*]}"
# Nothing must start by itself, and no default cluster is created.
mkdir -p /etc/postgresql-common
[[ -e /etc/postgresql-common/createcluster.conf ]] ||
  echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
{
  apt-get update &&
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${missing[@]}"
} >/dev/null 2>&1 || echo "${missing[*]}: cannot be installed: their tests will be skipped"
