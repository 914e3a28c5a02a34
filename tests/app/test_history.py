"""GET /history: what requests got over the last hour, day and week."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from app.monitoring.decisions import history
from app.monitoring.decisions.history import History
from app.monitoring.decisions.record import DecisionRecord, RequestEnd
from app.monitoring.decisions.store import DecisionStore
from app.monitoring.samples.record import Sample
from app.monitoring.samples.store import SampleStore
from app.store import Store
from app.utc import present, text_of
from tests.kit.gateway import DATA_KEY, POOL, Serve
from tests.kit.monitored import MonitoredStore, decision_record
from tests.kit.stores import RECORD

ADDER, SPELLER, POET = POOL


def decided(minutes: float, called: tuple[str, ...], **changes: Any) -> DecisionRecord:
    """An answered request of some minutes ago, with its price: 1 a call."""
    calls = [{"candidate": name, "cost": 1.0} for name in called]
    others = {
        "everyone": {"cost": 3.0, "estimated": True},
        "best_single": {"candidate": SPELLER, "cost": 1.0, "estimated": True},
    }
    usual: dict[str, Any] = {
        "created_at": text_of(present() - timedelta(minutes=minutes)),
        "selected": called,
        "answered": called,
        "served_by": called[0] if called else None,
        "cost": {"cost": float(len(called)), "calls": calls, "alternatives": others},
    }
    return decision_record(RECORD, [0.9, 0.5, 0.1], **usual | changes)


@pytest.fixture
def decisions(store: Store) -> DecisionStore:
    """The stored decisions."""
    return DecisionStore(MonitoredStore(store, RECORD).store)


def windows(store: Store) -> dict[str, dict[str, Any]]:
    """Each window by its name."""
    found = History(store).read(present())["windows"]
    return {each["window"]: each for each in found}


def test_each_window_has_its_own_requests(decisions: DecisionStore, store: Store) -> None:
    """Shares and means, beside the best single candidate and beside all."""
    recent = [decided(5, (ADDER,)), decided(20, (ADDER, SPELLER), holds=False)]
    earlier = [decided(300, ()), decided(3 * 1440, POOL), decided(9 * 1440, POOL)]
    decisions.add([*recent, *earlier], [True] * 5)
    found = windows(store)
    assert [each["decisions"] for each in found.values()] == [2, 3, 4]
    hour, day, week = found.values()
    assert (hour["certified"], hour["refused"], hour["calls"], hour["cost"]) == (0.5, 0.0, 1.5, 1.5)
    assert (day["refused"], day["calls"]) == (pytest.approx(1 / 3), 1.0)
    assert (week["calls"], week["everyone"]) == (1.5, {"calls": 3.0, "cost": 3.0})
    single = {"candidate": SPELLER, "calls": 1, "cost": 1.0, "agreement": None}
    assert week["best_single"] == single
    assert [each["requests"] for each in hour["parts"]] == [0] * 7 + [1] + [0] * 2 + [1, 0]


def test_what_was_not_answered_counts_for_nothing(decisions: DecisionStore, store: Store) -> None:
    """A failed request, one whose client left, and a decision alone."""
    others = [
        decided(1, (ADDER,), outcome=RequestEnd.FAILED, served_by=None, answered=()),
        decided(1, (ADDER,), outcome=RequestEnd.CANCELLED),
        decided(1, (ADDER,), served_by=None, answered=(), cost=None),
    ]
    decisions.add([*others, decided(1, (ADDER,))], [True] * 4)
    hour = windows(store)["hour"]
    assert (hour["decisions"], hour["requests"], hour["calls"]) == (4, 1, 1.0)


def test_agreement_is_that_with_most_candidates_of_sampled_requests(
    decisions: DecisionStore, store: Store
) -> None:
    """Without labels: of the served answers, and of the best single candidate's."""
    answers = [(1, 1, 2), (1, 2, 2), (1, 2, 3), (None, 1, 1)]
    made = [decided(1, (ADDER,), shadow_rate=1.0, cost=None) for _ in answers]
    decisions.add([*made, decided(1, (POET,))], [True] * 5)
    for each, classes in zip(made, answers, strict=True):
        SampleStore(store).add(
            Sample(
                decision_id=each.decision_id,
                application=None,
                later=False,
                conversation=None,
                classes=dict(zip(POOL, classes, strict=True)),
                equal={POOL[1]: [POOL[2]]},  # as of answers that are compared two by two
                digests={},
                whole=True,
                exchange=None,
            )
        )
    week = windows(store)["week"]
    assert (week["sampled"], week["agreement"]) == (4, 0.5)
    assert week["best_single"]["candidate"] == SPELLER
    assert week["best_single"]["agreement"] == 1.0


def test_an_answer_reads_a_bounded_number_of_decisions(
    decisions: DecisionStore, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each part the first ones; a part weighs as much as it has decisions."""
    monkeypatch.setattr(history, "READ", 4)
    busy = [decided(2.5, (ADDER,)) for _ in range(40)]
    decisions.add([*busy, *[decided(7.5, POOL) for _ in range(2)]], [True] * 42)
    hour = windows(store)["hour"]
    assert (hour["decisions"], hour["read"], hour["requests"]) == (42, 6, 42)
    assert hour["calls"] == pytest.approx((40 * 1 + 2 * 3) / 42)


def test_the_endpoint_answers_data_keys_and_keeps_its_answer_for_a_while(serve: Serve) -> None:
    """As /metrics, which has the same figures since the start; pages that ask at once share it."""
    gateway = serve()
    gateway.chat("What is 1 plus 2?")
    found = gateway.get("/history", DATA_KEY).json()["windows"]
    assert [each["window"] for each in found] == ["hour", "day", "week"]
    gateway.chat("What is 2 plus 3?")
    assert gateway.get("/history", DATA_KEY).json()["windows"] == found
