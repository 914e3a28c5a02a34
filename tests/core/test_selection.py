"""Choices on validation rows: the smallest sets at equal risk, against a search by hand."""

from dataclasses import replace

import numpy as np
import pytest

from racer_core.calibration.options import SMOOTHING_SALT
from racer_core.calibration.patterns import PatternModel, pattern_ids
from racer_core.calibration.scoring import NonconformityScorer
from racer_core.calibration.threshold import calibrate_threshold, critical_scores
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.selection import (
    ALPHAS,
    MIN_ROWS,
    NEIGHBOURS,
    TEMPERATURES,
    ScoredRows,
    choose_patterns,
    choose_scores,
    mean_cost,
)
from racer_core.offline.train import train
from racer_core.racer import Racer
from racer_core.types import RiskTarget, Score
from tests.core.kinds import Kinds
from tests.kit.strategies import fingerprints_of, pool_of
from tests.kit.synthetic import synthetic_rows

ALPHA = 0.1
ANSWERABLE = {"alphas": (ALPHA,), "risk_target": RiskTarget.ANSWERABLE}
WORLD = Kinds(21)


def validation(count=120, *, finds=True, world=WORLD, seed_rows=None):
    """Scored rows of three kinds of queries."""
    drawn = world.draw(count) if seed_rows is None else seed_rows
    return ScoredRows(
        pool=pool_of(4),
        fingerprints=fingerprints_of(len(drawn)),
        scores=drawn.scores,
        neighbours=drawn.neighbours if finds else None,
        labels=drawn.labels,
    )


def cost_by_hand(rows, patterns, score, *, alpha, prices=None):
    """Mean price of the sets at the threshold that these rows themselves give, ``answerable``."""
    scoring = NonconformityScorer(
        pool=rows.pool,
        with_null=False,
        patterns=patterns,
        prices=prices,
        smoothing_salt=SMOOTHING_SALT,
    )
    fit = scoring.nonconformity(score, rows.scores, rows.neighbours, rows.fingerprints)
    counted = rows.labels.any(axis=1)
    threshold = calibrate_threshold(critical_scores(fit[counted], rows.labels[counted]), alpha)
    per_call = np.ones(len(rows.pool)) if prices is None else np.array(prices)
    return float(np.mean([per_call[row <= threshold].sum() for row in fit]))


def total_cost(rows, patterns):
    """What settings are compared by: the size of ``cover`` over several levels."""
    return sum(cost_by_hand(rows, patterns, Score.COVER, alpha=alpha) for alpha in ALPHAS)


@pytest.mark.parametrize("score", list(Score))
@pytest.mark.parametrize("prices", [None, (4.0, 1.0, 2.0, 8.0)])
@pytest.mark.parametrize("finds", [True, False])
def test_cost_is_what_the_sets_of_these_rows_cost(score, prices, finds):
    """Candidates called, or their prices; every score at equal risk, since no two scores tie."""
    if score is Score.COVER_COST and prices is None:
        pytest.skip("cover_cost needs prices")
    rows = validation(finds=finds)
    for alpha in (0.05, 0.1, 0.3):
        found = mean_cost(
            rows,
            WORLD.patterns,
            score,
            alpha=alpha,
            risk_target=RiskTarget.ANSWERABLE,
            prices=prices,
        )
        expected = cost_by_hand(rows, WORLD.patterns, score, alpha=alpha, prices=prices)
        assert found == pytest.approx(expected)


def test_fewest_calls_decide_how_many_neighbours_vote():
    """Each number on offer, none beyond the router's reach; everything else stays as it was."""
    rows = validation()
    wide = replace(rows, neighbours=np.tile(rows.neighbours, (1, 25)))  # 300 of them
    chosen = choose_patterns(WORLD.patterns, wide)
    costs = {
        count: total_cost(wide, replace(WORLD.patterns, neighbours=count))
        for count in (100, 200, 300)
    }
    assert costs[chosen.neighbours] == min(costs.values())
    assert set(NEIGHBOURS) >= {100, 200}
    assert replace(chosen, neighbours=12).temperature == WORLD.patterns.temperature
    assert choose_patterns(WORLD.patterns, rows).neighbours == 12  # its whole reach


def test_fewest_calls_decide_the_temperature_of_a_router_without_neighbours():
    """A search over the offered temperatures, by hand."""
    rows = validation(finds=False)
    chosen = choose_patterns(WORLD.patterns, rows)
    costs = {
        each: total_cost(rows, replace(WORLD.patterns, temperature=each)) for each in TEMPERATURES
    }
    assert len(set(costs.values())) > 1
    assert costs[chosen.temperature] == min(costs.values())
    assert chosen.neighbours == WORLD.patterns.neighbours


def answerable_rows(count):
    """This number of answerable rows, and thirty that no candidate answers."""
    drawn = WORLD.draw(400)
    right = drawn.labels.any(axis=1)
    keep = [*np.flatnonzero(right)[:count], *np.flatnonzero(~right)[:30]]
    return validation(seed_rows=drawn[np.array(keep)])


def test_few_rows_choose_nothing():
    """With 49 answerable rows the defaults stay, for any number of other rows."""
    few, enough = answerable_rows(MIN_ROWS - 1), answerable_rows(MIN_ROWS)
    odd = replace(WORLD.patterns, neighbours=3)
    assert choose_patterns(odd, few).neighbours == 3
    assert choose_patterns(odd, enough).neighbours == 12
    wide = replace(WORLD.patterns, neighbours=200)
    assert choose_patterns(wide, few).neighbours == 12  # no more than there are


