"""The search for alpha and the vote: measured on rows that did not set the thresholds."""

from dataclasses import replace

import numpy as np
import pytest

from racer_core.aggregation.answers import Equality, normalise
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.vote import Method, Weight, aggregate
from racer_core.calibration.options import CalibrationOptions
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import InputError, RowsError
from racer_core.offline.protocol import PAPER_ALPHAS, Protocol, halves
from racer_core.offline.table import build_table
from racer_core.offline.train import train
from racer_core.offline.tune import (
    MIN_ROWS,
    AnswerRatings,
    check_rows,
    cross_fitted_sets,
    score_rows,
    settings_tried,
    tune,
)
from racer_core.offline.votes import TEMPERATURES
from racer_core.types import (
    BINARY_TARGETS,
    CandidateAnswer,
    LabelledRow,
    LabelledRows,
    RiskTarget,
    Score,
)
from tests.kit.synthetic import POOL, synthetic_rows

ALPHAS = (0.05, 0.1, 0.2)


@pytest.fixture(scope="module")
def rows():
    """Validation rows with answers."""
    return synthetic_rows(240, seed=51, answers=True)


def tuned(racer, rows, **options):
    """The search with what most tests want."""
    wanted = {
        "equality": Equality.EXACT,
        "risk_target": RiskTarget.ANSWERABLE,
        "alphas": ALPHAS,
        **options,
    }
    return tune(racer, rows, **wanted)


def part(rows, where):
    """Some of the rows."""
    return replace(rows, rows=tuple(rows.rows[i] for i in where))


def equally_good(rows):
    """The rows with candidates of equal skill, whose wrong answers differ."""
    rng = np.random.default_rng(8)
    relabelled = []
    for row in rows.rows:
        right = frozenset(name for name in POOL if rng.random() < 0.75)
        answers = {name: "right" if name in right else f"{name}'s guess" for name in POOL}
        relabelled.append(replace(row, correct=right, answers=answers))
    return replace(rows, rows=tuple(relabelled))


@pytest.mark.parametrize("target", BINARY_TARGETS)
def test_each_half_is_measured_at_the_others_threshold(racer, rows, target):
    """By hand, with the calibration that the gateway would make of either half.

    Thresholds of all rows, or of the half itself, give other sizes.
    """
    result = tuned(racer, rows, risk_target=target)
    halves = [list(range(start, len(rows), 2)) for start in (0, 1)]
    for alpha in ALPHAS:
        (score,) = {trial.score for trial in result.trials if trial.alpha == alpha}
        options = CalibrationOptions(
            score=score, risk_target=target, null_threshold=racer.artifact.null_threshold
        )
        sizes, own = [], []
        for measured, calibrated in (halves, halves[::-1]):
            for sizes_of, where in ((sizes, calibrated), (own, measured)):
                calibration = racer.calibrate(part(rows, where), options=options)
                decisions = racer.route_batch(
                    part(rows, measured).queries, calibration, alpha=alpha
                )
                sizes_of += [len(each.selected) for each in decisions]
        found = {trial.size for trial in result.trials if trial.alpha == alpha}
        assert found == {np.mean(sizes)}
        if alpha == 0.1:
            assert np.mean(sizes) != pytest.approx(np.mean(own))


@pytest.mark.parametrize("changed", [0, 1])
def test_labels_of_a_half_move_the_sets_of_the_other_only(racer, rows, changed):
    """Whatever the labels of a half are, its own sets stay."""
    scored = score_rows(racer, rows)
    options = CalibrationOptions(score=Score.GAP, null_threshold=racer.artifact.null_threshold)
    labels = scored.labels.copy()
    labels[changed::2] = np.random.default_rng(1).random(labels[changed::2].shape) < 0.5
    before, after = (
        cross_fitted_sets(each, options, racer.artifact.patterns, None)
        for each in (scored, replace(scored, labels=labels))
    )
    np.testing.assert_array_equal(after[changed::2], before[changed::2])
    assert not np.array_equal(after[1 - changed :: 2], before[1 - changed :: 2])


def test_both_halves_hold_every_task_of_a_sorted_file():
    """Every row is measured once; halves differ by one row at most."""
    for count in (100, 101):
        (own, other), (again, first) = halves(np.arange(count))
        assert sorted([*own, *again]) == list(range(count))
        assert not set(own) & set(other)
        assert (own.tolist(), other.tolist()) == (first.tolist(), again.tolist())
        assert 0 <= len(own) - len(other) <= 1


