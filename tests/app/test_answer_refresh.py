"""Calibration of `same_answer` from traffic over weeks, and by several gateways on one store."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import utc
from app.errors import Conflict, StoreError
from app.judging.checker_calls import checker_code
from app.monitoring.decisions.store import DecisionStore
from app.same_answer import calibration as answer_calibration
from app.same_answer import rows as answer_rows
from app.same_answer.alarms import level_of
from app.same_answer.calibration import (
    UNPRICED,
    Attempt,
    expected_at,
    fitting_rows,
    refusal_of,
    rows_needed,
    samples_wanted,
)
from app.same_answer.calibrations import Staleness, answer_setup
from app.same_answer.change import change_of
from app.same_answer.rows import AnswerRows, AnswerSample
from app.settings import SameAnswer, Settings
from app.store import Store, now
from app.store.answer_calibrations import AnswerCalibrationStore
from racer_core.aggregation import answers
from racer_core.calibration.risk_e_process import RiskEProcess
from racer_core.calibration.shadow import is_sampled
from racer_core.calibration.threshold import allowed_misses
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.fit import fit_policy, tuned_policy
from tests.core.laws import assert_at_most
from tests.kit import answer_traffic
from tests.kit.answer_traffic import AnswerWorld, decision_of, sample_of, time_of
from tests.kit.lazy import LazyModule
from tests.kit.same_answer import NAMES

stats = LazyModule("scipy.stats")

pytestmark = pytest.mark.usefixtures("few_fitting_rows")

FALSE_ALARM = 1e-6


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AnswerWorld]:
    """One on SQLite."""
    with Store(f"sqlite:///{tmp_path}/racer.db") as store:
        yield AnswerWorld(store)


def test_rows_of_two_rates_are_thinned_to_the_lower_one(world: AnswerWorld) -> None:
    """Both halves of the rows are then drawn at one rate, and what is left out is counted."""
    high = [decision_of(number) for number in range(100)]
    low = [
        replace(decision_of(number), sampling_rate=0.5, shadow_rate=0.5)
        for number in range(100, 200)
    ]
    drawn = [each for each in low if is_sampled(b"key", each.decision_id.encode(), 0.5)]
    decisions = [*high, *drawn]
    DecisionStore(world.store).add(decisions, [False] * len(decisions))
    with world.store.transaction() as session:
        session.add_all(sample_of(int(each.decision_id[-8:])) for each in decisions)
    sample = AnswerSample(
        store=world.store,
        pool=NAMES,
        calibrations=world.calibrator.calibrations,
        key=b"key",
        deadline=timedelta(minutes=1),
        label_waits={},
    )
    found = sample.rows("")
    kept = [each.decision_id for each in high if is_sampled(b"key", each.decision_id.encode(), 0.5)]
    assert [row.decision_id for row in found.rows] == kept + [each.decision_id for each in drawn]
    assert found.thinned == len(high) - len(kept) > 0


def watched_reads(
    monkeypatch: pytest.MonkeyPatch, before: Callable[[dict[str, str]], object]
) -> None:
    """Call a function before rows are read."""
    read = AnswerSample.rows

    def reading(sample: AnswerSample, application: str, **given: str) -> AnswerRows:
        before(given)
        return read(sample, application, **given)

    monkeypatch.setattr(AnswerSample, "rows", reading)


def test_calibrations_go_on_after_a_clock_was_ahead(
    world: AnswerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By 400 days, for one calibration and the request that was its last row.

    Red if its certificates held, unwatched, and no other one were made until then.
    """
    present = utc.present

    def ask(ahead: timedelta) -> None:
        """One request at the present, which may be ahead."""
        monkeypatch.setattr(utc, "present", lambda: present() + ahead)
        monkeypatch.setattr(answer_traffic, "START", utc.present() - timedelta(seconds=world.made))
        world.sample(1)

    world.sample(60)
    world.calibrator.keep_up()
    ask(timedelta(days=400))
    world.calibrator.keep_up()
    ahead = world.active
    assert len(world.records) == 2
    monkeypatch.setattr(utc, "present", present)
    assert world.stale is Staleness.AGE
    world.calibrator.keep_up()
    ask(timedelta(0))
    world.calibrator.keep_up()
    assert len(world.records) == 3
    assert world.active != ahead
    assert world.stale is None
    world.calibrator.keep_up()
    assert len(world.records) == 3


