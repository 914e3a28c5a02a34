"""Scored rows of an evaluation: all rows of a division that did not train its router."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from racer_core.aggregation.batch import RowAnswers
from racer_core.aggregation.rule import AnswerRule
from racer_core.aggregation.stacked import StackedVote
from racer_core.artifacts import Artifact
from racer_core.calibration.augmentation import augment_truth, checked_scores
from racer_core.calibration.options import SMOOTHING_SALT
from racer_core.calibration.patterns import PatternModel, pattern_ids
from racer_core.calibration.scoring import NonconformityScorer
from racer_core.encoder.base import Encoder
from racer_core.errors import InputError, RowsError
from racer_core.offline.equalities import EqualityTrial, allowed, compare_equalities
from racer_core.offline.evaluators import RatedAnswers
from racer_core.offline.fit import RouterChoice
from racer_core.offline.protocol import Order, Protocol, Rows, all_units, home_units, training_units
from racer_core.offline.reporting import Progress, silent
from racer_core.offline.selection import ScoredRows, offered_patterns
from racer_core.offline.sources import RouterSource, trained_source
from racer_core.offline.stacking import fit_stacked, suffices
from racer_core.offline.train import check_graded, check_queries
from racer_core.offline.votes import Votes
from racer_core.offline.wordings import fit_text_rule
from racer_core.records.conversation import fingerprint, plain_form
from racer_core.records.overlap import is_fresh_traffic
from racer_core.records.units import renumbered, rows_kind, units_of
from racer_core.routers.base import on_grid
from racer_core.types import (
    BoolArray,
    FloatArray,
    LabelledRows,
    RiskTarget,
    RowsKind,
    Score,
)

_SALT = "evaluate"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOrders:
    """Pattern weights by group, for `static_by_group`: the groups' own training rows.

    Attributes:
        weights: Shares of the patterns in each group, shape (G, P), drawn towards the overall
            shares with the weight of the neighbours' prior.
        of: The group of each row that did not train the router, shape (n,).
    """

    weights: FloatArray
    of: Rows

    @classmethod
    def fit(
        cls, patterns: PatternModel, labels: BoolArray, training: Rows, rest: Rows
    ) -> GroupOrders:
        """Count the patterns of training labels (m, K) in groups (m,); ``rest`` has shape (n,)."""
        names, ids = np.unique(np.concatenate([training, rest]), return_inverse=True)
        counts = np.zeros((len(names), len(patterns.frequencies)))
        np.add.at(counts, (ids[: len(training)], pattern_ids(labels)), 1.0)
        votes = counts + patterns.prior * patterns.frequencies
        return cls(weights=votes / votes.sum(axis=1, keepdims=True), of=ids[len(training) :])


@dataclass(frozen=True, kw_only=True)
class EvaluationTable:
    """The rows of all benchmarks, one after the other."""

    benchmarks: Mapping[str, Rows]  # row numbers of each benchmark
    rows: ScoredRows
    patterns: tuple[PatternModel, ...]  # the settings that a split chooses from
    answers: RowAnswers | None  # recorded answers; None where rows have none
    stacked: StackedVote | None
    n_train: int
    copies: int  # rows that repeat an earlier query but for case or space
    protocol: Protocol
    equalities: tuple[EqualityTrial, ...] = ()  # the protocol's one, and others that rows allow
    groups: GroupOrders | None = None  # None where all rows are of one group
    rated: RatedAnswers | None = None  # recorded confidences; None where rows have no answers
    kinds: Mapping[str, RowsKind] = field(default_factory=dict[str, RowsKind])  # by benchmark
    guessed: frozenset[str] = frozenset()  # the benchmarks whose kind was not said
    null_threshold: float | None = None  # an artifact's tau; None: each split chooses one
    clusters: Rows | None = None  # of each row, the same in all divisions; None: its own number
    learned: int = 0  # rows left out because the artifact was trained or tuned on them

    @property
    def pool(self) -> tuple[str, ...]:
        """The candidates, in the order of the columns."""
        return self.rows.pool

    @cached_property
    def error_clusters(self) -> Rows:
        """The cluster of each row over which errors are summed, shape (n,)."""
        return np.arange(len(self.rows.labels)) if self.clusters is None else self.clusters

    @property
    def is_graded(self) -> bool:
        """Whether sets are measured by the grades of the rows, not by right and wrong."""
        return RiskTarget.QUALITY in self.protocol.risk_targets

    @cached_property
    def merits(self) -> FloatArray:
        """What each answer is worth, shape (n, K): its quality, or 1 where it is right."""
        if not self.is_graded:
            return self.rows.labels.astype(np.float64)
        assert self.rows.quality is not None
        return self.rows.quality

    @cached_property
    def votes(self) -> Votes | None:
        """The votes over all rows; None if rows have no answers."""
        if self.answers is None:
            return None
        return Votes(
            pool=self.pool,
            labels=self.rows.labels,
            scores=self.rows.scores,
            answers=self.answers,
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
        """The candidate with the best mean accuracy or quality over benchmarks, in hindsight."""
        merits = self.merits
        return int(np.mean([merits[r].mean(axis=0) for r in self.benchmarks.values()], 0).argmax())

    def best_on(self, benchmark: str) -> int:
        """The best candidate of one benchmark, in hindsight; of all for another scope."""
        if benchmark not in self.benchmarks:
            return self.best_overall
        return int(self.merits[self.benchmarks[benchmark]].mean(axis=0).argmax())

    @cached_property
    def truths(self) -> Mapping[RiskTarget, BoolArray]:
        """The right columns, with the null model for ``paper``."""
        labels = self.rows.labels
        return {RiskTarget.PAPER: augment_truth(labels), RiskTarget.ANSWERABLE: labels}

    @property
    def orders(self) -> tuple[Order, ...]:
        """The protocol's scores; without the order by group where all rows are of one group."""
        grouped = self.groups is not None
        return tuple(each for each in self.protocol.scores if grouped or isinstance(each, Score))

    def nonconformity(self, target: RiskTarget, score: Order, setting: int) -> FloatArray:
        """S of all rows; it depends on the query alone, so all splits share it."""
        key = (target, score, setting if score in (Score.COVER, Score.COVER_COST) else 0)
        if key not in self._fits:
            scorer = NonconformityScorer(
                pool=self.pool,
                with_null=target == RiskTarget.PAPER,
                patterns=self.patterns[setting],
                prices=self.protocol.prices,
                smoothing_salt=SMOOTHING_SALT,
            )
            rows = self.rows
            if isinstance(score, Score):
                fit = scorer.nonconformity(score, rows.scores, rows.neighbours, rows.fingerprints)
            else:
                assert self.groups is not None
                fit = scorer.fixed_orders(self.groups.weights, self.groups.of, rows.fingerprints)
            self._fits[key] = fit
        return self._fits[key]

    @cached_property
    def _fits(self) -> dict[tuple[RiskTarget, Order, int], FloatArray]:
        return {}


