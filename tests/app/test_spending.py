"""Spending: what is reserved for candidates that replace others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, Final

import pytest

from app.answering.spending import Spending
from app.settings import Settings
from racer_core.prices import amount_of

PRICES: Final = {"a": 1.0, "b": 2.0, "c": 4.0, "judge": 0.25}  # of a call


class FakeReservation:
    """A reservation that takes a number of calls."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.amounts = list[int]()

    async def add(self, amount: int) -> bool:
        """See :class:`app.access.budgets.Reservation`."""
        self.amounts.append(amount)
        return len(self.amounts) <= self.most


@pytest.mark.parametrize(
    ("answers", "is_rated", "ratings"),
    [
        (0, True, (0, 2, 1)),  # one replaces the set of one, two more are rated with it
        (1, True, (2, 1, 1)),
        (1, False, (0, 0, 0)),
    ],
)
def test_further_answers_are_reserved_with_their_ratings(
    answers: int, is_rated: bool, ratings: tuple[int, ...]
) -> None:
    """A set of one is not rated; two answers take two ratings, each further one another."""
    settings = Settings.model_validate(
        {
            "schema_version": 1,
            "candidates": [
                {"name": name, "base_url": "http://127.0.0.1:9/v1", "price": price}
                for name, price in PRICES.items()
            ],
            "aggregation": {
                "method": "weighted",
                "weight": "verbal",
                "evaluator": {"candidate": "judge"},
            },
            "fleet": {"attempts": 1},
        }
    )
    reservation = FakeReservation(2)
    budgets: Any = SimpleNamespace()
    request = SimpleNamespace(
        reservation=reservation, fields={}, api_format=SimpleNamespace(path="chat/completions")
    )
    state: Any = SimpleNamespace(
        request=request, selected=("judge",), vote=SimpleNamespace(is_rated=is_rated), meter=None
    )
    spending = Spending(settings, budgets)
    found = asyncio.run(spending.affordable(state, ("a", "b", "c"), answers))
    assert found == ["a", "b"]
    rating = PRICES["judge"]
    due = [PRICES[name] + rating * count for name, count in zip("abc", ratings, strict=True)]
    assert reservation.amounts == [amount_of(each) for each in due]
