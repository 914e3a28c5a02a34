"""Session affinity: conversations keep their candidates while that is worth it.

At each place of the order in which candidates are called, the candidate m of the turn before stays
in front of the candidate b that this turn's scores put there, while

    f(x, m) + alpha (1 - c(m)) >= f(x, b)

where c(m) is the cost of its call with a warm prompt cache over that with a cold one, half of it
its price and half its computation (:mod:`racer_core.calibration.kept_order`). Its replica is kept
by :mod:`app.upstream.affinity`. A session holds one conversation at a time: a request without
earlier turns begins anew.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from cachetools import TTLCache

from app.answering.request import InferenceRequest
from app.routing.decision import CertifiedDecision, ConversationTerms, SessionTurn
from racer_core.calibration.kept_order import Continuation
from racer_core.records.conversation import turn_sizes
from racer_core.records.request import conversation_of
from racer_core.records.whole_conversations import TurnMark

_MAX_SESSIONS: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Session:
    order: tuple[str, ...]
    terms: ConversationTerms | None
    mark: TurnMark


class Sessions:
    """The conversations of sessions, in a TTL cache.

    Args:
        ttl_s: Seconds that one is kept after its last turn; None keeps none.
        query_chars: Characters of a query that are read, as of a row.
    """

    def __init__(self, ttl_s: float | None, query_chars: int) -> None:
        self._query_chars = query_chars
        self._sessions: TTLCache[bytes, _Session] | None = None
        if ttl_s is not None:
            self._sessions = TTLCache(_MAX_SESSIONS, ttl_s)

    def turn_of(self, session: str, request: InferenceRequest) -> SessionTurn | None:
        """The turn of a session that a request is; None where sessions are off.

        Args:
            session: The session, with its caller.
            request: The request.
        """
        if self._sessions is None:
            return None
        conversation = conversation_of(request.fields, request.api_format.path)
        sizes = turn_sizes(conversation.earlier, conversation.query[: self._query_chars])
        before = self._sessions.get(_key(session)) if request.query.later else None
        texts = conversation.texts
        is_next = before is not None and before.mark.is_followed_by(texts)
        return SessionTurn(
            continuation=Continuation(() if before is None else before.order, sizes),
            is_first=not request.query.later,
            mark=TurnMark.of(texts),
            terms=before.terms if before is not None and is_next else None,
        )

    def keep(self, session: str, turn: SessionTurn | None, routed: CertifiedDecision) -> None:
        """Note what the next turn of a session takes over; its time begins anew.

        A turn that no threshold decided changes no order, and it ends the conversation's terms.

        Args:
            session: The session, with its caller.
            turn: The turn that was decided.
            routed: Its decision.
        """
        if self._sessions is None or turn is None:
            return
        key = _key(session)
        before = self._sessions.get(key)
        order = routed.decision.order or (() if before is None else before.order)
        self._sessions[key] = _Session(order, routed.conversation, turn.mark)


def _key(session: str) -> bytes:
    return hashlib.blake2b(session.encode(), digest_size=16).digest()  # bounds the key's size
