"""The random-split protocol on labelled rows. Paper, Sec. 4.1.

A share of the rows trains the router once; the rest is split at random into calibration,
validation and test, many times over. Nothing is chosen on the test rows. The spread over splits
is that of re-splitting one pool of rows, not an independent standard error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from racer_core.aggregation.answers import Equality
from racer_core.aggregation.vote import Method, aggregate
from racer_core.calibration.augmentation import checked_scores
from racer_core.calibration.calibration import (
    Calibration,
    CalibrationOptions,
    Sets,
    choose_null_threshold,
)
from racer_core.calibration.metrics import SetMetrics, set_metrics
from racer_core.encoder.base import Encoder
from racer_core.errors import CalibrationError, InputError, RowsError
from racer_core.offline.train import (
    Progress,
    ReportingEncoder,
    RouterKind,
    check_queries,
    fit_router,
    silent,
)
from racer_core.routers.base import Batch, on_grid
from racer_core.types import (
    BoolArray,
    CandidateAnswer,
    FloatArray,
    LabelledRow,
    LabelledRows,
    RiskTarget,
    Score,
    any_column,
    checked_alpha,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How rows are split and what is asked of the sets."""

    splits: int = 100
    train_share: float = 0.4
    calibration_share: float = 0.5  # of what training leaves
    validation_share: float = 0.1
    alphas: tuple[float, ...] = (0.05, 0.1, 0.2)
    scores: tuple[Score, ...] = tuple(Score)
    risk_targets: tuple[RiskTarget, ...] = tuple(RiskTarget)
    smoothing: bool = False
    equality: Equality = Equality.EXACT
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse shares that leave no test rows."""
        for alpha in self.alphas:
            checked_alpha(alpha)
        if self.splits < 1:
            raise InputError("at least one split is needed", param="splits")
        shares = (self.train_share, self.calibration_share, self.validation_share)
        if min(shares) <= 0 or self.train_share >= 1 or sum(shares[1:]) >= 1:
            raise InputError("shares must be above 0 and leave rows to test on", param="shares")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Mean and standard deviation over the splits of one setting."""

    risk_target: RiskTarget
    score: Score
    alpha: float
    mean: dict[str, float]  # fields of SetMetrics, calls_saved, accuracy
    sd: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """What the sets must be compared with, on all rows but the training rows."""

    accuracy: dict[str, float]  # each candidate
    best_single: str
    router_top1: float
    answerable: float  # some candidate is right
    full_vote: float | None  # majority of the whole pool; None without recorded answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Everything `racer evaluate` prints."""

    pool: tuple[str, ...]
    encoder: str
    router: RouterKind
    n_train: int
    n_calibration: int
    n_validation: int
    n_test: int
    protocol: Protocol
    cells: tuple[Cell, ...]
    controls: Controls

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def merge(parts: Sequence[LabelledRows]) -> LabelledRows:
    """Rows of several files of one pool; copies are left out, so that no test row was trained on.

    Raises:
        RowsError: The files are about different pools, or disagree about a query.
    """
    pool = parts[0].pool
    for number, part in enumerate(parts, 1):
        if set(part.pool) != set(pool):
            problem = f"file {number} has the pool {list(part.pool)}, file 1 has {list(pool)}"
            raise RowsError("data", [problem])
    rows: dict[str, LabelledRow] = {}
    for number, part in enumerate(parts, 1):
        for row in part.rows:
            key = row.query or f"\0row {len(rows)}"
            if rows.setdefault(key, row).correct != row.correct:
                raise RowsError("data", [f"file {number} labels a query otherwise than before"])
    given = sum(len(part) + part.duplicates for part in parts)
    return LabelledRows(pool=pool, rows=tuple(rows.values()), duplicates=given - len(rows))


