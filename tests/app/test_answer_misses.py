"""Calls in rounds by labels: few requests miss a right candidate, of those that have one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from app.same_answer import calibrator as answer_calibrator
from app.settings import Settings
from racer_core.calibration.threshold import allowed_misses
from tests.kit.gateway import ADMIN_KEY, Gateway, Serve, error_message
from tests.kit.lazy import LazyModule
from tests.kit.monitored import add_verdicts, sampled
from tests.kit.same_answer import NAMES, configured
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

if TYPE_CHECKING:
    from scipy import stats
else:
    stats = LazyModule("scipy.stats")

FALSE_ALARM = 1e-6
CHECK = {"function": "tests.kit.checkers:check"}
TERMS = {"alpha": 0.2, "reference": "answerable", "label_wait_s": 0, "evidence": CHECK}
RIGHT = {"ada": 0.8, "bob": 0.7, "cyd": 0.6, "dan": 0.5, "eve": 0.0}
LOST = 5  # samples without all labels


def answer(name: str, question: str) -> str:
    """Right is "0"; nobody knows a tenth of the questions, and wrong answers agree."""
    rng = random.Random(f"{name} {question}")
    is_open = random.Random(question).random() < 0.1
    return "0" if rng.random() < RIGHT[name] and not is_open else str(rng.randint(1, 2))


def correct(question: str) -> dict[str, bool]:
    """The labels of a request."""
    return {name: answer(name, question) == "0" for name in NAMES}


@pytest.fixture
def talking(pool: FakePool) -> Iterator[FakePool]:
    """Candidates that answer by the rule."""
    pool.answer = lambda body: answer(body["model"], body["messages"][-1]["content"])
    yield pool
    pool.answer = lambda _: "42"


def progress(gateway: Gateway) -> dict[str, Any]:
    """That of all requests."""
    return gateway.get("/same-answer", ADMIN_KEY).json()["applications"][""]


def test_labelled_samples_certify_that_few_right_answers_are_missed(
    serve: Serve, talking: FakePool, tmp_path: Path
) -> None:
    """Calls are saved, misses obey their law (false alarm 1e-6), and the watch counts the same."""
    given = configured(talking, same_answer=TERMS, watching={"shadow_rate": 1.0})
    gateway = serve(folder=tmp_path / "gateway", **given)
    questions = [f"question {number}" for number in range(100)]
    ids = [gateway.chat(question)["id"] for question in questions]
    sampled(gateway, 100)
    assert (progress(gateway)["rows"], progress(gateway)["lost"]) == (100, 100)
    refused = gateway.post("/same-answer/calibrate", ADMIN_KEY).json
    assert "hardly any" in refused()["error"]["message"]
    for at, (decision, question) in enumerate(zip(ids, questions, strict=True)):
        if at % 20:
            add_verdicts(gateway, decision, correct(question))
        elif at:
            add_verdicts(gateway, decision, {"ada": correct(question)["ada"]})
    rows = sum(any(correct(each).values()) or not at % 20 for at, each in enumerate(questions))
    assert rows < 95
    assert (progress(gateway)["rows"], progress(gateway)["lost"]) == (rows, LOST)
    result = gateway.post("/same-answer/calibrate", ADMIN_KEY).json()
    assert result["active"], result
    evidence = result["evidence"]
    assert (evidence["rows"], evidence["reference"], evidence["order"][-1]) == (
        rows, "answerable", "eve",
    )  # fmt: skip
    calls = missed = may = 0
    served: dict[str, str] = {}
    for number in range(100, 170):
        question = f"question {number}"
        response = gateway.chat(question)
        certificate, right = response["racer"]["certificate"], correct(question)
        assert certificate["holds"], certificate
        made = {each["candidate"] for each in response["racer"]["calls"] if "ms" in each}
        assert len(made) == certificate["rounds"]["calls"]
        calls += len(made)
        if any(right.values()):
            may += 1
            missed += not any(right[name] for name in made)
        served[response["id"]] = question
    guarantee = certificate["guarantee"]
    assert (guarantee["risk_target"], certificate["n"]) == ("answerable", evidence["n"])
    assert calls < 3.0 * 70
    n = evidence["n"]
    assert evidence["lost"] > 0
    allowed = allowed_misses(n, 0.2)
    law = stats.betabinom.ppf(1.0 - FALSE_ALARM, may, allowed + 1, n - allowed)
    assert missed <= law < may
    sampled(gateway, 170)
    for decision, question in served.items():
        add_verdicts(gateway, decision, correct(question))
    watch = progress(gateway)["watch"]
    assert (watch["sampled"], watch["differing"]) == (may, missed)
    checked = gateway.post(f"/decisions/{response['id']}/verify", ADMIN_KEY)
    assert checked.json()["matches"], checked.text
    # Eve is right on no row; and rows with a right candidate are no sample for the same answer.
    for asked in ({"candidates": ["eve"]}, {"reference": "vote"}, {"reference": "ada"}):
        assert gateway.route("question 1", **asked)["certificate"]["reasons"] == ["not_calibrated"]
    # Younger samples wait for their labels, and samples with labels are another setup's.
    later = configured(
        talking, same_answer=TERMS | {"label_wait_s": 3_600}, watching={"shadow_rate": 1.0}
    )
    assert progress(serve(folder=tmp_path / "gateway", **later))["rows"] == 0
    plain = TERMS | {"reference": "vote"}
    without = serve(folder=tmp_path / "gateway", **given | {"same_answer": plain})
    assert progress(without)["rows"] == 0
    assert without.route("question 1")["certificate"]["reasons"] == ["not_calibrated"]
    unknown = without.ask("question 1", {"reference": "answerable"})
    assert "no candidate 'answerable'" in error_message(unknown, 400)


def test_it_calibrates_itself_as_labels_arrive(
    serve: Serve, talking: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it says how many rows lack labels; some that still lack them do no harm."""
    monkeypatch.setattr(answer_calibrator, "EVERY_S", 0.1)
    section = {"alpha": 0.3, "reference": "answerable", "label_wait_s": 0}
    section |= {"calibrate": "from_traffic"}
    watching = {"shadow_rate": 1.0, "false_alarm": None}
    gateway = serve(**configured(talking, same_answer=section, watching=watching))
    questions = [f"question {number}" for number in range(60)]
    ids = [gateway.chat(question)["id"] for question in questions]
    sampled(gateway, 60)
    assert until(lambda: "labelled" in (progress(gateway)["refusal"] or ""), 30)
    for decision, question in list(zip(ids, questions, strict=True))[:25]:
        add_verdicts(gateway, decision, correct(question))
    refused = gateway.post("/same-answer/calibrate", ADMIN_KEY, json={"dry_run": True}).json()
    assert "35 of " in refused["refusal"]
    assert "rows lack labels or answers" in refused["refusal"]
    for decision, question in list(zip(ids, questions, strict=True))[25:]:
        add_verdicts(gateway, decision, correct(question))
    for number in range(60, 70):
        gateway.chat(f"question {number}")
    assert until(lambda: gateway.route("question 1")["certificate"]["holds"], 30), progress(gateway)


def test_no_candidate_is_called_like_the_labels() -> None:
    """Its name would say two things."""
    candidate = {"name": "answerable", "base_url": "http://127.0.0.1:9/v1"}
    document = {
        "schema_version": 1,
        "candidates": [candidate],
        "aggregation": {"equality": "exact"},
        "same_answer": {"reference": "answerable"},
    }
    with pytest.raises(ValidationError, match="rename the candidate"):
        Settings.model_validate(document)