def test_chosen_is_the_cheapest_within_one_standard_error_of_the_best(racer, rows):
    """Recomputed from the trials that are the majority, or proven to be better than it.

    Three candidates that are right in three of four queries each: their vote is worth its calls.
    """
    result = tuned(racer, equally_good(rows), alphas=PAPER_ALPHAS)
    usable = [trial for trial in result.trials if trial.proven]
    assert {trial.rule for trial in usable} >= {Method.MAJORITY}
    assert len(usable) < len(result.trials)
    best = max(trial.accuracy for trial in usable)
    assert result.slack == pytest.approx(np.sqrt(best * (1 - best) / 239))
    good = [trial for trial in usable if trial.accuracy >= best - result.slack]
    assert result.chosen in good
    assert result.chosen.cost == min(trial.cost for trial in good)
    same = [trial for trial in good if trial.cost == result.chosen.cost]
    assert result.chosen.accuracy == max(trial.accuracy for trial in same)
    cheaper = [trial for trial in usable if trial.cost < result.chosen.cost]
    assert cheaper
    assert all(trial.accuracy < best - result.slack for trial in cheaper)


def test_every_alpha_is_tried_with_every_vote(racer, rows):
    """``weighted`` with every temperature, the others with none; costs are calls."""
    result = tuned(racer, rows)
    votes = [(trial.alpha, trial.rule, trial.temperature) for trial in result.trials]
    wanted = [
        (alpha, rule, temperature)
        for alpha in ALPHAS
        for rule in (Method.MAJORITY, Method.WEIGHTED, Method.LOG_ODDS)
        for temperature in (TEMPERATURES if rule is Method.WEIGHTED else (None,))
    ]
    assert votes == wanted
    weights = {trial.rule: trial.weight for trial in result.trials}
    assert weights == {
        Method.MAJORITY: None,
        Method.WEIGHTED: Weight.ROUTER,
        Method.LOG_ODDS: None,
    }
    assert all(trial.cost == trial.size for trial in result.trials)
    assert result.rows == 240


def test_stacked_votes_take_part_where_they_were_fitted(racer, rows):
    """An artifact that has one: it is compared with the others."""
    stacked = StackedVote(POOL, np.array([1.0, 1.0, 1.0]), np.array([0.5, 0.5, 0.5]))
    fitted = replace(racer, artifact=replace(racer.artifact, stacked=stacked))
    assert Method.STACKED in {trial.rule for trial in tuned(fitted, rows).trials}


def rated(values, weight=Weight.P_TRUE):
    """Ratings of these values."""
    return AnswerRatings(weight=weight, values=np.array(values))


def believed(rows):
    """0.9 for right answers and 0.1 for wrong ones."""
    return np.where(rows.labels(POOL), 0.9, 0.1)


@pytest.mark.parametrize("weight", [Weight.VERBAL, Weight.P_TRUE])
def test_ratings_are_weighed_at_every_temperature(racer, rows, weight):
    """Rated trials are added to those without ratings, and have the weight that was tested."""
    plain = tuned(racer, rows).trials
    trials = tuned(racer, rows, ratings=rated(believed(rows), weight)).trials
    assert tuple(trial for trial in trials if not trial.evaluated) == plain
    more = [trial for trial in trials if trial.evaluated]
    assert {(trial.rule, trial.weight) for trial in more} == {(Method.WEIGHTED, weight)}
    tried = [(trial.alpha, trial.temperature) for trial in more]
    assert tried == [(alpha, temperature) for alpha in ALPHAS for temperature in TEMPERATURES]


def test_votes_by_ratings_are_measured_as_they_are_served(racer, rows):
    """Row by row, with the vote of the gateway over the set's answers alone; a third unrated."""
    rng = np.random.default_rng(3)
    values = rng.random((len(rows), len(POOL))).round(3)
    values[rng.random(values.shape) < 1 / 3] = np.nan
    trials = tuned(racer, rows, ratings=rated(values)).trials
    scored, spread = score_rows(racer, rows), []
    for trial in (trial for trial in trials if trial.evaluated):
        options = CalibrationOptions(
            alpha=trial.alpha, score=trial.score, null_threshold=racer.artifact.null_threshold
        )
        sets = cross_fitted_sets(scored, options, racer.artifact.patterns, None)
        right = 0
        for row, inside, scores, weights in zip(
            rows.rows, sets, scored.scores, values, strict=True
        ):
            answers = [
                CandidateAnswer(
                    candidate=POOL[m],
                    text=row.answers[POOL[m]],
                    form=normalise(Equality.EXACT, row.answers[POOL[m]]),
                    score=float(scores[m]),
                    weight=None if np.isnan(weights[m]) else float(weights[m]),
                )
                for m in np.flatnonzero(inside)
            ]
            if answers:
                merged = aggregate(
                    answers,
                    method=Method.WEIGHTED,
                    weight=trial.weight,
                    temperature=trial.temperature,
                )
                right += merged.winner in row.correct
        assert trial.accuracy == right / len(rows)
        spread.append(trial.accuracy)
    assert len(set(spread)) > len(ALPHAS)  # temperatures matter here


