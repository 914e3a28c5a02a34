"""A level chosen among declared ones, by an adversary who sees every realised risk.

The bounds of all declared levels hold together with probability 0.95 at least (Bonferroni over
exact Beta points). Every test has a fixed seed and a false-alarm probability of 1e-6.
"""

from __future__ import annotations

import numpy as np
import pytest

from racer_core.calibration.options import MAX_LEVELS, CalibrationOptions
from racer_core.calibration.realised_risk import BAND_DELTA, TIE_LEVEL, RealisedRisk
from racer_core.calibration.threshold import allowed_misses
from racer_core.errors import CalibrationError, InputError
from racer_core.types import FloatArray
from tests.core.laws import assert_at_most, assert_binomial
from tests.kit.lazy import LazyModule
from tests.kit.strategies import calibration_of

stats = LazyModule("scipy.stats")

LEVELS = (0.02, 0.05, 0.1, 0.15, 0.2)
FALSE_ALARM = 1e-6
TRIALS, N = 4_000, 199


def known(row: FloatArray, alpha: float) -> tuple[RealisedRisk, float]:
    """What sorted uniform scores tell about the threshold of alpha, and the threshold."""
    misses = allowed_misses(len(row), alpha)
    return RealisedRisk.of(row, misses), float(row[len(row) - 1 - misses])


@pytest.mark.parametrize("atoms", [None, 60, 12], ids=["distinct", "some_ties", "many_ties"])
def test_the_worst_of_the_declared_levels_keeps_its_bound(atoms: int | None) -> None:
    """In 95 % of the draws at least; each level alone fails as often as its Beta point says.

    With the 95 % point of each level on its own, some level exceeds it in 14 % of the draws (of
    distinct scores): who chose by figures would be told too small a bound.
    """
    draws = np.random.default_rng(41).random((TRIALS, N))
    if atoms is not None:
        draws = np.ceil(draws * atoms) / atoms  # a score is missed by a threshold below it
    failed = np.zeros((TRIALS, len(LEVELS)), bool)
    too_small = np.zeros(TRIALS, bool)
    for trial, row in enumerate(np.sort(draws, axis=1)):
        for place, alpha in enumerate(LEVELS):
            risk, threshold = known(row, alpha)
            failed[trial, place] = 1.0 - threshold > risk.declared(len(LEVELS))
            too_small[trial] |= 1.0 - threshold > risk.upper(BAND_DELTA)
    assert_at_most(int(failed.any(axis=1).sum()), TRIALS, BAND_DELTA, FALSE_ALARM)
    if atoms is None:
        share = BAND_DELTA / len(LEVELS) - TIE_LEVEL
        for place in range(len(LEVELS)):
            assert_binomial(int(failed[:, place].sum()), TRIALS, p=share, false_alarm=FALSE_ALARM)
        # P(Bin(4,000, 0.14) <= 280) < 1e-30: the smaller bound would not pass for the right one.
        assert too_small.sum() > 280


def test_the_bound_of_a_short_list_is_below_the_band() -> None:
    """For distinct scores, whatever the rows: the list is what makes it smaller."""
    for n in (60, 200, 1_000, 20_000):
        for alpha in (0.05, 0.1, 0.2):
            misses = allowed_misses(n, alpha)
            risk = RealisedRisk(n=n, misses=misses, missed=misses, tied=1)
            bounds = [risk.declared(levels) for levels in (1, 3, 5, 8)]
            assert alpha < bounds[0] < bounds[1] < bounds[2] < bounds[3] < risk.band()


def test_a_certificate_has_the_bound_of_its_level() -> None:
    """Fixed, declared, picked; as JSON and as the header says it. Of another score none is."""
    rng = np.random.default_rng(3)
    scores = rng.random((300, 2))
    calibration = calibration_of(
        scores, rng.random((300, 2)) < 0.6, alpha=0.1, levels=(0.05, 0.1), risk_target="answerable"
    )
    fixed, declared, picked = (calibration.certify(alpha=each) for each in (0.1, 0.05, 0.07))
    assert [each.alpha_basis for each in (fixed, declared, picked)] == ["fixed", "declared", "band"]
    assert fixed.bound is not None
    assert (fixed.bound.header, fixed.advice) == ("0.1", None)
    for each, least in ((declared, 0.05), (picked, 0.07)):
        bound = each.bound
        assert bound is not None
        assert each.risk_band is not None
        assert least < each.risk_band <= bound.value < each.risk_band + 1e-4
        assert bound.header == f"{bound.value};confidence=0.95"
        assert each.as_json()["guarantee"]["bound"] == {"value": bound.value, "confidence": 0.95}
        assert f"label {each.n} new rows" in (each.advice or "")
    other = calibration.certify(alpha=0.05, score="prob")
    assert (other.alpha_basis, other.risk_band) == ("band", calibration.risk_band(0.05, "prob"))
    void = fixed.with_reasons("training_overlap")
    assert (void.bound, void.as_json()["guarantee"]["bound"]) == (None, None)
    delta = calibration_of(scores, scores > 0.5, alpha=0.1, delta=0.2).certify().bound
    assert delta is not None
    assert delta.header == "0.1;confidence=0.8"


def test_levels_are_levels() -> None:
    """Ascending, each once, in (0, 1), and a short list."""
    assert CalibrationOptions(levels=(0.2, 0.1, 0.2)).levels == (0.1, 0.2)
    with pytest.raises(InputError, match="levels must lie strictly between"):
        CalibrationOptions(levels=(1.0,))
    many = tuple((each + 1) / 100 for each in range(MAX_LEVELS + 1))
    with pytest.raises(CalibrationError, match=f"at most {MAX_LEVELS}"):
        CalibrationOptions(levels=many)
