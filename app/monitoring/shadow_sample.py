"""Shadow sample: a random share of decisions that every candidate answers, to be judged.

The draw looks at nothing but a secret key, the decision's id and the sampling rate, so the sample
is drawn like the traffic: whatever a request is, and however it ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from math import ceil, log2
from typing import Any, Final, cast

from app.json_output import dump_json
from racer_core.calibration.shadow import is_sampled
from racer_core.errors import InputError
from racer_core.records.request import TURN_FIELDS, conversation_of

_DIGEST_BYTES: Final = 16


class ShadowSample:
    """Draws which decisions are in the sample.

    Args:
        rate: The sampling rate.
        rates: The rates of applications with one of their own.
        key: Secret of the draws, which the store keeps: the same for all gateways and artifacts.
    """

    def __init__(self, rate: float, rates: Mapping[str, float], key: bytes) -> None:
        self._rate = rate
        self._rates = rates
        self._key = key
        self._share = 1.0  # of the rates, that keeps the calls within their budget
        self.has_rates = bool(rates)
        self.is_on = rate > 0.0 or any(rates.values())

    def rate_of(self, application: str | None) -> float:
        """The rate in force for an application's requests."""
        rate = self._rate if application is None else self._rates.get(application, self._rate)
        return self._share * rate

    def fit_budget(self, requests: Mapping[str, int], *, calls: int, budget: int) -> float:
        """Lower all rates by the power of two that keeps the expected calls within a budget.

        The rates depend on the past number of requests alone, so every request is drawn at a known
        rate whatever it is.

        Args:
            requests: Expected requests of each application.
            calls: Calls that a sampled request may add.
            budget: The expected calls of all requests together.

        Returns:
            The share of the configured rates that is in force.
        """
        rates = {name: self._rates.get(name, self._rate) for name in requests}
        expected = calls * sum(rates[name] * count for name, count in requests.items())
        self._share = min(1.0, 2.0 ** -ceil(log2(expected / budget))) if expected else 1.0
        return self._share

    def draw(self, decision_id: str, application: str | None) -> float | None:
        """The rate at which a decision was drawn; None where it is not in the sample."""
        if not self.is_on:
            return None
        rate = self.rate_of(application)
        return rate if is_sampled(self._key, decision_id.encode(), rate) else None


def conversation_id(
    key: bytes, fields: Mapping[str, Any], path: str, *, caller: str, session: str | None
) -> str | None:
    """Keyed hash that the later turns of one conversation share; None for a first turn.

    Without a session of its own a conversation is known by its beginning, up to the first answer.

    Args:
        key: Secret of the hash.
        fields: The fields of the body that candidates are sent.
        path: The endpoint of candidates to which it goes.
        caller: Name of the API key.
        session: Id of the request's session.
    """
    try:
        if not conversation_of(fields, path).is_later:
            return None
    except InputError:  # it was served: another part of the body says what it asks
        return None
    beginning: list[Any] | str = session or _beginning(fields.get(TURN_FIELDS[path]))
    return blake2b(
        dump_json([caller, session is not None, beginning]),
        key=blake2b(key, digest_size=32).digest(),
        person=b"conversation",
        digest_size=_DIGEST_BYTES,
    ).hexdigest()


def thinned(decisions: Sequence[tuple[str, str | None]], key: bytes) -> set[str]:
    """Of the sampled turns of each conversation the ids of all but one, which is drawn uniformly.

    Args:
        decisions: Decision ids with their conversations; None for a first turn.
        key: Secret of the draw, which is the same whenever the same turns are drawn from.
    """
    seed = blake2b(key, digest_size=32).digest()

    def place(decision_id: str) -> bytes:
        return blake2b(decision_id.encode(), key=seed, person=b"kept turn").digest()

    turns: dict[str, list[str]] = {}
    for decision_id, conversation in decisions:
        if conversation is not None:
            turns.setdefault(conversation, []).append(decision_id)
    return {each for of_one in turns.values() for each in sorted(of_one, key=place)[1:]}


def _beginning(turns: object) -> list[Any]:
    """The turns up to the first answer."""
    beginning: list[Any] = []
    for turn in cast("list[object]", turns) if isinstance(turns, list) else []:
        beginning.append(turn)
        if isinstance(turn, dict) and cast("dict[str, object]", turn).get("role") == "assistant":
            break
    return beginning
