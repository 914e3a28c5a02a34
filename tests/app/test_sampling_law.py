"""Exact law of the whole of sampling: traffic is drawn, exported, thinned and calibrated.

Traffic of three applications, each with other right candidates, whose requests change when the
sampling rate does. The functions are those of a gateway, from the draw to the record.

A request is missed with probability (m + 1) / (n + 1) for n distinct rows, of which alpha allows m
to be missed, so the misses among T requests of an upload are BetaBinomial(T, m + 1, n - m).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import settings
from app.calibrations.columns import RowColumns
from app.calibrations.columns import load as load_columns
from app.calibrations.jobs import Progress
from app.calibrations.parsing import ReadInstructions, parse
from app.calibrations.record_builder import RecordBuilder
from app.calibrations.thinning import RateInForce, thinned
from app.monitoring.samples.draw import ShadowSample, conversation_turn
from app.monitoring.samples.rows import labelled_rows
from app.monitoring.samples.store import Sample, SampledDecision, SampledExchange
from app.routing.conditions import ConditionReader
from app.routing.groups import Grouping
from app.routing.query import of_body
from app.routing.row_selection import RowSelector
from app.store.calibration_record import CalibrationRecord
from app.wire.candidate_payload import BodySettings, request_fields
from app.wire.schemas import CalibrateOptions
from racer_core.trained_router import RouterScores, TrainedRouter
from racer_core.types import FloatArray, RiskTarget, Score
from tests.kit.gateway import ENVIRONMENT, POOL, configure, user
from tests.kit.lazy import LazyModule
from tests.kit.monitored import calibration_record, decision_record

stats = LazyModule("scipy.stats")

ALPHA, UPLOADS, REQUESTS = 0.2, 15, 20
FALSE_ALARM = 1e-6 / 6  # of each check
KEY, PATH = b"a key of the store", "chat/completions"
BANK, SHOP, HELP = "bank", "shop", "help"
RATES = (0.8, 0.2)  # of the two periods
LATE = 0.6  # share of requests in the second
DECISION = decision_record(calibration_record(rows=30), (0.5, 0.5, 0.5))
EASY, MIDDLE, HARD = (0.9, 0.08, 0.02), (0.4, 0.4, 0.2), (0.05, 0.15, 0.8)  # by rank, right


@dataclass
class Request:
    """A request of the traffic."""

    application: str
    body: dict[str, Any]
    text: str
    right: str
    is_late: bool
    session: str | None = None
    pool: tuple[str, ...] = POOL
    reasons: tuple[str, ...] = ()
    has_label: bool = True


@dataclass
class Traffic:
    """Random requests, and the router's scores of their texts."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(20))
    scores: dict[str, FloatArray] = field(default_factory=dict[str, FloatArray])

    def request(
        self,
        application: str,
        chances: Sequence[float],
        *,
        is_late: bool = False,
        system: str | None = None,
        earlier: Sequence[dict[str, Any]] = (),
        **changes: Any,
    ) -> Request:
        """A request of which the candidate of a random rank is right."""
        text = f"question {len(self.scores)}"
        self.scores[text] = scores = self.rng.random(len(POOL))
        rank = self.rng.choice(len(POOL), p=chances)
        turns = [{"role": "system", "content": system}] if system else []
        body = {"model": "auto", "messages": [*turns, *earlier, *user(text)]}
        right = POOL[int(np.argsort(-scores)[rank])]
        return Request(application, body, text, right, is_late, **changes)

    def is_late(self) -> bool:
        """Whether a request comes in the second period."""
        return bool(self.rng.random() < LATE)

    def bank(self) -> Request:
        """Easy before the rate fell, hard after; every length and system prompt is its own."""
        late = self.is_late()
        system = "Rules. " * int(self.rng.integers(1, 40))
        return self.request(BANK, HARD if late else EASY, is_late=late, system=system)

    def conversation(self) -> list[Request]:
        """The later turns of a conversation: long ones are hard."""
        late, length = self.is_late(), int(self.rng.choice([1, 4]))
        turns: list[dict[str, Any]] = [*user(f"opening {self.rng.integers(2**60)}")]
        found: list[Request] = []
        for _ in range(length):
            turns += [{"role": "assistant", "content": "Yes."}]
            chances = HARD if length > 1 else EASY
            found.append(self.request(BANK, chances, is_late=late, earlier=turns))
            turns += user(found[-1].text)
        return found

    def shop(self) -> Request:
        """What the whole pool may serve; one in ten is refused by a candidate, which is wrong."""
        late = self.is_late()
        found = self.request(SHOP, HARD if late else EASY, is_late=late)
        if self.rng.random() < 0.1 and found.right == POOL[-1]:
            found.right = POOL[0]
        return found

    def helping(self) -> Request:
        """Always under one system prompt."""
        late = self.is_late()
        return self.request(HELP, EASY if late else MIDDLE, is_late=late, system="You help.")

    def of_an_upload(self) -> list[Request]:
        """Everything that comes, also what no row can be, or has no label."""
        found = [self.bank() for _ in range(180)]
        found += [turn for _ in range(70) for turn in self.conversation()]
        for _ in range(160):
            each = self.shop()
            # A candidate is out, or fails in a shadow call; most often of hard requests.
            is_hard = self.scores[each.text][POOL.index(each.right)] < 0.3
            fails = each.is_late and self.rng.random() < (0.1 if is_hard else 0.02)
            out: dict[str, Any] = {"pool": POOL[:2], "reasons": (f"candidate_down:{POOL[-1]}",)}
            is_out = fails and self.rng.random() < 0.5
            found.append(replace(each, has_label=not fails, **(out if is_out else {})))
        fewer: dict[str, Any] = {"pool": POOL[:2]}  # all that the key may use
        unable = fewer | {"reasons": ("unlabelled_request_kind",)}
        for changes in (fewer, unable):
            found += [self.request(SHOP, (1.0, 0.0, 0.0), **changes) for _ in range(200)]
        found += [self.helping() for _ in range(150)]
        found += [self.request(HELP, HARD, system="You do else.") for _ in range(60)]
        return found


