"""The threshold against an independent library, and against every threshold tried in rationals.

MAPIE takes the ceil((n + 1)(1 - alpha))-th smallest score, computed in doubles. Where alpha (n + 1)
is whole, rounding can move its rank by one (n = 24, alpha = 0.44), so it is asked elsewhere only;
brute force is asked everywhere.
"""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from racer_core.calibration.threshold import calibrate_threshold
from racer_core.types import BINARY_TARGETS, Score
from tests.core.by_hand import critical_by_hand
from tests.core.kinds import Kinds
from tests.kit.lazy import LazyModule
from tests.kit.strategies import alpha_texts, calibration_of, fingerprints_of, risk_targets, tables

mapie = LazyModule("tests.core.mapie_models")

numbers = st.integers(0, 1_000).map(lambda k: k / 1_000)


def whole(n, alpha):
    """Whether alpha (n + 1) is a whole number, alpha as it is written."""
    return (Fraction(alpha) * (n + 1)).denominator == 1


def smallest_valid(critical, alpha):
    """Every score tried from below, in rational arithmetic; None when even the largest fails."""
    for threshold in sorted(critical):
        misses = sum(score > threshold for score in critical)
        if Fraction(1 + misses, len(critical) + 1) <= alpha:
            return threshold
    return None


@settings(max_examples=50)
@given(critical=st.lists(numbers, min_size=1, max_size=60), alpha=alpha_texts)
def test_lambda_hat_is_mapies_quantile(critical, alpha):
    """The same order statistic, ties included, of any scores."""
    n = len(critical)
    assume(not whole(n, alpha))
    # Else MAPIE refuses; here the whole pool is called, or the smallest score is the threshold.
    assume(n * min(Fraction(alpha), 1 - Fraction(alpha)) >= 1)
    found = calibrate_threshold(np.array(critical), float(alpha))
    assert found == mapie.half_width(critical, float(alpha))
    assert found == smallest_valid(critical, Fraction(alpha))


@pytest.mark.parametrize("score", list(Score))
@pytest.mark.parametrize("target", BINARY_TARGETS)
def test_every_score_has_mapies_threshold(score, target):
    """400 rows of three kinds of queries; the critical scores are a calibration's own."""
    world = Kinds(51)
    calibration = world.calibration(world.draw(400), score=score, risk_target=target)
    critical = [
        calibration.lambda_hat(j / (calibration.n + 1), score) for j in range(1, calibration.n + 1)
    ]
    for alpha in ("0.013", "0.052", "0.107", "0.251", "0.503"):
        assert not whole(calibration.n, alpha)
        assert calibration.lambda_hat(float(alpha), score) == mapie.half_width(
            critical, float(alpha)
        )


@pytest.mark.parametrize("alpha", ["0.037", "0.104", "0.333"])
def test_sets_are_mapies_where_one_of_all_is_right(alpha):
    """Multi-class rows: one right candidate each and scores that sum to 1 are MAPIE's LAC."""
    rng = np.random.default_rng(52)
    raw = rng.dirichlet(np.full(4, 0.7), 700)
    right = np.array([rng.choice(4, p=row) for row in raw])
    labels = np.eye(4, dtype=bool)[right]
    lac = mapie.SplitConformalClassifier(
        mapie.Given(4), confidence_level=1 - float(alpha), conformity_score="lac", prefit=True
    )
    lac.conformalize(raw[:300], right[:300])
    _, sets = lac.predict_set(raw[300:])
    calibration = calibration_of(raw[:300], labels[:300], score=Score.PROB)
    assert not whole(300, alpha)
    threshold = calibration.lambda_hat(float(alpha), Score.PROB)
    mine = calibration.sets(raw[300:], fingerprints_of(400), threshold, Score.PROB)
    np.testing.assert_array_equal(mine.selected, sets[:, :, 0])


@given(table=tables(), kind=st.sampled_from(list(Score)), target=risk_targets, alpha=alpha_texts)
def test_brute_force_finds_the_same_threshold(table, kind, target, alpha):
    """From f, patterns and labels to lambda_hat in rationals, wherever alpha (n + 1) falls."""
    critical = critical_by_hand(table, kind, target)
    expected = smallest_valid(critical, Fraction(alpha))
    found = table.calibration(risk_target=target).lambda_hat(float(alpha), kind)
    if expected is None:
        assert found == np.inf
    else:
        tolerance = 0.0 if kind in (Score.GAP, Score.PROB) else 1e-8
        assert found == pytest.approx(expected, rel=0, abs=tolerance)


@pytest.mark.parametrize("n", [19, 60, 99])
def test_risk_control_has_the_same_threshold_but_at_whole_budgets(n):
    """MAPIE's risk control on a grid of all scores: to the last bit, one right candidate a row."""
    rng = np.random.default_rng(n)
    scores = rng.choice(2**20, (n, 3), replace=False) / 2**20  # so that 1 - f is exact
    labels = np.eye(3, dtype=bool)[rng.integers(0, 3, n)]
    right = np.sort(scores[labels])
    calibration = calibration_of(scores, labels, score=Score.PROB)
    alphas = [Fraction(percent, 100) for percent in (3, 5, 10, 15, 20, 37, 50, 61)]
    alphas = [alpha for alpha in alphas if alpha * (n + 1) >= 2]
    controller = mapie.MultiLabelClassificationController(
        lambda X: np.asarray(X),
        risk="recall",
        method="crc",
        target_level=[float(1 - alpha) for alpha in alphas],
        predict_params=np.nextafter(right, 0.0),  # the set is f > cut
    )
    controller.calibrate(scores, labels.astype(int))
    differing = 0
    for alpha, cut in zip(alphas, np.ravel(controller.best_predict_param), strict=True):
        mine = np.searchsorted(right, 1.0 - calibration.lambda_hat(float(alpha)))
        theirs = np.searchsorted(right, np.nextafter(cut, 1.0))
        assert right[mine] == 1.0 - calibration.lambda_hat(float(alpha))
        assert mine - theirs in ((0, 1) if whole(n, alpha) else (0,))
        differing += mine != theirs
    assert (differing > 0) == any(whole(n, alpha) for alpha in alphas)


def test_torchcp_has_the_same_threshold_but_where_its_ceil_is_rounded():
    """Skipped without TorchCP, which is no dependency; benchmarks/results/oracles.md has a run."""
    pytest.importorskip("torchcp")
    from torchcp.utils.common import calculate_conformal_value

    torch = LazyModule("torch")
    for n in (24, 60, 101):
        critical = np.random.default_rng(n).random(n)
        for percent in range(5, 98):
            found = calibrate_threshold(critical, percent / 100)
            theirs = float(calculate_conformal_value(torch.from_numpy(critical), percent / 100))
            if not whole(n, Fraction(percent, 100)):
                assert theirs == found
            else:
                assert theirs in np.sort(critical)[np.searchsorted(np.sort(critical), found) :][:2]
