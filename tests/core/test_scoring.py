"""s(x, m) from what a router says: five scores, with and without the null model, for any pool."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from racer_core.calibration.scoring import NonconformityScorer
from racer_core.errors import CalibrationError, InputError
from racer_core.types import RiskTarget, Score
from tests.core.by_hand import nonconformity_by_hand, training_counts
from tests.kit.strategies import (
    alphas,
    calibration_of,
    calibration_options,
    fingerprints_of,
    pool_of,
    scores_kinds,
    tables,
)

ROOT = Path(__file__).parents[2]


@given(table=tables(), kind=scores_kinds, with_null=st.booleans())
def test_every_score_is_what_its_definition_says(table, kind, with_null):
    """Each cell against plain Python and brute force in rational numbers."""
    found = table.nonconformity(kind, with_null=with_null)
    assert found.shape == (len(table), table.scores.shape[1] + with_null)
    for row, s in enumerate(found.tolist()):
        expected = nonconformity_by_hand(table, row, kind, with_null=with_null)
        assert s == pytest.approx(expected, rel=0, abs=1e-8)


@given(table=tables(columns=4), kind=scores_kinds, with_null=st.booleans(), seed=st.integers(0, 99))
def test_order_of_the_pool_changes_no_score(table, kind, with_null, seed):
    """Every column keeps its score to 1e-9, ties in a cover included: they go by name."""
    order = np.random.default_rng(seed).permutation(4).tolist()
    turned = table.columns(order)
    mine = table.nonconformity(kind, with_null=with_null)
    scoring = NonconformityScorer(
        pool=tuple(pool_of(4)[column] for column in order),
        with_null=with_null,
        patterns=turned.patterns,
        prices=turned.prices,
    )
    prints = fingerprints_of(len(table))
    theirs = scoring.nonconformity(kind, turned.scores, turned.neighbours, prints)
    columns = [*order, 4] if with_null else order
    np.testing.assert_allclose(theirs, mine[:, columns], rtol=0, atol=1.5e-9)


def merged(table):
    """The table as training for its pool from scratch would have it: each pattern once."""
    model = table.patterns
    rows = np.repeat(model.patterns, training_counts(model), axis=0)
    fresh = replace(
        PatternModel.of(rows),
        neighbours=model.neighbours,
        prior=model.prior,
        temperature=model.temperature,
    )
    places = {tuple(row): i for i, row in enumerate(fresh.patterns.tolist())}
    renamed = np.array([places[tuple(row)] for row in model.patterns.tolist()])
    return fresh, renamed[table.near(model)]


def thresholds_between(fit):
    """Values away from every score by more than the width of smoothing."""
    values = np.unique(fit)
    wide = np.diff(values) > 5e-6
    return ((values[:-1] + values[1:]) / 2)[wide].tolist()


@given(
    table=tables(columns=4),
    options=calibration_options(),
    alpha=alphas,
    keep=st.permutations(range(4)),
    size=st.integers(1, 4),
)
def test_sub_pool_is_the_pool_trained_and_calibrated_from_scratch(
    table, options, alpha, keep, size
):
    """Patterns merged as training on the smaller pool merges them: the same lambda and sets."""
    columns = list(keep[:size])
    smaller = table.columns(columns)
    assume(smaller.labels.any())
    patterns, ids = merged(smaller)
    names = tuple(pool_of(4)[column] for column in columns)
    scratch = Calibration(
        pool=names,
        fingerprints=fingerprints_of(len(table)),
        scores=smaller.scores,
        labels=smaller.labels,
        options=CalibrationOptions(alpha=alpha, **options),
        neighbours=ids if table.finds else None,
        patterns=patterns,
        prices=smaller.prices,
    )
    restricted = table.calibration(alpha=alpha, **options).restrict(names)
    assert restricted.offered == scratch.offered
    score, prints = options["score"], fingerprints_of(len(table), "query")
    here, there = (each.lambda_hat(alpha, score) for each in (restricted, scratch))
    assert here == pytest.approx(there, rel=0, abs=1e-8)
    fit = smaller.nonconformity(score, with_null=options["risk_target"] is RiskTarget.PAPER)
    for between in thresholds_between(fit):
        one = restricted.sets(smaller.scores, prints, between, score, smaller.neighbours)
        other = scratch.sets(smaller.scores, prints, between, score, ids if table.finds else None)
        np.testing.assert_array_equal(one.selected, other.selected)
        np.testing.assert_array_equal(one.null_selected, other.null_selected)


# --- batches, processes, sizes ----------------------------------------------------------------


def large_world(rows=700, columns=7, training=997, reach=60, seed=5):
    """A scoring and queries for it; 997 is prime, so no mass lies on the edge of the grid."""
    rng = np.random.default_rng(seed)
    skill, ease = rng.random(columns), rng.random((training, 1))
    patterns = PatternModel.of(rng.random((training, columns)) < skill * ease * 2)
    scoring = NonconformityScorer(
        pool=pool_of(columns),
        with_null=True,
        patterns=replace(patterns, neighbours=50),
        prices=tuple((1.0 + rng.random(columns)).tolist()),
    )
    ids = rng.choice(len(patterns.frequencies), (rows, reach), p=patterns.frequencies)
    scores = np.round(rng.random((rows, columns)), 6)
    return scoring, scores, ids.astype(np.min_scalar_type(len(patterns.frequencies)))


@pytest.mark.parametrize("kind", list(Score))
@pytest.mark.parametrize("with_null", [True, False])
@pytest.mark.parametrize("finds", [True, False])
def test_a_query_has_the_same_scores_in_a_batch_of_any_size(kind, with_null, finds):
    """Bit by bit, though sums of doubles differ with the shape of a product."""
    scoring, scores, ids = large_world()
    scoring = replace(scoring, with_null=with_null)
    prints = fingerprints_of(len(scores))

    def score(part):
        near = ids[part] if finds else None
        return scoring.nonconformity(kind, scores[part], near, prints[part])

    together = score(slice(None))
    for size in (1, 2, 3, 64, 255):
        parts = [score(slice(i, i + size)) for i in range(0, len(scores), size)]
        np.testing.assert_array_equal(np.vstack(parts), together)


PROGRAM = """
import hashlib
from racer_core.types import Score
from tests.core.test_scoring import fingerprints_of, large_world
scoring, scores, ids = large_world(rows=40)
digest = hashlib.sha256()
for kind in Score:
    for near in (ids, None):
        digest.update(scoring.nonconformity(kind, scores, near, fingerprints_of(40)).tobytes())