class Gateway:
    """The parts of a gateway that draw requests, export rows and calibrate on them."""

    def __init__(self, folder: Path, artifact: Path) -> None:
        applications = {name: {"premise": "drawn"} for name in (BANK, SHOP)} | {HELP: {}}
        path = configure(folder, artifact, "http://127.0.0.1:9", applications=applications)
        self.settings = settings.load(path, ENVIRONMENT)[0]
        self.traffic = Traffic()
        self.trained = TrainedRouter.load(artifact)
        self.conditions = ConditionReader(self.settings.candidates)
        self.rows = RowSelector(self.settings.routing.text, self.conditions.added)
        self.builder = RecordBuilder(
            settings=self.settings,
            trained=self.trained,
            scorer=self,  # pyright: ignore[reportArgumentType]
            grouping=Grouping.open(self.settings.group_by, self.settings.applications),
            conditions=self.conditions,
            setup="setup",
        )
        self.count = 0

    def score_rows(self, queries: Any, *, progress: Any = None) -> RouterScores:
        """Scores of rows."""
        found = np.array([self.traffic.scores[each] for each in queries])
        return RouterScores(found, np.zeros(len(found), bool))

    def drawn(self, requests: Sequence[Request]) -> RowColumns:
        """The rows of the requests that are drawn."""
        sample = ShadowSample(0.0, {}, KEY)
        decisions: list[SampledDecision] = []
        for each in requests:
            self.count += 1
            decision_id = f"chatcmpl-{self.count}"
            fields = request_fields(each.body, PATH)
            rate = RATES[each.is_late]
            turn = conversation_turn(
                KEY, fields, PATH, caller="data", application=each.application, session=None
            )
            if not sample.draw(decision_id, rate, turn):
                continue
            stored = Sample(
                decision_id=decision_id,
                application=each.application,
                later=turn is not None,
                conversation=turn and turn.conversation,
                classes={},
                digests=self.conditions.read(fields, PATH).digests,
                whole=each.has_label,
                exchange=SampledExchange(request=each.body, path=PATH, answers={}, calls={}),
            )
            decision = replace(
                DECISION,
                decision_id=decision_id,
                calibration_id=None,
                pool=each.pool,
                reasons=each.reasons,
                group=each.application,
                group_by="application",
                shadow_rate=rate,
                conversation=turn and turn.conversation,
                turn=turn and turn.number,
            )
            correct = {name: name == each.right for name in POOL} if each.has_label else {}
            decisions.append(
                SampledDecision(decision=decision, sample=stored, correct=correct, judgements={})
            )
        lines, _ = labelled_rows(
            lambda: decisions,
            POOL,
            group_by="application",
            drawn=self.settings.drawn_applications,
            conditions_of=lambda _: None,
            stores_requests=True,
            own=[],
            sent_now=lambda each: self.conditions.read(each.request, each.path).digests,
        )
        return self._read(b"".join(lines))

    def _read(self, lines: bytes) -> RowColumns:
        order = ReadInstructions(
            name="x.jsonl",
            source="rows",
            document=False,
            pool=POOL,
            query_chars=self.settings.limits.query_chars,
            equality=None,
            salt=self.trained.artifact.salt,
            samples_key=KEY.hex(),
            text=self.settings.routing.text,
            candidates=tuple(map(BodySettings.of, self.settings.candidates)),
            extra_fields=(),
            drawn=self.settings.drawn_applications,
        )
        texts, arrays = io.BytesIO(), io.BytesIO()
        none = partial(lambda *_: None)
        parsed = parse(order, io.BytesIO(lines), texts, arrays, fields=none, progress=none)
        counts = ("duplicates", "near_duplicates", "assumed", "guessed_kind")
        return load_columns(POOL, texts, arrays, **{name: getattr(parsed, name) for name in counts})

    def calibrated(self, rows: RowColumns) -> CalibrationRecord:
        """The record of an upload."""
        options = CalibrateOptions(
            alpha=ALPHA, score=Score.PROB, risk_target=RiskTarget.ANSWERABLE, rows_kind="traffic"
        )
        fixed = self.builder.fixed_terms(options, [], ALPHA)
        progress = Progress(lambda *_: None)
        return self.builder.record(rows, options, {}, progress, fixed, ALPHA)

    def misses(
        self, record: CalibrationRecord, requests: Sequence[Request], like: Request | None = None
    ) -> tuple[int, int, int]:
        """The missed requests of one kind, and n and m of the rows that set their threshold.

        Args:
            record: The calibration.
            requests: Requests that no reason voids.
            like: They get this request's threshold; None: their own.
        """
        first = requests[0] if like is None else like
        fields = request_fields(first.body, PATH)
        query = of_body(fields, PATH, self.conditions.read(fields), self.settings, None)
        premise = self.settings.applications[first.application].premise
        selection = self.rows.select(record, query, first.application, premise)
        assert selection.differing == ()
        rows = record.populations[selection.population].calibration.group(first.application)
        missed = sum(
            each.right
            not in rows.decide(
                self.trained.fingerprint(each.text),
                self.traffic.scores[each.text].tolist(),
                alpha=ALPHA,
            ).selected
            for each in requests
        )
        return missed, rows.n, rows.misses(ALPHA)


