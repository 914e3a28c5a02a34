"""The stand-ins that answer as chat models do are right as often as they say."""

from __future__ import annotations

import pytest

from racer_core.aggregation.answers import Equality, normalise
from racer_core.aggregation.reasoning import REASONING
from racer_core.calibration.learn_then_test import clopper_pearson_lower, clopper_pearson_upper
from tests.kit import chat_models

COUNT = 1_000
FALSE_ALARM = 1e-6  # of one model in one family


@pytest.mark.parametrize("family", chat_models.FAMILIES)
def test_each_is_right_on_its_share_and_says_so_in_many_ways(family: str) -> None:
    """Questions differ; answers are rarely the bare reference, and stay the same when repeated."""
    asked = chat_models.questions(family, COUNT)
    assert len({each.query for each in asked}) == COUNT
    for model, share in chat_models.SHARE_RIGHT.items():
        right = sum(chat_models.is_right(model, each.query) for each in asked)
        low = clopper_pearson_lower(right, COUNT, FALSE_ALARM / 2)
        assert low <= share <= clopper_pearson_upper(right, COUNT, FALSE_ALARM / 2), (model, right)
        said = [chat_models.answer(model, each.query) for each in asked]
        assert said[:50] == [chat_models.answer(model, each.query) for each in asked[:50]]
        bare = sum(
            normalise(Equality.EXACT, text) == normalise(Equality.EXACT, each.reference)
            for text, each in zip(said, asked, strict=True)
        )
        assert bare < 0.15 * COUNT


def test_wrong_models_agree_now_and_then() -> None:
    """Two models that are both wrong give the same object in some cases, and not in most."""
    asked = chat_models.questions("json", COUNT)
    wrong = [
        {
            normalise(Equality.JSON, REASONING.answer(chat_models.answer(model, each.query)))
            for model in ("birch", "cedar")
        }
        for each in asked
        if not any(chat_models.is_right(model, each.query) for model in ("birch", "cedar"))
    ]
    same = sum(len(forms) == 1 for forms in wrong)
    assert 0 < same < 0.5 * len(wrong)
