"""Statistics and tables of a comparison: medians, ratios, targets, Markdown.

Pure functions of the document that `compare.py` writes. Every difference and ratio is taken within
a round, in which both arms ran one after the other; the reported figure is the median of rounds.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

Document = Mapping[str, Any]


class Arm(StrEnum):
    """A way to get an answer; the compared systems."""

    DIRECT = "direct"
    BARE_1 = "bare x1"
    BARE_3 = "bare x3"
    LITELLM = "LiteLLM"
    PINNED = "racer, pinned model"
    ROUTE = "racer, route only"
    SET_1 = "racer, set of 1"
    SET_2 = "racer, set of 2"
    SET_3 = "racer, set of 3"


OURS = (Arm.PINNED, Arm.ROUTE, Arm.SET_1, Arm.SET_2, Arm.SET_3)
PINNED_ONLY, WITH_TORCH = "racer, no router", "racer, the demo's encoder (torch)"
# The bare proxy that makes as many calls.
FLOOR = {Arm.PINNED: Arm.BARE_1, Arm.SET_1: Arm.BARE_1, Arm.SET_3: Arm.BARE_3}


@dataclass(frozen=True, slots=True)
class Goal:
    """A measured figure and its target.

    Attributes:
        seen: The figure; NaN: not measured.
        least: The bound is a minimum, else a maximum.
    """

    name: str
    seen: float
    bound: float
    least: bool = False
    unit: str = ""

    @property
    def verdict(self) -> str:
        """Whether the target is met, as a word."""
        if math.isnan(self.seen):
            return "not measured"
        return (
            "met"
            if (self.seen >= self.bound if self.least else self.seen <= self.bound)
            else "MISSED"
        )


def typical(document: Document, arm: Arm, cell: str, figure: str) -> float:
    """The median over rounds; NaN if not measured."""
    return _median(_rounds(document, arm, cell, figure))


def added(
    document: Document, arm: Arm, cell: str, figure: str, *, beside: Arm = Arm.DIRECT
) -> float:
    """The median difference to another arm, else to the candidates called directly."""
    pairs = _pairs(document, arm, beside, cell, figure)
    return _median([one - other for one, other in pairs])


def ratio(document: Document, arm: Arm, other: Arm) -> float:
    """The median ratio of throughputs."""
    pairs = _pairs(document, arm, other, "closed", "rate")
    return _median([one / other for one, other in pairs])


def per_letter(document: Document, arm: Arm) -> float:
    """CPU microseconds for one letter of a stream: long streams minus short ones, by letters."""
    long, short = (
        list(
            zip(
                *(_rounds(document, arm, cell, each) for each in ("cpu_ms", "letters")), strict=True
            )
        )
        for cell in ("long", "short")
    )
    return _median(
        [
            1e3 * (cpu - less) / (letters - fewer)
            for (cpu, letters), (less, fewer) in zip(long, short, strict=True)
        ]
    )


def goals(document: Document) -> list[Goal]:
    """All targets, each a ratio or a difference within one run."""
    times = [
        Goal(f"throughput, `{arm}` / `{other}`", ratio(document, arm, other), bound, True, " x")
        for arm, other, bound in (
            (Arm.PINNED, Arm.BARE_1, 0.9),
            (Arm.SET_1, Arm.BARE_1, 0.7),
            (Arm.SET_3, Arm.BARE_3, 0.9),
            (Arm.SET_1, Arm.LITELLM, 20),
        )
    ]
    delays = [
        Goal(
            f"{figure} more than `{FLOOR[arm]}`, `{arm}`, 60/s",
            added(document, arm, "open", f"{figure}_ms", beside=FLOOR[arm]),
            most,
            unit=" ms",
        )
        for arm in (Arm.SET_1, Arm.SET_3)
        for figure, most in (("p50", 0.6), ("p99", 2))
    ]
    first = added(document, Arm.SET_1, "short", "first_p50_ms", beside=Arm.BARE_1)
    letter = per_letter(document, Arm.SET_1) - per_letter(document, Arm.DIRECT)
    again = added(document, Arm.ROUTE, "open", "p50_ms")
    ready_s = _started(document, WITH_TORCH, "ready_s")
    rest_mb = _started(document, PINNED_ONLY, "rest_mib") * 2**20 / 1e6
    return [
        *times,
        *delays,
        Goal(f"first token's p50 more than `{Arm.BARE_1}`, 25/s", first, 0.6, unit=" ms"),
        Goal(f"CPU per letter more than `{Arm.DIRECT}`", letter, 35, unit=" µs"),
        Goal(f"cached decision: added p50, `{Arm.ROUTE}`, 60/s", again, 0.5, unit=" ms"),
        Goal(f"start, `{WITH_TORCH}`", ready_s, 6, unit=" s"),
        Goal(f"memory at rest, `{PINNED_ONLY}`", rest_mb, 150, unit=" MB"),
    ]


def markdown(document: Document) -> str:
    """Provenance, targets, throughput, and the picture."""
    parts = [
        _provenance(document),
        aims(goals(document)),
        _throughput(document),
        "![Throughput, and what is added](figures/gateway.png)\n",
    ]
    return "\n".join(parts)


def details(document: Document) -> str:
    """Provenance, and the tables of streams, overload and starts."""
    parts = [_provenance(document), _streams(document), _load(document), _starts(document)]
    return "\n".join(parts)


def _provenance(document: Document) -> str:
    manifest = document["manifest"]
    litellm = manifest["settings"]["litellm"]
    peer = f"LiteLLM {litellm}" if litellm else "no LiteLLM, which was not installed"
    day = manifest["taken_at"].partition("T")[0]
    return (
        f"`{manifest['command']}` at {manifest['commit']}, {day}: {manifest['processor']}, "
        f"{manifest['cores']} cores, load {manifest['load_average'][0]:.1f} at start; "
        f"Python {manifest['python']}, {peer}.\n"
    )


def _throughput(document: Document) -> str:
    def row(arm: Arm) -> list[str]:
        figures = ("p50_ms", "p95_ms", "p99_ms")
        of = typical if arm is Arm.DIRECT else added
        floor, litellm = FLOOR.get(arm), arm in OURS or arm in (Arm.BARE_1, Arm.BARE_3)
        return [
            arm,
            number(typical(document, arm, "closed", "rate"), 0),
            f"{typical(document, arm, 'closed', 'of_core'):.0%}",
            number(typical(document, arm, "closed", "cpu_ms"), 3),
            number(ratio(document, arm, floor), 2) if floor else "",
            number(ratio(document, arm, Arm.LITELLM), 1) if litellm else "",
            ", ".join(number(of(document, arm, "open", each), 2) for each in figures),
        ]

    head = (
        "requests/s, 16 connections",
        "of its core",
        "CPU, ms a request",
        "x bare",
        "x LiteLLM",
        "added p50, p95, p99 at 60/s, ms",
    )
    return table(("plain answers", *head), map(row, _measured(document, "closed")))


def _streams(document: Document) -> str:
    def row(arm: Arm) -> list[str]:
        of = typical if arm is Arm.DIRECT else added
        first = [of(document, arm, "short", f"first_{each}_ms") for each in ("p50", "p99")]
        return [
            arm,
            ", ".join(number(each, 2) for each in first),
            number(per_letter(document, arm), 0),
        ]

    head = ("streams at 25/s", "first token: added p50, p99, ms", "CPU, µs a letter")
    return table(head, map(row, _measured(document, "short")))


def _load(document: Document) -> str:
    def row(arm: Arm) -> list[str]:
        found = document["arms"][arm]
        peak, beyond, slope = found["capacity"], found["beyond"], found["slope_kib"]
        busiest = max(found["knee"], key=lambda each: each["goodput"])
        late = " (generator late)" if beyond["late_p99_ms"] > LATE_MS else ""
        return [
            arm,
            f"{peak:.0f} ({busiest['clients']})",
            f"{beyond['goodput'] / peak:.0%}{late}",
            f"{beyond['refused'] / max(1, beyond['sent']):.1%}",
            f"{beyond['errors']}",
            f"{number(beyond['p99_ms'], 0)}; {number(beyond['refused_p99_ms'], 0)}",
            f"{slope[0]:.0f} ({slope[1]:.0f} to {slope[2]:.0f})",
        ]

    head = (
        "under load",
        "knee, requests/s (connections)",
        f"at {document['beyond']} x the knee: answered / knee",
        "refused with `retry-after`",
        "errors",
        "p99 of answers; of refusals, ms",
        f"memory growth over {document['requests']:,} requests, KiB per 1,000 (95 %)",
    )
    arms = [arm for arm in Arm if "beyond" in document["arms"].get(arm, {})]
    return table(head, map(row, arms))


LATE_MS = 10.0  # p99 lateness of the generator above which it limits the figures


def _started(document: Document, process: str, figure: str) -> float:
    return document["starts"].get(process, {}).get(figure, math.nan)


def _starts(document: Document) -> str:
    rows = (
        [name, number(each["ready_s"], 1), number(each["rest_mib"], 0)]
        for name, each in document["starts"].items()
    )
    return table(("process", "start to first answer, s", "memory at rest, MiB"), rows)


def aims(found: Sequence[Goal]) -> str:
    """The table of targets."""

    def row(goal: Goal) -> list[str]:
        sign = "≥" if goal.least else "≤"
        seen = f"{number(goal.seen, 2)}{goal.unit}"
        return [goal.name, seen, f"{sign} {goal.bound:g}{goal.unit}", goal.verdict]

    return table(("figure", "measured", "target", ""), map(row, found))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _measured(document: Document, cell: str) -> list[Arm]:
    arms = document["arms"]
    return [arm for arm in Arm if arm in arms and cell in arms[arm]["rounds"][0]]


def _rounds(document: Document, arm: Arm, cell: str, figure: str) -> list[float]:
    rounds = document["arms"].get(arm, {}).get("rounds", ())
    return [each[cell][figure] for each in rounds if cell in each]


def _pairs(
    document: Document, arm: Arm, other: Arm, cell: str, figure: str
) -> list[tuple[float, float]]:
    one, two = (_rounds(document, each, cell, figure) for each in (arm, other))
    return list(zip(one, two, strict=True)) if one and two else []


def _median(values: Sequence[float]) -> float:
    return median(values) if values else math.nan


def number(value: float, digits: int) -> str:
    """A number with a fixed number of digits; NaN is a dash."""
    return "–" if math.isnan(value) else f"{value:,.{digits}f}"