IN_FORCE = [
    RateInForce(application=name, rate=rate, requests=100, last_at="2026-01-01T00:00:00+00:00")
    for name in (BANK, SHOP, HELP)
    for rate in RATES
]


def interval(
    found: Sequence[tuple[int, int, int]], false_alarm: float = FALSE_ALARM
) -> tuple[int, int, int]:
    """The misses of all uploads, and the interval of their exact law."""
    law = np.ones(1)
    for _, n, misses in found:
        assert misses >= 0
        law = np.convolve(law, stats.betabinom.pmf(
            np.arange(REQUESTS + 1), REQUESTS, misses + 1, n - misses))  # fmt: skip
    low, high = np.searchsorted(law.cumsum(), [false_alarm / 2, 1.0 - false_alarm / 2])
    return sum(missed for missed, _, _ in found), int(low), int(high)


def test_the_whole_of_sampling_keeps_the_exact_law_of_each_application(
    tmp_path_factory: pytest.TempPathFactory, artifact: Path
) -> None:
    """15 uploads, 20 requests of each kind; false alarm 1e-6 over all checks.

    The rates fall when the requests change. In the traffic are also requests of a key with fewer
    candidates, requests that a candidate cannot take, and an application alike under another
    system prompt: their critical scores are others. Rows of the shop without a label
    count as misses, so its risk may be lower. Negative controls: requests of the bank are missed
    more often than the law allows under the threshold of helpful ones, and if no row is thinned
    (each by chance with probability 1e-4).
    """
    gateway = Gateway(tmp_path_factory.mktemp("law"), artifact)
    traffic = gateway.traffic
    names = (BANK, "later", SHOP, HELP, "mixed", "unthinned")
    found = {name: list[tuple[int, int, int]]() for name in names}
    for _ in range(UPLOADS):
        rows = gateway.drawn(traffic.of_an_upload())
        kept, evidence = thinned(rows, IN_FORCE, by_application=True)
        assert [each["rate"] for each in evidence] == [min(RATES)] * 3
        record = gateway.calibrated(kept)
        requests = {
            BANK: [traffic.bank() for _ in range(REQUESTS)],
            SHOP: [traffic.shop() for _ in range(REQUESTS)],
            HELP: [traffic.helping() for _ in range(REQUESTS)],
            "later": [],
        }
        while len(requests["later"]) < REQUESTS:  # a random turn, not of a random conversation
            turns = traffic.conversation()
            chosen = int(traffic.rng.integers(4))
            requests["later"] += turns[chosen : chosen + 1]
        for name, each in requests.items():
            found[name].append(gateway.misses(record, each))
        found["mixed"].append(gateway.misses(record, requests[BANK], like=requests[HELP][0]))
        plain = gateway.calibrated(replace(rows, weights=None))
        found["unthinned"].append(gateway.misses(plain, requests[BANK]))
    for name in (BANK, "later", HELP):
        missed, low, high = interval(found[name])
        assert low <= missed <= high, name
    missed, _, high = interval(found[SHOP])
    assert missed <= high
    for name in ("mixed", "unthinned"):
        missed, _, high = interval(found[name], 1e-4)
        assert missed > high, name
