"""Coverage: which of the last requests were certified, and what the others have in common.

It begins anew with each calibration. It is in the memory of this process alone, and holds shapes
and counts, no content.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.routing.conditions import ROWS, ConditionReader
from app.routing.query import Query
from app.routing.reasons import Reason
from app.routing.shapes import Shape, shape_id, shape_of
from racer_core.calibration.certificate import base_reason

KEPT: Final = 1_000  # requests of each application
SHOWN: Final = 20  # shapes of each application, those of most requests
QUESTIONS: Final = "questions.jsonl"
_ROWS: Final = "certified.jsonl"
# Reasons that rows with the request's shape cure.
_CURED_BY_ROWS: Final = frozenset(
    [Reason.CONDITIONS_DIFFER, Reason.MULTI_TURN, Reason.UNLABELLED_KIND]
)
# Reasons that end with a new calibration, or with the request.
_BESIDE: Final = frozenset(
    [Reason.ABSTAINED_STRONGEST, Reason.STALE, Reason.CHOSEN_BY_FIGURES, Reason.CANDIDATE_FAILED]
)
_DRAW: Final = (
    "give these requests an application with `premise: drawn` and a `shadow_rate`, label its "
    "sample, and run `racer calibrate --from-shadow` (docs/live-traffic.md)"
)
_CURES: Final[Mapping[Reason, str]] = {
    Reason.NOT_CALIBRATED: "GET /readyz says what is missing, and which command comes next",
    Reason.STALE: "racer calibrate ROWS, with rows that are labelled anew",
    Reason.CHOSEN_BY_FIGURES: "racer calibrate ROWS, with fresh rows",
    Reason.REFERENCE_UNAVAILABLE: "repair the reference",
    Reason.CANDIDATE_FAILED: "repair the candidate: `calls` in the answers says how it failed",
}
ERRORS: Final = "docs/reference/errors.md"


@dataclass(frozen=True, slots=True)
class _Kind:
    """Requests that are void for the same reasons.

    Attributes:
        shape: Their shape; None: it is not why they are void.
        reasons: The reasons, without what they name.
    """

    shape: str | None
    reasons: tuple[str, ...]


@dataclass(slots=True)
class _Memory:
    """The last requests of one application: None for a certified one."""

    kinds: deque[_Kind | None] = field(default_factory=lambda: deque(maxlen=KEPT))
    shapes: dict[str, Shape] = field(default_factory=dict[str, Shape])

    def add(self, kind: _Kind) -> None:
        """Add a request; forget the oldest, and shapes that no request has any more."""
        self.kinds.append(kind)
        if len(self.shapes) > KEPT:
            left = {each.shape for each in self.kinds if each is not None}
            self.shapes = {name: each for name, each in self.shapes.items() if name in left}


class Coverage:
    """Remembers the last requests since the active calibration, and shapes from before.

    Args:
        conditions: Reads what candidates are sent, but for the query.

    Attributes:
        memories: What is remembered, by application.
    """

    def __init__(self, conditions: ConditionReader) -> None:
        self._conditions = conditions
        self.memories = defaultdict[str | None, _Memory](_Memory)

    def begin(self) -> None:
        """Begin anew: another calibration decides from now on. Called on any thread."""
        for each in list(self.memories.values()):
            each.kinds.clear()

    def add_certified(self, application: str | None) -> None:
        """Remember an answered request whose certificate holds.

        Args:
            application: Its application; None: none is configured.
        """
        self.memories[application].kinds.append(None)

    def add_void(
        self,
        application: str | None,
        query: Query,
        fields: Mapping[str, Any],
        path: str,
        void_reasons: Sequence[str],
    ) -> None:
        """Remember an answered request whose certificate is void.

        Args:
            application: Its application; None: none is configured.
            query: Its query.
            fields: The fields of its body that candidates are sent.
            path: The endpoint of candidates to which it went.
            void_reasons: Why its certificate is void.
        """
        memory = self.memories[application]
        shape = None
        named: Iterable[str]
        if is_cured_by_rows(void_reasons, application):
            shape = shape_id(query.conditions, path, later=query.later)
            if shape not in memory.shapes:
                memory.shapes[shape] = shape_of(
                    query.conditions,
                    self._conditions.parts(fields, path),
                    fields,
                    path,
                    later=query.later,
                )
            named = (each for each in void_reasons if base_reason(each) not in _BESIDE)
        else:
            named = map(base_reason, void_reasons)
        memory.add(_Kind(shape, tuple(dict.fromkeys(named))))

    def as_json(self) -> dict[str, Any]:
        """The wire form of everything."""
        found = [_report(name, each) for name, each in sorted(self.memories.items(), key=_order)]
        requests = sum(each["requests"] for each in found)
        certified = sum(each["certified"] for each in found)
        return {
            "requests": requests,
            "certified": certified,
            "share": _share(certified, requests),
            "kept": KEPT,
            "applications": found,
        }


def is_cured_by_rows(void_reasons: Collection[str], application: str | None = None) -> bool:
    """Whether rows of the request's shape would certify requests like it."""
    if Reason.CONDITIONS_DIFFER.of(ROWS) in void_reasons:
        return False
    found = set(map(base_reason, void_reasons))
    cured = set(_CURED_BY_ROWS)
    if application is not None:  # rows name the application; no shape tells another group
        cured.add(Reason.GROUP_UNCALIBRATED)
    return bool(found & cured) and found <= cured | _BESIDE


