"""The promise `same_answer` by meaning, and by labels: what counts as the answer of a request."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pydantic import ValidationError

from app.monitoring.decisions.store import DecisionStore
from app.monitoring.verification import verify_sequence
from app.routing.conditions import ConditionReader
from app.routing.rounds_plan import RoundsTerms, fitted
from app.same_answer import calibrator
from app.same_answer.calibrations import answer_setup
from app.settings import Settings
from app.store import Store
from app.store.answer_calibrations import AnswerCalibrationStore
from racer_core import artifacts
from racer_core.aggregation.answers import Equality
from racer_core.calibration.threshold import allowed_misses
from racer_core.encoder.base import EncoderOutput
from racer_core.encoder.char_ngrams import SPEC, CharNgramEncoder
from racer_core.sequential.answer_classes import AnswerClasses
from tests.kit.gateway import ADMIN_KEY, POOL, Gateway, Serve, error_message
from tests.kit.lazy import LazyModule
from tests.kit.monitored import add_verdicts, sampled
from tests.kit.same_answer import NAMES, configured
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

if TYPE_CHECKING:
    from scipy import stats
else:
    stats = LazyModule("scipy.stats")

pytestmark = pytest.mark.usefixtures("few_fitting_rows")

FALSE_ALARM = 1e-6
SIMILARITY = 0.6
RISKY = 0.3
BROKEN = "no encoder reads this"
RIGHT = {"adder": 0.85, "speller": 0.8, "poet": 0.75}
CONFIGURED: dict[str, Any] = {
    "calibrated": False,
    "aggregation": {"equality": "semantic", "similarity": SIMILARITY},
    "same_answer": {"alpha": 0.05},
    "watching": {"shadow_rate": 1.0},
    "routing": {"fallback": "whole_pool"},  # no answer is another than now
}


def answer(name: str, question: str) -> str:
    """Eight words of twelve; where each candidate begins elsewhere, the first is not the last's."""
    rng = random.Random(f"{name} {question}")
    said = 0 if rng.random() < RIGHT[name] else rng.randint(1, 3)
    words = random.Random(f"{question} {said}")
    given = ["".join(words.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(12)]
    start = random.Random(question).choice((0, 0, 2)) * POOL.index(name)
    return " ".join(given[start : start + 8])


def equal_answers(questions: list[str]) -> np.ndarray:
    """Which answers to each question are equal, compared here; shape (n, K, K)."""
    texts = [answer(name, question) for question in questions for name in POOL]
    vectors = CharNgramEncoder().encode(texts).embeddings.reshape(len(questions), len(POOL), -1)
    return np.round(vectors @ vectors.swapaxes(1, 2), 6) >= SIMILARITY


def ids(answers: list[dict[str, Any]]) -> list[str]:
    """Their decisions."""
    return [each["decision_id"] for each in answers]


@pytest.fixture
def rephrasing(pool: FakePool) -> Iterator[FakePool]:
    """Candidates that say the same in other words."""
    pool.answer = lambda body: answer(body["model"], body["messages"][-1]["content"])
    yield pool
    pool.answer = lambda _: "42"


def progress(gateway: Gateway) -> dict[str, Any]:
    """How far an unnamed application's calibration is."""
    return gateway.get("/same-answer", ADMIN_KEY).json()["applications"][""]


def test_from_no_encoder_to_certified_answers(
    serve: Serve,
    rephrasing: FakePool,
    artifact: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Refused without an encoder. With one, requests end as their rows say, and few differ.

    The differing answers are at most beta-binomial; false alarm 1e-6.
    """
    later = tmp_path / "router"
    gateway = serve(artifact=later, **CONFIGURED)
    assert gateway.chat("question 0")["racer"]["certificate"]["reasons"] == ["not_calibrated"]
    assert progress(gateway)["refusal"].startswith("not certifiable cheaply")
    refused = gateway.post("/same-answer/calibrate", ADMIN_KEY)
    assert "set `artifact` to a router" in error_message(refused, 400)
    shutil.copytree(artifact, later)
    assert until(lambda: progress(gateway)["refusal"] is None, 30)
    assert progress(gateway)["rows"] == 0
    for number in range(1, 121):
        gateway.chat(f"question {number}")
    sampled(gateway, 121)
    made = gateway.post("/same-answer/calibrate", ADMIN_KEY).json()
    assert (made["active"], made["evidence"]["rows"], made["evidence"]["lost"]) == (True, 120, 0)
    usual = [f"question {number}" for number in range(1_000, 1_050)]
    risky = [f"question {number}" for number in range(1_050, 1_100)]
    answers = [gateway.chat(each)["racer"] for each in usual]
    answers += [gateway.chat(each, {"alpha": RISKY})["racer"] for each in risky]
    assert answers[0]["certificate"]["holds"]
    assert answers[0]["certificate"]["guarantee"]["equality"] == "semantic"
    sampled(gateway, 221)  # and every decision is stored
    with Store(gateway.settings.store) as store:
        record = AnswerCalibrationStore(store).record(made["id"])
        decisions = [DecisionStore(store).get(each).decision for each in ids(answers)]
    equal = equal_answers([*usual, *risky])
    is_chain = equal[:, 0, 1] & equal[:, 1, 2] & ~equal[:, 0, 2]
    assert is_chain.sum() > 10  # likeness is not transitive here
    readable, prints = np.ones(equal.shape[:2], bool), [each.encode() for each in ids(answers)]
    rows = AnswerClasses.compared(POOL, equal, readable, prints)
    found = fitted(record, POOL, RoundsTerms("vote", 2))
    stops = [
        found.stops(rows.at(part), found.lambda_hat(alpha))
        for part, alpha in ((np.arange(50), 0.05), (np.arange(50, 100), RISKY))
    ]
    winners = [POOL[winner] for each in stops for winner in each.winner]
    assert [each["served_by"] for each in answers] == winners
    calls = [sum("ms" in call for call in each["calls"]) for each in answers]
    assert calls == [count for each in stops for count in each.calls]
    assert {*calls[:50]} == {2, 3}
    assert all(verify_sequence(each, record).matches for each in decisions)
    for each, alpha in zip(stops, (0.05, RISKY), strict=True):
        misses = int(alpha * (found.n + 1)) - 1
        law = stats.betabinom(50, misses + 1, found.n - misses)
        assert each.differs.sum() <= law.ppf(1.0 - FALSE_ALARM)
    assert stops[1].differs.sum() > 0
    watch = progress(gateway)["watch"]
    assert (watch["sampled"], watch["differing"]) == (50, stops[0].differs.sum())
    encode = CharNgramEncoder.encode

    def breaks(self: CharNgramEncoder, texts: list[str]) -> EncoderOutput:
        if BROKEN in texts:
            raise MemoryError(BROKEN)
        return encode(self, texts)

    monkeypatch.setattr(CharNgramEncoder, "encode", breaks)
    first = found.policy.order[0]
    rephrasing.say(first, BROKEN)
    faulty = gateway.chat("question 2000")["racer"]
    assert faulty["certificate"]["reasons"] == [f"candidate_failed:{first}"]
    assert len(faulty["calls"]) == len(POOL)
    assert not faulty["certificate"]["holds"]


def test_what_decides_about_meaning_is_part_of_the_setup(gateway: Gateway) -> None:
    """The encoder wherever its files are, the similarity, and how much of a text is read."""
    base = gateway.settings
    artifact = artifacts.load(base.artifact)

    def setup(similarity: float = 0.6, query_chars: int = 1_000, **spec: Any) -> str:
        settings = base.model_copy(
            update={
                "aggregation": base.aggregation.model_copy(
                    update={"equality": Equality.SEMANTIC, "similarity": similarity}
                ),
                "limits": base.limits.model_copy(update={"query_chars": query_chars}),
            }
        )
        added = ConditionReader(settings.candidates).added
        assert answer_setup(settings, added, {}) == ""
        changed = replace(artifact, encoder=replace(SPEC, **spec))
        return answer_setup(settings, added, {}, changed)

    assert setup() == setup(name="elsewhere")
    others = {setup(), setup(similarity=0.7), setup(query_chars=999), setup(digest="other")}
    assert len(others) == 4


# Labels: few requests miss a right candidate, of those that have one ------------------------------

CHECK = {"function": "tests.kit.checkers:check"}
TERMS = {"alpha": 0.2, "reference": "answerable", "label_wait_s": 0, "evidence": CHECK}
CHANCES = {"ada": 0.8, "bob": 0.7, "cyd": 0.6, "dan": 0.5, "eve": 0.0}
LOST = 5  # samples without all labels


def labelled_answer(name: str, question: str) -> str:
    """Right is "0"; nobody knows a tenth of the questions, and wrong answers agree."""
    rng = random.Random(f"{name} {question}")
    is_open = random.Random(question).random() < 0.1
    return "0" if rng.random() < CHANCES[name] and not is_open else str(rng.randint(1, 2))


def correct(question: str) -> dict[str, bool]:
    """The labels of a request."""
    return {name: labelled_answer(name, question) == "0" for name in NAMES}


@pytest.fixture
def talking(pool: FakePool) -> Iterator[FakePool]:
    """Candidates that answer by the rule."""
    pool.answer = lambda body: labelled_answer(body["model"], body["messages"][-1]["content"])
    yield pool
    pool.answer = lambda _: "42"


@pytest.mark.slow
def test_labelled_samples_certify_that_few_right_answers_are_missed(
    serve: Serve, talking: FakePool, tmp_path: Path
) -> None:
    """Calls are saved, and misses obey their law (false alarm 1e-6).

    After a wait of no time at all, all labels are late: the calibration sees them, and no bet does.
    """
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
    assert (watch["sampled"], watch["unlabelled"], watch["differing"]) == (70, 70, 0)
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
    monkeypatch.setattr(calibrator, "EVERY_S", 0.1)
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
    for number in range(60, 130):  # after a refused one the next comes with twice the samples
        add_verdicts(
            gateway, gateway.chat(f"question {number}")["id"], correct(f"question {number}")
        )
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
