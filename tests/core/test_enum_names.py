"""Names of enum members: a valid name gives what the member gives, any other name is refused.

The oracle is the same call with members, so a test has no false alarms.
"""

import numpy as np
import pytest

from racer_core.aggregation.answers import Equality
from racer_core.aggregation.grading import grade
from racer_core.aggregation.vote import aggregate
from racer_core.calibration.decision import whole_pool_decision
from racer_core.calibration.options import CalibrationOptions
from racer_core.calibration.patterns import PatternModel
from racer_core.calibration.shadow import RIGHT, UNKNOWN, WRONG, feedback_bounds
from racer_core.errors import CalibrationError, InputError
from racer_core.offline.evaluation_result import Setting
from racer_core.offline.protocol import CalibrationScope, Control, Protocol
from racer_core.offline.tune import AnswerRatings
from racer_core.types import BINARY_TARGETS, CandidateAnswer, RiskTarget, Score
from tests.kit.strategies import calibration_of


@pytest.mark.parametrize(
    ("field", "value"), [("risk_target", "papr"), ("risk_target", None), ("score", "Gap")]
)
def test_another_name_is_no_option_of_a_calibration(field, value):
    """The message names the field and its choices."""
    kind = {"risk_target": RiskTarget, "score": Score}[field]
    with pytest.raises(CalibrationError, match=", ".join(kind)) as caught:
        CalibrationOptions(**{field: value})
    assert field in str(caught.value)


def test_a_protocol_of_names_is_the_protocol_of_members():
    """`merged` by name was every benchmark on its own."""
    made = Protocol(
        calibrated="merged",
        scores=("cover", "static_by_group"),
        risk_targets=("paper",),
        equality="number",
    )
    assert made == Protocol(
        calibrated=CalibrationScope.MERGED,
        scores=(Score.COVER, Control.STATIC_BY_GROUP),
        risk_targets=(RiskTarget.PAPER,),
        equality=Equality.NUMBER,
    )
    assert made.calibrated is CalibrationScope.MERGED
    assert made.scores[1] is Control.STATIC_BY_GROUP
    assert made.risk_targets[0] is RiskTarget.PAPER
    setting = Setting(scope="a", risk_target="paper", score="gap", alpha=0.1)
    assert (setting.risk_target, setting.score) == (RiskTarget.PAPER, Score.GAP)
    assert setting.score is Score.GAP


@pytest.mark.parametrize(
    "fields",
    [
        {"calibrated": "all"},
        {"scores": ("cover", "coverr")},
        {"risk_targets": ("papr",)},
        {"equality": "nubmer"},
    ],
)
def test_another_name_is_no_option_of_a_protocol(fields):
    """The message lists the choices, with the controls among the scores."""
    with pytest.raises(InputError, match="choose one of") as caught:
        Protocol(**fields)
    assert "scores" not in fields or "static_by_group" in str(caught.value)


REFUSED = {
    "setting": lambda name: Setting(scope="a", risk_target=name, score="gap", alpha=0.1),
    "ratings": lambda name: AnswerRatings(weight=name, values=np.zeros((1, 1))),
    "grade": lambda name: grade("A", "A", name),
    "vote": lambda name: aggregate([ANSWER], method=name),
    "weight": lambda name: aggregate([ANSWER], method="weighted", weight=name),
    "feedback": lambda name: bounds(name),
    "whole pool": lambda name: whole_pool_decision(
        ["a"], [0.5], risk_target=name, alpha=0.1, score=Score.GAP, truncated=False
    ),
}
ANSWER = CandidateAnswer(candidate="a", text="A", form="A", score=0.5, weight=0.25)


def bounds(risk_target):
    """Bounds on the risk of three decisions, which differ between the risk targets."""
    verdicts = np.array([[WRONG, WRONG], [WRONG, RIGHT], [WRONG, UNKNOWN]], dtype=np.int8)
    selected = np.array([[True, False]] * 3)
    return feedback_bounds(verdicts, selected, np.zeros(3, dtype=bool), risk_target)


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED.keys())
def test_functions_refuse_another_name(call):
    """A typing error decides no other rule."""
    with pytest.raises(InputError, match="'wrong'; choose one of"):
        call("wrong")


@pytest.mark.parametrize("target", BINARY_TARGETS)
@pytest.mark.parametrize("score", list(Score))
def test_names_of_a_calibration_are_its_members(score, target):
    """``paper`` by name counted the rows of ``answerable``; ``cover_cost`` was ``cover``."""
    rng = np.random.default_rng(1)
    scores, labels = rng.random((40, 3)), rng.random((40, 3)) < 0.5
    known = {"patterns": PatternModel.of(labels), "prices": (1.0, 2.0, 4.0)}
    by_member = calibration_of(scores, labels, risk_target=target, score=score, **known)
    by_name = calibration_of(scores, labels, risk_target=target.value, score=score.value, **known)
    assert by_name.options == by_member.options
    assert (by_name.options.risk_target, by_name.options.score) == (target, score)
    assert by_name.options.risk_target is target
    assert by_name.lambda_hat(0.2, score.value) == by_member.lambda_hat(0.2, score)
    assert by_name.decide(b"q", [0.5] * 3, score=score.value).score is score
