"""Half a year of operators who follow everything that the gateway says.

P(a certificate holds and its set misses) <= alpha over all requests together, for both promises:
what an operator does after figures were shown must select nothing that keeps its certificate.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.access.api_keys import Caller
from app.monitoring.monitor import Monitor
from app.monitoring.samples.sampler import SamplerOptions
from app.routing.artifact_files import open_racer
from app.routing.conditions import ConditionReader
from app.routing.rounds_plan import RoundsTerms
from app.same_answer import rows as answer_rows
from app.same_answer.calibrations import Staleness
from app.store import Store
from app.store.answer_calibrations import ALARM, AnswerCalibrationStore
from app.store.calibration_record import CalibrationRecord
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.rule import AnswerRule
from racer_core.calibration.threshold import allowed_misses
from racer_core.errors import InfeasibleAlphaError, InputError, RowsError
from racer_core.offline.tune import tune
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.types import BoolArray, FloatArray, LabelledRows, Score
from tests.core.laws import rarely_exceeded
from tests.kit.answer_traffic import SETUP, AnswerWorld
from tests.kit.lazy import LazyModule
from tests.kit.monitored import decision_records
from tests.kit.operators import ALPHA, POOL, WEEKS, Deployment, Operator, labelled, labels
from tests.kit.same_answer import NAMES, RIGHT

pytestmark = pytest.mark.usefixtures("few_fitting_rows")

stats = LazyModule("scipy.stats")

FALSE_ALARM = 1e-6
ADMIN = Caller(name="admin", role="admin")
FEW, ROWS = 9, 59  # that count, of the first upload and of others
HALF = 100  # queries of half a week
# The weeks between are plain: what selects has time to keep a lucky calibration.
CANARIES = (2, 24)  # weeks with a canary
AWAY = 3  # the week in which the operator does not calibrate until certificates expire
JUDGED, BAD = 4, 23  # weeks in which requests are labelled: usual ones, and ones that all miss


Law = tuple[int, int, float]  # queries that a calibration decides, its rows, and alpha


@dataclass(kw_only=True)
class Season:
    """What became of the requests of an operator in half a year.

    Attributes:
        broken: Requests that were missed under a certificate that holds.
        held: Requests whose certificate holds.
        requests: All of them.
        laws: Of all calibrations under which certificates may hold.
        advice: How often each advice was followed.
    """

    broken: int = 0
    held: int = 0
    requests: int = 0
    laws: Counter[Law] = field(default_factory=Counter[Law])
    advice: Counter[str] = field(default_factory=Counter[str])


class Obedient:
    """An operator who does whatever the gateway advises, and counts what it costs.

    Args:
        operator: Uploads rows.
        monitor: Watches the active calibration.
        season: Takes the counts.
    """

    def __init__(self, operator: Operator, monitor: Monitor, season: Season) -> None:
        self._operator = operator
        self._monitor = monitor
        self._season = season

    async def begin(self) -> None:
        """Label the questions that there are, and as many more as the refusal asks for."""
        operator = self._operator
        questions = self._questions(FEW - 1)
        while True:
            try:
                await operator.upload_rows(questions)
            except InfeasibleAlphaError as exc:
                found = re.search(r"(\d+) rows count, it needs (\d+); add rows", str(exc))
                assert found is not None
                self._season.advice["add rows"] += 1
                more = int(found[2]) - int(found[1])
                questions = np.vstack([questions, self._questions(more)])
                continue
            assert questions.any(axis=1).sum() == FEW
            return

    def _questions(self, count: int) -> Any:
        """Of which a quarter has no right candidate."""
        found = labels(self._operator.rng, count)
        return found & (self._operator.rng.random((count, 1)) < 0.75)

    async def calibrate(self) -> None:
        """Calibrate on fresh rows, and go back where the alert names the command."""
        made = await self._operator.upload(ROWS)
        if alert := made["evidence"].get("shift", {}).get("alert"):
            found = re.search(r"`racer calibrations rollback` activates (\S+) again", alert)
            assert found is not None
            await self._operator.service.activate(found[1], made["id"])
            self._season.advice["roll back"] += 1

    def serve(self, queries: int) -> None:
        """Let requests come; each is decided by the active calibration, or by the canary."""
        active, season = self._operator.active, self._season
        canary = active.canary
        drawn = 0
        if canary is not None:
            ids = (self._operator.rng.bytes(8).hex() for _ in range(queries))
            drawn = sum(canary.decides(each) for each in ids)
            self._serve(canary.record, drawn)
        self._serve(active.record(), queries - drawn)
        season.requests += queries

    def _serve(self, record: CalibrationRecord, queries: int) -> None:
        if not (record.void_reasons or self._monitor.shared_reasons(record.id)):
            self._season.held += queries
            self._season.broken += int(self._operator.misses(record, queries).sum())

    async def judge(self, correct: BoolArray) -> None:
        """Label requests of the active calibration."""
        operator, monitor = self._operator, self._monitor
        scores = np.full(correct.shape, 0.5)
        made = decision_records(
            operator.active.record(), scores, shadow_rate=1.0, sampling_rate=1.0
        )
        for each in made:
            monitor.record(each)
        for each, right in zip(made, correct, strict=True):
            verdicts: dict[str, bool] = dict(zip(POOL, right.tolist(), strict=True))
            await monitor.feedback.add(each.decision_id, verdicts, ADMIN)

    async def heed(self) -> None:
        """Calibrate at once where an alarm or its age voids what is active."""
        if reasons := self._monitor.stale_reasons(self._operator.active.record().id):
            self._season.advice["age" if reasons == ("stale:age",) else "alarm"] += 1
            await self._operator.upload(ROWS)
            assert not self._monitor.stale_reasons(self._operator.active.record().id)

    async def try_canary(self) -> None:
        """Let another calibration decide half of the requests."""
        made = await self._operator.upload(ROWS, activate=False)
        active = self._operator.active.record().id
        await self._operator.service.activate(made["id"], active, share=0.5)

    async def end_canary(self) -> None:
        """Promote it where its sets are smaller, else end it."""
        active, canary = self._operator.active.record(), self._operator.active.canary
        assert canary is not None
        sizes = [each.evidence["mean_size"] for each in (active, canary.record)]
        chosen = canary.record if sizes[1] < sizes[0] else active
        self._season.advice["promote" if chosen is canary.record else "end the canary"] += 1
        await self._operator.service.activate(chosen.id, active.id)

    async def age(self, days: int) -> None:
        """Let the active calibration be that old."""
        record = self._operator.active.record()
        since = datetime.now(UTC) - timedelta(days=days)
        await self._operator.active.swap(replace(record, created_at=since.isoformat()))


@asynccontextmanager
async def obedient(
    deployment: Deployment, folder: Path, seed: int, season: Season
) -> AsyncGenerator[Obedient]:
    """An operator whose gateway watches what is active."""
    settings = deployment.settings
    async with (
        deployment.operator(folder, seed) as operator,
        Monitor(
            settings=settings.watching,
            store=operator.store,
            active=operator.active,
            metrics=operator.metrics,
            sampling=SamplerOptions(
                key=b"key",
                conditions=ConditionReader(settings.candidates),
                group_by=settings.group_by,
                pool=settings.pool,
            ),
            rng=np.random.default_rng(seed),
        ) as monitor,
    ):
        operator.sync.subscribe(monitor.on_shared_state)
        yield Obedient(operator, monitor, season)


async def half_a_year(
    deployment: Deployment, folder: Path, seed: int, season: Season, *, judges: bool
) -> None:
    """Two halves of each week: what was seen in the first decides what is done in between.

    Args:
        deployment: The gateway.
        folder: Of its store.
        seed: Of rows and requests.
        season: Takes the counts.
        judges: Requests are labelled in two weeks.
    """
    season.laws += Counter({(2 * HALF, FEW, ALPHA): 1, (2 * HALF, ROWS, ALPHA): WEEKS - 1})
    async with obedient(deployment, folder, seed, season) as operator:
        for week in range(WEEKS):
            if week == 0:
                await operator.begin()
            elif week == AWAY:
                await operator.age(8)
            else:
                await operator.calibrate()
            if week in CANARIES:
                await operator.try_canary()
            operator.serve(HALF)
            if week in CANARIES:
                await operator.end_canary()
            if judges and week == JUDGED:
                await operator.judge(labels(np.random.default_rng(seed), 40))
            if judges and week == BAD:
                await operator.judge(np.tile(np.arange(len(POOL)) == len(POOL) - 1, (12, 1)))
            await operator.heed()
            operator.serve(HALF)


def assert_kept(seasons: Sequence[Season], *, slack: float = 0.0) -> None:
    """Fail when operators together, or one alone, broke more than a law of mean alpha allows.

    Each has a false alarm of 1e-6. What keeps a lucky calibration spares most operators, and makes
    the misses of a few of them twice as many.

    Args:
        seasons: Of independent operators.
        slack: What is added to the logarithm of each operator's moments.
    """
    laws = sum((each.laws for each in seasons), Counter[Law]())
    total = largest(laws, FALSE_ALARM, slack=slack * len(seasons))
    assert sum(each.broken for each in seasons) <= total, seasons
    for each in seasons:
        assert each.broken <= largest(each.laws, FALSE_ALARM / len(seasons), slack=slack), each


def largest(laws: Counter[Law], false_alarm: float, *, slack: float) -> float:
    """A number of missed queries that is exceeded with a probability of ``false_alarm`` at most."""
    logs = {law: _log_chances(*law) for law in laws}

    def log_moment(rate: float) -> float:
        return slack + sum(count * log_mean_exp(logs[law], rate) for law, count in laws.items())

    return rarely_exceeded(log_moment, false_alarm, np.geomspace(1e-4, 0.3, 60).tolist())


def log_mean_exp(log_chances: FloatArray, rate: float) -> float:
    """Log E exp(rate * count) of a count with these chances."""
    return float(np.logaddexp.reduce(log_chances + rate * np.arange(len(log_chances))))


@cache
def _log_chances(queries: int, n: int, alpha: float) -> FloatArray:
    """Of every number of missed queries; those below 1e-300 count as that."""
    m = 1 + allowed_misses(n, alpha)
    return np.log(stats.betabinom(queries, m, n + 1 - m).pmf(np.arange(queries + 1)) + 1e-300)


def tuned(deployment: Deployment, rng: np.random.Generator) -> Deployment:
    """The deployment with what `racer tune` chooses on validation rows that calibrate nothing.

    They are too few at first: the refusal says how many questions it takes.
    """
    racer, configured = open_racer(deployment.settings), deployment.settings
    rows = labelled(labels(rng, 80), "tuning")
    while True:
        try:
            found = tune(
                racer,
                with_answers(rows),
                rule=AnswerRule(equality=Equality.EXACT),
                risk_target=configured.routing.risk_target,
                alpha=configured.routing.alpha,
            )
        except RowsError as exc:
            asked = re.search(r"hence ([\d,]+) questions of which 30 % validate", str(exc))
            assert asked is not None
            count = math.ceil(0.3 * int(asked[1].replace(",", "")))
            assert count > len(rows)
            rows = labelled(labels(rng, count), "tuning")
            continue
        chosen = {"alpha": found.chosen.alpha, "score": found.chosen.score}
        routing = configured.routing.model_copy(update=chosen)
        settings = configured.model_copy(update={"routing": routing})
        return replace(deployment, settings=settings)


def with_answers(rows: LabelledRows) -> LabelledRows:
    """Each candidate gives an answer of its own, unless it is right."""
    given = ({name: "right" if name in row.correct else name for name in POOL} for row in rows.rows)
    return replace(
        rows,
        rows=tuple(
            replace(row, answers=answers) for row, answers in zip(rows.rows, given, strict=True)
        ),
    )


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Its alarms are easily raised, and a calibration expires in a week."""
    made = Deployment.in_folder(
        tmp_path_factory.mktemp("operator"),
        watching={"shadow_rate": 1.0, "false_alarm": 0.9, "expire_after_days": 7},
    )
    found = tuned(made, np.random.default_rng(1))
    assert (found.settings.routing.alpha, found.settings.routing.score) == (ALPHA, Score.STATIC)
    return found


