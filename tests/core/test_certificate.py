"""Certificates of a calibration's own decisions, without a server."""

import numpy as np
import pytest

from racer_core.calibration.certificate import Certificate, CoreReason
from racer_core.calibration.laws import simultaneous_risk_bound
from racer_core.errors import InputError
from racer_core.types import Score
from tests.kit.strategies import calibration_of

N = 19


def calibration(groups=None, **options):
    """One right candidate in each of 19 rows: the smallest feasible alpha is 0.05."""
    scores = np.linspace(0.1, 0.9, N)[:, None].repeat(2, axis=1)
    labels = np.array([[True, False]] * N)
    options = {"alpha": 0.1, "score": Score.PROB, **options}
    return calibration_of(scores, labels, groups=groups, **options)


def test_a_decision_at_the_calibrations_own_terms_holds_without_a_reason():
    """The terms are the options; n counts the rows that set the threshold."""
    rows = calibration(delta=None, r=1)
    certificate = rows.certify(rows.decide(b"query", [0.5, 0.2]))
    assert certificate.holds
    assert certificate.as_json() == {
        "guarantee": {
            "risk_target": "answerable",
            "alpha": 0.1,
            "delta": None,
            "r": 1,
            "unit": "request",
            "law": "beta",
            "group": None,
            "pool": ["m0", "m1"],
            "conditional": "marginal",
            "alpha_basis": "fixed",
            "risk_band": None,
            "risk_band_delta": None,
            "bound": {"value": 0.1, "confidence": None},
            "advice": None,
            "answer_risk_max": None,
            "answer_risk_delta": None,
            "weights": None,
            "labels": None,
            "trivial": False,
        },
        "lambda_hat": rows.lambda_hat(0.1, Score.PROB),
        "score": "prob",
        "n": N,
        "calibration_id": None,
        "holds": True,
        "reasons": [],
    }


@pytest.mark.parametrize(
    ("alpha", "options", "reason"),
    [
        (0.2, {}, CoreReason.ALPHA_ASSUMED),
        (0.01, {"alpha": 0.01}, CoreReason.ALPHA_INFEASIBLE),
    ],
)
def test_assumptions_and_infinite_thresholds_are_named_and_hold(alpha, options, reason):
    """Another alpha than the calibration's, and one below 1 / (n + 1)."""
    rows = calibration(**options)
    certificate = rows.certify(rows.decide(b"query", [0.5, 0.2], alpha=alpha))
    assert certificate.reasons == (reason,)
    assert certificate.holds
    assert certificate.trivial is (certificate.as_json()["lambda_hat"] is None)


def test_another_alpha_is_certified_by_the_band():
    """It may have been read off the rows; a whole pool has no risk, however alpha was chosen."""
    rows = calibration()
    other = rows.certify(rows.decide(b"query", [0.5, 0.2], alpha=0.2)).as_json()["guarantee"]
    band = simultaneous_risk_bound(N, rows.misses(0.2), 0.05)
    assert (other["alpha_basis"], other["risk_band"], other["risk_band_delta"]) == (
        "band", band, 0.05,
    )  # fmt: skip
    assert 0.2 < rows.risk_q95(0.2) < band < 1.0
    trivial = rows.certify(rows.decide(b"query", [0.5, 0.2], alpha=0.01)).as_json()["guarantee"]
    assert (trivial["alpha_basis"], trivial["risk_band"]) == ("band", 0.0)


def test_another_score_is_an_assumption():
    """The guarantee needs a score chosen independently of the query."""
    rows = calibration()
    decision = rows.decide(b"query", [0.5, 0.2], score=Score.GAP)
    assert rows.certify(decision).reasons == (CoreReason.SCORE_ASSUMED,)


def test_the_sets_of_a_batch_have_the_certificate_of_each_decision():
    """The terms, the threshold and the reasons depend on alpha and score alone."""
    rows = calibration()
    for terms in ({}, {"alpha": 0.2}, {"alpha": 0.01}, {"score": Score.GAP}):
        decision = rows.decide(b"query", [0.5, 0.2], **terms)
        assert rows.certify(**terms) == rows.certify(decision)


def test_a_group_is_named_where_all_rows_belong_to_it():
    """The rows of one group promise P(miss | group) <= alpha."""
    rows = calibration(groups=("de",) * 9 + ("en",) * 10)
    decision = rows.decide(b"query", [0.5, 0.2])
    assert rows.certify(decision).group is None
    english = rows.group("en")
    assert english.certify(english.decide(b"query", [0.5, 0.2])).group == "en"


def test_unknown_reasons_void_the_guarantee():
    """A premise that the core does not know is one that failed."""
    rows = calibration()
    given = (CoreReason.TRAINING_OVERLAP, "moon_phase", "moon_phase")
    certificate = rows.certify(rows.decide(b"query", [0.5, 0.2]), reasons=given)
    assert isinstance(certificate, Certificate)
    assert not certificate.holds
    assert certificate.void_reasons == ("training_overlap", "moon_phase")
    assert certificate.with_reasons("moon_phase") == certificate


def test_another_calibrations_decision_is_refused():
    """Its threshold is not the one of these rows, so neither is its bound."""
    rows = calibration(groups=("de",) * 9 + ("en",) * 10)
    english = rows.group("en")
    decision = english.decide(b"query", [0.5, 0.2])
    assert decision.lambda_hat != rows.lambda_hat()
    with pytest.raises(InputError, match="another calibration"):
        rows.certify(decision)
