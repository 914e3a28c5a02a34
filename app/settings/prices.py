"""Settings of the price of a candidate (`candidates[].price`)."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, GetJsonSchemaHandler, model_validator

from app.settings.base import Frozen
from racer_core.prices import Price

_Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CandidatePrice(Frozen):
    """What calls to a candidate cost, in `currency`; a number alone is the price of a call."""

    input: _Rate = 0.0
    """Price of a million input tokens, in `currency`. A number as the whole `price` is that of a
    call. Set prices for all candidates or for none."""
    cached_input: _Rate | None = None
    """Price of a million input tokens that the candidate read from its cache; null: as `input`."""
    output: _Rate = 0.0
    """Price of a million output tokens."""
    call: _Rate = 0.0
    """Price of a call, beside its tokens and time."""
    gpu_second: _Rate = 0.0
    """Price of a second of one GPU, for candidates of your own: a call costs its time."""
    gpus: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """GPUs that a call occupies while it lasts; with 16 calls at once on one GPU 0.0625."""

    @property
    def exact(self) -> Price:
        """The price in pico-units."""
        return Price.of(**self.model_dump())

    @model_validator(mode="before")
    @classmethod
    def _number_is_per_call(cls, values: object) -> object:
        is_number = isinstance(values, int | float) and not isinstance(values, bool)
        return {"call": values} if is_number else values

    @model_validator(mode="after")
    def _is_above_zero(self) -> Self:
        if self.exact == Price():
            raise ValueError("give a price above 0 for tokens, for calls or for `gpu_second`")
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: Any, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Also a number."""
        return {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, handler(core_schema)]}
