"""Figures of a comparison: computed within rounds, then as medians over rounds."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.verdict import (
    PINNED_ONLY,
    WITH_TORCH,
    Arm,
    Goal,
    added,
    details,
    goals,
    markdown,
    per_letter,
    ratio,
    typical,
)

MACHINE = [1.0, 3.0, 0.5, 2.0]  # how fast it was, round by round
BEYOND = {
    "goodput": 90.0,
    "sent": 200,
    "refused": 50,
    "errors": 0,
    "p99_ms": 9.0,
    "refused_p99_ms": 1.0,
    "late_p99_ms": 0.1,
}


def a_round(speed: float, rate: float, added_ms: float, letter_us: float) -> dict[str, Any]:
    """One round of an arm on a machine of some speed."""
    open_loop = {f"p{each}_ms": 1 / speed + added_ms for each in (50, 95, 99)}
    streams = {
        name: {
            "first_p50_ms": 1 + added_ms,
            "first_p99_ms": 2 + added_ms,
            "cpu_ms": 5 + letters * letter_us / 1e3,
            "letters": letters,
        }
        for name, letters in (("short", 10.0), ("long", 100.0))
    }
    closed = {"rate": rate * speed, "cpu_ms": 1e3 / rate, "of_core": 1.0}
    return {"closed": closed, "open": open_loop, **streams}


def an_arm(rate: float, added_ms: float = 0.0, letter_us: float = 0.0) -> dict[str, Any]:
    """Its rounds, and what came after them."""
    knee = [{"clients": 1, "goodput": 50.0}, {"clients": 2, "goodput": 100.0}]
    return {
        "rounds": [a_round(speed, rate, added_ms, letter_us) for speed in MACHINE],
        "knee": knee,
        "capacity": 100.0,
        "beyond": BEYOND,
        "slope_kib": [1.0, 0.5, 1.5],
    }


def a_document(**changes: dict[str, Any] | None) -> dict[str, Any]:
    """All arms, each aim met; ``changes`` by the arms' names, None leaves one out."""
    arms = {
        "DIRECT": an_arm(9_000),
        "BARE_1": an_arm(4_000, 0.2, 10),
        "BARE_3": an_arm(1_800, 0.4, 10),
        "LITELLM": an_arm(100, 8, 300),
        "PINNED": an_arm(3_700, 0.3, 20),
        "ROUTE": an_arm(4_000, 0.2, 0),
        "SET_1": an_arm(2_900, 0.4, 30),
        "SET_2": an_arm(2_000, 0.6, 5),
        "SET_3": an_arm(1_700, 0.9, 5),
        **changes,
    }
    for name in ("BARE_3", "ROUTE"):
        for each in (arms[name] or {"rounds": []})["rounds"]:
            del each["short"], each["long"]
    return {
        "manifest": {
            "commit": "abc",
            "taken_at": "2026-02-01T00:00:00Z",
            "command": "python benchmarks/compare.py",
            "processor": "a processor",
            "cores": 2,
            "load_average": [0.1, 0.1, 0.1],
            "python": "3.11",
            "settings": {"litellm": "1.0" if arms["LITELLM"] else None},
        },
        "beyond": 1.5,
        "requests": 20_000,
        "starts": {
            "bare": {"ready_s": 1.0, "rest_mib": 44.0},
            PINNED_ONLY: {"ready_s": 1.0, "rest_mib": 100.0},
            WITH_TORCH: {"ready_s": 5.0, "rest_mib": 400.0},
        },
        "arms": {Arm[name]: arm for name, arm in arms.items() if arm is not None},
        "wrong": {},
    }


def test_a_machine_that_is_fast_and_slow_by_turns_changes_no_ratio() -> None:
    """Ratios and differences are taken within a round; medians of each arm alone would differ."""
    document = a_document()
    assert ratio(document, Arm.SET_1, Arm.LITELLM) == pytest.approx(29)
    assert ratio(document, Arm.SET_3, Arm.BARE_3) == pytest.approx(17 / 18)
    rounds = document["arms"][Arm.SET_1]["rounds"]
    rounds[0]["closed"]["rate"] *= 100  # one round in four gone mad
    assert ratio(document, Arm.SET_1, Arm.LITELLM) == pytest.approx(29)


