"""Grid search over alpha and the vote on validation rows alone. Paper, Sec. 5.1, App. B.

The paper takes the thresholds of the search from the calibration rows; alpha would then depend on
the rows that must not have chosen it. Here each half of the validation rows sets the thresholds at
which the other half is voted on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from racer_core.aggregation.answers import Equality
from racer_core.aggregation.rule import AnswerRule
from racer_core.aggregation.vote import Method, Weight
from racer_core.calibration.metrics import shortfalls
from racer_core.calibration.options import SMOOTHING_SALT, CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from racer_core.errors import InputError, RowsError
from racer_core.offline.equalities import EqualityTrial, allowed, compare_equalities
from racer_core.offline.evaluators import EvaluatorChoice, EvaluatorQuality, RatedAnswers
from racer_core.offline.protocol import PAPER_ALPHAS, Rows
from racer_core.offline.reporting import Progress, silent
from racer_core.offline.selection import (
    ERROR_RATE,
    NEIGHBOURS,
    ScoredRows,
    choose_scores,
    cross_fitted,
)
from racer_core.offline.selection import (
    TEMPERATURES as PATTERN_TEMPERATURES,
)
from racer_core.offline.stacking import CROSS_FITTED
from racer_core.offline.standard_errors import standard_error_of_mean
from racer_core.offline.train import check_graded, check_queries
from racer_core.offline.tuning_result import FixedCalls, Trial, Tuning
from racer_core.offline.votes import TEMPERATURES, Votes
from racer_core.racer import Racer
from racer_core.records.overlap import is_fresh_traffic
from racer_core.records.split import TUNED_ROWS, TUNING_SHARES
from racer_core.records.units import rows_units
from racer_core.types import (
    BoolArray,
    FloatArray,
    LabelledRows,
    RiskTarget,
    RowsKind,
    any_column,
    enum_member,
)

CHOOSING_ROWS = 500  # below this the levels' differences in accuracy are noise, and alpha stays


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRatings:
    """An evaluator's ratings of recorded answers."""

    weight: Weight  # the form of the rating: `verbal` or `p_true`
    # In [0, 1], shape (n, K), columns in the order of the racer's pool; NaN where it gave none.
    values: FloatArray

    def __post_init__(self) -> None:
        """Turn the weight's name into the member; refuse another name."""
        object.__setattr__(self, "weight", enum_member(Weight, self.weight, "weight"))


