"""Calibration from traffic must be worth it, and says what it changes against the fallback.

The candidates answer in sentences, and are right on 90, 83 and 80 % of the questions.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.same_answer import calibrator
from app.same_answer.calibration import refusal_of
from app.same_answer.change import Change, Labels, change_of, consequences, not_worth_it
from app.settings import SameAnswer, Settings
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.rule import AnswerRule
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.fit import fit_policy, tuned_policy
from racer_core.sequential.policy import Policy
from racer_core.types import LabelledRow, LabelledRows
from tests.kit import chat_models
from tests.kit.chat_models import NAMES
from tests.kit.gateway import ADMIN_KEY, DATA_KEY, Gateway, Serve
from tests.kit.monitored import sampled
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

ALPHA = 0.05
ENOUGH = 125  # at alpha 0.05: 100 fit, 25 calibrate


def from_traffic(pool: FakePool, equality: str, fallback: str, **more: Any) -> dict[str, Any]:
    """The configuration of a gateway that calibrates on every request."""
    candidates = [{"name": name, "base_url": pool.url, "timeout_s": 5} for name in NAMES]
    return {
        "calibrated": False,
        "artifact": Path("absent"),
        "candidates": candidates,
        "aggregation": {"equality": equality},
        "same_answer": {"calibrate": "from_traffic"},
        "watching": {"shadow_rate": 1.0},
        "routing": {"fallback": fallback},
        **more,
    }


def progress(gateway: Gateway) -> dict[str, Any]:
    """What any data key is shown, read anew."""
    return gateway.get("/same-answer", ADMIN_KEY).json()["applications"][""]


def holding(gateway: Gateway) -> float:
    """What the metrics say of certificates."""
    return gateway.metric('racer_certificates_hold{application=""}')


def asked(gateway: Gateway, family: str, count: int = ENOUGH) -> None:
    """Questions of one family, all sampled."""
    for each in chat_models.questions(family, count):
        gateway.chat(each.query)
    sampled(gateway, count)


FIT, CALIBRATE, SPARE = 40, 30, 800  # rows of a policy, of a threshold, to draw from


def answered(family: str, equality: Equality) -> AnswerClasses:
    """The stand-ins' answers to questions, with their correctness."""
    asked = [each.query for each in chat_models.questions(family, SPARE)]
    rows = [
        LabelledRow(
            query=query,
            correct=frozenset(name for name in NAMES if chat_models.is_right(name, query)),
            answers={name: chat_models.answer(name, query) for name in NAMES},
        )
        for query in asked
    ]
    found = AnswerClasses.of(
        LabelledRows(pool=NAMES, rows=tuple(rows)),
        AnswerRule(equality=equality),
        [each.encode() for each in asked],
    )
    right = [[name in row.correct for name in NAMES] for row in rows]
    return replace(found, labels=np.array(right))


def settings(fallback: str) -> Settings:
    """A configuration with nothing but candidates."""
    candidates = [{"name": name, "base_url": "http://127.0.0.1:1/v1"} for name in NAMES]
    given = {"schema_version": 1, "candidates": candidates, "routing": {"fallback": fallback}}
    return Settings.model_validate(given)


def policy_of(fitting: AnswerClasses) -> Policy:
    """The policy that these rows fit."""
    return tuned_policy(fit_policy(fitting), fitting, ALPHA, 2)


def refused(
    fallback: str, fitting: AnswerClasses, rows: AnswerClasses, labels: Labels
) -> str | None:
    """Why a calibration is refused."""
    found = SequentialCalibration(policy=policy_of(fitting), answers=rows, salt=b"salt")
    change = change_of(fallback, replace(found, answers=fitting), ALPHA, None, labels)
    given, terms = settings(fallback), SameAnswer(alpha=ALPHA)
    return refusal_of(given, terms, found, fitting, None, change)


def labels_of(rows: AnswerClasses) -> Labels:
    """Those of all rows."""
    assert rows.labels is not None
    return {
        each: dict(zip(NAMES, right, strict=True))
        for each, right in zip(rows.fingerprints, rows.labels.tolist(), strict=True)
    }


@pytest.mark.parametrize("is_labelled", [False, True])
def test_whether_it_is_worth_it_looks_at_no_row_that_calibrates(is_labelled: bool) -> None:
    """For one policy the verdict is the same whatever rows set the threshold; alarm 0.

    Else those calibrations would be left whose threshold is too low by chance.
    """
    answers, rng = answered("numbers", Equality.EXACT), np.random.default_rng(4)
    verdicts = list[set[str | None]]()
    for _ in range(12):
        order = rng.permutation(SPARE)
        fitting = answers.at(order[:FIT])
        labels: Labels = labels_of(fitting) if is_labelled else {}
        samples = (answers.at(rng.choice(order[FIT:], CALIBRATE, replace=False)) for _ in range(10))
        verdicts.append({refused("birch", fitting, rows, labels) for rows in samples})
    assert [len(each) for each in verdicts] == [1] * 12
    found = set[str | None].union(*verdicts)
    assert None in found
    assert any(each is not None and "not worth it" in each for each in found)