def test_gateways_on_one_store_make_one_calibration(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both compute it at the same time, and one stores it: its level is spent once."""
    stores = [Store(database) for _ in range(2)]
    worlds = [AnswerWorld(store) for store in stores]
    worlds[0].sample(60)
    together, find = threading.Barrier(2, timeout=30), answer_calibration.evidence_of

    def evidence_of(*given: Any) -> Any:
        found = find(*given)
        together.wait()
        return found

    monkeypatch.setattr(answer_calibration, "evidence_of", evidence_of)
    for made in (1, 2):
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda world: world.calibrator.keep_up(), worlds))
        records = worlds[0].records
        assert [each.evidence["ordinal"] for each in records] == list(reversed(range(made)))
        assert {world.active for world in worlds} == {records[0].id}
        worlds[0].age(days=2)
        worlds[0].sample(1)
        for world in worlds:
            world.calibrator.calibrations.catch_up()
    for store in stores:
        store.close()


def test_a_refresh_that_is_refused_ends_what_decides(
    world: AnswerWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Attempts go on with new samples, also where no more rows are read, until one succeeds.

    Red while the calibration before it serves on: for seven days its certificates held, though all
    that was known of today's requests spoke against it.
    """
    reads, attempts = list[object](), list[int]()
    keep_up = world.calibrator.keep_up
    watched_reads(monkeypatch, lambda given: None if "after" in given else reads.append(given))
    monkeypatch.setattr(answer_rows, "MAX_ROWS", 60)
    world.sample(20)
    keep_up()
    assert not reads  # they cannot be enough
    world.sample(40)
    keep_up()
    assert (world.stale, world.shown[-1].is_refused) == (None, False)
    first = world.active
    keep_up()
    assert len(reads) == 1
    world.age(days=2)
    with monkeypatch.context() as patch:
        patch.setattr(
            answer_calibration, "refusal_of", lambda *_: attempts.append(1) or "not worth it"
        )
        for further, made in ((1, 1), (59, 1), (1, 2), (60, 3)):
            world.sample(further)
            for gateway in (world, AnswerWorld(world.store)):  # also after a start
                gateway.calibrator.keep_up()
                assert gateway.active is None
                assert gateway.report["refusal"] == "not worth it"
                assert math.isnan(gateway.shown[-1].days)
                assert gateway.shown[-1].is_refused
            assert len(attempts) >= made
    assert [each.active for each in world.records] == [False, False]
    assert world.records[0].evidence["refused"] == "not worth it"
    with pytest.raises(Conflict, match="decides nothing: not worth it"):
        asyncio.run(world.calibrator.activate(world.records[0].id))
    world.sample(60)
    keep_up()
    assert world.active not in (None, first)
    assert (world.stale, world.shown[-1].is_refused) == (None, False)


@pytest.mark.parametrize("is_refused", [False, True])
def test_the_times_of_attempts_do_not_look_at_their_outcome(
    world: AnswerWorld, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    """Whether it is refused or decides: the next attempt comes with twice the samples, or daily.

    Red where a refused one is tried again on a tenth more: the lucky calibration is kept for a day,
    and the others are not.
    """
    attempts = list[int]()

    def refusal(*_: object) -> str | None:
        attempts.append(world.made)
        return "not worth it" if is_refused else None

    monkeypatch.setattr(answer_calibration, "refusal_of", refusal)
    for _ in range(20):
        world.sample(10)
        world.calibrator.keep_up()
    assert attempts == [30, 60, 120]


def test_a_calibration_made_again_draws_no_new_ties(world: AnswerWorld) -> None:
    """Else one could draw until the figures please: by dry runs, of the same rows."""
    world.sample(100)
    first, second = (
        asyncio.run(world.calibrator.calibrate(None, dry_run=True))["evidence"] for _ in range(2)
    )
    assert first == second


def test_candidates_that_stop_answering_end_what_decides(tmp_path: Path) -> None:
    """Their requests count as different: no threshold is finite. By command as from traffic."""
    with Store(f"sqlite:///{tmp_path}/racer.db") as store:
        world = AnswerWorld(store, watching={"shadow_rate": 1.0, "false_alarm": None})
        for end in (
            world.calibrator.keep_up,
            lambda: asyncio.run(world.calibrator.calibrate(None)),
        ):
            world.sample(120)
            world.calibrator.keep_up()
            assert world.active is not None
            world.age(days=2)
            world.sample(200, whole=False)
            asyncio.run(world.calibrator.calibrate(None, dry_run=True))
            assert world.active is not None
            end()
            assert world.active is None
            assert "rows lack answers" in world.report["refusal"]
            world.sample(600)


def test_a_rollback_is_marked_and_makes_no_row_newer(world: AnswerWorld) -> None:
    """Activating what decides already chooses nothing."""
    world.sample(60)
    world.calibrator.keep_up()
    first = world.active or ""
    asyncio.run(world.calibrator.activate(first))
    assert "chosen_at" not in world.records[0].evidence
    world.age(days=8, with_rows=True)
    world.sample(1)
    world.calibrator.keep_up()
    assert world.active != first
    asyncio.run(world.calibrator.activate(first))
    assert (world.active, world.stale) == (first, Staleness.AGE)
    assert "chosen_at" in world.records[1].evidence


def test_a_calibration_without_new_rows_is_not_renewed_and_ends(world: AnswerWorld) -> None:
    """Made again of the same rows it would look young; the gauge of the alert says so."""
    world.sample(60)
    world.calibrator.keep_up()
    for days in (2, 8):
        world.age(days, with_rows=True)
        world.calibrator.keep_up()
        assert len(world.records) == 1
        assert world.shown[-1][2:] == (days, days > 7)
    assert world.stale is Staleness.AGE


def test_an_alarm_that_cannot_be_stored_is_stored_later(
    world: AnswerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it voids certificates here all the same."""
    world.sample(60)
    world.calibrator.keep_up()

    def full(*_: str) -> None:
        raise StoreError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(AnswerCalibrationStore, "raise_alarm", full)
        world.sample(40, whole=False)
        world.calibrator.keep_up()
        assert world.stale is Staleness.ALARM
        assert "alarm_at" not in world.records[0].evidence
    world.calibrator.keep_up()
    assert "alarm_at" in world.records[-1].evidence


def test_an_alarmed_calibration_is_void_as_soon_as_it_is_active(world: AnswerWorld) -> None:
    """After a rollback on any gateway, before its watch has run."""
    other = AnswerWorld(world.store)
    world.sample(60)
    world.calibrator.keep_up()
    first = world.active
    assert first is not None
    world.age(days=2)
    world.sample(1)
    world.calibrator.keep_up()
    other.calibrator.keep_up()
    assert world.active == other.active != first
    assert (world.stale, other.stale) == (None, None)
    AnswerCalibrationStore(world.store).raise_alarm(first, now())
    asyncio.run(world.calibrator.activate(first))
    other.calibrator.calibrations.catch_up()
    assert world.active == other.active == first
    assert (world.stale, other.stale) == (Staleness.ALARM, Staleness.ALARM)
    store = AnswerCalibrationStore(world.store)
    another = replace(store.record(first), id="answers-another", answer_setup="another")
    ordinal = store.add(another, activate=True).evidence["ordinal"]
    assert ordinal == 2, "a change of the setup spends no false-alarm probability again"


def test_a_fault_in_one_application_leaves_the_others_watched(
    world: AnswerWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever fails: the others are looked at in the same minute."""
    section = {"alpha": 0.1, "calibrate": "from_traffic"}
    own = {name: {"same_answer": section} for name in ("code", "law")}
    world, asked = AnswerWorld(world.store, applications=own), list[str]()

    def count_since(_: AnswerSample, application: str, since: str, enough: int) -> int:
        asked.append(application)
        if application == "code":
            raise RuntimeError("broken")
        return 0

    monkeypatch.setattr(AnswerSample, "count_since", count_since)
    world.calibrator.keep_up()
    assert asked[:2] == ["code", "law"]
    assert "same_answer of code are not kept up" in caplog.text


def test_the_next_attempt_waits_for_new_samples_or_a_day() -> None:
    """For as many as the attempt had; after too few rows, for as many as lack."""
    tried = Attempt(made_at=now(), rows=10_000, until="", refusal="no")
    old = Attempt(made_at="2020-01-01T00:00:00+00:00", rows=10_000, until="", refusal="no")
    few = Attempt(made_at=now(), rows=12, until="", refusal="too few")
    assert [samples_wanted(each, 40) for each in (None, tried, old, few)] == [40, 10_000, 1, 28]


def test_every_row_bets_before_it_enters_a_calibration(
    world: AnswerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where requests come between the last bet and the refresh: they are rows of the next."""
    world.sample(60)
    world.calibrator.keep_up()
    watched_reads(monkeypatch, lambda _: world.sample(1))
    for _ in range(3):
        world.age(days=2)
        world.sample(5)
        world.calibrator.keep_up()
    newest_first = world.records
    assert len(newest_first) == 4
    for after, before in itertools.pairwise(newest_first):
        entered = [
            number
            for number in range(world.made)
            if before.evidence["until"] < time_of(number) <= after.evidence["until"]
        ]
        bets = [each.bets for each in world.shown if each.active == before.id]
        assert len(entered) == max(bets) > 0


def test_all_refreshes_together_spend_one_false_alarm() -> None:
    """At the largest risk that must not alarm; each at the whole level would nearly always."""
    rng, false_alarm, risk = np.random.default_rng(3), 0.3, 0.2

    def is_alarmed(level: Callable[[int], float]) -> bool:
        for ordinal in range(30):
            test = RiskEProcess(risk, level=level(ordinal))
            for loss in rng.random(20) < risk:
                test.update(float(loss))
            if test.alarmed:
                return True
        return False

    runs = 60
    spent = sum(is_alarmed(lambda ordinal: level_of(false_alarm, ordinal)) for _ in range(runs))
    assert_at_most(spent, runs, false_alarm, FALSE_ALARM)
    whole = sum(is_alarmed(lambda _: false_alarm) for _ in range(runs))
    assert whole > stats.binom.isf(FALSE_ALARM, runs, false_alarm)


# Which may become active --------------------------------------------------------------------------

POOL = ("ada", "bob", "cyd", "ref")
PRICES = {"ada": 0.1, "bob": 0.1, "cyd": 0.1, "ref": 1.0}
TERMS = SameAnswer(alpha=0.05, reference="ref")


def settings() -> Settings:
    """Cheap candidates and an expensive reference."""
    candidates = [{"name": name, "base_url": "http://127.0.0.1:1/v1", "price": price}
                  for name, price in PRICES.items()]  # fmt: skip
    given = {"schema_version": 1, "candidates": candidates, "aggregation": {"equality": "exact"}}
    return Settings.model_validate(given)


def rows(rng: np.random.Generator, count: int) -> AnswerClasses:
    """Hard requests are answered in different ways by all."""
    hard = rng.random((count, 1))
    cheap = np.where(rng.random((count, 3)) < 0.05 + 0.5 * hard, rng.integers(1, 4, (count, 3)), 0)
    reference = np.where(rng.random((count, 1)) < 0.25 * hard, 5, 0)
    return AnswerClasses(
        pool=POOL,
        classes=np.hstack([cheap, reference]).astype(np.int16),
        fingerprints=tuple(rng.bytes(8) for _ in range(count)),
    )


def refused(
    terms: SameAnswer,
    found: SequentialCalibration,
    fitting: AnswerClasses,
    prices: dict[str, float] | None,
) -> str | None:
    """Why a calibration is refused; the fallback is the first candidate."""
    given, fitted = settings(), replace(found, answers=fitting)
    change = change_of(given.fallback, fitted, terms.alpha, prices, {})
    return refusal_of(given, terms, found, fitting, prices, change)


def test_rows_that_set_the_threshold_choose_no_calibration() -> None:
    """Else those would be active whose threshold is too low by chance."""
    rng, verdicts = np.random.default_rng(1), list[set[str | None]]()
    for _ in range(8):
        fitting = rows(rng, 60)
        policy = fit_policy(fitting, reference="ref", prices=PRICES)
        policy = tuned_policy(policy, fitting, 0.05, 2, PRICES)
        found = [
            SequentialCalibration(policy=policy, answers=rows(rng, 60), salt=b"salt")
            for _ in range(20)
        ]
        verdicts.append({refused(TERMS, each, fitting, PRICES) for each in found})
    assert [len(each) for each in verdicts] == [1] * 8
    assert len(set.union(*verdicts)) > 1


def test_other_normal_forms_are_another_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a calibration would decide by answers that were equal by older rules."""
    added = dict.fromkeys(POOL, "")
    before = answer_setup(settings(), added, {})
    assert before == answer_setup(settings(), added, {})
    monkeypatch.setattr(answers, "FORMS_VERSION", answers.FORMS_VERSION + 1)
    assert before != answer_setup(settings(), added, {})


@pytest.mark.parametrize("gives", ["verdicts", "labels"])
def test_other_code_of_a_checker_is_another_setup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gives: str
) -> None:
    """Its verdicts weigh votes and end calls, its labels are the loss: older samples say nothing.

    All of its package counts, since a function may import all of it.
    """
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_checker" / "within").mkdir(parents=True)
    (tmp_path / "own_checker" / "__init__.py").write_text("", encoding="utf-8")
    importlib.invalidate_caches()
    given = settings().model_dump(mode="json", exclude_unset=True)
    checker = {"function": "own_checker.within.checks:check"}
    if gives == "verdicts":
        given |= {"same_answer": {"evidence": checker}}
    else:
        own = {"keys": ["data"], "shadow_rate": 0.1, "same_answer": {"reference": "answerable"}}
        given |= {"applications": {"bot": own | {"checker": checker}}}
    made = Settings.model_validate(given)

    def setup(code: str) -> str:
        (tmp_path / "own_checker" / "rules.py").write_text(code, encoding="utf-8")
        return answer_setup(made, dict.fromkeys(POOL, ""), checker_code(made))

    before = setup("def check(request): return None")
    assert before == setup("def check(request): return None")
    assert before != setup("def check(request): return True")


def test_another_checker_of_labels_is_another_setup() -> None:
    """Where labels say what a miss is; elsewhere they calibrate nothing of this promise."""

    def setup(url: str, reference: str) -> str:
        own = {"keys": ["data"], "shadow_rate": 0.1, "checker": {"url": url}}
        own["same_answer"] = {"reference": reference}
        given = settings().model_dump(mode="json", exclude_unset=True)
        made = Settings.model_validate(given | {"applications": {"bot": own}})
        return answer_setup(made, dict.fromkeys(POOL, ""), {})

    one, other = "http://checks:9000/one", "http://checks:9000/other"
    assert setup(one, "answerable") != setup(other, "answerable")
    assert setup(one, "vote") == setup(other, "vote")


def test_a_named_reference_needs_prices() -> None:
    """Up to five calls come before it; a vote needs none, and prices end the refusal."""
    rng = np.random.default_rng(2)
    fitting, own = rows(rng, 60), rows(rng, 60)
    found = SequentialCalibration(
        policy=fit_policy(fitting, reference="ref"), answers=own, salt=b"salt"
    )
    assert refused(TERMS, found, fitting, None) == UNPRICED
    assert refused(TERMS, found, fitting, PRICES) != UNPRICED
    vote = SequentialCalibration(policy=fit_policy(fitting), answers=own, salt=b"salt")
    assert refused(SameAnswer(alpha=0.05), vote, fitting, None) != UNPRICED


# Progress -----------------------------------------------------------------------------------------

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def arrivals(rng: np.random.Generator, count: int) -> list[datetime]:
    """Requests at random, one a minute on average."""
    gaps = rng.exponential(60.0, count)
    return [BEGIN + timedelta(seconds=float(each)) for each in np.cumsum(gaps)]


@pytest.mark.parametrize("alpha", [0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 0.5, 0.9])
def test_rows_needed_are_the_fewest_with_a_finite_threshold(alpha: float) -> None:
    """One row fewer has none."""
    needed = rows_needed(alpha)
    for total, is_enough in ((needed, True), (needed - 1, False)):
        rest = total - fitting_rows(total)
        assert (rest > 0 and allowed_misses(rest, alpha) >= 0) == is_enough
    assert needed >= fitting_rows(needed)


def test_the_estimate_is_right_on_average_and_bounded_in_spread() -> None:
    """Of 25 rows needed 50: the mean over 2,000 runs is 25 minutes, within six standard errors."""
    rng = np.random.default_rng(5)
    waits: list[float] = []
    for _ in range(2_000):
        times = arrivals(rng, 25)
        found = expected_at(times, 50, times[-1])
        assert found is not None
        waits.append((found - times[-1]) / timedelta(minutes=1))
    # The gaps between 25 rows are 24, and the sum is divided by 25.
    mean = 25 * 24 / 25
    assert abs(np.mean(waits) - mean) < 6.0 * mean / math.sqrt(24 * 2_000)


def test_no_estimate_where_there_is_nothing_to_estimate() -> None:
    """Few rows, enough rows, or traffic that ended."""
    times = [BEGIN + timedelta(minutes=each) for each in range(20)]
    end = times[-1]
    assert expected_at(times, 30, end) == end + 10 * timedelta(minutes=19) / 20
    assert expected_at(times, 20, end) is None
    assert expected_at(times[:9], 30, times[8]) is None
    assert expected_at(times, 30, end + timedelta(minutes=8)) is None
    assert expected_at([], 30, end) is None