def test_an_evaluator_that_knows_is_chosen(racer, rows):
    """Its vote finds every right answer that a set holds."""
    chosen = tuned(racer, rows, ratings=rated(believed(rows))).chosen
    assert (chosen.rule, chosen.weight, chosen.evaluated) == (Method.WEIGHTED, Weight.P_TRUE, True)
    assert chosen.proven
    assert chosen.temperature in TEMPERATURES


@pytest.mark.parametrize("value", [0.0, 0.5, np.nan])
def test_an_evaluator_that_says_the_same_of_all_is_the_majority(racer, rows, value):
    """And so it is never chosen; nor is the choice any other than without it."""
    values = np.full((len(rows), len(POOL)), value)
    result = tuned(racer, rows, ratings=rated(values))
    majority = {
        trial.alpha: trial.accuracy for trial in result.trials if trial.rule is Method.MAJORITY
    }
    same = [trial for trial in result.trials if trial.evaluated]
    assert len(same) == len(ALPHAS) * len(TEMPERATURES)
    assert all(trial.accuracy == majority[trial.alpha] for trial in same)
    assert not any(trial.proven for trial in same)
    assert result.chosen == tuned(racer, rows).chosen


def test_an_evaluator_within_one_standard_error_is_not_chosen(racer, rows):
    """It says what the router says but sets five rows right: proven, and not worth its calls."""
    plain = tuned(racer, rows, alphas=(0.05,))
    scored = score_rows(racer, rows)
    options = CalibrationOptions(
        alpha=0.05, score=plain.chosen.score, null_threshold=racer.artifact.null_threshold
    )
    sets = cross_fitted_sets(scored, options, racer.artifact.patterns, None)
    favourite = np.where(sets, scored.scores, -1.0).argmax(axis=1)
    one_right = (sets & scored.labels).sum(axis=1) == 1
    missed = np.flatnonzero(one_right & ~scored.labels[range(len(rows)), favourite])[:5]
    values = scored.scores.copy()
    values[missed] = scored.labels[missed]
    result = tuned(racer, rows, ratings=rated(values), alphas=(0.05,))
    better = [trial for trial in result.trials if trial.evaluated and trial.proven]
    gain = max(trial.accuracy for trial in better) - plain.chosen.accuracy
    assert gain == pytest.approx(5 / len(rows))
    assert gain < result.slack
    assert result.chosen == plain.chosen


@pytest.mark.parametrize(("mended", "proven"), [(3, False), (4, True)])
def test_a_vote_within_two_standard_errors_of_the_majority_is_not_proven(
    racer, rows, mended, proven
):
    """The majority, but right on a few more rows.

    A lead of d rows in n is above two paired standard errors where d > 4 (1 - d / n): from 4 rows.
    """
    alpha = 0.05
    plain = tuned(racer, rows, alphas=(alpha,))
    majority = next(each.accuracy for each in plain.trials if each.rule is Method.MAJORITY)
    scored = score_rows(racer, rows)
    options = CalibrationOptions(
        alpha=alpha, score=plain.chosen.score, null_threshold=racer.artifact.null_threshold
    )
    sets = cross_fitted_sets(scored, options, racer.artifact.patterns, None)
    favourite = np.where(sets, scored.scores, -1.0).argmax(axis=1)
    one_right = (sets & scored.labels).sum(axis=1) == 1
    missed = np.flatnonzero(one_right & ~scored.labels[range(len(rows)), favourite])[:mended]
    values = np.full(scored.scores.shape, 0.5)
    values[missed] = scored.labels[missed]
    trials = tuned(racer, rows, ratings=rated(values), alphas=(alpha,)).trials
    better = [each for each in trials if each.evaluated]
    for each in better:
        assert each.accuracy == pytest.approx(majority + mended / len(rows))
    assert {each.proven for each in better} == {proven}


def test_ratings_of_other_rows_are_refused(racer, rows):
    """One row short would shift every rating behind it."""
    with pytest.raises(InputError, match="ratings of shape"):
        tuned(racer, rows, ratings=rated(believed(rows)[1:]))