def label_command(shapes: Iterable[Shape], application: str | None = None) -> str:
    """The commands that certify requests of these shapes."""
    shapes = list(shapes)
    likes = [f"--like {each.id}" for each in shapes]
    contents: dict[str, dict[str, None]] = {}  # name -> digests
    for each in shapes:
        for part in each.fields:
            if part.value is None:
                kind = "system" if part.is_system_prompt else part.name
                contents.setdefault(kind, {})[part.digest] = None
    files = [
        _file(name, str(number) if len(digests) > 1 else "")
        for name, digests in contents.items()
        for number in range(1, len(digests) + 1)
    ]
    words = ["racer label", QUESTIONS, *likes, *files, f"--out {_ROWS}"]
    own = f" --application {application}" if application not in (None, "default") else ""
    return f"{' '.join(words)} && racer calibrate {_ROWS}{own}"


def _file(name: str, number: str) -> str:
    """The option that brings what a digest stands for."""
    if name == "system":
        return f"--system prompt{number}.txt"
    if name == "tools":
        return f"--tools tools{number}.json"
    return f"--field {name}=@{name}{number}.json"


def _report(application: str | None, memory: _Memory) -> dict[str, Any]:
    kinds = Counter(memory.kinds.copy())  # which a thread may clear
    certified = kinds.pop(None, 0)
    others = [(kind, count) for kind, count in kinds.most_common(SHOWN) if kind is not None]
    whole = [
        memory.shapes[kind.shape]
        for kind, _ in others
        if kind.shape is not None and memory.shapes[kind.shape].is_whole
    ]
    whole = list({each.id: each for each in whole}.values())
    shown = {kind.shape for kind, _ in others}
    earlier = [each for name, each in memory.shapes.items() if name not in shown]
    return {
        "application": application,
        "requests": len(memory.kinds),
        "certified": certified,
        "share": _share(certified, len(memory.kinds)),
        "command": label_command(whole, application) if whole else None,
        "others": [
            _kind_as_json(kind, count, memory.shapes, application) for kind, count in others
        ],
        "earlier": [each.as_json() | {"what": str(each)} for each in earlier[-SHOWN:]],
    }


def _kind_as_json(
    kind: _Kind, count: int, shapes: Mapping[str, Shape], application: str | None
) -> dict[str, Any]:
    found: dict[str, Any] = {"requests": count, "reasons": kind.reasons}
    if kind.shape is None:
        cures = (cure for name, cure in _CURES.items() if name in kind.reasons)
        advice = next(cures, f"see {kind.reasons[0]} in {ERRORS}")
        return {**found, "shape": None, "what": ", ".join(kind.reasons), "command": advice}
    shape = shapes[kind.shape]
    command = label_command([shape], application) if shape.is_whole else _DRAW
    return {**found, **shape.as_json(), "what": str(shape), "command": command}


def _share(certified: int, requests: int) -> float | None:
    return certified / requests if requests else None


def _order(item: tuple[str | None, object]) -> str:
    return item[0] or ""
