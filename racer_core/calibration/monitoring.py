"""Drift detection: sequential tests (e-processes) that are valid after every query.

Each stream is a bet against "nothing has changed". Under that hypothesis no strategy has an
expected gain, so P(capital ever reaches 1 / level) <= level (Ville's inequality). The alarm may
therefore be read at any time; a fixed-sample test repeated after each query would be wrong half
the time.

``ExchangeabilityMartingale`` and ``ProjectionMartingale`` (``martingales``) detect new kinds of
queries without labels and say nothing about risk. ``RiskEProcess`` (``risk_e_process``) tests
judged losses against a bound. ``UpwardMartingale`` tests the critical scores of the same judged
queries against those of the calibration rows and needs fewer of them. ``DriftState`` holds several
streams under one false-alarm probability.

The objects change with ``update`` and use no clock; ``to_state`` is plain JSON, so that a restart
loses no evidence. One object must receive its stream in order, from one thread at a time.

References:
    Shin, Ramdas & Rinaldo 2024 (restarts).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from racer_core.calibration.martingales import (
    ExchangeabilityMartingale,
    ProjectionMartingale,
    UpwardMartingale,
)
from racer_core.calibration.risk_e_process import RiskEProcess
from racer_core.calibration.wager import State
from racer_core.errors import InputError
from racer_core.types import checked_alpha


def split_false_alarm(delta: float, weights: Mapping[str, float]) -> dict[str, float]:
    """Each named stream's part of the false-alarm probability ``delta``.

    Raises:
        InputError: The weights are not positive or do not sum to one.
    """
    delta = checked_alpha(delta, "delta")
    positive = all(math.isfinite(weight) and weight > 0.0 for weight in weights.values())
    if not positive or not math.isclose(sum(weights.values()), 1.0, rel_tol=1e-9):
        raise InputError("the weights of the streams must be positive and sum to one")
    return {name: delta * weight for name, weight in weights.items()}


Stream = ExchangeabilityMartingale | ProjectionMartingale | RiskEProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftState:
    """Several streams; while nothing changes, P(any of them ever alarms) <= delta.

    By the union bound: the streams may depend on each other in any way. A new calibration needs a
    new drift state, and with it a new delta.
    """

    delta: float
    streams: Mapping[str, Stream]

    def __post_init__(self) -> None:
        """Refuse streams whose false-alarm probabilities exceed delta together."""
        delta = checked_alpha(self.delta, "delta")
        if sum(stream.false_alarm for stream in self.streams.values()) > delta * (1.0 + 1e-9):
            raise InputError("the streams' false alarms exceed delta: use split_false_alarm")

    @property
    def raised(self) -> tuple[str, ...]:
        """The names of the streams that have ever alarmed."""
        return tuple(name for name, stream in self.streams.items() if stream.alarmed)

    @property
    def alarmed(self) -> bool:
        """Whether any stream has ever alarmed."""
        return bool(self.raised)

    def to_state(self) -> State:
        """Everything that a restart needs."""
        streams = {name: stream.to_state() for name, stream in self.streams.items()}
        return {"delta": self.delta, "streams": streams}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Continue where ``to_state`` was taken.

        Raises:
            InputError: The state is damaged, or from another version.
        """
        try:
            return cls._restored(state)
        except (KeyError, TypeError, ValueError) as exc:
            raise InputError("the saved drift state does not fit: start a new one") from exc

    @classmethod
    def _restored(cls, state: Mapping[str, Any]) -> Self:
        classes = (
            ExchangeabilityMartingale,
            ProjectionMartingale,
            UpwardMartingale,
            RiskEProcess,
        )
        kinds = {each.kind: each for each in classes}
        if unknown := {saved["kind"] for saved in state["streams"].values()} - kinds.keys():
            raise InputError(f"unknown drift stream kind {unknown.pop()!r}: start a new one")
        streams = {
            name: kinds[saved["kind"]].from_state(saved) for name, saved in state["streams"].items()
        }
        return cls(delta=state["delta"], streams=streams)
