"""Gateways that serve the page: the demo, and those of a test before the demo's models."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from app import settings
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
from racer_core.records.reader import read_rows
from racer_core.types import LabelledRow, LabelledRows
from tests.kit import zero_setup
from tests.kit.demo import DemoAddress
from tests.kit.gateway import ADMIN_KEY, DATA_KEY, Gateway, running
from tests.kit.lazy import LazyModule
from tests.kit.zero_setup import POOL

run = LazyModule("app.tools.demo.run")

NOWHERE: Final = "http://127.0.0.1:9/v1"  # of candidates that no test calls
Levels = dict[str, Any]  # what POST /route/levels answers


@dataclass(frozen=True)
class Fleet:
    """A running gateway and its candidates; without a data key it needs none."""

    gateway: Gateway
    names: tuple[str, ...]
    data_key: str
    admin_key: str

    def route(self, question: str, *, execute: bool = True, **options: Any) -> dict[str, Any]:
        """Route a question as the admin, and call the candidates unless told not to."""
        body = {"query": question, "execute": execute, **options}
        response = self.gateway.post("/route", self.admin_key, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def levels(self, question: str, **options: Any) -> Levels:
        """The sets of a question at every level."""
        body = {"query": question, **options}
        response = self.gateway.post("/route/levels", self.admin_key, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def find(
        self, wanted: Callable[[Levels], bool], among: Iterable[LabelledRow] | None = None
    ) -> str:
        """The first question whose levels are as wanted, of the demo's test rows unless told."""
        for row in demo_rows("test").rows if among is None else among:
            if wanted(self.levels(row.query)):
                return row.query
        raise AssertionError("no question of the demo is like that")

    def active(self) -> str:
        """The calibration that decides."""
        return self.gateway.ready()["calibration"]


def several(found: Levels) -> bool:
    """Whether some level calls more than one candidate and not all, and another a single one."""
    sizes = {len(each["selected"]) for each in found["levels"]}
    return 1 in sizes and any(1 < size < len(POOL) for size in sizes)


def level_of_several(found: Levels) -> dict[str, Any]:
    """The largest level that calls more than one candidate and not all."""
    return next(each for each in reversed(found["levels"]) if 1 < len(each["selected"]) < len(POOL))


@cache
def demo_rows(split: str) -> LabelledRows:
    """The demo's rows: ``train``, ``validation``, ``calibration`` or ``test``."""
    return read_rows(run.FOLDER / "data" / f"{split}.jsonl")


def some_rows(start: int, count: int, split: str = "calibration") -> LabelledRows:
    """Some of the demo's rows."""
    rows = demo_rows(split)
    return replace(rows, rows=rows.rows[start : start + count])


def demo_fleet(address: DemoAddress) -> Fleet:
    """The running demo."""
    configured, _ = settings.load(run.FOLDER / "racer.yaml", {})
    return Fleet(Gateway(address.url, configured), POOL, "", address.admin_key)


def trained(folder: Path) -> Path:
    """A KNN router of n-grams, which needs no torch, trained on rows of the demo."""
    train(
        some_rows(0, 600, "train"),
        some_rows(0, 200, "validation"),
        folder,
        encoder=CharNgramEncoder(),
        kind="knn",
    )
    return folder


@contextmanager
def served(
    folder: Path,
    pool_url: str = NOWHERE,
    *,
    artifact: Path,
    keys: bool = True,
    calibration: LabelledRows | None = None,
    environment: Mapping[str, str] | None = None,
    **changes: Any,
) -> Generator[Fleet]:
    """A gateway before the demo's models, with a store of its own.

    Args:
        folder: Of its files.
        pool_url: The server of the models.
        artifact: The router.
        keys: Whether a data key is needed.
        calibration: The rows to calibrate with; None: none.
        environment: Further variables.
        changes: Sections of the configuration.
    """
    folder.mkdir(exist_ok=True)
    path = zero_setup.configure(
        folder,
        dict.fromkeys(POOL, pool_url),
        prefix="pool/",
        artifact=str(artifact),
        **{"watching": {"false_alarm": 0.01}, **changes},
    )
    secrets = {"RACER_ADMIN_KEY": ADMIN_KEY} | ({"RACER_DATA_KEY": DATA_KEY} if keys else {})
    with running(path, secrets | dict(environment or {})) as gateway:
        if calibration is not None:
            gateway.calibrate(rows=calibration)
        yield Fleet(gateway, POOL, DATA_KEY if keys else "", ADMIN_KEY)
