"""Rows without a label: each counts as a miss at every threshold, so that no bias of labels harms.

Statistical tests have a fixed seed and a false-alarm probability of 1e-6.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.calibration.certificate import CoreReason
from racer_core.calibration.threshold import allowed_misses
from racer_core.errors import CalibrationError
from racer_core.trained_router import refuse_uncounted
from racer_core.types import RiskTarget, Score
from tests.core.laws import assert_binomial
from tests.kit.lazy import LazyModule
from tests.kit.strategies import alphas, calibration_of, calibration_options, tables

stats = LazyModule("scipy.stats")

FALSE_ALARM = 1e-6
N, ALPHA = 19, 0.2
UNLABELLED = 0.1  # the share of answerable queries whose labels are missing


def rows_of(critical):
    """Rows with these critical scores: the second candidate alone is right, at this gap."""
    scores = np.column_stack([np.ones_like(critical), 1.0 - critical])
    return scores, np.tile([False, True], (len(critical), 1))


def calibrated(critical, unlabelled, **options):
    """A calibration on rows with these critical scores, some of them unlabelled."""
    scores, labels = rows_of(critical)
    labels[unlabelled] = False
    options = {"alpha": ALPHA, "score": Score.GAP} | options
    return calibration_of(scores, labels, unlabelled=unlabelled, **options)


def test_labels_that_are_missing_of_exactly_the_misses_keep_the_law():
    """The risk is E[B; B >= 0.1] with B ~ Beta(4, 16): 0.190, and 0.2 were all rows labelled.

    Labels are missing of the hardest tenth of queries. The threshold is that of the full labels, or
    all candidates are called where more than 3 of 19 labels are missing. If unlabelled rows were
    dropped, the risk would be 0.28 of the same queries: a count within the law has a probability
    below 1e-5.
    """
    trials = 2_000
    draws = np.random.default_rng(17).random((trials, N + 1))
    missed, dropped = 0, 0
    for row in draws:
        unlabelled = row[:-1] > 1.0 - UNLABELLED
        missed += row[-1] > calibrated(row[:-1], unlabelled).lambda_hat()
        kept = row[:-1][~unlabelled]
        dropped += row[-1] > calibrated(kept, np.zeros(len(kept), bool)).lambda_hat()
    misses = allowed_misses(N, ALPHA)
    law = ALPHA * stats.beta(misses + 2, N - misses).sf(UNLABELLED)
    assert_binomial(missed, trials, p=law, false_alarm=FALSE_ALARM)
    assert dropped > stats.binom.isf(FALSE_ALARM, trials, ALPHA)


def test_delta_holds_with_missing_labels():
    """The share of sets whose true risk exceeds 0.1 is P(Bin(100, 0.1) <= 4) = 0.024, as ever.

    Dropping the 5 hardest of 100 rows instead gives 0.39, which passes with probability below 1e-9.
    """
    n, trials = 100, 2_000
    draws = np.random.default_rng(19).random((trials, n))
    options = {"alpha": 0.1, "delta": 0.05}
    over, dropped = 0, 0
    for row in draws:
        unlabelled = row > 0.95
        over += 1.0 - calibrated(row, unlabelled, **options).lambda_hat() > 0.1
        kept = row[~unlabelled]
        dropped += 1.0 - calibrated(kept, np.zeros(len(kept), bool), **options).lambda_hat() > 0.1
    share = stats.binom.cdf(allowed_misses(n, 0.1, 0.05), n, 0.1)
    assert_binomial(over, trials, p=share, false_alarm=FALSE_ALARM)
    assert dropped > stats.binom.isf(FALSE_ALARM, trials, 0.05)


@given(table=tables(), options=calibration_options(), alpha=alphas, data=st.data())
def test_a_missing_label_never_lowers_a_threshold(table, options, alpha, data):
    """Whatever the labels would have been: of all rows, of a group and of a smaller pool."""
    unlabelled = np.array(data.draw(st.lists(st.booleans(), min_size=len(table),
                                             max_size=len(table))))  # fmt: skip
    groups = tuple(data.draw(st.sampled_from(["a", "b"])) for _ in range(len(table)))
    full = replace(table.calibration(alpha=alpha, **options), groups=groups)
    partial = replace(full, labels=full.labels & ~unlabelled[:, None], unlabelled=unlabelled)
    assert partial.lambda_hat() >= full.lambda_hat()
    assert partial.group("a").lambda_hat() >= full.group("a").lambda_hat()
    fewer = full.pool[:1]
    assert partial.restrict(fewer).lambda_hat() >= full.restrict(fewer).lambda_hat()


@given(table=tables(), alpha=alphas, data=st.data())
def test_a_missing_grade_counts_as_a_loss_of_one(table, alpha, data):
    """Graded rows and rows with weights have a loss curve; the same holds there."""
    draw = st.lists(st.booleans(), min_size=len(table), max_size=len(table))
    unlabelled = np.array(data.draw(draw))
    weights = np.where(data.draw(draw), 2.0, 1.0)
    graded = data.draw(st.booleans())
    target = RiskTarget.QUALITY if graded else RiskTarget.ANSWERABLE
    plain = table.calibration(alpha=alpha)
    options = replace(plain.options, max_weight=2.0, risk_target=target)
    full = replace(plain, weights=weights, quality=table.scores, options=options)
    partial = replace(full, labels=full.labels & ~unlabelled[:, None], unlabelled=unlabelled)
    assert partial.lambda_hat() >= full.lambda_hat()
    curve = partial.loss_curve(partial.options.score)
    counted = unlabelled | partial.labels.any(axis=1) | graded
    share = weights[unlabelled].sum() / weights[counted].sum()
    assert curve.mean_loss(1e9) >= share - 1e-6


def test_too_many_missing_labels_call_the_whole_pool_and_say_so():
    """5 of 20 labels are missing, and alpha 0.2 allows 3 misses."""
    critical = np.linspace(0.0, 0.5, 20)
    unlabelled = np.arange(20) < 5
    calibration = calibrated(critical, unlabelled)
    certificate = calibration.certify(calibration.decide(b"query", [0.9, 0.8]))
    assert certificate.trivial
    assert certificate.holds
    assert certificate.reasons == (CoreReason.UNLABELLED_EXCEEDS_ALPHA,)
    enough = calibrated(critical, np.arange(20) < 3)
    assert enough.certify(enough.decide(b"query", [0.9, 0.8])).reasons == ()


def test_the_evidence_of_missing_labels():
    """They count, the upper bounds hold, and nothing bounds the risk from below."""
    calibration = calibrated(np.linspace(0.0, 0.5, 100), np.arange(100) < 7)
    assert calibration.n == 100
    assert calibration.unlabelled_rows == 7
    risk = calibration.realised_risk(ALPHA)
    labelled = calibrated(np.linspace(0.0, 0.5, 100), np.zeros(100, bool)).realised_risk(ALPHA)
    assert risk.upper() == labelled.upper()
    assert risk.lower() == 0.0 < labelled.lower()
    assert risk.misses_among(50)[0] == 0


def test_rows_without_any_label_calibrate_nothing():
    """The refusal says what is missing."""
    with pytest.raises(CalibrationError, match="none of the 20 rows has a label"):
        refuse_uncounted(calibrated(np.linspace(0.0, 0.5, 20), np.ones(20, bool)))


def test_an_unlabelled_row_has_no_label():
    """A row cannot be both, and the column fits the rows."""
    scores, labels = rows_of(np.linspace(0.0, 0.5, 4))
    with pytest.raises(CalibrationError, match="row 2 is unlabelled and has labels"):
        calibration_of(scores, labels, unlabelled=np.array([False, True, False, False]))
    with pytest.raises(CalibrationError, match="3 marks of unlabelled rows for 4 rows"):
        calibration_of(scores, labels, unlabelled=np.zeros(3, bool))
