"""Labels that come late, or never: the alarms on judged decisions keep their false-alarm rate.

Which labels are late may depend on the labels themselves: people complain about misses at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from app.access.api_keys import Caller
from app.monitoring.decisions.store import WatchedDecision
from app.monitoring.drift.sequence import (
    DEADLINE,
    WRITING,
    JudgedSequence,
    replay_count,
    settled_count,
)
from app.monitoring.drift.statistics import CRITICAL_SCORE, NEVER_COVERED, RISK
from app.store import Store
from racer_core.calibration.martingales import UpwardMartingale
from racer_core.calibration.monitoring import DriftState
from racer_core.calibration.risk_e_process import RiskEProcess
from tests.kit.lazy import LazyModule
from tests.kit.monitored import (
    POOL,
    decision_records,
    draw_scores,
    monitoring,
    verdicts_on_all,
)

pytestmark = pytest.mark.anyio
ADMIN = Caller(name="admin", role="admin")
RHO = 0.2
stats = LazyModule("scipy.stats")

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
EVERY = timedelta(minutes=10)  # a decision


def new_sequence(rng: np.random.Generator, level: float, rows: int = 99) -> JudgedSequence:
    """The judged streams of a calibration, each at this level."""
    streams = {
        RISK: RiskEProcess(RHO, level=level),
        CRITICAL_SCORE: UpwardMartingale(rng.random(rows), tail=RHO, level=level, rng=rng),
    }
    return JudgedSequence.begin(DriftState(delta=2.0 * level, streams=streams))


def decisions_of(rng: np.random.Generator, count: int, risk: float = RHO) -> list[WatchedDecision]:
    """Decisions with their labels, at a risk and scores like the rows'; one in ten does not count.

    Scores are uniform as the rows' are; misses are those with the largest.
    """
    scores = 1.0 - (1.0 - rng.random(count)) * (RHO / risk)
    counts = rng.random(count) < 0.9
    return [
        WatchedDecision(
            at=((BEGIN + place * EVERY).isoformat(timespec="microseconds"), f"{place:09d}"),
            fingerprint=rng.bytes(16).hex(),
            judged=True,
            loss=float(score > 1.0 - RHO) if counted else None,
            critical_score=float(score) if counted else NEVER_COVERED,
        )
        for place, (score, counted) in enumerate(zip(scores, counts, strict=True))
    ]


def without_label(decision: WatchedDecision) -> WatchedDecision:
    """The decision before its label comes."""
    return replace(decision, judged=False, loss=None, critical_score=None)


def capitals(sequence: JudgedSequence, decisions: Sequence[WatchedDecision]) -> list[list[float]]:
    """The logarithm of each stream's capital after each decision."""
    found: list[list[float]] = []
    for each in decisions:
        sequence = sequence.settled([each])
        found.append([stream.wager.log_value for stream in sequence.state.streams.values()])
    return found


def at(time: datetime) -> str:
    """As decisions have it."""
    return time.isoformat(timespec="microseconds")


class Watch:
    """What the gateway does whenever labels came, without its store."""

    def __init__(self, sequence: JudgedSequence) -> None:
        self._sequence = sequence
        self.alarmed = False

    def look(self, decisions: Sequence[WatchedDecision], now: datetime) -> None:
        """Settle, and bet again on the rest."""
        rest = [each for each in decisions if each.at > self._sequence.after]
        settled = settled_count(rest, at(now - DEADLINE), at(now - WRITING))
        self._sequence = self._sequence.settled(rest[:settled])
        rest = rest[settled:]
        self.alarmed |= self._sequence.settled(rest[: replay_count(rest)]).state.alarmed


