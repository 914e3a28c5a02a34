"""Calibrations of the promise `same_answer`: which may become active, and how far one is."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from app.same_answer.calibration import UNPRICED, expected_at, fitting_rows, refusal_of, rows_needed
from app.same_answer.calibrations import answer_setup
from app.settings import SameAnswer, Settings
from racer_core.aggregation import answers
from racer_core.calibration.threshold import allowed_misses
from racer_core.sequential.answer_classes import AnswerClasses
from racer_core.sequential.calibration import SequentialCalibration
from racer_core.sequential.fit import fit_policy, tuned_policy

POOL = ("ada", "bob", "cyd", "ref")
PRICES = {"ada": 0.1, "bob": 0.1, "cyd": 0.1, "ref": 1.0}
TERMS = SameAnswer(alpha=0.05, reference="ref")


def settings() -> Settings:
    """Cheap candidates and an expensive reference."""
    candidates = [{"name": name, "base_url": "http://127.0.0.1:1/v1", "price": price}
                  for name, price in PRICES.items()]  # fmt: skip
    given = {"schema_version": 1, "candidates": candidates, "aggregation": {"equality": "exact"}}
    return Settings.model_validate(given)


def rows(rng: np.random.Generator, count: int) -> AnswerClasses:
    """Hard requests are answered in different ways by all."""
    hard = rng.random((count, 1))
    cheap = np.where(rng.random((count, 3)) < 0.05 + 0.5 * hard, rng.integers(1, 4, (count, 3)), 0)
    reference = np.where(rng.random((count, 1)) < 0.25 * hard, 5, 0)
    return AnswerClasses(
        pool=POOL,
        classes=np.hstack([cheap, reference]).astype(np.int16),
        fingerprints=tuple(rng.bytes(8) for _ in range(count)),
    )


def test_rows_that_set_the_threshold_choose_no_calibration() -> None:
    """Else those would be active whose threshold is too low by chance."""
    rng, verdicts = np.random.default_rng(1), list[set[str | None]]()
    for _ in range(8):
        fitting = rows(rng, 60)
        policy = fit_policy(fitting, reference="ref", prices=PRICES)
        policy = tuned_policy(policy, fitting, 0.05, 2, PRICES)
        found = [
            SequentialCalibration(policy=policy, answers=rows(rng, 60), salt=b"salt")
            for _ in range(20)
        ]
        verdicts.append({refusal_of(settings(), TERMS, each, fitting, PRICES) for each in found})
    assert [len(each) for each in verdicts] == [1] * 8
    assert len(set.union(*verdicts)) > 1


def test_other_normal_forms_are_another_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a calibration would decide by answers that were equal by older rules."""
    added = dict.fromkeys(POOL, "")
    before = answer_setup(settings(), added)
    assert before == answer_setup(settings(), added)
    monkeypatch.setattr(answers, "FORMS_VERSION", answers.FORMS_VERSION + 1)
    assert before != answer_setup(settings(), added)


def test_another_checker_of_labels_is_another_setup() -> None:
    """Where labels say what a miss is; elsewhere they calibrate nothing of this promise."""

    def setup(url: str, reference: str) -> str:
        own = {"keys": ["data"], "shadow_rate": 0.1, "checker": {"url": url}}
        own["same_answer"] = {"reference": reference}
        given = settings().model_dump(mode="json", exclude_unset=True)
        made = Settings.model_validate(given | {"applications": {"bot": own}})
        return answer_setup(made, dict.fromkeys(POOL, ""))

    one, other = "http://checks:9000/one", "http://checks:9000/other"
    assert setup(one, "answerable") != setup(other, "answerable")
    assert setup(one, "vote") == setup(other, "vote")


def test_a_named_reference_needs_prices() -> None:
    """Up to five calls come before it; a vote needs none, and prices end the refusal."""
    rng = np.random.default_rng(2)
    fitting, own = rows(rng, 60), rows(rng, 60)
    found = SequentialCalibration(
        policy=fit_policy(fitting, reference="ref"), answers=own, salt=b"salt"
    )
    given = settings()
    assert refusal_of(given, TERMS, found, fitting, None) == UNPRICED
    assert refusal_of(given, TERMS, found, fitting, PRICES) != UNPRICED
    vote = SequentialCalibration(policy=fit_policy(fitting), answers=own, salt=b"salt")
    assert refusal_of(given, SameAnswer(alpha=0.05), vote, fitting, None) != UNPRICED


# Progress -----------------------------------------------------------------------------------------

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def arrivals(rng: np.random.Generator, count: int) -> list[datetime]:
    """Requests at random, one a minute on average."""
    gaps = rng.exponential(60.0, count)
    return [BEGIN + timedelta(seconds=float(each)) for each in np.cumsum(gaps)]


@pytest.mark.parametrize("alpha", [0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 0.5, 0.9])
def test_rows_needed_are_the_fewest_with_a_finite_threshold(alpha: float) -> None:
    """One row fewer has none."""
    needed = rows_needed(alpha)
    for total, is_enough in ((needed, True), (needed - 1, False)):
        rest = total - fitting_rows(total)
        assert (rest > 0 and allowed_misses(rest, alpha) >= 0) == is_enough
    assert needed >= fitting_rows(needed)


def test_the_estimate_is_right_on_average_and_bounded_in_spread() -> None:
    """Of 25 rows needed 50: the mean over 2,000 runs is 25 minutes, within six standard errors."""
    rng = np.random.default_rng(5)
    waits: list[float] = []
    for _ in range(2_000):
        times = arrivals(rng, 25)
        found = expected_at(times, 50, times[-1])
        assert found is not None
        waits.append((found - times[-1]) / timedelta(minutes=1))
    # The gaps between 25 rows are 24, and the sum is divided by 25.
    mean = 25 * 24 / 25
    assert abs(np.mean(waits) - mean) < 6.0 * mean / math.sqrt(24 * 2_000)


def test_no_estimate_where_there_is_nothing_to_estimate() -> None:
    """Few rows, enough rows, or traffic that ended."""
    times = [BEGIN + timedelta(minutes=each) for each in range(20)]
    end = times[-1]
    assert expected_at(times, 30, end) == end + 10 * timedelta(minutes=19) / 20
    assert expected_at(times, 20, end) is None
    assert expected_at(times[:9], 30, times[8]) is None
    assert expected_at(times, 30, end + timedelta(minutes=8)) is None
    assert expected_at([], 30, end) is None
