"""Takes verdicts on candidates' answers: who may say what, and what counts.

A verdict that counts is never changed. One that waits gives way to an admin's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from app.access.api_keys import Caller
from app.errors import Conflict, NotFound
from app.monitoring.decision_store import DecisionStore, StoredDecision, unknown_decision
from app.monitoring.decision_writer import DecisionWriter
from app.monitoring.metrics import MonitoringMetrics
from racer_core.errors import InputError

PAUSES_S: Final = (0.2, 0.3, 0.5)  # together a second: a decision gathers for half of one


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackResult:
    """What is known of a decision after somebody spoke."""

    known: StoredDecision
    repeated: bool  # nothing new was said

    def as_json(self) -> dict[str, Any]:
        """The wire form."""
        return verdicts_as_json(self.known) | {"repeated": self.repeated}


class Feedback:
    """Verdicts, one after the other.

    Args:
        decision_store: Where they are kept.
        decision_writer: Where a decision may still wait.
        counting: Whose verdicts count at once.
        complete: Told, on a thread, of a decision after verdicts that count.
        metrics: Where verdicts are counted.
    """

    def __init__(
        self,
        decision_store: DecisionStore,
        decision_writer: DecisionWriter,
        *,
        counting: Literal["admin", "all"],
        complete: Callable[[StoredDecision], None],
        metrics: MonitoringMetrics,
    ) -> None:
        self._decision_store = decision_store
        self._decision_writer = decision_writer
        self._counting = counting
        self._complete = complete
        self._metrics = metrics

    async def known(self, decision_id: str, caller: Caller) -> StoredDecision:
        """A decision, for its own key or an admin.

        Raises:
            NotFound: It is not kept, or is another key's: a stranger cannot tell which.
            StoreError: The store cannot be used.
        """
        await self._decision_writer.written(decision_id)
        known = await self._found(decision_id)
        if caller.role != "admin" and known.note.key != caller.name:
            raise unknown_decision(decision_id)
        return known

    async def _found(self, decision_id: str) -> StoredDecision:
        """A decision of this gateway, or of another one that is about to write it."""
        for pause_s in PAUSES_S if self._decision_store.is_shared else ():
            try:
                return await self._decision_store.run(self._decision_store.known, decision_id)
            except NotFound:
                await asyncio.sleep(pause_s)
        return await self._decision_store.run(self._decision_store.known, decision_id)

    async def say(
        self, decision_id: str, correct: Mapping[str, bool], caller: Caller
    ) -> FeedbackResult:
        """Take verdicts on some candidates of a decision: all of them or none.

        Raises:
            NotFound: As :meth:`known`.
            InputError: A candidate that is not in the decision's pool.
            Conflict: Another verdict on the same answer is there already.
            StoreError: The store cannot be used.
        """
        await self.known(decision_id, caller)
        counts = caller.role == "admin" or self._counting == "all"

        def fresh(known: StoredDecision) -> dict[str, bool]:
            return _fresh(known, correct, caller, counts=counts)

        def take() -> tuple[StoredDecision, int]:
            known, new = self._decision_store.say(
                decision_id, fresh, key=caller.name, counts=counts
            )
            self._complete(known)
            return known, new

        known, new = await self._decision_store.run(take)
        if new:
            self._metrics.verdicts.labels(str(counts).lower()).inc(new)
        return FeedbackResult(known=known, repeated=not new)

    async def accept(self, decision_ids: Sequence[str]) -> list[StoredDecision]:
        """Let verdicts that wait count, of all these decisions or of none.

        Raises:
            NotFound: One of them is not kept.
            StoreError: The store cannot be used.
        """
        for decision_id in decision_ids:
            await self._decision_writer.written(decision_id)
        return await self._decision_store.run(self._accept, decision_ids)

    def _accept(self, decision_ids: Sequence[str]) -> list[StoredDecision]:
        accepted = self._decision_store.accept(decision_ids)
        for known in accepted:
            self._complete(known)
        return accepted


def verdicts_as_json(known: StoredDecision) -> dict[str, Any]:
    """What is known of a decision's answers."""
    return {
        "decision_id": known.note.decision_id,
        "correct": {name: each.correct for name, each in known.verdicts.items()},
        "waiting": [name for name, each in known.verdicts.items() if not each.counts],
        "unknown": [name for name in known.note.pool if name not in known.verdicts],
        "shadow": known.note.shadow_rate is not None,
    }


def _fresh(
    known: StoredDecision, correct: Mapping[str, bool], caller: Caller, *, counts: bool
) -> dict[str, bool]:
    """The verdicts that change something."""
    if unknown := [name for name in correct if name not in known.note.pool]:
        raise InputError(
            f"{unknown[0][:128]!r} is not in the decision's pool {list(known.note.pool)}",
            param="correct",
        )
    fresh: dict[str, bool] = {}
    for name, right in correct.items():
        there = known.verdicts.get(name)
        if there is None or (there.correct == right and counts > there.counts):
            fresh[name] = right
        elif there.correct != right and (there.counts or caller.role != "admin"):
            raise Conflict(
                f"{name} already has another verdict for this decision; nothing was changed"
            )
        elif there.correct != right:
            fresh[name] = right  # an admin's word over one that waits
    return fresh