def tune(
    racer: Racer,
    rows: LabelledRows,
    *,
    rule: AnswerRule,
    risk_target: RiskTarget,
    prices: tuple[float, ...] | None = None,
    alphas: Sequence[float] = PAPER_ALPHAS,
    alpha: float | None = None,
    ratings: AnswerRatings | None = None,
    progress: Progress = silent,
) -> Tuning:
    """Choose score, alpha, vote, and the equality that the vote counts by.

    Under ``quality`` there is no vote: the accuracy is the mean quality of the best called
    candidate, and score and alpha alone are chosen.

    Every level uses `static`, the fixed order, unless a paired test shows that another score is
    cheaper at equal risk: the chance that the chosen score is no cheaper than the fixed order and
    not the fixed order is at most 5 %. Votes are compared under the configured equality and every
    other one that the answers allow. One other than the majority under the configured equality
    counts only if it beats that majority by two paired standard errors. Of the remaining settings
    within one standard error of the best accuracy, the cheapest is chosen, or a smaller alpha that
    is not shown to be dearer; ties go to a vote without an evaluator, whose calls have no
    price. Fewer than 500 rows choose no alpha: the differences between levels are noise there. Of
    several recorded evaluators the one with the largest AUC weighs the votes
    (:meth:`RatedAnswers.choose`). Levels for which half of the rows are too few are left out.

    Args:
        racer: Loaded artifact.
        rows: Validation rows with answers, or with grades for ``quality``; not to be used for
            calibration afterwards or before.
        rule: When two answers are the same, as it is configured.
        risk_target: What alpha bounds.
        prices: Price per call of each candidate, in the order of the pool; None counts calls.
        alphas: The grid.
        alpha: The configured level, which is measured too, and stays where there are fewer than 500
            rows; None: a level of the grid is chosen from any number of rows.
        ratings: Of the rows' answers, by the configured evaluator; None takes the confidences that
            the rows record. A kind of confidence that some rows lack is left out.
        progress: Called at each alpha.

    Raises:
        RowsError: As :func:`check_rows`, or too few rows for every alpha, or for one that stays.
        InputError: The ratings are not those of these rows.
    """
    risk_target = enum_member(RiskTarget, risk_target, "risk_target")
    check_rows(racer, rows, risk_target)
    scored = score_rows(racer, rows)
    patterns = racer.artifact.patterns
    schemes: tuple[_Scheme, ...] = ()
    evaluators: tuple[EvaluatorQuality, ...] = ()
    choices: dict[str, EvaluatorChoice] = {}
    equalities: tuple[EqualityTrial, ...] = ()
    if risk_target is RiskTarget.QUALITY:
        scored = replace(scored, quality=rows.quality(racer.pool))
    else:
        rated, evaluators, choices = _rated(racer, rows, ratings)
        ruled = allowed(rows.rows, racer.pool, rule)
        equalities = compare_equalities(ruled, racer.pool, scored.labels, scored.split_units)
        schemes = tuple(
            scheme
            for each in ruled
            for scheme in _schemes(
                Votes(
                    pool=racer.pool,
                    labels=scored.labels,
                    scores=scored.scores,
                    answers=each.answers,
                    stacked=None
                    if _fitted_on(racer, scored, rows.kind)
                    else racer.artifact.stacked,
                ),
                each.rule.equality,
                rated,
            )
        )
    per_call = np.ones(len(racer.pool)) if prices is None else np.array(prices)
    levels = sorted({*alphas, *(() if alpha is None else (alpha,))})
    chosen_scores = choose_scores(
        scored,
        patterns,
        alphas=levels,
        risk_target=risk_target,
        prices=prices,
        error_rate=ERROR_RATE / settings_tried(racer, scored, rows.kind),
    )
    found: list[_Measured] = []
    for number, level in enumerate(levels, 1):
        options = CalibrationOptions(
            alpha=level,
            score=chosen_scores[level],
            risk_target=risk_target,
            null_threshold=racer.artifact.null_threshold,
            smoothing_salt=SMOOTHING_SALT,
        )
        sets = cross_fitted_sets(scored, options, patterns, prices)
        if sets is not None and scored.quality is None:
            found += _trials(options, schemes, sets, per_call, scored)
        elif sets is not None:
            found.append(_graded_trial(options, scored, sets, per_call))
        progress("alphas", number, len(levels))
    if not found:
        raise RowsError("validation rows", ["too few for every alpha of the grid; label more"])
    found = _compared(found, scored.split_units)
    kept = alpha if len(rows) < CHOOSING_ROWS else None
    eligible = [each for each in found if kept in (None, each.trial.alpha)]
    chosen = _choose(eligible, scored.split_units)
    if chosen is None:
        raise RowsError(
            "validation rows",
            [f"half of {len(rows)} are too few for alpha {alpha:g}: label more, or raise it"],
        )
    best = max((each.trial for each in found if each.trial.proven), key=lambda each: each.accuracy)
    return Tuning(
        trials=tuple(each.trial for each in found),
        chosen=chosen,
        slack=best.se,
        rows=len(rows),
        keeps_alpha=kept is not None,
        evaluators=evaluators,
        evaluator_choices=choices,
        everyone=_everyone(scored, schemes, per_call),
        best_single=_best_single(scored, per_call),
        equalities=equalities,
    )


