"""Conversations: what a turn of a session takes over from the turns before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from racer_core.calibration.kept_order import Continuation
from racer_core.records.whole_conversations import TurnMark
from racer_core.types import Score


@dataclass(frozen=TYPE_CHECKING, slots=True, kw_only=True)
class ConversationTerms:
    """What all turns of a certified conversation have in common, as those of its rows have.

    Attributes:
        calibration_id: The calibration.
        pool: The candidates among which sets are chosen.
        alpha: The requested risk level; None: the calibration's.
        score: The requested score; None: the calibration's.
        group: The group.
        conditions: What candidates are sent beside the texts, as ``Conditions.identity``.
    """

    calibration_id: str
    pool: tuple[str, ...]
    alpha: float | None
    score: Score | None
    group: str | None
    conditions: str


@dataclass(frozen=TYPE_CHECKING, slots=True, kw_only=True)
class SessionTurn:
    """A turn of a session.

    Attributes:
        continuation: The order of the turn before, and lengths.
        is_first: The conversation begins with it.
        mark: By which the next turn is known.
        terms: Those of all turns before it; None: it is the first, they had no terms in common, or
            it is not the next turn.
    """

    continuation: Continuation
    is_first: bool
    mark: TurnMark
    terms: ConversationTerms | None = None

    def continues(self, terms: ConversationTerms | None) -> bool:
        """Whether with these terms it is a turn of a whole conversation, as rows are."""
        return self.is_first or self.terms == terms