print(digest.hexdigest())
"""


def test_a_query_has_the_same_scores_in_another_process():
    """Whatever the hash seed, that is the order of sets and dictionaries, and the threads."""
    answers = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "OPENBLAS_NUM_THREADS": threads},
        ).stdout
        for seed, threads in (("1", "1"), ("2", "2"))
    }
    assert len(answers) == 1
    assert len(answers.pop()) == 65


def test_a_batch_larger_than_what_is_held_at_once():
    """Beyond a million cells rows are scored in parts; each keeps its own neighbours and noise."""
    rng = np.random.default_rng(1)
    labels = rng.random((3_000, 10)) < 0.5
    patterns = PatternModel.of(labels)
    assert 2_500 * len(patterns.frequencies) > 1 << 20
    scoring = NonconformityScorer(
        pool=pool_of(10), with_null=False, patterns=patterns, smoothing_salt=b"salt"
    )
    scores, prints = rng.random((2_500, 10)), fingerprints_of(2_500)
    ids = rng.integers(0, len(patterns.frequencies), (2_500, 20)).astype(np.uint16)
    together = scoring.nonconformity(Score.COVER, scores, ids, prints)
    for row in (0, 1_000, 1_023, 1_024, 2_499):
        alone = scoring.nonconformity(Score.COVER, scores[[row]], ids[[row]], [prints[row]])
        np.testing.assert_array_equal(together[row], alone[0])


# --- refusals -----------------------------------------------------------------------------------


def patterns_of(columns):
    """Some patterns for a pool."""
    return PatternModel.of(np.eye(columns, dtype=bool))


@pytest.mark.parametrize(
    ("known", "offered"),
    [
        ({}, {Score.GAP, Score.PROB}),
        ({"prices": (1.0, 2.0)}, {Score.GAP, Score.PROB}),
        ({"patterns": patterns_of(2)}, {Score.GAP, Score.PROB, Score.COVER, Score.STATIC}),
        ({"patterns": patterns_of(2), "prices": (1.0, 2.0)}, set(Score)),
    ],
    ids=["nothing", "prices", "patterns", "both"],
)
def test_scores_are_offered_where_they_can_be_computed(known, offered):
    """The others are refused by name, in a request and when calibrating for them."""
    rows = np.full((3, 2), 0.5), np.ones((3, 2), bool)
    calibration = calibration_of(*rows, **known)
    assert set(calibration.offered) == offered
    assert len(calibration.offered) == len(offered)
    for score in Score:
        if score in offered:
            assert calibration.decide(b"q", [0.5, 0.5], alpha=0.5, score=score).selected
            continue
        with pytest.raises(InputError, match=f"'{score}' needs") as caught:
            calibration.decide(b"q", [0.5, 0.5], alpha=0.5, score=score)
        assert caught.value.param == "score"
        wanted = "prices" if "patterns" in known else "patterns"
        assert wanted in str(caught.value)
        with pytest.raises(CalibrationError, match=f"'{score}' is not offered"):
            calibration_of(*rows, score=score, **known)


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({"patterns": patterns_of(3)}, "do not have 2 candidates"),
        ({"patterns": patterns_of(2), "neighbours": np.zeros((2, 4), np.uint8)}, "rows of neigh"),
        ({"prices": (1.0,)}, "prices must be 2 numbers"),
        ({"prices": (1.0, 0.0)}, "above 0"),
        ({"prices": (1.0, -1.0)}, "above 0"),
        ({"prices": (1.0, float("nan"))}, "above 0"),
        ({"prices": (1.0, float("inf"))}, "above 0"),
        ({"groups": ("a", None)}, "2 groups for 3 rows"),
    ],
)
def test_parts_that_do_not_fit_the_rows_are_refused(known, message):
    """When calibrating, with the number that was wanted."""
    with pytest.raises(CalibrationError, match=message):
        calibration_of(np.full((3, 2), 0.5), np.ones((3, 2), bool), **known)


def test_a_query_must_have_neighbours_when_the_rows_had():
    """Else rows and queries would be scored in different ways, which no theorem allows."""
    rows = np.full((3, 2), 0.5), np.ones((3, 2), bool)
    near = np.zeros((3, 4), np.uint8)
    found = calibration_of(*rows, patterns=patterns_of(2), neighbours=near)
    with pytest.raises(InputError, match="another kind of router"):
        found.decide(b"q", [0.5, 0.5])
    with pytest.raises(InputError, match="another kind of router"):
        found.sets(rows[0], fingerprints_of(3), 0.5, Score.COVER)
    tilted = calibration_of(*rows, patterns=patterns_of(2))
    with pytest.raises(InputError, match="another kind of router"):
        tilted.sets(rows[0], fingerprints_of(3), 0.5, Score.COVER, near)


def test_rows_without_neighbours_leave_the_querys_unread():
    """Rows that came with scores of their own have none: the query is then tilted as they were."""
    rows = np.full((3, 2), 0.5), np.ones((3, 2), bool)
    tilted = calibration_of(*rows, patterns=patterns_of(2), score=Score.COVER)
    ids = np.ones(4, np.uint8)
    f = [0.25, 0.75]
    assert tilted.decide(b"q", f, neighbours=ids) == tilted.decide(b"q", f)
