"""Routing decisions for one query: order of the set, reasons to abstain, refused inputs."""

import math

import numpy as np
import pytest

from racer_core.errors import InputError
from racer_core.types import BINARY_TARGETS, RiskTarget, Score
from tests.kit.strategies import calibration_of


def decide_at(f, lambda_hat, **options):
    """The decision for scores f under a calibration whose threshold is ``lambda_hat``.

    One row: m0 is right, so the critical ``prob`` score is 1 - f(m0); m1 looks sure, so p_null = 0.
    """
    scores = np.ones((1, len(f)))
    scores[0, 0] = 1.0 - lambda_hat
    labels = np.zeros((1, len(f)), dtype=bool)
    labels[0, 0] = True
    calibration = calibration_of(scores, labels, alpha=0.5, score=Score.PROB, **options)
    return calibration.decide(b"query", f)


@pytest.mark.parametrize(
    ("f", "lambda_hat", "options", "reason"),
    [
        ([0.25, 0.125], 0.5, {"risk_target": RiskTarget.PAPER}, "null_only"),
        ([0.5, 0.375], 0.25, {"risk_target": RiskTarget.PAPER}, "empty"),
        ([0.5, 0.375], 0.25, {}, "empty"),
        ([0.25, 0.125], 0.875, {"null_threshold": 0.75}, "p_null"),
    ],
)
def test_reasons_for_abstaining_are_kept_apart(f, lambda_hat, options, reason):
    """Three reasons: m0 alone, nothing at all, or p_null = 1 - max f >= tau (closed)."""
    decision = decide_at(f, lambda_hat, **options)
    assert decision.abstained
    assert decision.selected == decision.scores == ()
    assert decision.abstain_reason == reason
    assert decision.null_selected == (reason != "empty")


def test_tau_is_for_the_answerable_target_alone():
    """The paper's abstention is the null column; tau just above p_null keeps the query."""
    paper = decide_at([0.25, 0.125], 0.875, risk_target=RiskTarget.PAPER, null_threshold=0.75)
    assert paper.selected == ("m0", "m1")
    assert decide_at([0.25, 0.125], 0.875, null_threshold=0.76).selected == ("m0", "m1")


def test_null_model_may_be_in_the_set_beside_candidates():
    """``null_selected`` warns that the answer may have no right candidate behind it."""
    decision = decide_at([0.5, 0.25], 0.5, risk_target=RiskTarget.PAPER)
    assert decision.selected == ("m0",)
    assert decision.null_selected
    assert decision.abstain_reason is None


def test_best_candidates_come_first_and_ties_in_the_order_of_the_pool():
    """Scores stay with their names; ``prob`` selects every candidate up to 0.75."""
    decision = decide_at([0.25, 0.5, 0.125, 0.5], 0.75)
    assert decision.selected == ("m1", "m3", "m0")
    assert decision.scores == (0.5, 0.5, 0.25)


def test_a_request_may_name_its_score_and_its_alpha():
    """The calibration's own are defaults: 0.5 calls both at ``gap``, 0.4 is infeasible at n=1."""
    calibration = calibration_of(np.array([[0.5, 0.75]]), np.array([[True, False]]), alpha=0.5)
    assert calibration.decide(b"q", [0.5, 0.75]).score is Score.GAP
    assert calibration.decide(b"q", [0.5, 0.75]).lambda_hat == 0.25
    assert calibration.decide(b"q", [0.5, 0.75], score=Score.PROB).lambda_hat == 0.5
    assert calibration.decide(b"q", [0.5, 0.75], alpha=0.4).trivial
    assert calibration.decide(b"q", [0.5, 0.75], truncated=True).truncated


@pytest.mark.parametrize("alpha", [0, 1, math.nan, True, "0.1"])
def test_alpha_of_a_request_is_checked(alpha):
    """The same rule as for the calibration's own alpha."""
    with pytest.raises(InputError, match="alpha"):
        calibration_of(np.ones((1, 1)), np.ones((1, 1), bool)).decide(b"q", [0.5], alpha=alpha)


@pytest.mark.parametrize("target", BINARY_TARGETS)
@pytest.mark.parametrize("f", [[0.5], [0.5, 0.5, 0.5]])
def test_scores_of_another_pool_are_refused(target, f):
    """One score too few would make the null model a candidate; one too many, a candidate null."""
    calibration = calibration_of(np.full((3, 2), 0.5), np.ones((3, 2), bool), risk_target=target)
    with pytest.raises(InputError):
        calibration.decide(b"q", f)
