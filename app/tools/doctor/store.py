"""Whether the store can be used: it is there, of this version, and has room."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from app.errors import RecoveryNeeded, SettingsError, StoreError
from app.store import engine, schema
from app.store.inspection import StoreInspection, look
from app.tools.doctor.finding import Finding, failed, ok, warning

CHECK = "store"
DISK = "disk"
_LITTLE: Final = 2**30
_TOO_LITTLE: Final = 64 * 2**20


def check(url: str, setup: str | None) -> tuple[list[Finding], StoreInspection | None]:
    """The findings, and what is in it.

    Args:
        url: Of the store.
        setup: Digest of artifact and fleet; None where nothing is routed.
    """
    shown = engine.shown(url)
    file = _file(url)
    findings: list[Finding] = [] if file is None else _place(file)
    if any(each.cure for each in findings if each.check == CHECK):
        return findings, None
    try:
        found = look(url, setup)
    except RecoveryNeeded as exc:
        return [warning(CHECK, str(exc), "start the gateway, which undoes that"), *findings], None
    except (SettingsError, StoreError) as exc:
        return [failed(CHECK, str(exc), "start it, or change `store` or its URL"), *findings], None
    return [version(shown, found.version), *findings], found


def version(shown: str, found: str | None) -> Finding:
    """What the tables' version means."""
    if found == schema.HEAD:
        return ok(CHECK, f"{shown}, tables of version {found}")
    if found is None:
        return ok(CHECK, f"{shown} is empty: the first start makes its tables")
    if found in schema.known():
        cure = "make a backup with the program that wrote it, then `racer db upgrade`"
        return failed(CHECK, f"{shown} has tables of version {found}, not {schema.HEAD}", cure)
    cure = "install the newer program again, or restore a backup"
    return failed(CHECK, f"{shown} has tables of version {found}, of a newer program", cure)


def room(folder: Path, free: int) -> Finding:
    """What is left on the disk."""
    left = f"{free / 2**30:.1f} GiB free at {folder}"
    cure = "make room, or lower `watching.keep_rows`"
    if free < _TOO_LITTLE:
        return failed(DISK, left, cure)
    return warning(DISK, left, cure) if free < _LITTLE else ok(DISK, left)


def _file(url: str) -> Path | None:
    """SQLite's, if it is one."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return None
    if parsed.get_backend_name() != "sqlite" or parsed.database in (None, "", ":memory:"):
        return None
    return Path(parsed.database or "")


def _place(file: Path) -> list[Finding]:
    if file.is_dir():
        return [failed(CHECK, f"{file} is a folder", "name a file in it as `store`")]
    if not file.parent.is_dir():
        return [failed(CHECK, f"{file.parent} is no folder", "make it, or change `store`")]
    written = file if file.exists() else file.parent
    # SQLite keeps a journal beside its file.
    if not all(os.access(each, os.W_OK) for each in (written, file.parent)):
        cure = "give it to the user that the gateway runs as"
        return [failed(CHECK, f"{written} cannot be written", cure)]
    return [room(file.parent, shutil.disk_usage(file.parent).free)]