def test_half_a_year_has_every_advice(deployment: Deployment, memory_path: Path) -> None:
    """Rows are added, a shift is rolled back, an alarm and an old age calibrate again."""
    season = Season()
    asyncio.run(half_a_year(deployment, memory_path, 0, season, judges=True))
    advice = season.advice
    assert advice["add rows"] > 0
    assert advice["roll back"] > 0
    assert advice["age"] == 1
    assert 1 <= advice["alarm"] <= 2
    assert advice["promote"] + advice["end the canary"] == len(CANARIES)
    assert 0 < season.held < season.requests == 2 * HALF * WEEKS


@pytest.mark.slow
def test_an_operator_who_follows_every_advice_breaks_no_certificate(
    deployment: Deployment, memory_path: Path
) -> None:
    """P(a certificate holds and the set misses) <= alpha; false alarm 2e-6.

    A certificate holds only under the calibration that the last upload made, which misses
    BetaBinomial(200, m, n + 1 - m) queries in a week. A calibration is replaced in the middle of a
    week by an alarm, which is the likelier the larger its risk, or by its age. Both leave the
    moments of the count no larger.
    """
    operators = 36
    seasons = [Season() for _ in range(operators)]

    async def run() -> None:
        for seed, season in enumerate(seasons):
            judges = seed % 3 == 0
            await half_a_year(deployment, memory_path, 2_000 + seed, season, judges=judges)

    asyncio.run(run())
    assert_kept(seasons)
    requests = sum(each.requests for each in seasons)
    assert sum(each.held for each in seasons) > 0.4 * requests