def test_labels_tell_what_agreement_cannot() -> None:
    """A policy that labels show to be worse is refused, and one that they show to be better is not.

    Under `exact` most answers that change have one candidate's word for them. Each verdict of
    labels is wrong with a chance of 5 % at most; these samples are fixed.
    """
    answers = answered("letters", Equality.EXACT)
    fitting, rows = answers.at(np.arange(200)), answers.at(np.arange(200, 300))
    assert policy_of(fitting).order[0] == "cedar"  # the worst of them, by 200 rows
    worse = refused("atlas", fitting, rows, labels_of(fitting)) or ""
    assert "not worth it: of 200 requests that are labelled its answers are right on" in worse
    assert "and those of atlas, which answers now, on 9" in worse
    assert "others than those of birch" in (refused("birch", fitting, rows, {}) or "")
    assert fitting.labels is not None
    better = replace(fitting, labels=fitting.labels & np.array([True, False, True]))
    assert refused("birch", fitting, rows, labels_of(better)) is None


def test_a_fallback_that_keeps_the_promise_is_not_replaced_by_more_calls() -> None:
    """Where it gives the vote's answer itself, and a policy would be dearer."""
    change = Change(
        fallback="atlas", calls_now=1, calls=2.1, price=None, differs=0.02, backed=0.02,
        keeps=True, leader="atlas", leader_share=0.98, right=None,
    )  # fmt: skip
    assert "keeps the promise by itself, with 1 call" in (not_worth_it(change, is_vote=True) or "")
    assert not_worth_it(replace(change, keeps=False), is_vote=True) is None
    assert not_worth_it(replace(change, price=0.8), is_vote=True) is None
    assert not_worth_it(change, is_vote=False) is None
    said = consequences(replace(change, price=1.7), 2.3)
    assert said[:2] == ["calls per request 1.0 → 2.3", "price per request × 1.70"]
    assert said[-1].startswith("98% of the answers will be those that atlas gives alone")


@pytest.fixture
def chatting(pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> FakePool:
    """Candidates that chat, before a calibrator that looks often."""
    monkeypatch.setattr(calibrator, "EVERY_S", 0.2)
    monkeypatch.setattr(calibrator, "PROGRESS_S", 0.0)
    monkeypatch.setattr(pool, "answer", chat_models.reply)
    return pool


def test_sentences_under_exact_are_not_worth_it(serve: Serve, chatting: FakePool) -> None:
    """Few are equal, so the vote is one model's word. Red while it certified worse answers."""
    gateway = serve(**from_traffic(chatting, "exact", "birch"))
    asked(gateway, "letters")
    assert until(lambda: "not worth it" in (progress(gateway)["refusal"] or ""), 30)
    refusal = progress(gateway)["refusal"]
    assert "on most of these requests no more candidates give the new answer" in refusal
    assert (
        "the vote is nearly one model: if it is your best one, set `routing.fallback: " in refusal
    )
    answer = gateway.chat("What is 17 plus 25?")
    assert answer["racer"]["certificate"]["reasons"] == ["not_calibrated"]
    assert answer["model"] == "birch"
    ready = gateway.ready()
    assert (ready["calibration"], ready["holds"], ready["reasons"]) == (
        None, False, ["not_calibrated"],
    )  # fmt: skip
    assert ready["standing"] == f"not calibrated, birch answers: {refusal}"
    assert ready["missing"][0]["reason"] == refusal
    assert holding(gateway) == 0.0


def test_what_changes_is_said_before_the_answers_do(
    serve: Serve, chatting: FakePool, caplog: pytest.LogCaptureFixture
) -> None:
    """In one line of the log, in the progress, and in the history; by the rule that fits."""
    gateway = serve(**from_traffic(chatting, "number", "cedar"))
    caplog.set_level(logging.INFO)
    asked(gateway, "numbers")
    assert until(lambda: progress(gateway)["active"], 60), progress(gateway)
    found = gateway.get("/same-answer/progress", DATA_KEY).json()["applications"][""]["decides"]
    (line,) = [each for each in caplog.messages if "is calibrated by" in each]
    assert "alpha 0.05" in line
    for each in found["consequences"]:
        assert each in line
    calls, answers = found["consequences"][:2]
    assert calls == f"calls per request 1.0 → {found['expected_calls']:.1f}"
    assert "of the answers will be others than those of cedar" in answers
    assert found["n"] < 200
    assert f"one in twenty is above {found['risk_q95']:.1%}" in line
    first = gateway.ready()["calibration"]
    assert (gateway.ready()["holds"], holding(gateway)) == (True, 1.0)
    assert gateway.ready()["standing"] == f"certificates of {first} hold (promise same_answer)"
    second = gateway.post("/same-answer/calibrate", ADMIN_KEY).json()["id"]
    assert gateway.ready()["calibration"] == second
    assert gateway.post(f"/same-answer/{first}/activate", ADMIN_KEY).status_code == 200
    ready, reasons = gateway.ready(), gateway.chat("What is 1 plus 2?")["racer"]["certificate"]
    assert (ready["calibration"], ready["holds"], holding(gateway)) == (first, False, 0.0)
    assert ready["reasons"] == reasons["reasons"] == ["chosen_by_figures"]
    active = [each for each in caplog.messages if "is calibrated by" in each]
    assert [first in each for each in active] == [True, False, True]
    assert "void, for it was activated by its id" in active[2]