@given(added_ms=st.lists(st.floats(0, 100), min_size=4, max_size=4))
def test_the_overhead_is_the_median_of_the_rounds_differences(added_ms: list[float]) -> None:
    """Against an arm of its own in every round."""
    document = a_document()
    pairs = zip(
        document["arms"][Arm.SET_1]["rounds"],
        document["arms"][Arm.DIRECT]["rounds"],
        added_ms,
        strict=True,
    )
    for ours, direct, more in pairs:
        ours["open"]["p50_ms"] = direct["open"]["p50_ms"] + more
    expected = sum(sorted(added_ms)[1:3]) / 2
    assert added(document, Arm.SET_1, "open", "p50_ms") == pytest.approx(expected, abs=1e-9)


def test_an_arm_that_was_not_measured_has_no_figure() -> None:
    """Neither an arm that is left out nor a cell that it has not."""
    document = a_document(LITELLM=None)
    assert math.isnan(ratio(document, Arm.SET_1, Arm.LITELLM))
    assert math.isnan(typical(document, Arm.LITELLM, "closed", "rate"))
    assert math.isnan(per_letter(document, Arm.ROUTE))


@pytest.mark.parametrize(
    ("seen", "least", "verdict"),
    [
        (1.0, False, "met"),
        (1.01, False, "MISSED"),
        (1.0, True, "met"),
        (0.99, True, "MISSED"),
        (math.nan, True, "not measured"),
        (math.nan, False, "not measured"),
    ],
)
def test_an_aim_is_met_at_its_bound(seen: float, least: bool, verdict: str) -> None:
    """And what was not measured is not met."""
    assert Goal("an aim", seen, 1.0, least).verdict == verdict


def test_every_aim_can_be_missed_alone() -> None:
    """Each by the figure that it is named after."""
    assert {each.verdict for each in goals(a_document())} == {"met"}
    slower = a_document(
        PINNED=an_arm(3_500, 0.3, 20),
        SET_1=an_arm(1_900, 0.9, 30),
        SET_3=an_arm(1_600, 1.1, 5),
    )
    missed = [each.name for each in goals(slower) if each.verdict == "MISSED"]
    assert missed == [
        "throughput, `racer, pinned model` / `bare x1`",
        "throughput, `racer, set of 1` / `bare x1`",
        "throughput, `racer, set of 3` / `bare x3`",
        "throughput, `racer, set of 1` / `LiteLLM`",
        "p50 more than `bare x1`, `racer, set of 1`, 60/s",
        "p50 more than `bare x3`, `racer, set of 3`, 60/s",
        "first token's p50 more than `bare x1`, 25/s",
    ]
    late = [each["open"] for each in slower["arms"][Arm.SET_1]["rounds"]]
    for each in late:
        each["p99_ms"] += 1.5
    assert "p99 more than `bare x1`, `racer, set of 1`, 60/s" in {
        each.name for each in goals(slower) if each.verdict == "MISSED"
    }
    streaming = a_document(SET_1=an_arm(2_900, 0.4, 45), ROUTE=an_arm(4_000, 0.6, 0))
    missed = [each.name for each in goals(streaming) if each.verdict == "MISSED"]
    assert missed == [
        "CPU per letter more than `direct`",
        "cached decision: added p50, `racer, route only`, 60/s",
    ]
    started = {PINNED_ONLY: {"rest_mib": 144.0}, WITH_TORCH: {"ready_s": 6.1}}
    slow = goals(a_document() | {"starts": started})[-2:]
    assert WITH_TORCH in slow[0].name
    assert PINNED_ONLY in slow[1].name
    assert {each.verdict for each in slow} == {"MISSED"}
    assert {each.verdict for each in goals(a_document() | {"starts": {}})[-2:]} == {"not measured"}


def test_the_tables_have_all_arms_and_as_many_cells_in_every_row() -> None:
    """With LiteLLM, and without it, which the page then states."""
    for document in (a_document(), a_document(LITELLM=None)):
        text = f"{markdown(document)}\n{details(document)}"
        for block in text.split("\n\n"):
            rows = [line for line in block.splitlines() if line.startswith("|")]
            assert len({row.count("|") for row in rows}) <= 1
        arms = set(document["arms"])
        assert all(f"\n| {arm} |" in text for arm in arms)
        assert "nan" not in text
    assert "no LiteLLM, which was not installed" in text
    assert "| racer, set of 1 | 4,350 | 100% | 0.345 | 0.72 | – |" in text
    assert "| racer, set of 1 | 100 (2) | 90% | 25.0% | 0 | 9; 1 | 1 (0 to 2) |" in text
