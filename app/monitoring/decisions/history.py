"""What requests got over the last hour, day and week, from stored decisions, at a bounded cost.

A window has equal parts. Of each part all decisions are counted, in an index, and the first
``READ`` are read; a part weighs as much as it has decisions. So an answer reads at most 12,800
decisions, however many there are.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.monitoring.decisions.record import RequestEnd
from app.store import Store
from app.store.sampled_classes import read_classes
from app.store.tables import DecisionRow, SampleRow
from app.utc import present, text_of

READ: Final = 200  # decisions of a part that are read
WINDOWS: Final = (
    ("hour", timedelta(hours=1), 12),
    ("day", timedelta(days=1), 24),
    ("week", timedelta(days=7), 28),
)
SEARCHED: Final = 20_000  # the newest decisions, among which sampled ones are looked for
SAMPLED: Final = 500  # sampled ones that are read
KEPT_S: Final = 15.0  # an answer serves all pages that ask meanwhile


class History:
    """Answers ``GET /history``.

    Args:
        store: Where decisions are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._kept: tuple[float, dict[str, Any]] | None = None

    async def report(self) -> dict[str, Any]:
        """Every window, with its parts. Raises :class:`app.errors.StoreError`."""
        async with self._lock:
            if self._kept is None or time.monotonic() - self._kept[0] > KEPT_S:
                found = await self._store.run(self.read, present())
                self._kept = time.monotonic(), found
            return self._kept[1]

    def read(self, at: datetime) -> dict[str, Any]:
        """The windows that end at a time. Blocks."""
        with self._store.transaction() as session:
            samples = _samples(session, at - WINDOWS[-1][1])
            return {
                "windows": [
                    _window(
                        name,
                        [
                            _Part.of(session, at - span + i * span / parts, span / parts)
                            for i in range(parts)
                        ],
                        [each for each in samples if each.at >= text_of(at - span)],
                    )
                    for name, span, parts in WINDOWS
                ]
            }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """One request that was answered, or refused: what it got, and what else it would have cost."""

    holds: bool
    refused: bool
    calls: int
    pool: int
    cost: float | None
    of_everyone: float | None
    of_best: float | None
    best: str | None

    @classmethod
    def of(cls, document: str) -> _Request | None:
        """From a decision's document; None for one without an answer, such as `POST /route`."""
        found: dict[str, Any] = json.loads(document)
        refused = not found["selected"] and not found["answered"]
        if found["outcome"] != RequestEnd.ANSWERED or not (found["served_by"] or refused):
            return None
        cost: dict[str, Any] = found.get("cost") or {}
        others: dict[str, Any] = cost.get("alternatives", {})
        best: dict[str, Any] = others.get("best_single", {})
        paid: list[dict[str, Any]] = cost.get("calls", [])
        sequence: dict[str, Any] = found["sequence"] or {}
        made: dict[str, list[dict[str, list[str]]]] = sequence.get("made") or {"rounds": []}
        called = {*found["answered"], *(each["candidate"] for each in paid)}
        called.update(name for each in made["rounds"] for name in each["called"])
        return cls(
            holds=found["holds"],
            refused=refused,
            calls=len(called & {*found["pool"]}),
            pool=len(found["pool"]),
            cost=cost.get("cost"),
            of_everyone=others.get("everyone", {}).get("cost"),
            of_best=best.get("cost"),
            best=best.get("candidate"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part of a window."""

    since: datetime
    decisions: int
    read: int
    requests: Sequence[_Request]

    @classmethod
    def of(cls, session: Session, since: datetime, span: timedelta) -> _Part:
        """The decisions from a time on, for a span."""
        at = DecisionRow.created_at
        inside = (at >= text_of(since)) & (at < text_of(since + span))
        first = select(DecisionRow.document).where(inside).order_by(at).limit(READ)
        documents = session.scalars(first).all()
        count = len(documents)
        if count == READ:
            count = session.scalar(select(func.count()).select_from(DecisionRow).where(inside)) or 0
        requests = [each for each in map(_Request.of, documents) if each is not None]
        return cls(since=since, decisions=count, read=len(documents), requests=requests)

    @property
    def weight(self) -> float:
        """How many decisions one that was read stands for."""
        return self.decisions / self.read if self.read else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sampled:
    """A sampled request: who served it, and which answers of all candidates are equal."""

    at: str
    served_by: str
    classes: Mapping[str, int | None]

    @property
    def majority(self) -> set[int]:
        """The class that most candidates gave; several where as many did."""
        counted = Counter(each for each in self.classes.values() if each is not None)
        most = max(counted.values(), default=0)
        return {each for each, count in counted.items() if count == most}


def _samples(session: Session, since: datetime) -> list[_Sampled]:
    """Sampled and answered requests, the newest first, among the newest decisions."""
    at = DecisionRow.created_at
    oldest = session.scalar(select(at).order_by(at.desc()).offset(SEARCHED).limit(1)) or ""
    found = session.execute(
        select(at, DecisionRow.document, SampleRow.classes)
        .join(SampleRow, SampleRow.decision_id == DecisionRow.id)
        .where(at >= max(oldest, text_of(since)), SampleRow.whole)
        .order_by(at.desc())
        .limit(SAMPLED)
    )
    read = ((created, json.loads(document), classes) for created, document, classes in found)
    return [
        _Sampled(at=created, served_by=decision["served_by"], classes=read_classes(classes)[0])
        for created, decision, classes in read
        if decision["served_by"]
    ]


def _window(name: str, parts: Sequence[_Part], samples: Sequence[_Sampled]) -> dict[str, Any]:
    weighed = [(each, part.weight) for part in parts for each in part.requests]
    priced = [(each, weight) for each, weight in weighed if None not in _costs(each)]
    named = Counter(each.best for each, _ in weighed if each.best is not None)
    best = named.most_common(1)[0][0] if named else _most_agreeing(samples)
    return {
        "window": name,
        "decisions": sum(part.decisions for part in parts),
        "read": sum(part.read for part in parts),
        "sampled": len(samples),
        **_means(weighed),
        "everyone": {
            "calls": _mean((each.pool, weight) for each, weight in weighed),
            "cost": _mean((each.of_everyone, weight) for each, weight in priced),
        },
        "best_single": {
            "candidate": best,
            "calls": None if best is None else 1,
            "cost": _mean((each.of_best, weight) for each, weight in priced),
            "agreement": None if best is None else _agreement(samples, best),
        },
        "cost": _mean((each.cost, weight) for each, weight in priced),
        "agreement": _agreement(samples),
        "parts": [
            {"since": text_of(part.since)} | _means([(each, part.weight) for each in part.requests])
            for part in parts
        ],
    }


def _costs(request: _Request) -> tuple[float | None, ...]:
    return request.cost, request.of_everyone, request.of_best


def _means(weighed: Sequence[tuple[_Request, float]]) -> dict[str, Any]:
    return {
        "requests": round(sum(weight for _, weight in weighed)),
        "certified": _mean((each.holds, weight) for each, weight in weighed),
        "refused": _mean((each.refused, weight) for each, weight in weighed),
        "calls": _mean((each.calls, weight) for each, weight in weighed),
        "cost": _mean((each.cost, weight) for each, weight in weighed),
    }


def _mean(weighed: Iterable[tuple[float | None, float]]) -> float | None:
    """The weighted mean of what is known; None where nothing is."""
    known = [(value, weight) for value, weight in weighed if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def _agreement(samples: Sequence[_Sampled], candidate: str | None = None) -> float | None:
    """How often the served answer, or a candidate's, is that of most candidates."""
    agree = [each.classes.get(candidate or each.served_by) in each.majority for each in samples]
    return sum(agree) / len(agree) if agree else None


def _most_agreeing(samples: Sequence[_Sampled]) -> str | None:
    """Of candidates about which no labels are known, the one that most often agrees with most."""
    names = sorted({name for each in samples for name in each.classes})
    return max(names, key=lambda name: _agreement(samples, name) or 0.0, default=None)