def build_table(
    benchmarks: Mapping[str, LabelledRows],
    *,
    router: RouterSource | str,
    protocol: Protocol,
    encoder: Encoder | None = None,
    rule: AnswerRule | None = None,
    division: int = 0,
    progress: Progress = silent,
) -> EvaluationTable:
    """Train the router on the merged training rows of a division, and score all others.

    Args:
        benchmarks: Labelled rows by name.
        router: The base router, or the name of one to train on ``encoder`` with its defaults.
        protocol: The experiment. An artifact takes no training rows, whatever its shares are.
        encoder: Embeds the rows if ``router`` is a name.
        rule: When two answers are the same; None: the protocol's equality of texts, as the artifact
            or the training rows fit it.
        division: The number of the division, which its seed depends on.
        progress: Called at each stage.

    Raises:
        RowsError: Benchmarks of different pools, rows without a query, or rows that an artifact
            was trained on and nothing else.
        CalibrationError: Too few rows to split.
    """
    if isinstance(router, str):
        if encoder is None:
            raise InputError(f"router {router} needs an encoder")
        router = trained_source(RouterChoice(kind=router), encoder)
    artifact = router.artifact
    is_graded = RiskTarget.QUALITY in protocol.risk_targets
    _check(benchmarks, is_graded)
    kinds = {name: rows_kind(rows) for name, rows in benchmarks.items()}
    benchmarks, learned = _without_trained(benchmarks, artifact)
    pool = next(iter(benchmarks.values())).pool
    merged = [row for rows in benchmarks.values() for row in rows.rows]
    queries = [row.query for row in merged]
    labels = np.concatenate([rows.labels(pool) for rows in benchmarks.values()])
    quality = [rows.quality(pool) for rows in benchmarks.values()] if is_graded else []
    grades = np.concatenate([each for each in quality if each is not None]) if quality else None
    voted = bool(merged[0].answers) and not is_graded
    rule = rule or AnswerRule(equality=protocol.equality)
    groups = np.unique(
        [
            f"{name}\n{row.group or row.task or ''}"
            for name, rows in benchmarks.items()
            for row in rows.rows
        ],
        return_inverse=True,
    )[1]
    seed = protocol.seed + division
    salt = _SALT if artifact is None else artifact.salt  # ties are then broken as in serving
    units = benchmark_units(benchmarks, kinds)
    training, rest, places = draw_division(
        benchmarks, units, protocol, None if artifact is not None else seed
    )
    fitted = router.fit(
        LabelledRows(pool=pool, rows=tuple(merged[int(i)] for i in training)),
        renumbered(units[training]),
        seed=seed,
        progress=progress,
    )
    output = fitted.predict(_at(queries, rest))
    answers, equalities = None, tuple[EqualityTrial, ...]()
    own_units = renumbered(units[rest])
    if voted:
        learned_from = [merged[int(i)] for i in training]
        text = (
            fit_text_rule(learned_from, labels[training], pool, rule, renumbered(units[training]))
            if artifact is None
            else artifact.text_rule
        )
        rule = rule if text is None else replace(rule, text=text)
        answers = RowAnswers.of(merged, pool, rule)
        ruled = allowed([merged[int(i)] for i in rest], pool, rule)
        equalities = compare_equalities(ruled, pool, labels[rest], own_units)
    stacked = None if artifact is None else artifact.stacked
    voters = training[fitted.vote_rows]
    if artifact is None and answers is not None and suffices(answers.at(voters), labels[voters]):
        scored = ScoredRows(
            pool=pool,
            fingerprints=_prints(_at(queries, voters), salt),
            scores=on_grid(fitted.vote_scores()),
            neighbours=None,  # of different folds, whose pattern ids are not comparable
            labels=labels[voters],
        )
        stacked = fit_stacked(scored, answers.at(voters))
    patterns = PatternModel.of(labels[training]) if artifact is None else artifact.patterns
    return EvaluationTable(
        benchmarks=places,
        rows=ScoredRows(
            pool=pool,
            fingerprints=_prints(_at(queries, rest), salt),
            scores=checked_scores(on_grid(output.scores)),
            neighbours=output.neighbours,
            labels=labels[rest],
            quality=None if grades is None else grades[rest],
            units=own_units,
        ),
        patterns=offered_patterns(patterns, output.neighbours) if artifact is None else (patterns,),
        null_threshold=None if artifact is None else artifact_threshold(artifact),
        answers=None if answers is None else answers.at(rest),
        stacked=stacked,
        equalities=equalities,
        clusters=error_clusters(benchmarks, units)[rest],
        n_train=len(training) if artifact is None else len(artifact.training_fingerprints),
        copies=len(queries) - len(set(map(plain_form, queries))),
        learned=learned,
        protocol=protocol,
        rated=None
        if answers is None
        else RatedAnswers.of([merged[int(row)] for row in rest], pool),
        kinds=kinds,
        guessed=frozenset(name for name, rows in benchmarks.items() if rows.kind is None),
        groups=GroupOrders.fit(patterns, labels[training], groups[training], groups[rest])
        if groups.any() and artifact is None
        else None,
    )