# The promise `same_answer` --------------------------------------------------------------------

DIFFERING = 0.05  # alpha
ASKED, SEEN = 300, 400  # requests of a week that may be sampled; of half a week, otherwise alike
LOW, HIGH = 0.1, 0.4  # sampling rates before and after the advice
NEWEST = 80  # rows that a calibration takes: fewer than a week has at the high rate
OUTAGE, QUIET = 4, 17  # weeks: candidates fail on some requests, and there are none


class AnswerOperator:
    """An operator who follows what `GET /same-answer` says of an application.

    Args:
        store: Of the gateway.
        seed: Of the questions.
        season: Takes the counts.
        fallback: What answers without a calibration.
    """

    def __init__(
        self, store: Store, seed: int, season: Season, fallback: str = "whole_pool"
    ) -> None:
        section = {"alpha": DIFFERING, "calibrate": "from_traffic"}
        self._world = AnswerWorld(
            store,
            f"question of {seed}",
            same_answer=section,
            routing={"fallback": fallback},
        )
        self._rate, self._season = LOW, season
        self._seen = Counter[tuple[str, int]]()  # by calibration and its rows
        self._rng = np.random.default_rng(seed)

    def half_a_year(self) -> None:
        """Each week requests are answered, then samples refresh the calibration."""
        world = self._world
        for week in range(WEEKS):
            self._serve()
            if world.active is not None:
                world.age(8 if week == QUIET else 2, with_rows=week == QUIET)
                world.calibrator.calibrations.catch_up()
            self._serve()
            if week != QUIET:
                world.sample(ASKED, rate=self._rate)
            if week == OUTAGE:
                self._fail()
            world.calibrator.keep_up()
            if world.active is None or world.stale or week % 4 == 0:
                self._heed()
        seen = self._seen.items()
        self._season.laws += Counter((count, n, DIFFERING) for (_, n), count in seen)

    def _serve(self) -> None:
        calibrations, season = self._world.calibrator.calibrations, self._season
        season.requests += SEEN
        record = calibrations.find("")
        if record is None or record.is_chosen or calibrations.stale(record) is not None:
            return
        terms = RoundsTerms(record.evidence["reference"], record.evidence["max_rounds"])
        plan = calibrations.plan(record, record.pool, terms, record.alpha)
        stops = plan.calibration.stops(self._asked(), plan.threshold)
        season.held += SEEN
        season.broken += int(stops.differs.sum())
        self._seen[record.id, plan.calibration.n] += SEEN

    def _asked(self) -> AnswerClasses:
        """Answers to fresh questions, drawn as those of the samples."""
        chances = np.array([RIGHT[name] for name in NAMES])
        shape = SEEN, len(NAMES)
        wrong = self._rng.integers(1, 10, shape)
        given = np.where(self._rng.random(shape) < chances, 0, wrong)
        return AnswerClasses(
            pool=NAMES,
            classes=given.astype(np.int16),
            fingerprints=tuple(self._rng.bytes(16) for _ in range(SEEN)),
        )

    def _fail(self) -> None:
        """Candidates fail on 40 requests together, then on one in six."""
        for count in (40, *[4] * 6):
            self._world.sample(count, whole=False, rate=self._rate)
            self._world.sample(20, rate=self._rate)

    def _heed(self) -> None:
        report, advice = self._world.report, self._season.advice
        if report["refusal"]:
            is_worth_it = "not worth it" not in report["refusal"]
            advice["repair" if is_worth_it else "label"] += 1
            assert ("repair the candidates" in report["refusal"]) is is_worth_it
        if report["stale"] == Staleness.AGE:
            advice["age"] += 1
            self._world.sample(ASKED, rate=self._rate)
            asyncio.run(self._world.calibrator.calibrate(None))
        if report["rows"] < report["needed"] and self._rate == LOW:
            with pytest.raises(InputError, match=r"or raise `watching\.shadow_rate`"):
                asyncio.run(self._world.calibrator.calibrate(None))
            advice["raise the rate"] += 1
            self._rate = HIGH


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibration takes the newest 80 rows, as it takes 10,000 of heavier traffic.

    And candidates err often enough that no threshold is so low that it breaks nothing.
    """
    monkeypatch.setattr(answer_rows, "MAX_ROWS", NEWEST)
    for name, chance in zip(NAMES, (0.8, 0.75, 0.7, 0.6, 0.5), strict=True):
        monkeypatch.setitem(RIGHT, name, chance)


@pytest.mark.usefixtures("few_rows")
def test_half_a_year_of_same_answer_has_every_advice(memory_path: Path) -> None:
    """The rate is raised, an outage is repaired, an alarm and an old age calibrate again."""
    season = Season()
    with Store(f"sqlite:///{memory_path}/racer.db") as store:
        AnswerOperator(store, 0, season).half_a_year()
        evidence = [each.evidence for each in AnswerCalibrationStore(store).summaries(SETUP)]
    assert season.advice.keys() == {"raise the rate", "repair", "age"}
    assert sum(ALARM in each for each in evidence) == 1
    assert any(each["refused"] for each in evidence)
    assert 0 < season.held < season.requests == 2 * SEEN * WEEKS


@pytest.mark.slow
@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize(("fallback", "least"), [("whole_pool", 0.8), ("cyd", 0.2)])
def test_an_operator_of_same_answer_breaks_no_certificate(
    memory_path: Path, fallback: str, least: float
) -> None:
    """P(a certificate holds and the answer differs from the reference's) <= alpha; alarm 2e-6.

    Each week's calibration rests on rows of its own. An alarm begins the rows anew, because of what
    they showed: that adds alpha times the number of such alarms at most, and a tenth more is
    allowed for it. Where a refresh that takes more calls is kept out, the test fails. Beside a
    single candidate calibrations are refused that are not worth it, which selects nothing.
    """
    operators = 12
    seasons = [Season() for _ in range(operators)]
    for seed, season in enumerate(seasons):
        with Store(f"sqlite:///{memory_path}/{seed}.db") as store:
            AnswerOperator(store, 1 + seed, season, fallback).half_a_year()
    assert_kept(seasons, slack=math.log(1.1))
    requests = sum(each.requests for each in seasons)
    assert sum(each.held for each in seasons) > least * requests
    refused = sum(each.advice["label"] for each in seasons)
    assert (refused > 0) is (fallback != "whole_pool")
