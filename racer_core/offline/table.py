"""Scored rows of an evaluation: all rows that did not train the router, shared by all splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from racer_core.aggregation.batch import ClassArray, agreement, answer_classes
from racer_core.aggregation.stacked import StackedVote
from racer_core.artifacts import fingerprint
from racer_core.calibration.augmentation import augment_truth, checked_scores
from racer_core.calibration.patterns import PatternModel
from racer_core.calibration.scoring import NonconformityScorer
from racer_core.encoder.base import Encoder
from racer_core.errors import RowsError
from racer_core.offline.protocol import Protocol, Rows, training_rows
from racer_core.offline.selection import ScoredRows, offered_patterns
from racer_core.offline.stacking import stack
from racer_core.offline.train import (
    Progress,
    ReportingEncoder,
    RouterKind,
    check_queries,
    fit_router,
    silent,
)
from racer_core.offline.votes import Votes
from racer_core.renamed import renamed
from racer_core.routers.base import Batch, on_grid
from racer_core.types import (
    BoolArray,
    FloatArray,
    LabelledRow,
    LabelledRows,
    RiskTarget,
    Score,
)

_SALT = "evaluate"


@dataclass(frozen=True, kw_only=True)
class EvaluationTable:
    """The rows of all benchmarks, one after the other."""

    benchmarks: Mapping[str, Rows]  # row numbers of each benchmark
    rows: ScoredRows
    patterns: tuple[PatternModel, ...]  # the settings that a split chooses from
    classes: ClassArray | None  # (n, K) recorded answers; None where rows have none
    stacked: StackedVote | None
    n_train: int
    copies: int  # rows left out because an earlier one asks the same
    protocol: Protocol

    @property
    def pool(self) -> tuple[str, ...]:
        """The candidates, in the order of the columns."""
        return self.rows.pool

    @cached_property
    def votes(self) -> Votes | None:
        """The votes over all rows; None if rows have no answers."""
        if self.classes is None:
            return None
        return Votes(
            pool=self.pool,
            labels=self.rows.labels,
            scores=self.rows.scores,
            same=agreement(self.classes),
            stacked=self.stacked,
        )

    @cached_property
    def default_patterns(self) -> int:
        """The setting nearest to the defaults, for too few validation rows to choose."""
        default = PatternModel.neighbours, PatternModel.temperature

        def distance(setting: int) -> float:
            model = self.patterns[setting]
            return abs(model.neighbours - default[0]) + abs(model.temperature - default[1])

        return min(range(len(self.patterns)), key=distance)

    @cached_property
    def best_overall(self) -> int:
        """The candidate with the best mean accuracy over benchmarks, in hindsight."""
        labels = self.rows.labels
        return int(np.mean([labels[r].mean(axis=0) for r in self.benchmarks.values()], 0).argmax())

    def best_on(self, benchmark: str) -> int:
        """The best candidate of one benchmark, in hindsight; of all for another scope."""
        if benchmark not in self.benchmarks:
            return self.best_overall
        return int(self.rows.labels[self.benchmarks[benchmark]].mean(axis=0).argmax())

    @cached_property
    def truths(self) -> Mapping[RiskTarget, BoolArray]:
        """The right columns, with the null model for ``paper``."""
        labels = self.rows.labels
        return {RiskTarget.PAPER: augment_truth(labels), RiskTarget.ANSWERABLE: labels}

    def nonconformity(self, target: RiskTarget, score: Score, setting: int) -> FloatArray:
        """S of all rows; it depends on the query alone, so all splits share it."""
        key = (target, score, setting if score in (Score.COVER, Score.COVER_COST) else 0)
        if key not in self._fits:
            self._fits[key] = NonconformityScorer(
                pool=self.pool,
                with_null=target is RiskTarget.PAPER,
                patterns=self.patterns[setting],
                prices=self.protocol.prices,
                smoothing_salt=_SALT.encode() if self.protocol.smoothing else None,
            ).nonconformity(score, self.rows.scores, self.rows.neighbours, self.rows.fingerprints)
        return self._fits[key]

    @cached_property
    def _fits(self) -> dict[tuple[RiskTarget, Score, int], FloatArray]:
        return {}


def build_table(
    benchmarks: Mapping[str, LabelledRows],
    *,
    encoder: Encoder,
    router: RouterKind,
    protocol: Protocol,
    progress: Progress = silent,
) -> EvaluationTable:
    """Train the router on the merged training rows, and score all others.

    Raises:
        RowsError: Benchmarks of different pools, or rows without a query.
        CalibrationError: Too few rows to split.
    """
    distinct, copies = _distinct(benchmarks)
    pool = next(iter(distinct.values())).pool
    merged = [row for rows in distinct.values() for row in rows.rows]
    queries = [row.query for row in merged]
    labels = np.concatenate([rows.labels(pool) for rows in distinct.values()])
    answers = [[row.answers.get(name) for name in pool] for row in merged]
    classes = answer_classes(answers, protocol.equality) if merged[0].answers else None
    training, rest, places = _places(distinct, protocol)
    encoder = ReportingEncoder(encoder, progress)
    training_batch = Batch(_at(queries, training), encoder)
    fit = partial(fit_router, router, seed=protocol.seed, progress=progress)
    output = fit(training_batch, labels[training]).predict(Batch(_at(queries, rest), encoder))
    stacked = None
    if classes is not None:
        prints = _prints(_at(queries, training))
        stacked = stack(pool, prints, training_batch, labels[training], classes[training], fit)
    return EvaluationTable(
        benchmarks=places,
        rows=ScoredRows(
            pool=pool,
            fingerprints=_prints(_at(queries, rest)),
            scores=checked_scores(on_grid(output.scores)),
            neighbours=output.neighbours,
            labels=labels[rest],
        ),
        patterns=offered_patterns(PatternModel.of(labels[training]), output.neighbours),
        classes=None if classes is None else classes[rest],
        stacked=stacked,
        n_train=len(training),
        copies=copies,
        protocol=protocol,
    )


def _distinct(benchmarks: Mapping[str, LabelledRows]) -> tuple[dict[str, LabelledRows], int]:
    """The benchmarks without duplicate queries, so that no test row was trained on.

    Texts that differ only in case or space are duplicates; the first is kept, others are counted.

    Raises:
        RowsError: Benchmarks of different pools or that disagree about a query, rows without a
            query, or a mixture of rows with answers and rows without.
    """
    if taken := {"average", "merged"} & set(benchmarks):
        raise RowsError("data", [f"a benchmark cannot be called {min(taken)!r}"])
    first = next(iter(benchmarks.values()))
    seen: set[bytes] = set()
    labelled: dict[str, frozenset[str]] = {}
    unique: dict[str, LabelledRows] = {}
    copies = 0
    for name, rows in benchmarks.items():
        if set(rows.pool) != set(first.pool):
            raise RowsError(name, [f"its pool {list(rows.pool)} is not {list(first.pool)}"])
        check_queries(rows, name)
        if any(bool(row.answers) != bool(first.rows[0].answers) for row in rows.rows):
            raise RowsError(name, ["some rows have answers and others have none: votes need all"])
        own: list[LabelledRow] = []
        for row in rows.rows:
            print_ = fingerprint(_SALT, row.query)
            if labelled.setdefault(row.query, row.correct) != row.correct:
                raise RowsError(name, ["it labels a query otherwise than an earlier benchmark"])
            if print_ not in seen:
                own.append(row)
            seen.add(print_)
        copies += len(rows) + rows.duplicates - len(own)
        unique[name] = LabelledRows(pool=first.pool, rows=tuple(own))
    return unique, copies


def _places(
    benchmarks: Mapping[str, LabelledRows], protocol: Protocol
) -> tuple[Rows, Rows, dict[str, Rows]]:
    """Training rows, all other rows, and each benchmark's row numbers among the others."""
    training: list[Rows] = []
    others: list[Rows] = []
    places: dict[str, Rows] = {}
    start = count = 0
    for name, rows in benchmarks.items():
        own, rest = training_rows(name, len(rows), protocol.of(name), protocol.seed)
        training.append(own + start)
        others.append(rest + start)
        places[name] = np.arange(count, count + len(rest))
        start, count = start + len(rows), count + len(rest)
    return np.concatenate(training), np.concatenate(others), places


def _at(texts: Sequence[str], rows: Rows) -> list[str]:
    return [texts[int(row)] for row in rows]


def _prints(texts: Sequence[str]) -> tuple[bytes, ...]:
    return tuple(fingerprint(_SALT, text) for text in texts)


__getattr__ = renamed(__name__, {"Table": "EvaluationTable"})
