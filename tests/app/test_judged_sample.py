"""Shadow rows with a judge's verdicts: labels on a random part of them, and one judge."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.monitoring.samples.record import Sample, SampledDecision
from app.monitoring.samples.rows import choose_verdicts
from app.tools.labelling import judge
from app.tools.labelling.judge import judge_candidate, judge_version
from racer_core.calibration.judge_correction import Parts, corrected_thresholds
from racer_core.errors import InputError
from racer_core.types import BoolArray
from tests.core.laws import assert_at_most
from tests.kit.judges import Population, errors, losses, population, verdicts
from tests.kit.monitored import POOL, calibration_record, decision_record, exported

FALSE_ALARM = 1e-6
DRAWS, ROWS, LABELLED, REJECTED, ALPHA, DELTA = 30, 800, 60, 0.3, 0.2, 0.1
DECISION = decision_record(calibration_record(), [0.9, 0.5, 0.1], shadow_rate=1.0)
DIGESTS = {name: "0" * 32 for name in POOL}


def world() -> Population:
    """Queries to three candidates."""
    found = population(20_000)
    return Population(found.difficulty, found.nonconformity[:, :3], found.labels[:, :3])


def decision(
    number: int, *, correct: Sequence[bool] | None = None, **judgements: Sequence[bool]
) -> SampledDecision:
    """A sampled decision; its id begins with its place in time and ends at random."""
    name = f"chatcmpl-{number:012x}{secrets.token_hex(10)}"
    return SampledDecision(
        decision=replace(DECISION, decision_id=name, group_by="request"),
        sample=Sample(
            decision_id=name,
            application=None,
            later=False,
            conversation=None,
            classes=dict.fromkeys(POOL),
            digests=DIGESTS,
            whole=True,
        ),
        correct={} if correct is None else dict(zip(POOL, map(bool, correct), strict=True)),
        judgements={
            judge: dict(zip(POOL, map(bool, each), strict=True))
            for judge, each in judgements.items()
        },
    )


def offered(sampled: Sequence[SampledDecision]) -> list[int]:
    """The numbers of the decisions, in the order in which people see them."""
    return sorted(range(len(sampled)), key=lambda i: sampled[i].decision.decision_id[-20:])


def labels_of(rows: Sequence[dict[str, Any]]) -> BoolArray:
    """Which rows have a label."""
    return np.array(["correct" in row for row in rows])


def threshold(
    where: Population, places: Any, rows: Sequence[dict[str, Any]], rng: np.random.Generator
) -> float:
    """The corrected threshold of exported rows of these queries."""
    scores = where.nonconformity[places]
    no = dict.fromkeys(POOL, False)
    people = np.array([[*row.get("correct", no).values()] for row in rows])
    judge = np.array([[*row["judged"].values()] for row in rows])
    prints = [rng.bytes(16) for _ in rows]
    parts = Parts.of(prints, labels_of(rows), np.ones(len(rows), bool))
    found = corrected_thresholds(
        losses(scores, people),
        losses(scores, judge),
        parts,
        np.array([ALPHA]),
        DELTA,
        nonconformity=scores,
    )
    return float(found.thresholds[0])


def test_labels_that_the_gateway_gave_itself_do_not_break_the_bound() -> None:
    """Three tenths of the requests are refused by all candidates, and labelled so without a person.

    People label the first others in the order in which they are offered. Risks exceed alpha in at
    most delta of the draws; false-alarm probability 1e-6. With all labels 23 of 30 exceed it.
    """
    where, rng = world(), np.random.default_rng(5)
    wrong = errors("lenient 0.3", where)
    broken = 0
    for _ in range(DRAWS):
        places = rng.integers(0, len(where.labels), ROWS)
        rejected = rng.random(ROWS) < REJECTED
        labels = where.labels[places] & ~rejected[:, None]
        judged = verdicts(labels, (wrong[0][places], wrong[1][places]), rng)
        judged &= ~rejected[:, None]
        sampled = [decision(i, j=each) for i, each in enumerate(judged)]
        by_people = [i for i in offered(sampled) if not rejected[i]][:LABELLED]
        for i in {*by_people, *np.flatnonzero(rejected).tolist()}:
            correct = dict(zip(POOL, labels[i].tolist(), strict=True))
            sampled[i] = replace(sampled[i], correct=correct)
        broken += where.risk(threshold(where, places, exported(sampled), rng)) > ALPHA
    assert_at_most(broken, DRAWS, DELTA, FALSE_ALARM)


def test_labels_stay_on_the_first_rows() -> None:
    """In the order in which people see them: up to one without a label, or as many as fixed."""
    yes = (True, True, False)
    sampled = [decision(i, correct=yes, j=yes) for i in range(8)]
    order = offered(sampled)
    first_three = [True] * 3 + [False] * 5
    assert labels_of(exported(sampled, labels=3))[order].tolist() == first_three
    sampled[order[3]] = replace(sampled[order[3]], correct={})
    rows = exported(sampled)
    assert labels_of(rows)[order].tolist() == first_three
    assert all(row.get("unlabelled", False) == ("correct" not in row) for row in rows)
    assert {row["judge"] for row in rows} == {"j"}
    assert labels_of(exported(sampled, judge="")).sum() == 7
    assert labels_of(exported(sampled, labels=3)).sum() == 3
    with pytest.raises(InputError, match=r"of the first 4 judged rows .* row 4 has no label"):
        exported(sampled, labels=4)
    assert labels_of(exported(sampled, labels=4, judge="")).sum() == 7  # beside no verdicts


def test_rows_carry_the_verdicts_of_one_judge() -> None:
    """The one that is named, else the one with most; a row without them is an unlabelled miss."""
    yes, no = (True, True, True), (False, False, False)
    sampled = [decision(0, a=yes, b=no), decision(1, b=no), decision(2, correct=yes, a=yes)]
    sampled += [decision(3, b=no), decision(4, correct=yes)]
    rows = exported(sampled)
    assert [row.get("judge") for row in rows] == ["b", "b", None, "b", None]
    assert all(row["judged"] == dict.fromkeys(POOL, False) for row in rows if "judge" in row)
    assert [row.get("unlabelled") for row in rows] == [True] * 5
    named = exported(sampled, judge="a")
    assert [row.get("judge") for row in named] == ["a", None, "a", None, None]
    assert "judged" not in str(exported(sampled, judge="unknown"))
    alone = exported(sampled, judge="")
    assert labels_of(alone).tolist() == [False, False, True, False, True]


def test_a_judge_with_another_prompt_or_other_parameters_is_another_judge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its errors are others; the server's place changes nothing."""
    first = judge_candidate("http://judge/v1", "model")
    name = judge_version(first)
    assert name.startswith("model@")
    assert name == judge_version(judge_candidate("http://other/v1", "model"))
    warm = first.model_copy(update={"parameters": {"temperature": 1}})
    assert judge_version(warm) != name

    def strict(*_: object) -> str:
        return "Be strict."

    monkeypatch.setattr(judge, "judge_prompt", strict)
    assert judge_version(first) != name


def test_what_arrives_during_an_export_waits_for_the_next() -> None:
    """A row or a label that came after the choice would be no random part of the rows."""
    rows: list[dict[str, Any]] = [
        {"decision_id": f"chatcmpl-{number}", "judged": {"j": {}}, "correct": {}}
        for number in range(3)
    ]
    del rows[1]["correct"]
    chosen = choose_verdicts(rows, "j")
    assert chosen is not None
    rows[1]["correct"] = {}
    late = chosen.row(rows[1])
    assert late is not None
    assert late["unlabelled"]
    assert "correct" not in late
    assert chosen.row({"decision_id": "chatcmpl-9", "judged": {"j": {}}, "correct": {}}) is None
