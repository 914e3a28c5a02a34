"""Summary of labelled rows: what each candidate had right, also by kind of request; its calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any, Final, cast

from racer_core.calibration.learn_then_test import clopper_pearson_lower, clopper_pearson_upper
from racer_core.records.request import request_conversation
from racer_core.types import LabelledRow

PLAIN: Final = "plain"
SYSTEM: Final = "system prompt"
TOOLS: Final = "tools"
STRUCTURED: Final = "structured output"
LATER: Final = "later turn"
IMAGES: Final = "images"
KINDS: Final = (PLAIN, SYSTEM, TOOLS, STRUCTURED, LATER, IMAGES)
_SYSTEM_ROLES: Final = ("system", "developer")
_IMAGE_PARTS: Final = ("image_url", "image")
LEVEL: Final = 0.95  # of the intervals
CUT: Final = "length"  # the finish reason of an answer that the token limit ended


@dataclass(slots=True)
class KindSummary:
    """The rows of one kind of request."""

    rows: int = 0
    right: Counter[str] = field(default_factory=Counter[str])  # candidate -> right answers


@dataclass(slots=True)
class CandidateSummary:
    """The labelled answers of one candidate."""

    rows: int = 0
    right: int = 0
    tokens: list[int] = field(default_factory=list[int])  # of each call that says so
    seconds: list[float] = field(default_factory=list[float])

    @property
    def interval(self) -> tuple[float, float]:
        """Clopper and Pearson's 95 % interval of its share of right answers."""
        half = (1.0 - LEVEL) / 2.0
        return (
            clopper_pearson_lower(self.right, self.rows, half),
            clopper_pearson_upper(self.right, self.rows, half),
        )

    def as_json(self) -> dict[str, Any]:
        """The fields that are printed; means are of the calls that say so."""
        return {
            "labelled": self.rows,
            "right": self.right,
            "interval": list(self.interval) if self.rows else None,
            "mean_tokens": mean(self.tokens) if self.tokens else None,
            "mean_seconds": mean(self.seconds) if self.seconds else None,
        }

    def add(self, row: LabelledRow, name: str) -> None:
        """Count a row, and the call that gave the answer in it."""
        self.rows += 1
        self.right += name in row.correct
        call = row.calls.get(name, {})
        if isinstance(tokens := call.get("completion_tokens"), int):
            self.tokens.append(tokens)
        if isinstance(seconds := call.get("seconds"), int | float):
            self.seconds.append(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsSummary:
    """Labelled rows by candidate and by kind of request, and answers that the token limit cut.

    A request of several kinds counts in each of them. Rows without a label count for no candidate.
    """

    pool: tuple[str, ...]
    candidates: Mapping[str, CandidateSummary]
    kinds: Mapping[str, KindSummary]
    cut: Mapping[str, int]  # candidate -> answers; none without any

    def as_json(self) -> dict[str, Any]:
        """The fields that are printed."""
        return {
            "kinds": {
                name: {"rows": kind.rows, "right": {each: kind.right[each] for each in self.pool}}
                for name, kind in self.kinds.items()
            },
            "cut": dict(self.cut),
        }


def summarise(rows: Iterable[LabelledRow], pool: tuple[str, ...]) -> RowsSummary:
    """Count rows, right answers and cut answers."""
    kinds = {name: KindSummary() for name in KINDS}
    candidates = {name: CandidateSummary() for name in pool}
    cut = Counter[str]()
    for row in rows:
        for name in () if row.unlabelled else pool:
            candidates[name].add(row, name)
        for name in kinds_of(row.request, is_later=bool(row.earlier)):
            kinds[name].rows += 1
            kinds[name].right.update(row.correct)
        cut.update(name for name, call in row.calls.items() if call.get("finish_reason") == CUT)
    return RowsSummary(
        pool=pool,
        candidates=candidates,
        kinds={name: kind for name, kind in kinds.items() if kind.rows},
        cut={name: cut[name] for name in pool if cut[name]},
    )


def kinds_of(request: Mapping[str, Any] | None, *, is_later: bool) -> Sequence[str]:
    """The kinds of a request, at least one.

    Args:
        request: The whole request; None: turns of plain text.
        is_later: It is a later turn of a conversation.
    """
    kinds = [LATER] if is_later else []
    if request is not None:
        turns = request_conversation(request).turns
        if any(turn.role in _SYSTEM_ROLES for turn in turns):
            kinds.append(SYSTEM)
        if request.get("tools") or request.get("functions"):
            kinds.append(TOOLS)
        if answer_schema(request)[0]:
            kinds.append(STRUCTURED)
        if any(part.get("type") in _IMAGE_PARTS for turn in turns for part in turn.parts):
            kinds.append(IMAGES)
    return kinds or [PLAIN]


def answer_schema(request: Mapping[str, Any]) -> tuple[bool, Any]:
    """Whether a request demands JSON, and the schema of it; None: any JSON."""
    text = _object(request.get("text"))  # its place in the responses API
    demanded = _object(request.get("response_format") or text.get("format"))
    if demanded.get("type") == "json_object":
        return True, None
    if demanded.get("type") == "json_schema":
        inner = _object(demanded.get("json_schema"))
        return True, inner.get("schema", demanded.get("schema"))
    guided = request.get("guided_json", _object(request.get("structured_outputs")).get("json"))
    return guided is not None, guided


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