@dataclass(frozen=True, slots=True)
class _Measured:
    """A setting, with the worth and the cost of every row: 1 for a right answer; shape (n,)."""

    trial: Trial
    worth: FloatArray
    costs: FloatArray


def _compared(found: Sequence[_Measured], units: Rows) -> list[_Measured]:
    """The same, each with its distance from the most accurate proven setting, in pairs."""
    proven = (each for each in found if each.trial.proven)
    best = max(proven, key=lambda each: each.trial.accuracy)

    def compared(each: _Measured) -> _Measured:
        lead = best.worth - each.worth
        error = standard_error_of_mean(lead, units)
        return replace(each, trial=replace(each.trial, behind=float(lead.mean()), behind_se=error))

    return [compared(each) for each in found]


def _choose(found: Sequence[_Measured], units: Rows) -> Trial | None:
    """The smallest alpha that is as accurate as the best, and as cheap as the cheapest of these.

    As accurate: within one standard error. As cheap: the cheapest is not shown to be cheaper, by
    two paired standard errors. So of levels with the same sets the one with the strongest promise
    is taken. No vote that needs an evaluator is, unless the cheapest needs one.
    """
    usable = [each for each in found if each.trial.proven]
    if not usable:
        return None
    best = max((each.trial for each in usable), key=lambda each: each.accuracy)
    good = [each for each in usable if each.trial.accuracy >= best.accuracy - best.se]
    cheapest = min(good, key=lambda each: _rank(each.trial))

    def is_as_cheap(each: _Measured) -> bool:
        more = each.costs - cheapest.costs
        return float(more.mean()) <= 2.0 * standard_error_of_mean(more, units)

    same = (each.trial for each in good if is_as_cheap(each))
    usual = (each for each in same if each.evaluated <= cheapest.trial.evaluated)
    return min(usual, key=lambda each: (each.alpha, *_rank(each)))


def _rank(trial: Trial) -> tuple[float, bool, float]:
    """Cost first, then a vote without an evaluator, then accuracy; the smallest is the best."""
    return trial.cost, trial.evaluated, -trial.accuracy


def _everyone(scored: ScoredRows, schemes: Sequence[_Scheme], per_call: FloatArray) -> FixedCalls:
    if scored.quality is None:
        everything = np.ones(scored.labels.shape, dtype=bool)
        majority = next(each for each in schemes if each.rule == Method.MAJORITY)
        accuracy = float(majority.right(everything).mean())
    else:
        accuracy = float(scored.quality.max(axis=1).mean())
    return FixedCalls(candidates=scored.pool, accuracy=accuracy, cost=float(per_call.sum()))


def _best_single(scored: ScoredRows, per_call: FloatArray) -> FixedCalls:
    """Of equals the cheapest."""
    merits = scored.labels if scored.quality is None else scored.quality
    accuracies, places = merits.mean(axis=0), range(len(scored.pool))
    best = max(places, key=lambda place: (accuracies[place], -per_call[place]))
    return FixedCalls(
        candidates=(scored.pool[best],),
        accuracy=float(accuracies[best]),
        cost=float(per_call[best]),
    )


def _rated(
    racer: Racer, rows: LabelledRows, ratings: AnswerRatings | None
) -> tuple[list[AnswerRatings], tuple[EvaluatorQuality, ...], dict[str, EvaluatorChoice]]:
    """The ratings given, or those of recorded evaluators, with their qualities and the chosen."""
    if ratings is not None:
        return [ratings], (), {}
    recorded = RatedAnswers.of(rows.rows, racer.pool)
    chosen = {weight: recorded.choose(weight) for weight in recorded.values}
    return (
        [AnswerRatings(weight=w, values=recorded.ratings(w, each)) for w, each in chosen.items()],
        tuple(recorded.qualities()) if chosen else (),
        {weight.value: each for weight, each in chosen.items()},
    )


