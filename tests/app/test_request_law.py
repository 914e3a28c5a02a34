"""Exact law of whole requests: each system prompt is a population with a threshold of its own.

Which candidate is right depends on the system prompt. Rows of all of them are one upload, in any
order. For distinct critical scores the misses of T requests of a population with n rows are
BetaBinomial(T, m, n + 1 - m) with m = floor(alpha (n + 1)), and uploads are independent.
"""

from __future__ import annotations

import io
import json
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
from app.routing.conditions import ConditionReader
from app.routing.groups import Grouping
from app.routing.query import of_body
from app.routing.row_selection import RowSelector
from app.settings import Settings
from app.store.calibration_record import CalibrationRecord
from app.wire.candidate_payload import BodySettings, request_fields
from app.wire.schemas import CalibrateOptions
from racer_core.trained_router import RouterScores, TrainedRouter
from racer_core.types import FloatArray, RiskTarget, Score
from tests.core.laws import assert_split_risk
from tests.kit.gateway import ENVIRONMENT, POOL, configure

ALPHA, UPLOADS, REQUESTS = 0.2, 60, 20
FALSE_ALARM = 1e-6 / 3  # of each population's check
# System prompt -> its rows in an upload, and how often the candidate of each rank is right.
POPULATIONS = {
    "You are helpful.": (34, (0.8, 0.15, 0.05)),
    "You work for a bank.": (24, (0.1, 0.2, 0.7)),
    "You work for a shop.": (19, (0.3, 0.4, 0.3)),
}
HELPFUL, BANK, SHOP = POPULATIONS


class World:
    """Queries with random router scores, and the candidate that is right under a system prompt."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(23)
        self.scores: dict[str, FloatArray] = {}

    def draw(self, system: str) -> tuple[dict[str, Any], str, str]:
        """A request, its text, and the candidate that is right."""
        text = f"question {len(self.scores)}"
        self.scores[text] = scores = self.rng.random(len(POOL))
        rank = self.rng.choice(len(POOL), p=POPULATIONS[system][1])
        return body(system, text), text, POOL[int(np.argsort(-scores)[rank])]

    def score_rows(self, queries: Any, *, progress: Any = None) -> RouterScores:
        """Scores of rows."""
        found = np.array([self.scores[each] for each in queries])
        return RouterScores(found, np.zeros(len(found), bool))


def body(system: str, text: str) -> dict[str, Any]:
    """What a client sends."""
    turns = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    return {"model": "auto", "messages": turns}


class Gateway:
    """The parts of a gateway that read rows, build thresholds and find a request's rows."""

    def __init__(self, configured: Settings, artifact: Path, world: World) -> None:
        self.settings = configured
        self.trained = TrainedRouter.load(artifact)
        self.conditions = ConditionReader(configured.candidates)
        self.rows = RowSelector(configured.routing.text)
        self.world = world
        self.builder = RecordBuilder(
            settings=configured,
            trained=self.trained,
            scorer=world,  # pyright: ignore[reportArgumentType]
            grouping=Grouping.open("request"),
            conditions=self.conditions,
            setup="setup",
        )

    def calibrated(self, lines: bytes) -> CalibrationRecord:
        """The record of an upload."""
        options = CalibrateOptions(
            alpha=ALPHA, score=Score.PROB, risk_target=RiskTarget.ANSWERABLE, rows_kind="questions"
        )
        fixed = self.builder.fixed_terms(options, [], ALPHA)
        progress = Progress(lambda *_: None)
        return self.builder.record(self._read(lines), options, {}, progress, fixed, ALPHA)

    def _read(self, lines: bytes) -> RowColumns:
        order = ReadInstructions(
            name="x.jsonl",
            source="rows",
            document=False,
            pool=POOL,
            query_chars=self.settings.limits.query_chars,
            equality=None,
            salt=self.trained.artifact.salt,
            samples_key="00",
            text=self.settings.routing.text,
            candidates=tuple(map(BodySettings.of, self.settings.candidates)),
            extra_fields=(),
        )
        texts, arrays = io.BytesIO(), io.BytesIO()
        parsed = parse(
            order, io.BytesIO(lines), texts, arrays, fields=lambda _: None, progress=lambda *_: None
        )
        counts = ("duplicates", "near_duplicates", "assumed", "guessed_kind")
        return load_columns(POOL, texts, arrays, **{name: getattr(parsed, name) for name in counts})

    def selection(self, record: CalibrationRecord, sent: dict[str, Any]) -> Any:
        """The rows that decide a request."""
        fields = request_fields(sent, "chat/completions")
        query = of_body(
            fields, "chat/completions", self.conditions.read(fields), self.settings, None
        )
        return self.rows.select(record, query)

    def misses(self, record: CalibrationRecord, place: int, text: str, right: str) -> bool:
        """Whether the set of this population's threshold lacks the right candidate."""
        decision = record.populations[place].calibration.decide(
            self.trained.fingerprint(text), self.world.scores[text].tolist(), alpha=ALPHA
        )
        return right not in decision.selected


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, artifact: Path) -> Gateway:
    """Three candidates and no server."""
    path = configure(tmp_path_factory.mktemp("law"), artifact, "http://127.0.0.1:9")
    return Gateway(settings.load(path, ENVIRONMENT)[0], artifact, World())


def test_requests_of_each_system_prompt_keep_their_own_exact_law(gateway: Gateway) -> None:
    """60 uploads, 20 requests each; false alarm 1e-6 over all three populations.

    The rows of another system prompt are no sample of these requests: with the threshold of the
    largest population the bank's requests are missed far more often, and the test sees it.
    """
    world = gateway.world
    missed, by_first = dict.fromkeys(POPULATIONS, 0), dict.fromkeys(POPULATIONS, 0)
    for _ in range(UPLOADS):
        rows = [world.draw(name) for name, (count, _) in POPULATIONS.items() for _ in range(count)]
        world.rng.shuffle(rows)
        lines = "\n".join(
            json.dumps({"request": sent, "correct": {name: name == right for name in POOL}})
            for sent, _, right in rows
        )
        record = gateway.calibrated(lines.encode())
        assert len(record.populations) == len(POPULATIONS)
        for name in POPULATIONS:
            for _ in range(REQUESTS):
                sent, text, right = world.draw(name)
                selection = gateway.selection(record, sent)
                assert selection.differing == ()
                missed[name] += gateway.misses(record, selection.population, text, right)
                by_first[name] += gateway.misses(record, 0, text, right)
    for name, (count, _) in POPULATIONS.items():
        assert_split_risk(
            missed[name] / (UPLOADS * REQUESTS),
            splits=UPLOADS,
            n=count,
            n_test=REQUESTS,
            alpha=ALPHA,
            false_alarm=FALSE_ALARM,
        )
    with pytest.raises(AssertionError, match="the law of 60 splits"):
        assert_split_risk(
            by_first[BANK] / (UPLOADS * REQUESTS),
            splits=UPLOADS,
            n=POPULATIONS[HELPFUL][0],
            n_test=REQUESTS,
            alpha=ALPHA,
            false_alarm=FALSE_ALARM,
        )