def artifact_threshold(artifact: Artifact) -> float:
    """The tau that an artifact serves; above every p_null where it never abstains."""
    return math.inf if artifact.null_threshold is None else artifact.null_threshold


def _without_trained(
    benchmarks: Mapping[str, LabelledRows], artifact: Artifact | None
) -> tuple[Mapping[str, LabelledRows], int]:
    """The rows that did not train or tune an artifact, in the order of its pool; others counted.

    A fresh sample of traffic keeps its repeats of training queries, as the next request may be one.
    """
    if artifact is None:
        return benchmarks, 0
    left: dict[str, LabelledRows] = {}
    known = artifact.training_fingerprints | artifact.validation_fingerprints
    for name, rows in benchmarks.items():
        if set(rows.pool) != set(artifact.pool):
            raise RowsError(name, [f"its pool {list(rows.pool)} is not {list(artifact.pool)}"])
        prints = [artifact.overlap_print(query) for query in rows.queries]
        own = rows.rows
        if not is_fresh_traffic(prints, known, rows.kind):
            own = tuple(row for row, each in zip(own, prints, strict=True) if each not in known)
        left[name] = replace(rows, pool=artifact.pool, rows=own)
    count = sum(map(len, benchmarks.values())) - sum(map(len, left.values()))
    if empty := [name for name, rows in left.items() if not len(rows)]:
        raise RowsError(empty[0], ["the artifact was trained or tuned on all of its rows"])
    return left, count