def check_rows(
    racer: Racer, rows: LabelledRows, risk_target: RiskTarget = RiskTarget.ANSWERABLE
) -> None:
    """Refuse unusable rows before anything is spent on them.

    Raises:
        RowsError: Fewer than 100 answerable rows, rows without a query or answers, rows of another
            pool, or training rows of the router that are no fresh sample of traffic. Of graded
            rows, for the risk target ``quality``, fewer than 100, or a row without grades.
    """
    is_graded = risk_target is RiskTarget.QUALITY
    if set(rows.pool) != set(racer.pool):
        raise RowsError(
            "validation rows", [f"their pool {list(rows.pool)} is not {list(racer.pool)}"]
        )
    check_queries(rows, "validation rows")
    if is_graded:
        check_graded(rows, "validation rows")
    elif not all(row.answers for row in rows.rows):
        raise RowsError(
            "validation rows",
            ["votes can only be tuned on rows with answers: `racer label` writes them"],
        )
    usable = sum(is_graded or bool(row.correct) for row in rows.rows)
    if usable < TUNED_ROWS:
        kind = "graded" if is_graded else "answerable"
        questions = (
            "no candidate is right in any: check references and grade"
            if not usable
            else f"it takes {TUNED_ROWS}, hence {_questions(usable / len(rows)):,} questions of "
            "which 30 % validate"
        )
        raise RowsError(
            "validation rows", [f"{usable} {kind} rows are too few to tune on; {questions}"]
        )
    trained = racer.artifact.training_fingerprints
    prints = [racer.artifact.overlap_print(query) for query in rows.queries]
    repeated = sum(each in trained for each in prints)
    if repeated and not is_fresh_traffic(prints, trained, rows.kind):
        raise RowsError(
            "validation rows", [f"{repeated} of them trained the router: tune on rows of their own"]
        )


def _questions(counted: float) -> int:
    """Labelled questions that leave enough validation rows, if this share of them counts."""
    return math.ceil(TUNED_ROWS / (counted * TUNING_SHARES["validation"]))


def settings_tried(racer: Racer, scored: ScoredRows, kind: RowsKind | None = None) -> int:
    """How many settings of the patterns were compared on these rows when the router was trained.

    The one with the smallest sets was kept. The test of the score divides its error rate by their
    number, so that it holds for each of them.
    """
    if not _are_validation_rows(racer, scored, kind):
        return 1
    return len(PATTERN_TEMPERATURES if scored.neighbours is None else NEIGHBOURS)


def _fitted_on(racer: Racer, scored: ScoredRows, kind: RowsKind | None) -> bool:
    """Whether the stacked vote was fitted on these rows, which would favour it."""
    if racer.artifact.router.kind in CROSS_FITTED:
        return False
    return _are_validation_rows(racer, scored, kind)


def _are_validation_rows(racer: Racer, scored: ScoredRows, kind: RowsKind | None) -> bool:
    """Whether some rows are validation rows of the training, not just repeats of their queries."""
    validation = racer.artifact.validation_fingerprints
    known = any(each in validation for each in scored.fingerprints)
    return known and not is_fresh_traffic(scored.fingerprints, validation, kind)


def score_rows(racer: Racer, rows: LabelledRows) -> ScoredRows:
    """Labels and router scores of the rows, in the order of the racer's pool."""
    output = racer.score(rows.queries)
    return ScoredRows(
        pool=racer.pool,
        fingerprints=tuple(racer.fingerprint(query) for query in rows.queries),
        scores=output.scores,
        neighbours=output.neighbours,
        labels=rows.labels(racer.pool),
        units=rows_units(rows),
    )


