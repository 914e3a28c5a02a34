"""The promise `same_answer` by meaning: the same comparisons in rows and in requests."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from app.monitoring.decisions.store import DecisionStore
from app.monitoring.verification import verify_sequence
from app.routing.conditions import ConditionReader
from app.routing.rounds_plan import RoundsTerms, fitted
from app.same_answer.calibrations import answer_setup
from app.store import Store
from app.store.answer_calibrations import AnswerCalibrationStore
from racer_core.aggregation.answers import Equality
from racer_core.encoder.base import EncoderOutput
from racer_core.encoder.char_ngrams import SPEC, CharNgramEncoder
from racer_core.sequential.answer_classes import AnswerClasses
from tests.kit.gateway import ADMIN_KEY, POOL, Gateway, Serve, error_message
from tests.kit.lazy import LazyModule
from tests.kit.monitored import sampled
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

if TYPE_CHECKING:
    from scipy import stats
else:
    stats = LazyModule("scipy.stats")

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
        assert answer_setup(settings, added) == ""
        return answer_setup(settings, added, replace(SPEC, **spec))

    assert setup() == setup(name="elsewhere")
    others = {setup(), setup(similarity=0.7), setup(query_chars=999), setup(digest="other")}
    assert len(others) == 4
