"""Shadow sample: a random share of decisions that every candidate answers, to be judged.

The draw looks at nothing but a secret key, the decision's id and the sampling rate, so the sample
is drawn like the traffic: whatever a request is, and however it ends.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    key: bytes,
    fields: Mapping[str, Any],
    path: str,
    *,
    caller: str,
    application: str | None,
    session: str | None,
) -> str | None:
    """Keyed hash that the later turns of one conversation share; None for a first turn.

    A conversation is known by its session, if it has one, and by its beginning: up to the first
    answer to the user, since a greeting may open all conversations.

    Args:
        key: Secret of the hash.
        fields: The fields of the body that candidates are sent.
        path: The endpoint of candidates to which it goes.
        caller: Name of the API key.
        application: The application of the request; None where none is configured.
        session: Id of the request's session.
    """
    try:
        if not conversation_of(fields, path).is_later:
            return None
    except InputError:  # it was served: another part of the body says what it asks
        return None
    beginning = _beginning(fields.get(TURN_FIELDS[path]))
    return blake2b(
        dump_json([caller, application, session, beginning]),
        key=blake2b(key, digest_size=32).digest(),
        person=b"conversation",
        digest_size=_DIGEST_BYTES,
    ).hexdigest()


def _beginning(turns: object) -> list[Any]:
    """The turns up to the first answer to the user."""
    beginning: list[Any] = []
    has_user = False
    for turn in cast("list[object]", turns) if isinstance(turns, list) else []:
        beginning.append(turn)
        role = cast("dict[str, object]", turn).get("role") if isinstance(turn, dict) else None
        if role == "assistant" and has_user:
            break
        has_user = has_user or role == "user"
    return beginning