def test_prices_change_the_choice(racer, rows):
    """The first candidate at fifty calls: another score, and fewer of its calls.

    The cost is the mean price of a query, whatever was chosen.
    """
    prices = (50.0, 1.0, 1.0)
    plain, priced = tuned(racer, rows), tuned(racer, rows, prices=prices)
    assert plain.chosen.score is not Score.COVER_COST
    assert priced.chosen.score is Score.COVER_COST
    assert all(trial.size < trial.cost < 50.0 * 3.0 for trial in priced.trials)
    assert plain.chosen != priced.chosen
    options = CalibrationOptions(
        alpha=plain.chosen.alpha,
        score=plain.chosen.score,
        null_threshold=racer.artifact.null_threshold,
    )
    scored = score_rows(racer, rows)
    unpriced_sets = cross_fitted_sets(scored, options, racer.artifact.patterns, prices)
    assert priced.chosen.cost < (unpriced_sets @ np.array(prices)).mean()


def test_the_frontier_is_what_no_other_point_beats(racer, rows):
    """Of each alpha the best proven vote; no point is at once as cheap and more accurate."""
    prices = tuple(range(1, len(POOL) + 1))
    found = tuned(racer, rows, alphas=PAPER_ALPHAS, prices=prices)
    points = {point.alpha: point for point in found.points}
    for alpha, point in points.items():
        proven = [each for each in found.trials if each.alpha == alpha and each.proven]
        best = max(each.accuracy for each in proven)
        assert point is found.chosen or point.accuracy == best
    beaten = [
        point
        for point in points.values()
        if any(
            (other.cost < point.cost and other.accuracy >= point.accuracy)
            or (other.cost <= point.cost and other.accuracy > point.accuracy)
            for other in points.values()
        )
    ]
    assert beaten, "else the test would show nothing"
    assert {id(each) for each in found.frontier} == {
        id(each) for each in points.values() if each not in beaten
    }


def test_a_point_is_chosen_by_its_alpha(racer, rows):
    """What else was measured stays; an alpha without a point is refused."""
    found = tuned(racer, rows)
    for point in found.points:
        other = found.at(point.alpha)
        assert other.chosen == point
        assert other.trials == found.trials
    with pytest.raises(InputError, match=r"there are points at 0\.05, 0\.1, 0\.2"):
        found.at(0.15)


@pytest.mark.parametrize("target", BINARY_TARGETS)
def test_missed_is_the_share_of_sets_without_a_right_candidate(racer, rows, target):
    """Of the queries that some candidate answers right; an abstention misses them, too."""
    found = tuned(racer, rows, risk_target=target)
    scored = score_rows(racer, rows)
    for point in found.points:
        options = CalibrationOptions(
            alpha=point.alpha, score=point.score, risk_target=target,
            null_threshold=racer.artifact.null_threshold,
        )  # fmt: skip
        sets = cross_fitted_sets(scored, options, racer.artifact.patterns, None)
        answerable = [
            (labels, chosen) for labels, chosen in zip(scored.labels, sets, strict=True)
            if labels.any()
        ]  # fmt: skip
        missed = np.mean([not (labels & chosen).any() for labels, chosen in answerable])
        assert point.missed == pytest.approx(missed)


def test_fixed_calls_are_those_of_the_rows(racer, rows):
    """The majority of all candidates, and the candidate that is right most often."""
    prices = tuple(range(1, len(POOL) + 1))
    found = tuned(racer, rows, prices=prices)
    right = rows.labels(racer.pool).mean(axis=0)
    best = found.best_single
    assert best.candidates == (racer.pool[right.argmax()],)
    assert (best.accuracy, best.cost) == (right.max(), prices[right.argmax()])
    everyone = found.everyone
    assert (everyone.candidates, everyone.cost) == (racer.pool, sum(prices))
    texts = [[each.answers[name] for name in racer.pool] for each in rows.rows]
    scores = score_rows(racer, rows).scores
    votes = [
        aggregate(
            [
                CandidateAnswer(candidate=n, text=t, form=normalise(Equality.EXACT, t), score=s)
                for n, t, s in zip(racer.pool, row, own, strict=True)
            ]
        ).winner
        for row, own in zip(texts, scores.tolist(), strict=True)
    ]
    hits = [winner in row.correct for winner, row in zip(votes, rows.rows, strict=True)]
    assert everyone.accuracy == pytest.approx(np.mean(hits))


