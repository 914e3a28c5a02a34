"""The shipped demo pool has the figures of its README."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from app.settings.loading import read
from racer_core.aggregation.batch import RowAnswers
from racer_core.aggregation.rule import AnswerRule
from racer_core.calibration.calibration import Calibration
from racer_core.calibration.decision import Sets
from racer_core.calibration.metrics import set_metrics
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.realised_risk import TIE_LEVEL, RealisedRisk
from racer_core.calibration.threshold import allowed_misses
from racer_core.offline.votes import Votes
from racer_core.racer import Racer
from racer_core.records.reader import read_rows
from racer_core.trained_router import RouterScores
from racer_core.types import (
    BINARY_TARGETS,
    BoolArray,
    FloatArray,
    LabelledRows,
    RiskTarget,
    Score,
)
from tests.kit.lazy import LazyModule

measure = LazyModule("app.tools.demo.measure")
run = LazyModule("app.tools.demo.run")
stats = LazyModule("scipy.stats")

SPLITS = 500
SIZES = {"train": 2_400, "calibration": 2_000, "validation": 400, "test": 1_600}


@pytest.fixture(scope="module")
def splits() -> dict[str, LabelledRows]:
    """The four files of labelled rows."""
    return {name: read_rows(run.FOLDER / "data" / f"{name}.jsonl") for name in SIZES}


@pytest.fixture(scope="module")
def racer() -> Racer:
    """The shipped router."""
    return Racer.load(run.FOLDER / "router")


@pytest.fixture(scope="module")
def test_scores(racer: Racer, splits: dict[str, LabelledRows]) -> RouterScores:
    """The router's scores of the test rows."""
    return racer.score(splits["test"].queries)


@pytest.fixture(scope="module")
def calibration(racer: Racer, splits: dict[str, LabelledRows]) -> Calibration:
    """The calibration rows, scored once for both targets."""
    return racer.calibrate(splits["calibration"], options=CalibrationOptions())


@pytest.fixture(scope="module")
def votes(racer: Racer, splits: dict[str, LabelledRows], test_scores: RouterScores) -> Votes:
    """The candidates' answers to the test rows, to be merged."""
    rows = splits["test"]
    equality = read(run.FOLDER / "racer.yaml").aggregation.equality
    return Votes(
        pool=racer.pool,
        labels=rows.labels(racer.pool),
        scores=test_scores.scores,
        answers=RowAnswers.of(rows.rows, racer.pool, AnswerRule(equality=equality)),
        stacked=racer.artifact.stacked,
    )


@pytest.fixture(scope="module")
def first_choice_is_right(votes: Votes) -> BoolArray:
    """Whether the router's first choice alone answers each test row right."""
    return votes.labels[np.arange(len(votes.labels)), votes.scores.argmax(axis=1)]


def _served_sets(
    calibration: Calibration, racer: Racer, scored: RouterScores, alpha: float, score: Score
) -> Sets:
    """The sets of the demo's gateway, by its default risk target."""
    options = CalibrationOptions(null_threshold=racer.artifact.null_threshold)
    calibration = replace(calibration, options=options)
    return calibration.sets(
        scored.scores,
        [b""] * len(scored.scores),
        calibration.lambda_hat(alpha, score),
        score,
        scored.neighbours,
    )


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def test_splits_are_large_enough_and_apart(splits: dict[str, LabelledRows]) -> None:
    """Fails when a file was cut, or a query stands in two splits."""
    for name, least in SIZES.items():
        assert len(splits[name]) >= least
    queries = [query for rows in splits.values() for query in rows.queries]
    assert len(set(queries)) == len(queries)


def test_no_candidate_is_good_enough_alone(splits: dict[str, LabelledRows]) -> None:
    """On the test rows: each candidate below 75 %, the oracle 10 points above the best single."""
    labels = splits["test"].labels(splits["test"].pool)
    best_single, best_of_pool = labels.mean(axis=0).max(), labels.any(axis=1).mean()
    assert best_single <= 0.75
    assert best_of_pool >= best_single + 0.10
    assert (labels.sum(axis=1) > 1).mean() >= 0.60
    assert 0.03 <= 1 - best_of_pool <= 0.15


def test_candidates_are_small_ordinary_folders(splits: dict[str, LabelledRows]) -> None:
    """At most 2 M parameters and 4 MB each; everything together at most 40 MB."""
    for name in splits["test"].pool:
        weights = run.FOLDER / "pool" / name / "model.safetensors"
        assert weights.stat().st_size <= 4_000_000
        with safe_open(weights, "np") as file:
            shapes = [file.get_slice(key).get_shape() for key in file.keys()]  # noqa: SIM118
        assert sum(int(np.prod(shape)) for shape in shapes) <= 2_000_000
    assert _megabytes(run.FOLDER) <= 40


