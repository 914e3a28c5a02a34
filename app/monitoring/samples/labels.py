"""Labels of the shadow sample: which samples wait for one, and the verdicts of judge models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.errors import Conflict
from app.monitoring.decisions.writer import DecisionWriter
from app.monitoring.samples.record import SampledDecision
from app.monitoring.samples.store import SampleStore
from racer_core.errors import InputError


class SampleLabels:
    """What the labelling endpoints use of monitoring.

    Args:
        samples: Where samples and judgements are stored.
        decision_writer: Where a decision may still wait to be written.
    """

    def __init__(self, samples: SampleStore, decision_writer: DecisionWriter) -> None:
        self._samples = samples
        self._decision_writer = decision_writer

    async def waiting(
        self,
        *,
        application: str | None,
        judge: str | None,
        since: str | None,
        limit: int,
    ) -> dict[str, Any]:
        """The samples that wait for a label with their requests and answers, oldest first.

        Args:
            application: Only its requests; None: those of all.
            judge: They wait for this judge model's verdicts; None: for verdicts that count.
            since: Only decisions from then on: UTC, ISO 8601. All of them are counted.
            limit: The largest number of samples to return.

        Raises:
            Conflict: The configuration stores no requests.
            StoreError: The store cannot be used, or the key does not decrypt the requests.
        """
        if not self._samples.stores_requests:
            raise Conflict(
                "requests are not stored, so that their answers cannot be shown: set "
                "`watching.store_requests` and $RACER_SAMPLES_KEY and restart"
            )
        found, count = await self._samples.run(self._waiting, application, judge, since, limit)
        return {"object": "list", "waiting": count, "data": [_as_json(each) for each in found]}

    async def progress(
        self, alphas: Mapping[str | None, float]
    ) -> list[dict[str, str | int | float | None]]:
        """Samples that wait and that are labelled, and the rows that alpha needs, by application.

        Args:
            alphas: Application -> its alpha; None -> alpha where no applications are configured.

        Raises:
            StoreError: The store cannot be used.
        """
        counts = await self._samples.run(self._samples.counts)
        return [
            {
                "application": name,
                "waiting": counts.get(name, (0, 0))[0],
                "labelled": counts.get(name, (0, 0))[1],
                "alpha": alpha,
                "needed": fewest_rows(alpha),
            }
            for name, alpha in alphas.items()
        ]

    def _waiting(
        self, application: str | None, judge: str | None, since: str | None, limit: int
    ) -> tuple[list[SampledDecision], int]:
        return self._samples.waiting(application, limit, judge=judge, since=since)

    async def add_judgements(
        self, decision_id: str, judge: str, correct: Mapping[str, bool]
    ) -> int:
        """Store a judge's verdicts on all answers to a sample. Returns how many are new.

        Raises:
            NotFound: The decision is not stored, or not in the sample.
            InputError: They are not about exactly the candidates of the decision's pool.
            StoreError: The store cannot be used.
        """
        await self._decision_writer.written(decision_id)
        sampled = await self._samples.run(self._samples.get, decision_id)
        pool = sampled.decision.pool
        if unknown := [name for name in correct if name not in pool]:
            raise InputError(
                f"{unknown[0][:128]!r} is not in the decision's pool {list(pool)}", param="correct"
            )
        if missing := [name for name in pool if name not in correct]:
            raise InputError(f"no verdict on {missing[0]!r}: judge all answers", param="correct")

        def add() -> int:
            return self._samples.add_judgements(decision_id, correct, judge=judge)

        return await self._samples.run(add)


def fewest_rows(alpha: float) -> int:
    """The fewest rows that count for a threshold below the whole pool: 1 / (n + 1) <= alpha."""
    rows = max(0, int(1 / alpha) - 1)
    while 1 / (rows + 1) > alpha:
        rows += 1
    return rows


def _as_json(sampled: SampledDecision) -> dict[str, Any]:
    """The wire form of a sample with its request."""
    decision, sample = sampled.decision, sampled.sample
    assert sample is not None
    assert sample.exchange is not None
    exchange = sample.exchange
    return {
        "decision_id": decision.decision_id,
        "created_at": decision.created_at,
        "application": sample.application,
        "request": exchange.request,
        "answers": exchange.answers,
        "calls": exchange.calls,
        "classes": sample.classes,
        "correct": sampled.correct,
    }
