"""The search for alpha and the vote: measured on rows that did not set the thresholds."""

from dataclasses import replace

import numpy as np
import pytest

from racer_core.aggregation.answers import Equality
from racer_core.aggregation.rule import AnswerRule, normalise
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.vote import Method, Weight, aggregate
from racer_core.calibration.options import SMOOTHING_SALT, CalibrationOptions
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import InputError, RowsError
from racer_core.offline import tune as search
from racer_core.offline.protocol import PAPER_ALPHAS, Protocol, halves
from racer_core.offline.table import build_table
from racer_core.offline.train import train
from racer_core.offline.tune import (
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

ALPHAS = (0.02, 0.05, 0.1)


@pytest.fixture(scope="module")
def rows():
    """Validation rows with answers."""
    return synthetic_rows(240, seed=51, answers=True)


def tuned(racer, rows, **options):
    """The search with what most tests want."""
    wanted = {
        "rule": AnswerRule(equality=Equality.EXACT),
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


def dominated(rows, racer):
    """The rows with the first of the fixed order right in nine of ten, whatever others say."""
    rng, patterns = np.random.default_rng(9), racer.artifact.patterns
    first = racer.pool[int((patterns.frequencies @ patterns.patterns).argmax())]
    relabelled = []
    for row in rows.rows:
        right = {first} if rng.random() < 0.9 else set()
        right |= {name for name in POOL if name != first and rng.random() < 0.5}
        answers = {name: "right" if name in right else f"{name}'s guess" for name in POOL}
        relabelled.append(replace(row, correct=frozenset(right), answers=answers))
    return replace(rows, rows=tuple(relabelled))


@pytest.mark.parametrize("target", BINARY_TARGETS)
def test_each_half_is_measured_at_the_others_threshold(racer, rows, target):
    """By hand, with the calibration that the gateway would make of either half."""
    result = tuned(racer, rows, risk_target=target)
    halves = [list(range(start, len(rows), 2)) for start in (0, 1)]
    differences = []
    for alpha in ALPHAS:
        (score,) = {trial.score for trial in result.trials if trial.alpha == alpha}
        options = CalibrationOptions(
            score=score,
            risk_target=target,
            null_threshold=racer.artifact.null_threshold,
            smoothing_salt=SMOOTHING_SALT,
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
        differences.append(abs(np.mean(sizes) - np.mean(own)))
    assert max(differences) > 0.01, "else the test would show nothing"


def test_both_halves_hold_every_task_of_a_sorted_file():
    """Every row is measured once; halves differ by one row at most."""
    for count in (100, 101):
        (own, other), (again, first) = halves(np.arange(count))
        assert sorted([*own, *again]) == list(range(count))
        assert not set(own) & set(other)
        assert (own.tolist(), other.tolist()) == (first.tolist(), again.tolist())
        assert 0 <= len(own) - len(other) <= 1


@pytest.mark.parametrize("dominates", [False, True])
def test_chosen_is_the_smallest_alpha_as_accurate_as_the_best_and_as_cheap_as_the_cheapest(
    racer, rows, dominates
):
    """Recomputed from the trials that are the majority, or proven to be better than it.

    As accurate: within one standard error; as cheap: within two paired standard errors. Where one
    candidate dominates, most levels have the same sets.
    """
    rows = dominated(rows, racer) if dominates else equally_good(rows)
    result = tuned(racer, rows, alphas=PAPER_ALPHAS[::-1])
    usable = [trial for trial in result.trials if trial.proven]
    assert {trial.rule for trial in usable} >= {Method.MAJORITY}
    assert len(usable) < len(result.trials)
    best = max(trial.accuracy for trial in usable)
    assert result.slack == pytest.approx(np.sqrt(best * (1 - best) / 239))
    good = [trial for trial in usable if trial.accuracy >= best - result.slack]
    assert result.plateau == tuple(sorted({trial.alpha for trial in good}))
    cheapest = min(good, key=lambda trial: trial.cost)
    base = sets_of(racer, rows, cheapest)[1].sum(axis=1)

    def is_as_cheap(trial):
        more = sets_of(racer, rows, trial)[1].sum(axis=1) - base
        return more.mean() <= 2.0 * more.std(ddof=1) / np.sqrt(len(rows))

    same = [trial for trial in good if is_as_cheap(trial)]
    assert result.chosen in same
    assert result.chosen.alpha == min(trial.alpha for trial in same)
    if dominates:
        assert len({trial.alpha for trial in same}) > 3, "else the test would show nothing"
    own = [trial for trial in same if trial.alpha == result.chosen.alpha]
    assert result.chosen.accuracy == max(trial.accuracy for trial in own)


def test_the_distance_from_the_best_setting_has_its_paired_error(racer, rows):
    """Of every majority, row by row with the sets of the trial."""
    result = tuned(racer, rows, alphas=PAPER_ALPHAS)
    proven = [each for each in result.trials if each.proven]
    best = max(proven, key=lambda each: each.accuracy)
    assert best.rule is Method.MAJORITY, "else the votes below are others"

    def right(trial):
        scored, sets = sets_of(racer, rows, trial)
        places = [[(m, own[m]) for m in np.flatnonzero(inside)] for inside, own in
                  zip(sets, scored.scores, strict=True)]  # fmt: skip
        return np.array([served(*each) for each in zip(rows.rows, places, strict=True)], float)

    for trial in proven[:: len(proven) // 4]:
        if trial.rule is Method.MAJORITY:
            lead = right(best) - right(trial)
            assert trial.behind == pytest.approx(lead.mean())
            assert trial.behind_se == pytest.approx(lead.std(ddof=1) / np.sqrt(len(rows)))
            half = 1.96 * trial.behind_se
            assert trial.behind_interval == (trial.behind - half, trial.behind + half)


@pytest.mark.parametrize("alpha", [0.1, 0.07, 0.123])
def test_few_rows_keep_the_configured_alpha(racer, rows, alpha, monkeypatch):
    """Below 500 rows; it is measured where the grid lacks it, and all others are shown."""
    free = tuned(racer, rows)
    found = tuned(racer, rows, alpha=alpha)
    assert (found.chosen.alpha, found.keeps_alpha) == (alpha, True)
    assert {point.alpha for point in found.points} == {*ALPHAS, alpha}
    assert not free.keeps_alpha
    with pytest.raises(RowsError, match=r"half of 240 are too few for alpha 0\.001: label more"):
        tuned(racer, rows, alpha=0.001)
    monkeypatch.setattr(search, "CHOOSING_ROWS", len(rows))
    enough = tuned(racer, rows, alpha=ALPHAS[0])
    assert not enough.keeps_alpha
    assert enough.chosen == free.chosen


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
    assert weights == {Method.MAJORITY: None, Method.WEIGHTED: Weight.ROUTER, Method.LOG_ODDS: None}
    assert all(trial.cost == trial.size for trial in result.trials)
    assert result.rows == 240


def rated(values, weight=Weight.P_TRUE):
    """Ratings of these values."""
    return AnswerRatings(weight=weight, values=np.array(values))


def believed(rows):
    """0.9 for right answers and 0.1 for wrong ones."""
    return np.where(rows.labels(POOL), 0.9, 0.1)


def served(row, forms_and_scores, trial=None, weights=None):
    """Whether the gateway's vote over these candidates' answers is right."""
    answers = [
        CandidateAnswer(
            candidate=POOL[m],
            text=row.answers[POOL[m]],
            form=normalise(Equality.EXACT, row.answers[POOL[m]]),
            score=float(score),
            weight=None if weights is None or np.isnan(weights[m]) else float(weights[m]),
        )
        for m, score in forms_and_scores
    ]
    terms = {"weight": trial.weight, "temperature": trial.temperature} if trial else {}
    method = Method.WEIGHTED if trial else Method.MAJORITY
    return bool(answers) and aggregate(answers, method=method, **terms).winner in row.correct


def test_votes_by_ratings_are_measured_as_they_are_served(racer, rows):
    """Row by row, with the vote of the gateway over the set's answers alone; a third unrated."""
    rng = np.random.default_rng(3)
    values = rng.random((len(rows), len(POOL))).round(3)
    values[rng.random(values.shape) < 1 / 3] = np.nan
    result, plain = tuned(racer, rows, ratings=rated(values)), tuned(racer, rows).trials
    assert tuple(trial for trial in result.trials if not trial.evaluated) == plain
    more = [trial for trial in result.trials if trial.evaluated]
    assert {(trial.rule, trial.weight) for trial in more} == {(Method.WEIGHTED, Weight.P_TRUE)}
    tried = [(trial.alpha, trial.temperature) for trial in more]
    assert tried == [(alpha, temperature) for alpha in ALPHAS for temperature in TEMPERATURES]
    for trial in more:
        scored, sets = sets_of(racer, rows, trial)
        right = sum(
            served(row, [(m, scores[m]) for m in np.flatnonzero(inside)], trial, weights)
            for row, inside, scores, weights in zip(
                rows.rows, sets, scored.scores, values, strict=True
            )
        )
        assert trial.accuracy == right / len(rows)
    assert len({trial.accuracy for trial in more}) > len(ALPHAS)  # temperatures matter here


def test_an_evaluator_that_knows_is_chosen(racer, rows):
    """Its vote finds every right answer that a set holds."""
    chosen = tuned(racer, rows, ratings=rated(believed(rows)), alphas=(0.02,)).chosen
    assert (chosen.rule, chosen.weight, chosen.evaluated) == (Method.WEIGHTED, Weight.P_TRUE, True)
    assert chosen.proven
    assert chosen.temperature in TEMPERATURES


def sets_of(racer, rows, trial, prices=None, target=RiskTarget.ANSWERABLE):
    """The scored rows, and the cross-fitted sets of a trial's terms."""
    scored = score_rows(racer, rows)
    options = CalibrationOptions(
        alpha=trial.alpha,
        score=trial.score,
        risk_target=target,
        null_threshold=racer.artifact.null_threshold,
        smoothing_salt=SMOOTHING_SALT,
    )
    return scored, cross_fitted_sets(scored, options, racer.artifact.patterns, prices)


def mended(racer, rows, trial, count):
    """The first rows that the router's favourite misses and their one right answer, by labels."""
    scored, sets = sets_of(racer, rows, trial)
    favourite = np.where(sets, scored.scores, -1.0).argmax(axis=1)
    one_right = (sets & scored.labels).sum(axis=1) == 1
    missed = np.flatnonzero(one_right & ~scored.labels[range(len(rows)), favourite])[:count]
    return scored, missed


def test_an_evaluator_within_one_standard_error_is_not_chosen(racer, rows):
    """It says what the router says but sets five rows right: proven, and not worth its calls."""
    plain = tuned(racer, rows, alphas=(0.05,))
    scored, missed = mended(racer, rows, plain.chosen, 5)
    values = scored.scores.copy()
    values[missed] = scored.labels[missed]
    result = tuned(racer, rows, ratings=rated(values), alphas=(0.05,))
    better = [trial for trial in result.trials if trial.evaluated and trial.proven]
    gain = max(trial.accuracy for trial in better) - plain.chosen.accuracy
    assert gain == pytest.approx(5 / len(rows))
    assert gain < result.slack
    assert result.chosen.behind == pytest.approx(gain)
    assert replace(result.chosen, behind=0.0, behind_se=0.0) == plain.chosen


@pytest.mark.parametrize(("count", "proven"), [(3, False), (4, True)])
def test_a_vote_within_two_standard_errors_of_the_majority_is_not_proven(
    racer, rows, count, proven
):
    """The majority, but right on a few more rows.

    A lead of d rows in n is above two paired standard errors where d > 4 (1 - d / n): from 4 rows.
    """
    plain = tuned(racer, rows, alphas=(0.05,))
    majority = next(each.accuracy for each in plain.trials if each.rule is Method.MAJORITY)
    scored, missed = mended(racer, rows, plain.chosen, count)
    values = np.full(scored.scores.shape, 0.5)
    values[missed] = scored.labels[missed]
    trials = tuned(racer, rows, ratings=rated(values), alphas=(0.05,)).trials
    better = [each for each in trials if each.evaluated]
    for each in better:
        assert each.accuracy == pytest.approx(majority + count / len(rows))
    assert {each.proven for each in better} == {proven}


def test_prices_change_the_choice(racer, rows):
    """The first candidate at fifty calls: another score, and fewer of its calls."""
    prices = (50.0, 1.0, 1.0)
    plain = tuned(racer, rows, alphas=(0.05,))
    priced = tuned(racer, rows, prices=prices, alphas=(0.05,))
    assert plain.chosen.score is not Score.COVER_COST
    assert priced.chosen.score is Score.COVER_COST
    assert all(trial.size < trial.cost < 50.0 * 3.0 for trial in priced.trials)
    assert plain.chosen != priced.chosen
    _, unpriced_sets = sets_of(racer, rows, plain.chosen, prices)
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
    with pytest.raises(InputError, match=r"there are points at 0\.02, 0\.05, 0\.1"):
        found.at(0.15)


@pytest.mark.parametrize("target", BINARY_TARGETS)
def test_missed_is_the_share_of_sets_without_a_right_candidate(racer, rows, target):
    """Of the queries that some candidate answers right; an abstention misses them, too."""
    for point in tuned(racer, rows, risk_target=target).points:
        scored, sets = sets_of(racer, rows, point, target=target)
        hits = (scored.labels & sets).any(axis=1)[scored.labels.any(axis=1)]
        assert point.missed == pytest.approx(1.0 - hits.mean())


def test_fixed_calls_are_those_of_the_rows(racer, rows):
    """The majority of all candidates, and the candidate that is right most often."""
    prices = tuple(range(1, len(POOL) + 1))
    found = tuned(racer, rows, prices=prices)
    right = rows.labels(racer.pool).mean(axis=0)
    best, everyone = found.best_single, found.everyone
    assert best.candidates == (racer.pool[right.argmax()],)
    assert (best.accuracy, best.cost) == (right.max(), prices[right.argmax()])
    assert (everyone.candidates, everyone.cost) == (racer.pool, sum(prices))
    scores = score_rows(racer, rows).scores
    hits = [served(row, enumerate(own)) for row, own in zip(rows.rows, scores, strict=True)]
    assert everyone.accuracy == pytest.approx(np.mean(hits))


def test_rows_that_chose_the_patterns_are_tested_more_strictly(racer, rows):
    """The same rows as those of the training: one of four settings was taken because of them."""
    seen = frozenset(racer.fingerprint(query) for query in rows.queries)
    twice = replace(racer, artifact=replace(racer.artifact, validation_fingerprints=seen))
    scored = score_rows(racer, rows)
    assert settings_tried(racer, scored) == 1
    assert settings_tried(twice, scored) == 4
    assert settings_tried(twice, replace(scored, neighbours=None)) == 5


def test_rows_that_cannot_be_tuned_on_are_refused(racer, rows):
    """Votes need answers and text, and the pool is the router's; ratings are of these rows."""
    blank = tuple(replace(row, query="", scores=(0.5, 0.5, 0.5)) for row in rows.rows)
    silent = (*rows.rows[:-1], replace(rows.rows[-1], answers={}))
    for wrong, message in (
        (replace(rows, pool=("adder", "traveller")), "pool"),
        (replace(rows, rows=blank), "no text"),
        (replace(rows, rows=silent), "rows with answers"),
        (replace(rows, rows=()), "too few"),
    ):
        with pytest.raises(RowsError, match=message):
            tuned(racer, wrong)
    with pytest.raises(InputError, match="ratings of shape"):
        tuned(racer, rows, ratings=rated(believed(rows)[1:]))


def test_too_few_rows_are_refused(racer):
    """99 answerable rows beside 31 unanswerable ones are too few; 100 are enough."""
    right = LabelledRow(query="", correct=frozenset(["adder"]), answers=dict.fromkeys(POOL, "yes"))
    queries = [f"What is {number} plus 1?" for number in range(130)]
    for count in (99, 100):
        given = tuple(
            replace(right, query=query, correct=right.correct if i < count else frozenset())
            for i, query in enumerate(queries)
        )
        some = LabelledRows(pool=POOL, rows=given)
        if count == 100:
            check_rows(racer, some)
            continue
        with pytest.raises(RowsError, match=r"99 answerable rows.*takes 100, hence 438 questions"):
            check_rows(racer, some)
    nobody = replace(some, rows=tuple(replace(row, correct=frozenset()) for row in some.rows))
    with pytest.raises(RowsError, match="no candidate is right in any: check references and grade"):
        check_rows(racer, nobody)


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


def test_stacked_votes_take_part_where_they_were_fitted(racer, rows):
    """An artifact that has one: it is compared with the others."""
    stacked = StackedVote(POOL, np.array([1.0, 1.0, 1.0]), np.array([0.5, 0.5, 0.5]))
    fitted = replace(racer, artifact=replace(racer.artifact, stacked=stacked))
    assert Method.STACKED in {trial.rule for trial in tuned(fitted, rows).trials}
