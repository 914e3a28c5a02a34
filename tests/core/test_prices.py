"""Prices and costs: exact, against rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_core.prices import (
    PICO,
    MeanUsage,
    Price,
    Usage,
    amount_of,
    as_number,
    as_text,
    expected_prices,
    microseconds,
)
from racer_core.records.usage import mean_usage
from racer_core.types import LabelledRow

# Prices as they are listed: at most six decimals per million tokens, twelve per call.
listed = st.integers(0, 10**9).map(lambda millionths: millionths / 10**6)
tokens = st.integers(0, 10**7)
prices = st.fixed_dictionaries(
    {"input": listed, "output": listed, "call": listed, "gpu_second": listed},
    optional={"cached_input": listed},
)
usages = st.builds(
    Usage,
    input_tokens=tokens,
    cached_tokens=tokens,
    output_tokens=tokens,
    microseconds=st.integers(0, 10**10),
    calls=st.integers(0, 1),
)


def exactly(price: dict[str, float], usage: Usage) -> Fraction:
    """The cost in units of the currency, as a price list is read."""
    per = {name: Fraction(str(each)) for name, each in price.items()}
    cached = min(usage.cached_tokens, usage.input_tokens)
    return (
        (usage.input_tokens - cached) * per["input"] / 10**6
        + cached * per.get("cached_input", per["input"]) / 10**6
        + usage.output_tokens * per["output"] / 10**6
        + usage.calls * per["call"]
        + usage.microseconds * per["gpu_second"] / 10**6
    )


@given(price=prices, usage=usages)
def test_tokens_and_calls_cost_exactly_what_the_list_says(
    price: dict[str, float], usage: Usage
) -> None:
    """Time is rounded once, by half a pico-unit at most; nothing else is."""
    cost = Fraction(Price.of(**price).cost(usage), PICO)
    assert abs(cost - exactly(price, usage)) <= Fraction(1, 2 * PICO)
    untimed = exactly({**price, "gpu_second": 0.0}, usage)
    assert Fraction(Price.of(**{**price, "gpu_second": 0.0}).cost(usage), PICO) == untimed


@given(price=prices, used=usages, more=st.tuples(tokens, tokens, st.integers(0, 10**9)))
def test_no_call_costs_more_than_its_worst_case(
    price: dict[str, float], used: Usage, more: tuple[int, int, int]
) -> None:
    """A call within the limits, whatever it reads from a cache; the limits themselves are met."""
    exact = Price.of(**price)
    limit = (used.microseconds + more[2]) / 10**6
    worst = exact.worst_case(
        used.input_tokens + more[0], used.output_tokens + more[1], seconds=limit
    )
    assert exact.cost(used) <= worst
    tight = exact.worst_case(
        used.input_tokens, used.output_tokens, seconds=used.microseconds / 10**6
    )
    reached = max(
        exact.cost(
            Usage(
                input_tokens=used.input_tokens,
                cached_tokens=cached,
                output_tokens=used.output_tokens,
                microseconds=used.microseconds,
            )
        )
        for cached in (0, used.input_tokens)
    )
    assert tight == reached


@given(st.integers(-(10**15), 10**15))
def test_amounts_survive_json_and_text(amount: int) -> None:
    """Below 1,000 units a float gives the amount back; text does so at any size."""
    assert amount_of(as_number(amount)) == amount
    for each in (amount, amount**3):
        assert Fraction(as_text(each)) == Fraction(each, PICO)
    assert "e" not in as_text(amount).lower()


def test_amounts_are_written_as_people_write_them() -> None:
    """Without an exponent, and without zeros at the end."""
    assert [as_text(each) for each in (0, 1, 10 * PICO, 150_000, -PICO // 2)] == [
        *("0", "0.000000000001", "10", "0.00000015", "-0.5")
    ]


def test_calls_that_share_an_accelerator_pay_their_share() -> None:
    """An eighth of an accelerator at 2.40 an hour, for 1.5 seconds; two of them for 16 times it."""
    usage = Usage(microseconds=microseconds(1.5))
    eighth = Price.of(gpu_second=2.4 / 3600, gpus=0.125).cost(usage)
    assert abs(eighth - PICO * Fraction(24, 36_000) * Fraction(3, 2) / 8) < 2
    assert abs(Price.of(gpu_second=2.4 / 3600, gpus=2.0).cost(usage) - 16 * eighth) < 20


rates = st.integers(0, 10**6).map(lambda millionths: millionths / 10**6)

token_prices = st.builds(Price.of, input=rates, output=rates, call=rates, gpu_second=rates)

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


@given(price=token_prices, rows=st.lists(st.tuples(weights, calls), min_size=1, max_size=5))
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
    """Rows come from anywhere: no text, no truth value, nothing below 0, none of 400 digits."""
    odd = {"prompt_tokens": "many", "completion_tokens": True, "seconds": -1.0}
    assert mean_usage([row(a=odd), row(a={"prompt_tokens": 10**400, "seconds": 1e300})]) == {}
    means = mean_usage([row(a=odd), row(a={"prompt_tokens": 4}), row(a={"prompt_tokens": 8})])
    assert means == {"a": MeanUsage(input_tokens=6.0)}