def evaluate(
    rows: LabelledRows,
    *,
    encoder: Encoder,
    router: RouterKind = "knn",
    protocol: Protocol,
    progress: Progress = silent,
) -> Evaluation:
    """Run the protocol.

    Args:
        rows: Labelled rows; with recorded answers accuracy is measured too.
        encoder: Opened encoder.
        router: Which router to train.
        protocol: Splits, alphas, scores and targets.
        progress: Hears of each stage.

    Raises:
        CalibrationError: Too few rows to split.
    """
    check_queries(rows, "data")
    rng = np.random.default_rng(protocol.seed)
    order = rng.permutation(len(rows))
    n_train = round(protocol.train_share * len(rows))
    training: list[int] = order[:n_train].tolist()
    rest: list[int] = order[n_train:].tolist()
    n_calibration = round(protocol.calibration_share * len(rest))
    n_validation = round(protocol.validation_share * len(rest))
    n_test = len(rest) - n_calibration - n_validation
    if min(n_train, n_calibration, n_validation, n_test) < 1:
        raise CalibrationError(f"{len(rows)} rows are too few to train, calibrate and test on")
    table = _score_rows(rows, training, rest, encoder, router, protocol, progress)
    runs: dict[tuple[RiskTarget, Score, float], list[dict[str, float]]] = {}
    for split in range(protocol.splits):
        shuffled: list[int] = rng.permutation(len(rest)).tolist()
        split_rows = _Split(
            calibration=shuffled[:n_calibration],
            validation=shuffled[n_calibration:-n_test],
            test=shuffled[-n_test:],
        )
        for key, measured in _one_split(table, split_rows, protocol).items():
            runs.setdefault(key, []).append(measured)
        progress("splits", split + 1, protocol.splits)
    return Evaluation(
        pool=rows.pool,
        encoder=encoder.spec.name,
        router=router,
        n_train=n_train,
        n_calibration=n_calibration,
        n_validation=n_validation,
        n_test=n_test,
        protocol=protocol,
        cells=tuple(_cell(key, values) for key, values in runs.items()),
        controls=_controls(table),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """All rows that did not train the router, scored once."""

    pool: tuple[str, ...]
    fingerprints: tuple[bytes, ...]
    scores: FloatArray  # (n, K)
    labels: BoolArray  # (n, K)
    answers: tuple[tuple[str | None, ...], ...] | None  # in the order of the pool
    equality: Equality

    def calibration(self, rows: list[int], options: CalibrationOptions) -> Calibration:
        return Calibration(
            pool=self.pool,
            fingerprints=tuple(self.fingerprints[i] for i in rows),
            scores=self.scores[rows],
            labels=self.labels[rows],
            options=options,
        )

    def vote_is_right(self, row: int, selected: BoolArray) -> bool:
        """Whether the majority of the selected recorded answers is right.

        Right means that the winner was labelled right, so no grader is needed here.
        """
        assert self.answers is not None
        arrived = [
            CandidateAnswer(candidate=self.pool[m], text=text, score=float(self.scores[row, m]))
            for m in np.flatnonzero(selected)
            if (text := self.answers[row][m]) is not None
        ]
        if not arrived:
            return False
        winner = aggregate(arrived, method=Method.MAJORITY, equality=self.equality).winner
        return bool(self.labels[row, self.pool.index(winner)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """Rows of the table for one repetition."""

    calibration: list[int]
    validation: list[int]
    test: list[int]


def _score_rows(
    rows: LabelledRows,
    training: list[int],
    rest: list[int],
    encoder: Encoder,
    kind: RouterKind,
    protocol: Protocol,
    progress: Progress,
) -> _Table:
    labels = rows.labels(rows.pool)
    queries = rows.queries
    encoder = ReportingEncoder(encoder, progress)
    train_batch = Batch([queries[i] for i in training], encoder)
    router = fit_router(kind, train_batch, labels[training], seed=protocol.seed, progress=progress)
    scores = router.predict(Batch([queries[i] for i in rest], encoder)).scores
    answers = tuple(tuple(rows.rows[i].answers.get(m) for m in rows.pool) for i in rest)
    return _Table(
        pool=rows.pool,
        fingerprints=tuple(queries[i].encode() for i in rest),
        scores=checked_scores(on_grid(scores)),
        labels=labels[rest],
        answers=answers if all(row.answers for row in rows.rows) else None,
        equality=protocol.equality,
    )


def _one_split(
    table: _Table, split: _Split, protocol: Protocol
) -> dict[tuple[RiskTarget, Score, float], dict[str, float]]:
    tau = choose_null_threshold(table.scores[split.validation], table.labels[split.validation])
    options = CalibrationOptions(
        null_threshold=tau, smoothing_salt=b"evaluate" if protocol.smoothing else None
    )
    fingerprints = [table.fingerprints[i] for i in split.test]
    measured: dict[tuple[RiskTarget, Score, float], dict[str, float]] = {}
    for target in protocol.risk_targets:
        calibration = table.calibration(split.calibration, replace(options, risk_target=target))
        for score in protocol.scores:
            for alpha in protocol.alphas:
                lambda_hat = calibration.lambda_hat(alpha, score)
                sets = calibration.sets(table.scores[split.test], fingerprints, lambda_hat, score)
                measured[target, score, alpha] = _measure(table, split.test, sets)
    return measured


def _measure(table: _Table, rows: list[int], sets: Sets) -> dict[str, float]:
    metrics = set_metrics(sets.selected, sets.null_selected, table.labels[rows])
    measured = {field.name: getattr(metrics, field.name) for field in fields(SetMetrics)}
    measured["calls_saved"] = 1.0 - metrics.size / len(table.pool)
    if table.answers is not None:
        right = [table.vote_is_right(row, sets.selected[i]) for i, row in enumerate(rows)]
        measured["accuracy"] = float(np.mean(right))
    return measured


def _cell(key: tuple[RiskTarget, Score, float], runs: Sequence[dict[str, float]]) -> Cell:
    columns = {name: np.array([run[name] for run in runs]) for name in runs[0]}
    return Cell(
        risk_target=key[0],
        score=key[1],
        alpha=key[2],
        mean={name: float(values.mean()) for name, values in columns.items()},
        sd={name: float(values.std()) for name, values in columns.items()},
    )


def _controls(table: _Table) -> Controls:
    accuracy = dict(zip(table.pool, table.labels.mean(axis=0).tolist(), strict=True))
    top = table.scores.argmax(axis=1)
    everyone = np.ones(len(table.pool), dtype=bool)
    full_vote = None
    if table.answers is not None:
        right = [table.vote_is_right(row, everyone) for row in range(len(table.fingerprints))]
        full_vote = float(np.mean(right))
    return Controls(
        accuracy=accuracy,
        best_single=max(accuracy, key=lambda name: accuracy[name]),
        router_top1=float(table.labels[np.arange(len(top)), top].mean()),
        answerable=float(any_column(table.labels).mean()),
        full_vote=full_vote,
    )