@pytest.mark.parametrize("missing", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("risk", [RHO, 0.6])
def test_missing_labels_never_add_capital(missing: float, risk: float) -> None:
    """After every decision, whichever labels are missing: exact, so the law of all labels holds.

    Red where a decision that does not count took no round, or a missing one were skipped.
    """
    for seed in range(6):
        rng = np.random.default_rng(seed)
        sequence, decisions = new_sequence(rng, 0.05), decisions_of(rng, 60, risk)
        late = rng.random(60) < missing
        if seed % 2:  # of those that raise no alarm
            late &= np.array([not each.loss for each in decisions])
        known = [
            without_label(each) if is_late else each
            for each, is_late in zip(decisions, late, strict=True)
        ]
        most, found = capitals(sequence, decisions), capitals(sequence, known)
        assert (np.array(found) <= np.array(most) + 1e-9).all()


def test_labels_in_time_raise_the_alarm_as_soon_as_ever() -> None:
    """The same capital at the same decision as streams that are fed one by one."""
    rng = np.random.default_rng(3)
    sequence, decisions = new_sequence(rng, 0.05), decisions_of(rng, 200, 0.5)
    decisions = [each for each in decisions if each.loss is not None]
    plain = JudgedSequence.begin(sequence.state).state.streams[RISK]
    assert isinstance(plain, RiskEProcess)
    watch = Watch(sequence)
    for place, each in enumerate(decisions, 1):
        assert each.loss is not None
        plain.update(each.loss)
        watch.look(decisions[:place], BEGIN)
        assert watch.alarmed >= plain.alarmed
    assert plain.alarmed


def test_trailing_decisions_without_labels_cost_nothing() -> None:
    """An alarm that labels raise is seen however many decisions wait after them."""
    rng = np.random.default_rng(4)
    sequence, decisions = new_sequence(rng, 0.05), decisions_of(rng, 100, 0.9)
    watch = Watch(sequence)
    watch.look([*decisions, *map(without_label, decisions_of(rng, 300)[100:])], BEGIN)
    assert watch.alarmed


def test_a_label_past_its_deadline_counts_no_more() -> None:
    """It counts as missing for good; the decisions before and after it are settled with it.

    A decision that another gateway may still store an earlier one to is not.
    """
    rng = np.random.default_rng(5)
    decisions = decisions_of(rng, 20)
    known = [without_label(each) if place == 7 else each for place, each in enumerate(decisions)]
    place_7 = BEGIN + 7 * EVERY + DEADLINE
    for now, count in ((place_7 - EVERY, 7), (place_7, 20)):
        assert settled_count(known, at(now - DEADLINE), at(now)) == count
    assert settled_count(decisions, at(BEGIN), at(BEGIN + 7 * EVERY)) == 8
    assert replay_count([*known, *map(without_label, known)]) == 20


def false_alarms(runs: int, count: int, looks: int, level: float) -> int:
    """Runs with any alarm: misses are labelled at once, of the hits a tenth late or never."""
    found = 0
    for seed in range(runs):
        rng = np.random.default_rng(1_000 + seed)
        watch = Watch(new_sequence(rng, level / 2.0))
        decisions = decisions_of(rng, count)
        delays = np.where(rng.random(count) < 0.5, 100, 10 * count)
        hit = np.array([each.loss == 0.0 for each in decisions])
        comes = np.arange(count) + np.where(hit & (rng.random(count) < 0.1), delays, 0)
        for end in np.linspace(0, count, looks + 1)[1:].astype(int).tolist():
            seen = [
                each if comes[place] < end else without_label(each)
                for place, each in enumerate(decisions[:end])
            ]
            watch.look(seen, BEGIN + end * EVERY)
        found += watch.alarmed
    return found


def test_late_labels_keep_the_false_alarm_rate() -> None:
    """At most one in twenty for both streams together; false alarm of this test 1e-4.

    With bets in the order of labels the rate is larger the longer the run.
    """
    assert false_alarms(60, 150, 3, 0.05) <= stats.binom.isf(1e-4, 60, 0.05)


@pytest.mark.slow
def test_late_labels_keep_the_false_alarm_rate_of_longer_runs() -> None:
    """As above, more precisely: 400 runs of 600 decisions, looked at twelve times."""
    assert false_alarms(400, 600, 12, 0.05) <= stats.binom.isf(1e-4, 400, 0.05)


async def test_misses_that_are_labelled_first_raise_no_alarm(store: Store) -> None:
    """Through the gateway's monitor, all misses before the hits. False alarm 1e-6.

    Red at the first six misses where labels bet as they come.
    """
    rng = np.random.default_rng(6)
    async with monitoring(store, shadow_rate=0.5, false_alarm=1e-6) as (monitor, world):
        scores = draw_scores(rng, 100)
        labels = rng.random(scores.shape) < scores
        made = decision_records(world.record, scores, shadow_rate=0.5)
        for each in made:
            monitor.record(each)
        misses = [
            not any(right and name in each.selected for name, right in zip(POOL, row, strict=True))
            for each, row in zip(made, labels, strict=True)
        ]
        assert sum(misses) >= 6
        for place in np.argsort(~np.array(misses), kind="stable").tolist():
            correct = verdicts_on_all(labels[place].tolist())
            await monitor.feedback.add(made[place].decision_id, correct, ADMIN)
            assert monitor.stale_reasons(world.record.id) == ()
        streams = (await monitor.drift_report())["alarms"]["streams"]
        assert streams[RISK]["rounds"] == streams[CRITICAL_SCORE]["rounds"] == 100
