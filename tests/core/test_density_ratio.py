"""Estimated weights: near the true ratio on a simulated shift, and never called a guarantee."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.density_ratio import CLIP, FOLDS, MIN_SERVED, estimate_weights
from racer_core.calibration.options import CalibrationOptions
from racer_core.errors import CalibrationError
from racer_core.types import Score
from tests.kit.strategies import fingerprints_of, pool_of

ALPHA = 0.2


def queries(rng, count, mean):
    """Embeddings N((mean, 0), I), and scores and labels that get worse along the first axis."""
    x = rng.normal((mean, 0.0), 1.0, (count, 2))
    hardness = 1.0 / (1.0 + np.exp(-1.5 * x[:, :1]))
    right = rng.random((count, 3)) < 0.8 - 0.6 * hardness
    right[~right.any(axis=1), 0] = True
    scores = np.clip(
        0.5 + (0.6 - 0.8 * hardness) * (right - 0.5) + rng.normal(0, 0.2, (count, 3)), 0, 1
    )
    return x, scores, right


def calibrated(x, scores, right):
    """Rows with their embeddings."""
    return Calibration(
        pool=pool_of(3),
        fingerprints=fingerprints_of(len(x)),
        scores=scores,
        labels=right,
        projections=x,
        options=CalibrationOptions(alpha=ALPHA, score=Score.GAP),
    )


def risk(calibration, scores, right):
    """The share of queries that the calibration's own threshold misses."""
    prints = fingerprints_of(len(scores))
    sets = calibration.sets(scores, prints, calibration.lambda_hat(), calibration.options.score)
    return float((~(sets.selected & right).any(axis=1)).mean())


def test_the_ratio_of_two_normals_is_recovered():
    """Log w = x - 1/2 for a mean that moves by 1: within 0.25 on average over 4,000 rows."""
    rng = np.random.default_rng(1)
    rows, served = queries(rng, 4_000, 0.0)[0], queries(rng, 4_000, 1.0)[0]
    truth = np.clip(np.exp(rows[:, 0] - 0.5), 1 / CLIP, CLIP)
    found = estimate_weights(rows, served)
    assert np.abs(np.log(found) - np.log(truth)).mean() < 0.25
    assert found.min() >= 1 / CLIP
    assert found.max() <= CLIP


def test_estimated_weights_realise_nearly_alpha():
    """60 sets of 300 rows and 500 queries of another mean: 0.183 is realised, 0.454 without.

    Both expectations are means of 20,000 sets (standard errors 0.0003). Each check of 60 sets is
    two-sided and raises a false alarm with probability 1e-6 (normal law).
    """
    rng = np.random.default_rng(2)
    plain, estimated = np.zeros(60), np.zeros(60)
    for i in range(60):
        rows = calibrated(*queries(rng, 300, 0.0))
        x, scores, right = queries(rng, 1_500, 1.2)
        plain[i] = risk(rows, scores[500:], right[500:])
        estimated[i] = risk(rows.reweighted(x[:500]), scores[500:], right[500:])
    for found, expected in ((plain, 0.454), (estimated, 0.183)):
        assert abs(found.mean() - expected) < 4.9 * found.std() / math.sqrt(60) < 0.04
    assert estimated.mean() < ALPHA < plain.mean() - 0.2


def test_a_certificate_on_estimated_weights_never_holds():
    """The reason says so; the terms stand beside it."""
    rng = np.random.default_rng(3)
    plain = calibrated(*queries(rng, 300, 0.0))
    weighted = plain.reweighted(queries(rng, 300, 0.5)[0])
    decision = weighted.decide(b"query", [0.9, 0.5, 0.4])
    certificate = weighted.certify(decision)
    assert not certificate.holds
    assert certificate.void_reasons == ("weights_estimated",)
    assert certificate.as_json()["guarantee"]["weights"] == "estimated"
    assert plain.certify(plain.decide(b"query", [0.9, 0.5, 0.4])).holds


def test_no_weight_comes_from_a_fit_that_saw_its_unit():
    """A unit of four rows moves far away: weights of a fifth of the rows, its fold, stay.

    The four are reflected about their mean, so that mean and variance of all rows stay. The rows
    of the fold are whole units; the moved rows get the odds of the same fit. Nothing is random.
    """
    rng = np.random.default_rng(4)
    rows, served = rng.normal(size=(200, 2)), rng.normal(0.5, 1.0, (200, 2))
    units = [b"%d" % (i % 50) for i in range(200)]
    moved = np.array([7, 57, 107, 157])
    rows[moved] = [(9.0, -3.0), (-2.0, 4.0), (-3.0, 2.0), (-1.0, 3.0)]
    after = rows.copy()
    after[moved] = 2.0 * rows[moved].mean(axis=0) - rows[moved]
    before, now = (np.log(estimate_weights(each, served, units)) for each in (rows, after))
    stays = np.abs(now - before) < 1e-9
    assert np.abs(now - before)[~stays].min() > 1e-6, "no row is in doubt"
    stays[moved] = True
    assert stays.reshape(4, 50).sum(axis=0).tolist() == (stays[:50] * 4).tolist()
    assert stays.sum() == 200 / FOLDS
    own = np.setdiff1d(np.flatnonzero(stays), moved)
    place = np.column_stack([np.ones(200), after])
    fitted = np.linalg.lstsq(place[own], now[own], rcond=None)[0]
    limit = np.log(CLIP)
    np.testing.assert_allclose(now[stays], np.clip(place[stays] @ fitted, -limit, limit))


def test_rows_without_units_are_units_of_one():
    """The default."""
    rng = np.random.default_rng(6)
    rows, served = rng.normal(size=(100, 2)), rng.normal(0.5, 1.0, (100, 2))
    each = [b"%03d" % i for i in range(100)]
    assert np.array_equal(estimate_weights(rows, served), estimate_weights(rows, served, each))


def test_too_little_to_estimate_from_is_refused():
    """Few served queries, few rows, no embeddings, weights that are known, and heavy weights."""
    rng = np.random.default_rng(5)
    x, scores, right = queries(rng, 200, 0.0)
    plain, served = calibrated(x, scores, right), rng.normal(size=(200, 2))
    with pytest.raises(CalibrationError, match=f"{MIN_SERVED} are needed"):
        plain.reweighted(served[:99])
    with pytest.raises(CalibrationError, match="distinct rows"):
        estimate_weights(x[:4], served)
    with pytest.raises(CalibrationError, match="no embeddings"):
        replace(plain, projections=None).reweighted(served)
    options = replace(plain.options, max_weight=1.0)
    with pytest.raises(CalibrationError, match="weights already"):
        replace(plain, weights=np.ones(200), options=options).reweighted(served)
    for far in (1.5, 3.5):  # few rows carry all weight; no row does, so that all are alike
        with pytest.raises(CalibrationError, match="do not cover the served queries"):
            plain.reweighted(served + far)
