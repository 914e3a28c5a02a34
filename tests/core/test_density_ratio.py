"""Estimated weights: near the true ratio on a simulated shift, and never called a guarantee."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from racer_core.calibration.calibration import Calibration
from racer_core.calibration.density_ratio import CLIP, FOLDS, MIN_SERVED, estimate_weights
from racer_core.calibration.options import CalibrationOptions
from racer_core.errors import CalibrationError
from racer_core.types import Score
from tests.support.strategies import fingerprints_of, pool_of

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


def test_the_risk_is_nearer_to_alpha_than_without_weights():
    """20 sets of 500 rows, alpha 0.2, served queries of another mean: 0.194 instead of 0.446."""
    rng = np.random.default_rng(2)
    found = {"unweighted": [], "estimated": []}
    for _ in range(20):
        plain = calibrated(*queries(rng, 500, 0.0))
        served, scores, right = queries(rng, 3_000, 1.2)
        weighted = plain.reweighted(served[:1_000])
        found["unweighted"].append(risk(plain, scores[1_000:], right[1_000:]))
        found["estimated"].append(risk(weighted, scores[1_000:], right[1_000:]))
    unweighted, estimated = (float(np.mean(each)) for each in found.values())
    assert unweighted > ALPHA + 0.03
    assert abs(estimated - ALPHA) < abs(unweighted - ALPHA) / 2


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


def test_no_weight_comes_from_a_fit_that_saw_its_row():
    """Moving one row far away changes the weights of rows in other folds only, and its own."""
    rng = np.random.default_rng(4)
    rows, served = rng.normal(size=(200, 2)), rng.normal(0.5, 1.0, (200, 2))
    fold = np.random.default_rng(0).permutation(200) % FOLDS
    before = estimate_weights(rows, served)
    copies = [b"%d" % (i // 2) for i in range(200)]
    grouped = estimate_weights(rows, served, copies)
    assert grouped.shape == before.shape
    one, *others = np.flatnonzero(fold == fold[0])
    swapped = rows.copy()
    swapped[[one, others[0]]] = swapped[[others[0], one]]  # the same moments, the same fit
    after = estimate_weights(swapped, served)
    assert after[one] == pytest.approx(before[others[0]])
    same = [i for i in range(200) if i not in (one, others[0])]
    np.testing.assert_allclose(after[same], before[same])


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
    with pytest.raises(CalibrationError, match="weights already"):
        replace(plain, weights=np.ones(200)).reweighted(served)
    for far in (1.5, 3.5):  # few rows carry all weight; no row does, so that all are alike
        with pytest.raises(CalibrationError, match="do not cover the served queries"):
            plain.reweighted(served + far)
