"""Mean usage of recorded calls, and the price of a call that is expected of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.prices import PICO, MeanUsage, Price, Usage, expected_prices
from racer_core.records.usage import mean_usage
from racer_core.types import LabelledRow

rates = st.integers(0, 10**6).map(lambda millionths: millionths / 10**6)
prices = st.builds(Price.of, input=rates, output=rates, call=rates, gpu_second=rates)
calls = st.fixed_dictionaries(
    {
        "prompt_tokens": st.integers(0, 10**5),
        "completion_tokens": st.integers(0, 10**5),
        "seconds": st.integers(0, 10**5).map(lambda thousandths: thousandths / 1_000),
    }
)
weights = st.integers(1, 8).map(float)


def row(weight: float = 1.0, **calls: dict[str, float]) -> LabelledRow:
    """A row with recorded calls."""
    return LabelledRow(query="?", correct=frozenset(), calls=calls, weight=weight)


@given(price=prices, rows=st.lists(st.tuples(weights, calls), min_size=1, max_size=5))
def test_the_expected_price_is_the_mean_cost_of_the_calls(
    price: Price, rows: list[tuple[float, dict[str, float]]]
) -> None:
    """Weighted as the rows are: costs are linear in what a call uses."""
    means = mean_usage([row(weight, a=call) for weight, call in rows])
    expected = price.expected(means["a"])
    costs = [
        weight
        * price.cost(
            Usage(
                input_tokens=int(call["prompt_tokens"]),
                output_tokens=int(call["completion_tokens"]),
                microseconds=round(call["seconds"] * 10**6),
            )
        )
        for weight, call in rows
    ]
    mean = sum(costs) / sum(weight for weight, _ in rows) / PICO
    assert expected == pytest.approx(max(mean, 1 / PICO), rel=1e-9, abs=2 / PICO)


def test_a_price_is_expected_only_of_what_is_known() -> None:
    """What a price does not depend on need not be recorded; a part of it is not enough."""
    means = mean_usage([row(a={"prompt_tokens": 10, "completion_tokens": 2}, b={"seconds": 1.5})])
    assert means["b"] == MeanUsage(seconds=1.5)
    given = {
        "a": Price.of(input=1.0, output=3.0),
        "b": Price.of(gpu_second=0.5),
        "c": Price.of(call=0.25),
    }
    assert expected_prices(given, means) == {"a": 16e-6, "b": 0.75, "c": 0.25}
    timed = Price.of(input=1.0, gpu_second=0.5)
    assert expected_prices({"a": timed, "b": timed, "c": timed}, means) == dict.fromkeys("abc")


def test_odd_records_count_for_nothing() -> None:
    """Rows come from anywhere: no text, no truth value, nothing below 0."""
    odd = {"prompt_tokens": "many", "completion_tokens": True, "seconds": -1.0}
    assert mean_usage([row(a=odd)]) == {}
    means = mean_usage([row(a=odd), row(a={"prompt_tokens": 4}), row(a={"prompt_tokens": 8})])
    assert means == {"a": MeanUsage(input_tokens=6.0)}
