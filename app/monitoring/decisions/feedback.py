"""Feedback: verdicts on candidates' answers, who may give them, and which of them count.

A verdict that counts is never changed. A verdict that waits gives way to an admin's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from app.access.api_keys import Caller
from app.errors import Conflict, NotFound
from app.monitoring.decisions.store import DecisionStore, StoredDecision, unknown_decision
from app.monitoring.decisions.writer import DecisionWriter
from app.monitoring.metrics import MonitoringMetrics
from app.settings.access import CHECKER, SAMPLING
from racer_core.errors import InputError

PAUSES_S: Final = (0.2, 0.3, 0.5)  # a second in all; a decision waits half a second to be written


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackResult:
    """A decision after feedback."""

    decision: StoredDecision
    repeated: bool  # no verdict was new

    def as_json(self) -> dict[str, Any]:
        """The wire form."""
        return verdicts_as_json(self.decision) | {"repeated": self.repeated}


class Feedback:
    """Takes verdicts.

    Args:
        decision_store: Where they are stored.
        decision_writer: Where a decision may still wait to be written.
        counting: Which keys' verdicts count at once.
        on_verdicts: Called on a thread with a decision whose verdicts changed.
        metrics: Where verdicts are counted.
    """

    def __init__(
        self,
        *,
        decision_store: DecisionStore,
        decision_writer: DecisionWriter,
        counting: Literal["admin", "all"],
        on_verdicts: Callable[[StoredDecision], None],
        metrics: MonitoringMetrics,
    ) -> None:
        self._decision_store = decision_store
        self._decision_writer = decision_writer
        self._counting = counting
        self._on_verdicts = on_verdicts
        self._metrics = metrics

    def reconfigure(self, counting: Literal["admin", "all"]) -> None:
        """Count the verdicts of other keys at once."""
        self._counting = counting

    async def decision(self, decision_id: str, caller: Caller) -> StoredDecision:
        """A decision, as the key that made it or an admin may see it.

        Raises:
            NotFound: It is not stored, or belongs to another key: the caller cannot tell which.
            StoreError: The store cannot be used.
        """
        await self._decision_writer.written(decision_id)
        found = await self._find(decision_id)
        if caller.role == "admin":
            return found
        if found.decision.key != caller.name:
            raise unknown_decision(decision_id)
        return replace(found, decision=found.decision.as_its_key_sees_it())

    async def _find(self, decision_id: str) -> StoredDecision:
        """A decision of this gateway, or of another one that is about to write it."""
        for pause_s in PAUSES_S if self._decision_store.is_shared else ():
            try:
                return await self._decision_store.run(self._decision_store.get, decision_id)
            except NotFound:
                await asyncio.sleep(pause_s)
        return await self._decision_store.run(self._decision_store.get, decision_id)

    async def add(
        self, decision_id: str, correct: Mapping[str, bool], caller: Caller
    ) -> FeedbackResult:
        """Take verdicts on some candidates of a decision: all of them or none.

        Raises:
            NotFound: As :meth:`decision`.
            InputError: A candidate is not in the decision's pool.
            Conflict: Another verdict on the same answer is stored already.
            StoreError: The store cannot be used.
        """
        await self.decision(decision_id, caller)
        counts = caller.role == "admin" or self._counting == "all"

        def new_verdicts(stored: StoredDecision) -> dict[str, bool]:
            return _new_verdicts(stored, correct, caller, counts=counts)

        return await self._add(decision_id, new_verdicts, key=caller.name, counts=counts)

    async def add_checked(self, decision_id: str, correct: Mapping[str, bool]) -> None:
        """Take the verdicts of an application's checker. They count; those that count already stay.

        Raises:
            NotFound: The decision is not stored.
            StoreError: The store cannot be used.
        """
        await self._decision_writer.written(decision_id)

        def new_verdicts(stored: StoredDecision) -> dict[str, bool]:
            return {name: right for name, right in correct.items() if name not in stored.counted}

        await self._add(decision_id, new_verdicts, key=CHECKER, counts=True)

    async def add_failed(self, decision_id: str, candidates: Collection[str]) -> None:
        """Let candidates count as wrong that gave no answer; verdicts that are stored stay.

        Raises:
            NotFound: The decision is not stored.
            StoreError: The store cannot be used.
        """

        def new_verdicts(stored: StoredDecision) -> dict[str, bool]:
            return {name: False for name in candidates if name not in stored.verdicts}

        await self._write(decision_id, new_verdicts, key=SAMPLING, counts=True)

    async def _add(
        self,
        decision_id: str,
        new_verdicts: Callable[[StoredDecision], Mapping[str, bool]],
        *,
        key: str,
        counts: bool,
    ) -> FeedbackResult:
        stored, new = await self._write(decision_id, new_verdicts, key=key, counts=counts)
        if new:
            self._metrics.verdicts.labels(str(counts).lower()).inc(new)
        return FeedbackResult(decision=stored, repeated=not new)

    async def _write(
        self,
        decision_id: str,
        new_verdicts: Callable[[StoredDecision], Mapping[str, bool]],
        *,
        key: str,
        counts: bool,
    ) -> tuple[StoredDecision, int]:
        """Write verdicts; returns the decision then, and how many were new."""

        def write() -> tuple[StoredDecision, int]:
            stored, new = self._decision_store.add_verdicts(
                decision_id, new_verdicts, key=key, counts=counts
            )
            self._on_verdicts(stored)
            return stored, new

        return await self._decision_store.run(write)

    async def accept(self, decision_ids: Sequence[str]) -> list[StoredDecision]:
        """Let verdicts that wait count, of all these decisions or of none.

        Raises:
            NotFound: One of them is not stored.
            StoreError: The store cannot be used.
        """
        for decision_id in decision_ids:
            await self._decision_writer.written(decision_id)
        return await self._decision_store.run(self._accept, decision_ids)

    def _accept(self, decision_ids: Sequence[str]) -> list[StoredDecision]:
        accepted = self._decision_store.accept(decision_ids)
        for stored in accepted:
            self._on_verdicts(stored)
        return accepted


def verdicts_as_json(stored: StoredDecision) -> dict[str, Any]:
    """The verdicts on a decision's answers."""
    return {
        "decision_id": stored.decision.decision_id,
        "correct": {name: each.correct for name, each in stored.verdicts.items()},
        "waiting": [name for name, each in stored.verdicts.items() if not each.counts],
        "unknown": [name for name in stored.decision.pool if name not in stored.verdicts],
        "shadow": stored.decision.shadow_rate is not None,
    }


def _new_verdicts(
    stored: StoredDecision, correct: Mapping[str, bool], caller: Caller, *, counts: bool
) -> dict[str, bool]:
    """The verdicts that change something."""
    pool = stored.decision.pool
    if unknown := [name for name in correct if name not in pool]:
        raise InputError(
            f"{unknown[0][:128]!r} is not in the decision's pool {list(pool)}", param="correct"
        )
    new: dict[str, bool] = {}
    for name, right in correct.items():
        earlier = stored.verdicts.get(name)
        if earlier is None or (earlier.correct == right and counts > earlier.counts):
            new[name] = right
        elif earlier.correct != right and (
            caller.role != "admin" or (earlier.counts and earlier.key != SAMPLING)
        ):
            raise Conflict(
                f"{name} already has another verdict for this decision; nothing was changed"
            )
        elif earlier.correct != right and stored.loss is not None:
            raise Conflict(
                f"the loss of this decision is already counted, in the risk and the drift alarms, "
                f"with the gateway's own verdict on {name}; nothing was changed: correct a verdict "
                "of the gateway before the last answer has one"
            )
        elif earlier.correct != right:
            new[name] = right  # an admin's verdict replaces one that waits, or the gateway's own
    return new
