"""Conversation affinity: all turns of a conversation go to one replica, whose prompt cache has it.

Rendezvous hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam 2018): each conversation
ranks the replicas by a hash, and its turns go to the first that has fewer calls in flight than

    ceil(max_load * (calls in flight + 1) / replicas)

The ranks follow from the conversation and the base URLs alone: gateways agree without a store, and
a replica that comes or goes moves its own conversations and no other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Protocol, TypeVar, cast

from app.json_output import dump_json
from racer_core.records.request import TURN_FIELDS

_DIGEST_BYTES: Final = 16


class Server(Protocol):
    """A replica."""

    @property
    def base_url(self) -> str:
        """Its address, by which gateways know it."""
        ...

    @property
    def outstanding(self) -> int:
        """Calls in flight."""
        ...


S = TypeVar("S", bound=Server)


def conversation_key(
    payload: Mapping[str, Any], path: str, *, caller: str, session: str | None
) -> bytes | None:
    """The hash that the turns of one conversation share; None for a single turn.

    It is the hash of the caller's session, where the request has one, else of the turns up to the
    first of the user, with the system prompt.

    Args:
        payload: What the candidate is sent.
        path: Its endpoint.
        caller: The name of the API key.
        session: Id of the request's session.
    """
    if session is not None:
        return _digest(dump_json([caller, session]))
    turns: object = payload.get(TURN_FIELDS.get(path, ""))
    if not isinstance(turns, list):
        return None
    end = _end_of_prefix(cast("list[object]", turns))
    if end is None:
        return None
    return _digest(dump_json([payload.get("instructions"), turns[:end]]))


def nearest(replicas: Sequence[S], conversation: bytes, max_load: float) -> S:
    """The conversation's first replica with room for a call.

    One always has room: the limit times the number of replicas is above the calls in flight.

    Args:
        replicas: Those that may be called, at least one.
        conversation: Its key.
        max_load: Limit of a replica's calls as a multiple of the mean, at least 1.
    """
    calls = sum([each.outstanding for each in replicas]) + 1
    limit = math.ceil(max_load * calls / len(replicas))
    with_room = [each for each in replicas if each.outstanding < limit]
    return max(with_room, key=lambda each: _digest(each.base_url.encode(), key=conversation))


def _end_of_prefix(turns: Sequence[object]) -> int | None:
    """The number of turns up to the first of the user; None where none follows it."""
    for place, turn in enumerate(turns[:-1]):
        if isinstance(turn, dict) and cast("dict[str, object]", turn).get("role") == "user":
            return place + 1
    return None


def _digest(data: bytes, key: bytes = b"") -> bytes:
    return blake2b(data, key=key, digest_size=_DIGEST_BYTES).digest()