def _check(benchmarks: Mapping[str, LabelledRows], is_graded: bool) -> None:
    """Refuse rows that cannot be evaluated together.

    Raises:
        RowsError: Benchmarks of different pools, rows without a query, a mixture of rows with
            answers and rows without, or rows without the grades that their risk target needs.
    """
    if taken := {"average", "merged"} & set(benchmarks):
        raise RowsError("data", [f"a benchmark cannot be called {min(taken)!r}"])
    first = next(iter(benchmarks.values()))
    for name, rows in benchmarks.items():
        if set(rows.pool) != set(first.pool):
            raise RowsError(name, [f"its pool {list(rows.pool)} is not {list(first.pool)}"])
        check_queries(rows, name)
        if is_graded:
            check_graded(rows, name)
        elif any(bool(row.answers) != bool(first.rows[0].answers) for row in rows.rows):
            raise RowsError(name, ["some rows have answers and others have none: votes need all"])
    if not is_graded and not any(row.correct for rows in benchmarks.values() for row in rows.rows):
        raise RowsError(
            "data",
            [
                "no candidate is right in any row, so there is no risk to measure: check "
                "references and grade"
            ],
        )


def benchmark_units(benchmarks: Mapping[str, LabelledRows], kinds: Mapping[str, RowsKind]) -> Rows:
    """The unit of every row of all benchmarks, which no split divides, shape (n,).

    A query in two lists of questions is one unit; clusters of two files are different ones.
    """
    names: list[str | None] = []
    clusters: list[str | None] = []
    for name, rows in benchmarks.items():
        is_list = kinds[name] is RowsKind.QUESTIONS
        names += [plain_form(row.query) if is_list else None for row in rows.rows]
        clusters += [
            f"{name}\n{row.shared}" if is_list and row.shared else None for row in rows.rows
        ]
    return units_of(names, clusters)


def error_clusters(benchmarks: Mapping[str, LabelledRows], units: Rows) -> Rows:
    """The cluster of every row for standard errors: its unit, and in traffic its ``cluster`` too.

    Traffic is split row by row, but rows of one conversation or user are not independent.
    """
    clusters = [
        f"{name}\n{row.shared}" if row.shared else None
        for name, rows in benchmarks.items()
        for row in rows.rows
    ]
    return units_of(units.tolist(), clusters)


def draw_division(
    benchmarks: Mapping[str, LabelledRows], units: Rows, protocol: Protocol, seed: int | None
) -> tuple[Rows, Rows, dict[str, Rows]]:
    """Training rows, all other rows, and each benchmark's row numbers among the others.

    Without a seed no row trains.
    """
    ends = np.cumsum([len(rows) for rows in benchmarks.values()])
    own_rows: dict[str, Rows] = {
        name: np.arange(end - len(rows), end)
        for (name, rows), end in zip(benchmarks.items(), ends, strict=True)
    }
    rank = np.empty(int(units.max()) + 1, dtype=np.intp)
    trains = np.zeros(len(rank), dtype=bool)
    for name, homes in home_units(own_rows, units).items():
        shares = protocol.of(name)
        if seed is None:
            training, rest = all_units(name, len(homes), shares)
        else:
            training, rest = training_units(name, len(homes), shares, seed)
        trains[homes[training]] = True
        for part in (training, rest):
            rank[homes[part]] = np.arange(len(part))
    training_rows: list[Rows] = []
    others: list[Rows] = []
    places: dict[str, Rows] = {}
    count = 0
    for name, rows in own_rows.items():
        rows = rows[np.argsort(rank[units[rows]], kind="stable")]
        is_training = trains[units[rows]]
        training_rows.append(rows[is_training])
        others.append(rows[~is_training])
        places[name] = np.arange(count, count := count + len(others[-1]))
    return np.concatenate(training_rows), np.concatenate(others), places


def _at(texts: Sequence[str], rows: Rows) -> list[str]:
    return [texts[int(row)] for row in rows]


def _prints(texts: Sequence[str], salt: str) -> tuple[bytes, ...]:
    return tuple(fingerprint(salt, text) for text in texts)
