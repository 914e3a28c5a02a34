"""The advice at the end of ``racer bootstrap``: what measures worse is said to be worse."""

from __future__ import annotations

from typing import Any

import pytest

from app.tools.bootstrap.gains import advice


def way(more: float, alpha: float = 0.1, calls: float = 1.5) -> dict[str, Any]:
    """A way of asking that is so much better than the best model, with an error of a point."""
    return {"accuracy": 0.9 + more, "more": more, "more_se": 0.01, "calls": calls, "alpha": alpha}


def gains(
    of_set: float,
    *,
    first: float = 0.0,
    smaller: float = 0.0,
    settled: float = 0.0,
    all_: float = 0.0,
) -> dict[str, Any]:
    """Figures of a pool whose best model is `atlas`, right on 90 %."""
    return {
        "best_candidate": "atlas",
        "ways": {
            "best": way(0.0),
            "first": way(first),
            "set": way(of_set),
            "all": way(all_, calls=3.0),
        },
        "smaller": [way(smaller, alpha=0.05, calls=1.8)],
        "until_settled": [way(settled, alpha=0.02, calls=2.1)],
    }


@pytest.mark.parametrize(
    ("found", "begins", "has"),
    [
        (gains(0.05, all_=0.06), "use the set", "by 5.0 ± 1.0 points, with 1.50 calls"),
        (gains(0.0), "one model is good enough: atlas alone is right on 90.0%", "+0.0 points"),
        (gains(-0.01), "one model is good enough", "the set measures -1.0 points"),
        (
            gains(-0.05),
            "one model is good enough",
            "the set's answers are worse than those of atlas alone by 5.0 ± 1.0 points",
        ),
        (
            gains(-0.05, smaller=0.04),
            "the set's answers are worse than those of atlas alone by 5.0 ± 1.0 points; take",
            "take alpha 0.05, where it is better by 4.0 ± 1.0 points, with 1.80 calls",
        ),
        (
            gains(0.0, settled=0.05, all_=0.06),
            "the set measures +0.0 points beside atlas alone, and all models together are better",
            "same_answer serves their vote, at alpha 0.02 with 2.10 calls",
        ),
        (gains(0.0, first=0.05), "the set measures", "first choice is better by 5.0 ± 1.0 points"),
    ],
)
def test_one_sentence_says_what_to_do(found: dict[str, Any], begins: str, has: str) -> None:
    """Clear is what is larger than 1.96 standard errors."""
    text = advice(found)
    assert text.startswith(begins)
    assert has in text


def test_a_way_that_answers_like_the_best_model_has_no_error() -> None:
    """Its difference is nothing, with a standard error of nothing."""
    found = gains(0.0)
    found["smaller"][0] |= {"more": 0.0, "more_se": 0.0}
    assert advice(found).startswith("one model is good enough")
