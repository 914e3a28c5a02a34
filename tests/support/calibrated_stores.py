"""Store templates: a configuration is calibrated once, and later gateways start with a copy.

An upload and its scores cost more than half of a start. Only what an upload of rows reads decides
whether two configurations share a store.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.gateway import Gateway, running

ROWS: Final = 60
STORE: Final = "racer.db"  # the default of the setting `store`
# Settings that neither the reading of rows nor their calibration reads.
_OF_REQUESTS: Final = {"access", "fleet", "telemetry"}
_OF_ROWS: Final = ("query_chars", "extra_fields")  # of `limits`
_STATE: Final = ("limits", "leases")  # tables of the gateway that ran


class CalibratedStores:
    """Starts gateways that are calibrated on 60 rows.

    Args:
        folder: Where the templates are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._templates: dict[str, Path] = {}

    @contextmanager
    def running(self, path: Path, environment: Mapping[str, str]) -> Generator[Gateway]:
        """Serve a configuration whose folder has no store yet."""
        key, store = _key(path, environment), path.parent / STORE
        template = self._templates.get(key)
        if template is not None:
            shutil.copy(template, store)
        with running(path, dict(environment)) as gateway:
            if template is None:
                gateway.calibrate(ROWS)
                if store.exists():  # else it is elsewhere
                    self._templates[key] = self._saved(store)
            yield gateway

    def _saved(self, store: Path) -> Path:
        saved = self._folder / f"{len(self._templates)}.db"
        with closing(sqlite3.connect(store)) as source, closing(sqlite3.connect(saved)) as copy:
            source.backup(copy)
            for table in _STATE:
                copy.execute(f"DELETE FROM {table}")
            copy.commit()
        return saved


def _key(path: Path, environment: Mapping[str, str]) -> str:
    values: dict[str, Any] = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
    limits = values.get("limits") or {}
    manifest = path.parent / values["artifact"] / "manifest.json"
    return json.dumps(
        [
            {name: each for name, each in values.items() if name not in {*_OF_REQUESTS, "limits"}},
            [limits.get(name) for name in _OF_ROWS],
            sorted(environment.items()),
            manifest.read_text(encoding="utf-8"),
        ],
        sort_keys=True,
        default=str,
    )
