"""A query that comes again: the same decision, without a forward pass, and only for its caller."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.access.api_keys import LOCAL, Caller
from app.routing.conditions import Conditions
from app.routing.decision import CertifiedDecision, ChosenBy, ServedCertificate
from app.routing.decision_cache import MOST_CHARS, CacheKey, DecisionCache
from app.routing.premises import CandidateChoice
from app.routing.query import Query
from app.routing.reasons import Reason, Remark
from racer_core.calibration.options import CalibrationOptions
from racer_core.types import RoutingDecision, Score
from tests.kit.gateway import ONE, POOL, TWO, UNANSWERABLE, Gateway, Serve, decided, noisy

CONDITIONS = Conditions({}, "")
BARE = CacheKey(
    query=Query(text=ONE, conditions=CONDITIONS),
    choice=CandidateChoice(names=POOL),
    alpha=None,
    score=None,
    application=None,
    group=None,
    requested_alpha=None,
    caller=LOCAL,
)


def of(text: str) -> CacheKey:
    """Another query."""
    return replace(BARE, query=Query(text=text, conditions=CONDITIONS))


def scored(gateway: Gateway) -> int:
    """How many batches the router scored."""
    name = "racer_router_batch_size_count"
    lines = gateway.get("/metrics").text.splitlines()
    return int(float(next(line for line in lines if line.startswith(name)).split()[1]))


@pytest.fixture
def pair(serve: Serve, tmp_path: Path, noisy_artifact: Path) -> tuple[Gateway, Gateway]:
    """A gateway, and one with the same calibration that remembers nothing."""
    folder = tmp_path / "both"
    remembering = serve(folder=folder, artifact=noisy_artifact, calibrated=False)
    remembering.calibrate(rows=noisy(10_000, 400))
    forgetful = serve(
        folder=folder, artifact=noisy_artifact, calibrated=False, limits={"decisions_kept": 0}
    )
    return remembering, forgetful


def test_cached_decisions_equal_fresh_ones(pair: tuple[Gateway, Gateway]) -> None:
    """Random requests of few kinds, so that most come again: certificate, scores and set alike."""
    remembering, forgetful = pair
    rng = random.Random(5)
    queries = (ONE, TWO, UNANSWERABLE, "What is 5 plus 6?", ONE + " ")
    for _ in range(120):
        options = {
            "alpha": rng.choice((None, 0.05, 0.1, 0.3)),
            "score": rng.choice((None, None, "prob")),
            "candidates": rng.choice((None, None, ["adder", "poet"], ["poet"])),
        }
        fields = {name: value for name, value in options.items() if value is not None}
        query = rng.choice(queries)
        assert remembering.decided(query, **fields) == forgetful.decided(query, **fields)
    assert scored(remembering) < 100 < scored(forgetful)


def test_a_known_query_is_not_scored_until_another_calibration_decides(serve: Serve) -> None:
    """Neither is one that differs in a field that changes no answer."""
    gateway = serve()
    gateway.route(ONE)
    before = scored(gateway)
    first = gateway.chat(ONE, user="ann")["racer"]
    again = gateway.chat(ONE, user="bob")["racer"]
    assert scored(gateway) == before
    assert first["decision_id"] != again["decision_id"]
    new = gateway.calibrate(80)["id"]
    after = gateway.route(ONE)
    assert after["certificate"]["calibration_id"] == new
    assert scored(gateway) > before
    assert decided(first)["selected"] == after["selected"]


def test_every_input_of_a_decision_is_part_of_the_cache_key() -> None:
    """Every part of the conditions counts, and so does the record."""
    known = DecisionCache[str](10)
    known.keep("a", BARE, "made")
    queries: list[dict[str, Any]] = [
        {"text": ONE + " "},
        {"later": True},
        {"text_chars": 9_000},
        {"conditions": Conditions({}, "other")},
    ]
    choices: list[dict[str, Any]] = [
        {"names": POOL[:2]},
        {"is_requested": True},
        {"has_unable": True},
        {"down": ("x",)},
    ]
    others = [
        *(replace(BARE, query=replace(BARE.query, **each)) for each in queries),
        *(replace(BARE, choice=replace(BARE.choice, **each)) for each in choices),
        replace(BARE, alpha=0.2),
        replace(BARE, score=Score.PROB),
        replace(BARE, requested_alpha=0.2),
        replace(BARE, application="a"),
        replace(BARE, group="g"),
        replace(BARE, caller=Caller(name="another")),
        replace(BARE, caller=Caller(name="local", group="g")),
    ]
    assert [known.find("a", each) for each in others] == [None] * len(others)
    assert known.find("a", BARE) == "made"
    assert known.find("b", BARE) is None


@given(st.lists(st.integers(0, 8), max_size=60), st.integers(0, 5))
def test_the_least_recently_used_entries_are_evicted(lookups: list[int], most: int) -> None:
    """As a plain list of the last ones says."""
    known, last = DecisionCache[int](most), list[int]()
    for number in lookups:
        found = known.find("a", of(str(number)))
        assert found == (number if number in last else None)
        known.keep("a", of(str(number)), number)
        last = [*(each for each in last if each != number), number][-most:] if most else []


def test_long_queries_are_bounded_together() -> None:
    """However few they are."""
    known = DecisionCache[int](10)
    long = [of(str(number) * (MOST_CHARS // 3)) for number in range(4)]
    for number, each in enumerate(long):
        known.keep("a", each, number)
    assert [known.find("a", each) for each in long] == [None, 1, 2, 3]
    known.keep("b", long[0], 0)
    known.keep("b", long[1], 1)
    assert [known.find("b", each) for each in long] == [0, 1, None, None]


def test_a_changed_decision_has_nothing_that_the_known_one_keeps() -> None:
    """Alarms, remarks and another set change what is sent, and not the known decision."""
    chosen = RoutingDecision(
        selected=POOL[:1],
        scores=(0.7,),
        null_selected=False,
        abstain_reason=None,
        truncated=False,
        alpha=0.1,
        score=Score.PROB,
        lambda_hat=0.5,
    )
    known = CertifiedDecision(
        decision=chosen,
        certificate=ServedCertificate.of(
            CalibrationOptions(alpha=0.1), chosen, pool=POOL, n=400, risk_band=None
        ),
        pool_scores=dict.fromkeys(POOL, 0.5),
        fingerprint=b"",
        scored=None,
        record=None,
        population=0,
        group=None,
        chosen=POOL[:1],
        chosen_by=ChosenBy.THRESHOLD,
    )

    def derived(decision: CertifiedDecision) -> list[object]:
        header = decision.certificate.header
        return [dict(decision.json), dict(decision.headers), dict(decision.vote_scores), header]

    def anew(decision: CertifiedDecision) -> CertifiedDecision:
        return replace(decision, certificate=replace(decision.certificate))

    before = derived(known)
    remarks = (Remark.REPEATED_QUERY,)
    for changed in (
        known.with_reasons(Reason.NOT_CALIBRATED),
        known.calling(POOL[:2], Reason.FAN_OUT_LIMITED),
        known.remarked(remarks, repeated=True),
        known.remarked(remarks, repeated=True).with_reasons(Reason.NOT_CALIBRATED),
    ):
        assert derived(changed) == derived(anew(changed)) != before
    assert known.remarked(remarks, repeated=True) is known.remarked(remarks, repeated=True)
    stale = known.with_reasons(Reason.NOT_CALIBRATED)
    assert known.with_reasons(Reason.NOT_CALIBRATED) is stale
    assert known.remarked(remarks, repeated=False).remarked((), repeated=False) == known
    assert derived(known) == before == derived(anew(known))