def cross_fitted_sets(
    scored: ScoredRows,
    options: CalibrationOptions,
    patterns: PatternModel,
    prices: tuple[float, ...] | None,
) -> BoolArray | None:
    """The set of each row at the threshold of the other half, shape (n, K).

    None if a half has too few rows for alpha.
    """

    def sets_by(own: Rows, other: Rows) -> BoolArray | None:
        calibration = scored.at(other).calibration(options, patterns, prices)
        if not calibration.is_enough(options.alpha):
            return None
        rows = scored.at(own)
        return calibration.sets(
            rows.scores,
            rows.fingerprints,
            calibration.lambda_hat(options.alpha, options.score),
            options.score,
            rows.neighbours,
        ).selected

    return cross_fitted(scored.split_units, sets_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scheme:
    """One voting rule over the rows."""

    rule: Method
    votes: Votes
    equality: Equality
    weight: Weight | None = None
    temperature: float | None = None

    def right(self, selected: BoolArray) -> BoolArray:
        """Whether the voted answer of each row is right, shape (n,)."""
        return self.votes.right(self.rule, selected, self.temperature or 1.0)


def _schemes(votes: Votes, equality: Equality, rated: Sequence[AnswerRatings]) -> Iterator[_Scheme]:
    for rule in votes.rules:
        if rule == Method.WEIGHTED:
            yield from _weighted(votes, equality, Weight.ROUTER)
        else:
            yield _Scheme(rule=rule, votes=votes, equality=equality)
    for ratings in rated:
        if ratings.values.shape != votes.scores.shape:
            raise InputError(
                f"ratings of shape {ratings.values.shape} for {votes.scores.shape} answers"
            )
        yield from _weighted(replace(votes, ratings=ratings.values), equality, ratings.weight)


def _weighted(votes: Votes, equality: Equality, weight: Weight) -> Iterator[_Scheme]:
    for temperature in TEMPERATURES:
        yield _Scheme(
            rule=Method.WEIGHTED,
            votes=votes,
            equality=equality,
            weight=weight,
            temperature=temperature,
        )


def _graded_trial(
    options: CalibrationOptions, scored: ScoredRows, selected: BoolArray, per_call: FloatArray
) -> _Measured:
    """What the best called candidates are worth."""
    assert scored.quality is not None
    lost = shortfalls(selected, scored.quality)
    best = scored.quality.max(axis=1) - lost
    trial = Trial(
        alpha=options.alpha,
        score=options.score,
        rule=None,
        weight=None,
        temperature=None,
        accuracy=float(best.mean()),
        se=standard_error_of_mean(best, scored.split_units),
        size=float(selected.sum(axis=1).mean()),
        cost=float((selected @ per_call).mean()),
        missed=float(lost.mean()),
        proven=True,
    )
    return _Measured(trial, best, selected @ per_call)


def _trials(
    options: CalibrationOptions,
    schemes: Sequence[_Scheme],
    selected: BoolArray,
    per_call: FloatArray,
    scored: ScoredRows,
) -> Iterator[_Measured]:
    units, answerable = scored.split_units, any_column(scored.labels)
    missed = float((~any_column(selected & scored.labels))[answerable].mean())
    size = float(selected.sum(axis=1).mean())
    costs = np.asarray(selected @ per_call, dtype=np.float64)
    voted = [(scheme, scheme.right(selected)) for scheme in schemes]
    usual = next(scheme for scheme in schemes if scheme.rule == Method.MAJORITY)
    majority = next(right for scheme, right in voted if scheme is usual)
    for scheme, right in voted:
        lead = right.astype(np.float64) - majority
        margin = 2.0 * standard_error_of_mean(lead, units)
        trial = Trial(
            alpha=options.alpha,
            score=options.score,
            rule=scheme.rule,
            weight=scheme.weight,
            temperature=scheme.temperature,
            accuracy=float(right.mean()),
            se=standard_error_of_mean(right.astype(np.float64), units),
            size=size,
            cost=float(costs.mean()),
            missed=missed,
            proven=scheme is usual or float(lead.mean()) > margin,
            equality=scheme.equality,
        )
        yield _Measured(trial, right.astype(np.float64), costs)
