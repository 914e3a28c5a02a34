"""Prices of candidates, and the exact costs of their calls.

An amount is an integer of pico-units, 1e-12 of the currency: a price of 0.000001 per million tokens
is one pico-unit per token. Costs are then products and sums of integers, which are exact, take no
longer than those of floats, and are the same in JSON and in any database. Decimals would round at
the precision of a context, and cost more on the path of every request. The currency is a name:
nothing here depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Self

PICO: Final = 10**12  # pico-units of one unit of the currency
_PER_TOKEN: Final = PICO // 10**6  # of a price per million tokens
_MICROSECONDS: Final = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one call used.

    Attributes:
        input_tokens: Tokens of the prompt, those that were read from a cache included.
        cached_tokens: Those of them that were read from a cache.
        output_tokens: Tokens of all choices of the answer, with its reasoning.
        microseconds: Duration of the call.
        calls: 0 if the call is not charged as one, as a failed one.
        is_estimated: Some of the numbers were not reported.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    microseconds: int = 0
    calls: int = 1
    is_estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanUsage:
    """What a call uses on average; None: not known."""

    input_tokens: float | None = None
    output_tokens: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of a candidate, in pico-units.

    Attributes:
        input: Per input token.
        cached_input: Per input token that was read from a cache.
        output: Per output token.
        call: Per call.
        second: Per second of a call, of all accelerators that it occupies.
    """

    input: int = 0
    cached_input: int = 0
    output: int = 0
    call: int = 0
    second: int = 0

    @classmethod
    def of(
        cls,
        *,
        input: float = 0.0,
        cached_input: float | None = None,
        output: float = 0.0,
        call: float = 0.0,
        gpu_second: float = 0.0,
        gpus: float = 1.0,
    ) -> Self:
        """A price as price lists state it, rounded to whole pico-units.

        Args:
            input: Per million input tokens.
            cached_input: Per million input tokens that were read from a cache; None: as ``input``.
            output: Per million output tokens.
            call: Per call.
            gpu_second: Per second of one accelerator.
            gpus: Accelerators that a call occupies; a fraction where calls share one.
        """
        return cls(
            input=_scaled(input, _PER_TOKEN),
            cached_input=_scaled(input if cached_input is None else cached_input, _PER_TOKEN),
            output=_scaled(output, _PER_TOKEN),
            call=_scaled(call, PICO),
            second=_scaled(gpu_second, PICO, gpus),
        )

    def cost(self, usage: Usage) -> int:
        """The cost of a call: exact, but for its time, which is rounded to a pico-unit."""
        cached = min(usage.cached_tokens, usage.input_tokens)
        return (
            (usage.input_tokens - cached) * self.input
            + cached * self.cached_input
            + usage.output_tokens * self.output
            + usage.calls * self.call
            + (usage.microseconds * self.second + _MICROSECONDS // 2) // _MICROSECONDS
        )

    def worst_case(self, input_tokens: int, max_tokens: int, *, seconds: float = 0.0) -> int:
        """The largest cost of one call, whatever it reads from a cache; a retry is another call.

        Args:
            input_tokens: Tokens of its prompt.
            max_tokens: The most tokens that it may write, over all choices.
            seconds: The longest time that it may take.
        """
        dearest = max(self.input, self.cached_input)
        time = microseconds(seconds) * self.second
        return (
            input_tokens * dearest
            + max_tokens * self.output
            + self.call
            + (time + _MICROSECONDS // 2) // _MICROSECONDS
        )

    def expected(self, usage: MeanUsage) -> float | None:
        """The mean cost of a call in units of the currency; None if it depends on what is unknown.

        Costs are linear, so it is the cost of the mean usage. Nothing is expected of a cache.
        """
        parts = [(self.call, 1.0), (self.input, usage.input_tokens)]
        parts += [(self.output, usage.output_tokens), (self.second, usage.seconds)]
        used = [(rate, number) for rate, number in parts if rate]
        if any(number is None for _, number in used):
            return None
        return max(1.0, sum(rate * (number or 0.0) for rate, number in used)) / PICO

    @property
    def of_tokens(self) -> tuple[float, float, float]:
        """The price of an input token, of a cached one, and of an output token."""
        return float(self.input), float(self.cached_input), float(self.output)


def expected_prices(
    prices: Mapping[str, Price], usage: Mapping[str, MeanUsage]
) -> dict[str, float | None]:
    """The expected price of a call of each candidate; None where that is not known.

    Args:
        prices: The price of each candidate.
        usage: What calls of the candidates use on average.
    """
    unknown = MeanUsage()
    return {name: price.expected(usage.get(name, unknown)) for name, price in prices.items()}


def microseconds(seconds: float) -> int:
    """A duration in whole microseconds."""
    return round(seconds * _MICROSECONDS)


def amount_of(value: float | str | Decimal) -> int:
    """A number of units of the currency as an amount, rounded to a pico-unit."""
    return _scaled(value, PICO)


def as_number(amount: int) -> float:
    """An amount in units of the currency: ``amount_of`` gives it back below 1,000 units."""
    return amount / PICO


def as_text(amount: int) -> str:
    """An amount in units of the currency, exactly: all digits, and no exponent."""
    whole, part = divmod(abs(amount), PICO)
    sign = "-" if amount < 0 else ""
    return f"{sign}{whole}.{part:012}".rstrip("0").rstrip(".")


def _scaled(value: float | str | Decimal, scale: int, share: float = 1.0) -> int:
    """A decimal number times a scale, rounded to an integer: a float is what it is written as."""
    return round(Decimal(str(value)) * Decimal(str(share)) * scale)
