"""Check of the store: reachable, its schema of this version, room on its disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from app.errors import RecoveryNeeded, SettingsError, StoreError
from app.store import engine, schema
from app.store.inspection import StoreInspection, inspect_store
from app.tools.doctor.finding import Finding, failed, ok, warning

CHECK = "store"
DISK = "disk"
_WARNING_BYTES: Final = 2**30
_FAILURE_BYTES: Final = 64 * 2**20


def check(url: str, setup: str | None) -> tuple[list[Finding], StoreInspection | None]:
    """Return the findings, and what the store holds if it can be read.

    Args:
        url: URL of the store.
        setup: Digest of artifact and candidates; None without an artifact.
    """
    shown = engine.redacted_url(url)
    file = _file(url)
    findings: list[Finding] = [] if file is None else _file_findings(file)
    if any(each.cure for each in findings if each.check == CHECK):
        return findings, None
    try:
        found = inspect_store(url, setup)
    except RecoveryNeeded as exc:
        return [
            warning(CHECK, str(exc), "start the gateway, which rolls that back"),
            *findings,
        ], None
    except (SettingsError, StoreError) as exc:
        return [
            failed(CHECK, str(exc), "start the database, or correct `store` or its URL"),
            *findings,
        ], None
    return [version(shown, found.version), *findings], found


def version(shown: str, found: str | None) -> Finding:
    """Compare the schema version with this program's."""
    if found == schema.HEAD:
        return ok(CHECK, f"{shown}, tables of version {found}")
    if found is None:
        return ok(CHECK, f"{shown} is empty: the first start creates its tables")
    return failed(
        CHECK, f"{shown} has tables of version {found}, not {schema.HEAD}", schema.cure(found)
    )


def room(folder: Path, free: int) -> Finding:
    """Compare the free space with what a gateway needs."""
    left = f"{free / 2**30:.1f} GiB free at {folder}"
    cure = "free disk space, or lower `watching.keep_rows`"
    if free < _FAILURE_BYTES:
        return failed(DISK, left, cure)
    return warning(DISK, left, cure) if free < _WARNING_BYTES else ok(DISK, left)


def _file(url: str) -> Path | None:
    """The file of a SQLite store."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return None
    if parsed.get_backend_name() != "sqlite" or parsed.database in (None, "", ":memory:"):
        return None
    return Path(parsed.database or "")


def _file_findings(file: Path) -> list[Finding]:
    if file.is_dir():
        return [failed(CHECK, f"{file} is a folder", "name a file in this folder as `store`")]
    if not file.parent.is_dir():
        return [
            failed(CHECK, f"{file.parent} is no folder", "create the folder, or change `store`")
        ]
    target = file if file.exists() else file.parent
    # SQLite keeps a journal beside its file.
    if not all(os.access(each, os.W_OK) for each in (target, file.parent)):
        cure = "grant write access to the user that runs the gateway"
        return [failed(CHECK, f"{target} cannot be written", cure)]
    return [room(file.parent, shutil.disk_usage(file.parent).free)]