def test_equal_prices_choose_as_calls_do(racer, rows):
    """A price of 1 each is no price."""
    assert tuned(racer, rows, prices=(1.0, 1.0, 1.0)).chosen == tuned(racer, rows).chosen


def test_router_that_knows_nothing_is_not_chosen(racer, rows):
    """Labels and answers of other rows: the fixed order, but for 5 % of such data.

    More than six of twelve come with a chance of 1e-6.
    """
    rng = np.random.default_rng(7)
    routed = 0
    for _ in range(12):
        order = rng.permutation(len(rows))
        strangers = tuple(
            replace(rows.rows[i], correct=rows.rows[j].correct, answers=rows.rows[j].answers)
            for i, j in enumerate(order)
        )
        routed += tuned(racer, replace(rows, rows=strangers)).chosen.score is not Score.STATIC
    assert routed <= 6


def test_rows_that_chose_the_patterns_are_tested_more_strictly(racer, rows):
    """The same rows as those of the training: one of four settings was taken because of them."""
    seen = frozenset(racer.fingerprint(query) for query in rows.queries)
    twice = replace(racer, artifact=replace(racer.artifact, validation_fingerprints=seen))
    scored = score_rows(racer, rows)
    assert settings_tried(racer, scored) == 1
    assert settings_tried(twice, scored) == 4
    assert settings_tried(twice, replace(scored, neighbours=None)) == 5


@pytest.mark.parametrize("missing", [0, 239])
def test_rows_without_answers_are_refused(racer, rows, missing):
    """All of them must have some: votes are what is tuned."""
    damaged = list(rows.rows)
    damaged[missing] = replace(damaged[missing], answers={})
    with pytest.raises(RowsError, match="rows with answers"):
        tuned(racer, replace(rows, rows=tuple(damaged)))


def all_answerable(count, more=0):
    """Rows that the adder answers right, and some unanswerable ones."""
    rows = [
        LabelledRow(
            query=f"What is {number} plus 1?",
            correct=frozenset(["adder"] if number < count else []),
            answers=dict.fromkeys(POOL, "yes"),
        )
        for number in range(count + more)
    ]
    return LabelledRows(pool=POOL, rows=tuple(rows))


def test_too_few_rows_are_refused(racer):
    """99 answerable rows beside 30 unanswerable ones are too few; 100 are enough."""
    with pytest.raises(RowsError, match=f"99 answerable rows.*at least {MIN_ROWS}"):
        tuned(racer, all_answerable(99, more=30))
    with pytest.raises(RowsError, match="99 answerable rows"):
        check_rows(racer, all_answerable(99, more=30))
    check_rows(racer, all_answerable(100))
    assert tuned(racer, all_answerable(100)).rows == 100


def test_no_rows_are_refused(racer):
    """Without rows to tune on there is an error and no division by zero."""
    with pytest.raises(RowsError, match="too few"):
        tuned(racer, LabelledRows(pool=POOL, rows=()))


def test_rows_of_another_pool_are_refused(racer):
    """A candidate that the rows do not know would count as wrong on all of them."""
    rows = replace(all_answerable(100), pool=("adder", "traveller"))
    with pytest.raises(RowsError, match="pool"):
        tuned(racer, rows)


def test_rows_of_scores_alone_are_refused(racer, rows):
    """The router would score an empty query."""
    blank = [replace(row, query="", scores=(0.5, 0.5, 0.5)) for row in rows.rows]
    with pytest.raises(RowsError, match="no text"):
        tuned(racer, replace(rows, rows=tuple(blank)))


def test_rows_with_weights_are_refused_where_weights_are_not_used(racer, rows, tmp_path):
    """Tuning, training and evaluation would silently measure the rows' own population."""
    weighted = replace(rows, rows=(replace(rows.rows[0], weight=2.0), *rows.rows[1:]))
    calls = (
        lambda: tuned(racer, weighted),
        lambda: train(weighted, rows, tmp_path, encoder=CharNgramEncoder(), kind="knn"),
        lambda: build_table(
            {"rows": weighted}, encoder=CharNgramEncoder(), router="knn", protocol=Protocol()
        ),
    )
    for call in calls:
        with pytest.raises(RowsError, match="only `racer calibrate` uses"):
            call()


def test_progress_is_called_for_each_alpha(racer, rows):
    """In order, up to the last."""
    heard = []
    tuned(racer, rows, progress=lambda *each: heard.append(each))
    assert [each for each in heard if each[0] == "alphas"] == [("alphas", n, 3) for n in (1, 2, 3)]
