"""Shadow sample: a random share of decisions that every candidate answers, to be judged.

The draw looks at nothing but a secret key, the sampling rate, and the decision's id or, of a later
turn, its conversation and number (:func:`racer_core.calibration.shadow.sampling_number`). So the
sample is drawn like the traffic, whatever a request is and however it ends. Of a conversation only
the first turns are drawn, among which two never are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil, log2
from typing import Any, Final

from app.json_output import dump_json
from racer_core.calibration.shadow import is_sampled, turn_number
from racer_core.errors import InputError
from racer_core.records.request import SYSTEM_ROLES, TURN_FIELDS, conversation_of

_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """A turn by which a decision is drawn.

    Attributes:
        conversation: Keyed hash that the turns of one conversation share.
        number: Its place, from 0, among them; where first turns are drawn by their decisions, among
            the later ones.
    """

    conversation: str
    number: int


class ShadowSample:
    """Draws which decisions are in the sample.

    Args:
        rate: The sampling rate.
        rates: The rates of applications with one of their own.
        key: Secret of the draws, which the store keeps: the same for all gateways and artifacts.
        share: Of the rates, that keeps the calls within their budget.
    """

    def __init__(
        self, rate: float, rates: Mapping[str, float], key: bytes, share: float = 1.0
    ) -> None:
        self._rate = rate
        self._rates = rates
        self._key = key
        self.share = share
        self.has_rates = bool(rates)
        self.is_on = rate > 0.0 or any(rates.values())

    def rate_of(self, application: str | None) -> float:
        """The rate in force for an application's requests."""
        rate = self._rate if application is None else self._rates.get(application, self._rate)
        return self.share * rate

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
        self.share = min(1.0, 2.0 ** -ceil(log2(expected / budget))) if expected else 1.0
        return self.share

    def draw(self, decision_id: str, rate: float, turn: ConversationTurn | None = None) -> bool:
        """Whether a decision is in the sample.

        Args:
            decision_id: The decision, which draws it.
            rate: The rate in force.
            turn: The turn of a conversation, which draws it instead.
        """
        drawn_by, number = (decision_id, 0) if turn is None else (turn.conversation, turn.number)
        return is_sampled(self._key, drawn_by.encode(), rate, number)


def conversation_turn(
    key: bytes,
    fields: Mapping[str, Any],
    path: str,
    *,
    caller: str,
    application: str | None,
    session: str | None,
    is_together: bool = False,
) -> ConversationTurn | None:
    """The place of a later turn in its conversation; None for a first turn.

    Where turns are together, a session is a conversation. Each of its turns has a place, the first
    one, too, and a request without a session has none.

    A conversation is known by its session, if it has one, and by its beginning: up to the turn
    after the first answer to the user, since a greeting and its answer may open all conversations,
    without system prompts, which clients change from turn to turn.

    Args:
        key: Secret of the hash.
        fields: The fields of the body that candidates are sent.
        path: The endpoint of candidates to which it goes.
        caller: Name of the API key.
        application: The application of the request; None where none is configured.
        session: Id of the request's session.
        is_together: First and later turns of the application are one population.
    """
    if is_together and session is None:
        return None
    try:
        conversation = conversation_of(fields, path)
        if not (conversation.is_later or is_together):
            return None
    except InputError:  # it was served: another part of the body says what it asks
        return None
    roles = [turn.role for turn in conversation.turns if turn.role not in SYSTEM_ROLES]
    known_by: list[Any] = [caller, application, session]
    if not is_together:
        turns = fields[TURN_FIELDS[path]]
        added = len(conversation.turns) - len(turns)  # a system prompt that is no turn of the body
        of_body = zip(turns, conversation.turns[added:], strict=True)
        spoken_turns = [turn for turn, read in of_body if read.role not in SYSTEM_ROLES]
        known_by.append(spoken_turns[: _beginning(roles)])
    name = blake2b(
        dump_json(known_by),
        key=blake2b(key, digest_size=32).digest(),
        person=b"conversation",
        digest_size=_DIGEST_BYTES,
    ).hexdigest()
    return ConversationTurn(name, turn_number(conversation.answers, is_together=is_together))


def _beginning(roles: Sequence[str]) -> int:
    """The number of turns up to the one after the first answer to the user."""
    has_user = has_answer = False
    for place, role in enumerate(roles):
        if has_answer and role != "assistant":
            return place + 1
        has_answer = has_answer or (has_user and role == "assistant")
        has_user = has_user or role == "user"
    return len(roles)