def test_router_beats_the_best_single_candidate(
    racer: Racer, splits: dict[str, LabelledRows], test_scores: RouterScores
) -> None:
    """Its first choice is right at least 5 points more often, on test rows."""
    rows = splits["test"]
    labels = rows.labels(racer.pool)
    top = test_scores.scores.argmax(axis=1)
    assert labels[np.arange(len(top)), top].mean() >= labels.mean(axis=0).max() + 0.05


def test_a_vote_of_all_beats_the_first_choice(
    votes: Votes, first_choice_is_right: BoolArray
) -> None:
    """By at least 1 point, on test rows, with the vote of the demo's gateway."""
    rule = read(run.FOLDER / "racer.yaml").aggregation
    first_choice = first_choice_is_right.mean()
    accuracy = {
        each: votes.accuracy(each, np.ones_like(votes.labels), rule.temperature)
        for each in votes.rules
    }
    assert accuracy[rule.method] >= first_choice + 0.01


def test_sets_at_the_smallest_alpha_are_right_more_often_than_the_first_choice(
    racer: Racer,
    test_scores: RouterScores,
    calibration: Calibration,
    votes: Votes,
    first_choice_is_right: BoolArray,
) -> None:
    """On all 1,600 test rows and on the 300 of the demo's table; refusals count as wrong."""
    rule = read(run.FOLDER / "racer.yaml").aggregation
    sets = _served_sets(calibration, racer, test_scores, min(measure.ALPHAS), Score.COVER)
    right = votes.right(rule.method, sets.selected, rule.temperature)
    for part in (slice(None), slice(300)):
        assert right[part].mean() > first_choice_is_right[part].mean()


def test_the_expected_range_is_that_of_random_splits(
    racer: Racer, splits: dict[str, LabelledRows], calibration: Calibration
) -> None:
    """Calibration and test rows, split anew 500 times: 95 % of realised risks are in the range."""
    tau = racer.artifact.null_threshold
    options = CalibrationOptions(score=Score.COVER, null_threshold=tau)
    calibrated = replace(calibration, options=options)
    tested = replace(racer.calibrate(splits["test"], options=options), options=options)
    own, others = calibrated.row_critical_scores, tested.row_critical_scores
    scores, n = np.concatenate([own, others]), own.size
    rng = np.random.default_rng(20261126)
    orders = [rng.permutation(scores) for _ in range(SPLITS)]

    def realised(order: FloatArray, alpha: float) -> tuple[int, bool]:
        """The missed rows of a split, and whether that number is in its range."""
        ascending = np.sort(order[:n])
        risk = RealisedRisk.of(ascending, allowed_misses(n, alpha))
        missed = int((order[n:] > ascending[n - 1 - risk.misses]).sum())
        low, high = risk.misses_among(others.size)
        return missed, low <= missed <= high

    for alpha in measure.ALPHAS:
        missed, inside = np.array([realised(order, alpha) for order in orders]).T
        assert inside.sum() >= stats.binom.ppf(1e-6, SPLITS, 0.95 - TIE_LEVEL)
        assert missed.mean() <= alpha * others.size + 5 * missed.std() / np.sqrt(SPLITS)


@pytest.mark.parametrize("target", BINARY_TARGETS)
def test_sets_are_small_at_alpha_one_tenth(
    racer: Racer,
    splits: dict[str, LabelledRows],
    test_scores: RouterScores,
    calibration: Calibration,
    target: RiskTarget,
) -> None:
    """The smallest set of all scores calls at most 60 % of the pool; each score keeps its bound."""
    options = CalibrationOptions(risk_target=target, null_threshold=racer.artifact.null_threshold)
    calibration = replace(calibration, options=options)
    rows = splits["test"]
    scored, labels = test_scores, rows.labels(racer.pool)
    sizes: list[float] = []
    assert set(calibration.offered) == set(Score) - {Score.COVER_COST}  # no prices are known
    for score in calibration.offered:
        lambda_hat = calibration.lambda_hat(0.1, score)
        prints = [b""] * len(rows)
        sets = calibration.sets(scored.scores, prints, lambda_hat, score, scored.neighbours)
        metrics = set_metrics(sets.selected, sets.null_selected, labels)
        paper = target is RiskTarget.PAPER
        assert (metrics.risk if paper else metrics.miss_given_answerable) <= 0.15
        sizes.append(metrics.size)
    assert min(sizes) <= 0.6 * len(racer.pool)


def test_alpha_trades_calls_for_risk_and_a_fixed_order_calls_more(
    racer: Racer, test_scores: RouterScores, calibration: Calibration
) -> None:
    """What the demo shows, on test rows, with the default score and risk target of a gateway."""

    def size(alpha: float, score: Score) -> float:
        sets = _served_sets(calibration, racer, test_scores, alpha, score)
        return float(sets.selected.sum(axis=1).mean())

    assert size(0.02, Score.COVER) > size(0.05, Score.COVER) + 0.5
    for alpha in (0.02, 0.05):
        assert size(alpha, Score.STATIC) > size(alpha, Score.COVER) + 0.2
