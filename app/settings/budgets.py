"""Settings of budgets: what requests may cost, in all and by key, application and pool."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Final, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, model_validator

from app.settings.base import Alpha, Frozen
from racer_core.prices import amount_of

CHEAPEST: Final = "cheapest"
ALL: Final = "all"  # the scope of the gateway's own budget


def _time_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        raise ValueError("must be a time zone such as UTC or Europe/Berlin") from exc
    return name


_Money = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Budget(Frozen):
    """What requests may cost in a day or a month, by the prices of the candidates."""

    per: Literal["day", "month"] = "month"
    """Calendar `day` or `month`; then the budget begins anew."""
    time_zone: Annotated[str, AfterValidator(_time_zone)] = "UTC"
    """Time zone of days and months, such as `Europe/Berlin`."""
    soft: _Money | None = None
    """Amount in `currency` from which a warning is logged, an alert raised and `above_soft`
    applied; null: none."""
    hard: _Money | None = None
    """Amount in `currency` that is never exceeded: a request whose calls could exceed it is refused
    (429 `budget_exceeded`); null: no limit."""
    above_soft: Literal["cheapest"] | Alpha | None = None
    """What requests get above `soft`: an alpha, where they state none and theirs is smaller; or
    `cheapest`, the candidate whose call can cost the least, with a void certificate
    (`above_budget`); null: the same as below."""

    @cached_property
    def soft_amount(self) -> int | None:
        """In pico-units."""
        return None if self.soft is None else amount_of(self.soft)

    @cached_property
    def hard_amount(self) -> int | None:
        """In pico-units."""
        return None if self.hard is None else amount_of(self.hard)

    @model_validator(mode="after")
    def _has_limits(self) -> Self:
        if self.soft is None and self.hard is None:
            raise ValueError("give `soft`, `hard` or both")
        if self.soft is not None and self.hard is not None and self.soft >= self.hard:
            raise ValueError("`soft` must be below `hard`")
        if self.above_soft is not None and self.soft is None:
            raise ValueError("`above_soft` needs `soft`")
        return self


def scopes(
    *,
    gateway: Budget | None,
    keys: Mapping[str, Budget | None],
    applications: Mapping[str, Budget | None],
    pools: Mapping[str, Budget | None],
) -> dict[str, Budget]:
    """The budgets by their scope: ``all``, ``key:NAME``, ``application:NAME``, ``pool:NAME``."""
    named = {"key": keys, "application": applications, "pool": pools}
    found = {f"{kind}:{name}": each for kind, of in named.items() for name, each in of.items()}
    return {scope: each for scope, each in ({ALL: gateway} | found).items() if each is not None}
