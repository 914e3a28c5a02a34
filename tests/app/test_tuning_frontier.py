"""The plot of `racer tune`: each point stands where its cost and accuracy are."""

from __future__ import annotations

from app.tools.tuning_frontier import HEIGHT, WIDTH, plot
from racer_core.aggregation.vote import Method
from racer_core.offline.tuning_result import FixedCalls, Trial, Tuning
from racer_core.types import Score


def trial(alpha: float, cost: float, accuracy: float) -> Trial:
    """A point."""
    return Trial(
        alpha=alpha, score=Score.COVER, rule=Method.MAJORITY, weight=None, temperature=None,
        accuracy=accuracy, se=0.01, size=1.0, cost=cost, missed=alpha, proven=True,
    )  # fmt: skip


def places(text: str) -> dict[str, tuple[int, int]]:
    """The line and the column of each sign within the axes."""
    lines = [line.split("|", 1)[1] for line in text.splitlines() if "|" in line]
    assert len(lines) == HEIGHT
    return {
        sign: (number, column)
        for number, line in enumerate(lines)
        for column, sign in enumerate(line)
        if sign != " "
    }


def test_points_stand_where_their_values_are() -> None:
    """Linear axes from the smallest to the largest value; a sign says what a point is."""
    cheap, chosen, beaten = trial(0.2, 1.0, 0.6), trial(0.1, 2.0, 0.8), trial(0.05, 4.0, 0.7)
    tuning = Tuning(
        trials=(cheap, chosen, beaten), chosen=chosen, slack=0.01, rows=100,
        everyone=FixedCalls(candidates=("a", "b"), accuracy=0.86, cost=5.0),
        best_single=FixedCalls(candidates=("b",), accuracy=0.73, cost=3.0),
    )  # fmt: skip
    text = plot(tuning, "USD")
    assert text.startswith("accuracy over USD a query")
    bottom, right = HEIGHT - 1, WIDTH - 1
    assert places(text) == {
        "+": (bottom, 0),
        "#": (round(bottom * 0.06 / 0.26), round(right / 4)),
        ".": (round(bottom * 0.16 / 0.26), round(right * 3 / 4)),
        "A": (0, right),
        "B": (round(bottom * 0.13 / 0.26), round(right / 2)),
    }
    *_, axis = text.splitlines()
    assert axis.split() == ["1", "5"]