def test_levels_with_too_few_rows_for_the_test_keep_the_fixed_order():
    """Four ranks are left at 0.05 of 90 answerable rows; nothing is chosen on their evidence."""
    alphas = (0.05, 0.4)
    chosen = choose_scores(
        answerable_rows(90),
        WORLD.patterns,
        alphas=alphas,
        risk_target=RiskTarget.ANSWERABLE,
        error_rate=0.9999,  # everything that is tested and looks cheaper is named
    )
    assert chosen[0.05] is Score.STATIC
    assert chosen[0.4] is not Score.STATIC
    assert set(choose_scores(answerable_rows(30), WORLD.patterns, **ANSWERABLE).values()) == {
        Score.STATIC
    }


@pytest.mark.parametrize("prices", [None, (4.0, 1.0, 2.0, 8.0)])
def test_cheapest_of_the_scores_that_are_shown_to_be_cheaper_is_chosen(prices):
    """With enough rows; ``cover_cost`` takes part only where there are prices."""
    world = Kinds(26)
    rows = validation(3000, world=world)
    chosen = choose_scores(rows, world.patterns, prices=prices, **ANSWERABLE)[ALPHA]
    costs = {
        score: cost_by_hand(rows, world.patterns, score, alpha=ALPHA, prices=prices)
        for score in Score
        if prices is not None or score is not Score.COVER_COST
    }
    assert costs[chosen] == min(costs.values())
    assert costs[chosen] < costs[Score.STATIC]


def guesses(rng, count, *, knows):
    """One of two candidates is right, the first in 80 %; the one neighbour says which.

    Where the router knows nothing the neighbour is another query's: a guess by it is wrong in
    32 %. The fixed order is wrong in 20 %: at alpha = 0.1 it calls the second in half of them.
    """
    right = (rng.random(count) < 0.2).astype(np.uint8)
    model = PatternModel.of(np.eye(2, dtype=bool)[right])
    right = pattern_ids(np.eye(2, dtype=bool)[right]).astype(np.uint8)
    near = right if knows else rng.permutation(right)
    rows = ScoredRows(
        pool=pool_of(2),
        fingerprints=fingerprints_of(count),
        scores=np.full((count, 2), 0.5),
        neighbours=near[:, None],
        labels=model.patterns[right],
    )
    return rows, replace(model, prior=0.5)


@pytest.mark.parametrize(("knows", "chosen"), [(True, Score.COVER), (False, Score.STATIC)])
def test_router_that_knows_nothing_does_not_decide(knows, chosen):
    """A router that knows beats the fixed order."""
    rows, model = guesses(np.random.default_rng(24), 600, knows=knows)
    found = choose_scores(rows, model, alphas=(ALPHA,), risk_target=RiskTarget.ANSWERABLE)
    assert found == {ALPHA: chosen}


def test_router_that_knows_nothing_decides_no_more_often_than_the_error_rate():
    """``cover`` at some level of the grid, over 50 draws of rows whose neighbours are random.

    More than 12 come with a chance below 1e-6 at 5 %. The neighbours are drawn as the training rows
    are, so that ``cover`` and ``static`` differ by noise alone.
    """
    rng = np.random.default_rng(25)
    world, alarms = Kinds(27), 0
    for _ in range(50):
        near = rng.choice(len(world.patterns.patterns), (200, 12), p=world.patterns.frequencies)
        rows = replace(validation(seed_rows=world.draw(200)), neighbours=near.astype(np.uint8))
        rows = replace(rows, scores=rng.random((200, 4)))
        found = choose_scores(
            rows, world.patterns, alphas=(0.05, 0.1, 0.2, 0.3), risk_target=RiskTarget.ANSWERABLE
        )
        alarms += set(found.values()) != {Score.STATIC}
    assert alarms <= 12


def test_training_chooses_on_validation_rows_and_remembers(tmp_path):
    """The artifact's patterns are those of the training rows, weighed as validation rows say."""
    rows, held_out = synthetic_rows(120, seed=41), synthetic_rows(160, seed=42)
    artifact = train(rows, held_out, tmp_path, encoder=CharNgramEncoder(), kind="mlp")
    expected = PatternModel.of(rows.labels(artifact.pool))
    loaded = Racer.load(tmp_path)
    for patterns in (artifact.patterns, loaded.artifact.patterns):
        np.testing.assert_array_equal(patterns.patterns, expected.patterns)
        np.testing.assert_array_equal(patterns.frequencies, expected.frequencies)
    scored = loaded.score(held_out.queries)
    known = ScoredRows(
        pool=artifact.pool,
        fingerprints=tuple(map(loaded.fingerprint, held_out.queries)),
        scores=scored.scores,
        neighbours=scored.neighbours,
        labels=held_out.labels(artifact.pool),
    )
    assert scored.neighbours is None
    assert choose_patterns(expected, known).temperature == artifact.patterns.temperature


@pytest.mark.parametrize("held_out", [30, 160])
@pytest.mark.parametrize("count", [24, 120, 240])
def test_few_training_rows_leave_the_order_to_the_query(count, held_out, tmp_path):
    """J is at most a quarter of them: all of them weigh every query alike, as the fixed order."""
    rows, validation = synthetic_rows(count, seed=43), synthetic_rows(held_out, seed=44)
    artifact = train(rows, validation, tmp_path, encoder=CharNgramEncoder(), kind="knn")
    assert artifact.patterns.neighbours == count // 4
    scored = Racer.load(tmp_path).score(validation.queries)
    assert scored.neighbours.shape == (held_out, count // 4)
    weights = artifact.patterns.weights(scored.scores, scored.neighbours)
    assert len(np.unique(weights, axis=0)) > 2
