"""`risk<=alpha` on an evaluation: it fails by luck as seldom as it says, and not beside a fault."""

from dataclasses import replace

import numpy as np
import pytest

from racer_core.calibration.threshold import allowed_misses
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import AssertionRefuted
from racer_core.offline.assertions import FALSE_ALARM, Assertion
from racer_core.offline.evaluate import evaluate
from racer_core.offline.protocol import Protocol
from racer_core.offline.table import build_table
from racer_core.types import RiskTarget, Score
from tests.kit.synthetic import synthetic_rows

BOUND = Assertion.parse("risk <= alpha")


@pytest.fixture(scope="module")
def evaluation():
    """Two alphas of one score of a router without ties, six splits."""
    protocol = Protocol(
        splits=6,
        alphas=(0.1, 0.3),
        scores=(Score.PROB,),
        risk_targets=(RiskTarget.ANSWERABLE,),
        false_abstain_budget=None,
    )
    table = build_table(
        {"one": synthetic_rows(400, seed=61)},
        encoder=CharNgramEncoder(),
        router="mlp",
        protocol=protocol,
    )
    return evaluate(table, encoder="char-ngrams", router="mlp")


def with_risks(evaluation, draw):
    """The evaluation with risks of ``draw(setting, calibration rows, test rows)``."""
    cells = {
        setting: {
            **runs,
            "miss_given_answerable": [
                draw(setting, int(n), int(trials))
                for n, trials in zip(runs["calibration_rows"], runs["test_rows"], strict=True)
            ],
        }
        for setting, runs in evaluation.cells.items()
    }
    return replace(evaluation, cells=cells)


def refuted(evaluation):
    """Whether the assertion fails."""
    try:
        BOUND.check(evaluation)
    except AssertionRefuted:
        return True
    return False


def test_valid_sets_are_refuted_as_seldom_as_stated(evaluation):
    """1,000 evaluations drawn from the exact law; more than 35 come with a chance below 1e-7.

    Without the law half of them would be refuted at each alpha.
    """
    rng = np.random.default_rng(1)

    def draw(setting, n, trials):
        missed = allowed_misses(n, setting.alpha) + 1
        return rng.binomial(trials, rng.beta(missed, n + 1 - missed)) / trials

    drawn = [with_risks(evaluation, draw) for _ in range(1000)]
    assert sum(map(refuted, drawn)) <= 35
    assert FALSE_ALARM == 0.01
    above = sum(any(e.mean(s, "miss_given_answerable") > s.alpha for s in e.cells) for e in drawn)
    assert above > 400


def test_risk_beyond_the_law_is_refuted_with_its_figures(evaluation):
    """A miss too many in each split: 0.19 at 0.1, and the sentence says so."""
    wrong = with_risks(evaluation, lambda setting, n, trials: setting.alpha + 0.09)
    with pytest.raises(AssertionRefuted, match=r"2 of 2 settings, the first with risk 0\.\d+"):
        BOUND.check(wrong)


def test_risk_that_was_not_measured_is_refuted(evaluation):
    """NaN shows nothing."""
    assert refuted(with_risks(evaluation, lambda *_: float("nan")))


@pytest.mark.parametrize("text", ["risk<=0.1", "size<=alpha", "alpha<=risk", "risk>=alpha"])
def test_only_the_bound_itself_has_the_law(text):
    """Other comparisons are taken as they stand."""
    assert not Assertion.parse(text).bounds_risk
    assert Assertion.parse("alpha>=risk").bounds_risk
