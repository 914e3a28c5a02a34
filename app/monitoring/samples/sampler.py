"""Sampler: the shadow sample of live traffic, from the draw of a decision to its labelled row.

:class:`Sampler` draws decisions at rates that keep the budget of calls, stores their requests and
answers, and reads them again: as samples that wait for a label, and as rows.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, Final

from app.errors import Conflict, StoreDamaged, StoreError
from app.monitoring.decisions.statistics import DecisionStatistics
from app.monitoring.decisions.writer import DecisionWriter
from app.monitoring.metrics import MonitoringMetrics
from app.monitoring.samples.draw import ConversationTurn, ShadowSample, conversation_turn
from app.monitoring.samples.record import Sample, SampledDecision, SampledExchange
from app.monitoring.samples.rows import LABELS_ALONE, labelled_rows
from app.monitoring.samples.store import SampleStore
from app.routing.conditions import ConditionReader
from app.settings import GroupBy
from app.settings.monitoring import MonitoringSettings
from app.store import Store
from app.store.encryption import Cipher
from racer_core.calibration.threshold import fewest_rows
from racer_core.errors import InputError

log = logging.getLogger(__name__)

PART_BYTES: Final = 2**18  # of rows that are sent together


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOptions:
    """What a sampler knows of the gateway beside the settings of monitoring.

    Attributes:
        key: Secret of the draws and of the conversations' hashes, which the store keeps.
        conditions: Finds what candidates are sent for a request.
        group_by: The configured origin of a request's group.
        rates: Sampling rates of applications with one of their own.
        together: The applications whose first and later turns are one population.
        drawn: The applications whose rows are requests drawn from their traffic.
        sampled_under: As :func:`app.monitoring.samples.rows.population_digests` gives it.
        pool: The candidates that rows label, in order.
        answer_setup: Digest of when answers are equal, as
            :func:`app.same_answer.calibrations.answer_setup` gives it.
        cipher: Encrypts the requests of samples; None: they are not stored.
    """

    key: bytes
    conditions: ConditionReader
    group_by: GroupBy
    rates: Mapping[str, float] = field(default_factory=dict[str, float])
    together: Collection[str] = ()
    drawn: Collection[str] = ()
    sampled_under: str = ""
    pool: Sequence[str] = ()
    answer_setup: str | None = None
    cipher: Cipher | None = None


class Sampler:
    """Draws, stores and reads the shadow sample.

    Args:
        options: What is sampled, and how rows are made of it.
        settings: The sampling rate, its budget, and whether requests are stored.
        store: Where samples are stored.
        decision_writer: Where a decision may still wait to be written.
        metrics: Where samples are counted.
    """

    def __init__(
        self,
        options: SamplerOptions,
        *,
        settings: MonitoringSettings,
        store: Store,
        decision_writer: DecisionWriter,
        metrics: MonitoringMetrics,
    ) -> None:
        self._options = options
        self._store = store
        self._decision_writer = decision_writer
        self._metrics = metrics
        self._budget = settings.shadow_calls_per_day
        self._statistics = DecisionStatistics(store)
        self._scored_by: tuple[str, Mapping[str, str]] | None = None
        self.sampled_under = options.sampled_under
        self.answer_setup = options.answer_setup
        self._sample = ShadowSample(settings.shadow_rate, options.rates, options.key)
        self._samples = SampleStore(store, options.cipher if settings.store_requests else None)
        self.labels = SampleLabels(self._samples, decision_writer)

    def follow(self, setup: str, inputs: Mapping[str, str], answer_setup: str) -> None:
        """Take scores of an artifact that was loaded as rows.

        Args:
            setup: Digest of artifact and fleet, by which its calibrations are stored.
            inputs: What decides its scores beside it: ``Artifact.inputs``.
            answer_setup: Digest of when answers are equal, which its encoder may decide.
        """
        self._scored_by, self.answer_setup = (setup, inputs), answer_setup

    def reconfigure(self, settings: MonitoringSettings, rates: Mapping[str, float]) -> None:
        """Draw at other rates; the next :meth:`fit_budget` fits them to the budget.

        Args:
            settings: The sampling rate and its budget.
            rates: The rates of applications with one of their own.
        """
        self._budget = settings.shadow_calls_per_day
        share = 1.0 if self._budget is None else self._sample.share
        self._sample = ShadowSample(settings.shadow_rate, rates, self._options.key, share)
        self._metrics.sampling_share.set(share)

    # The draw --------------------------------------------------------------------------------

    @property
    def is_on(self) -> bool:
        """Whether any decision may be drawn."""
        return self._sample.is_on

    def turn_of(
        self,
        fields: Mapping[str, Any],
        path: str,
        *,
        caller: str,
        application: str | None,
        session: str | None,
        is_together: bool,
    ) -> ConversationTurn | None:
        """As :func:`app.monitoring.samples.draw.conversation_turn`, with the sample's key."""
        return conversation_turn(
            self._options.key,
            fields,
            path,
            caller=caller,
            application=application,
            session=session,
            is_together=is_together,
        )

    def draw(self, decision_id: str, rate: float, turn: ConversationTurn | None = None) -> bool:
        """As :meth:`app.monitoring.samples.draw.ShadowSample.draw`."""
        return self._sample.draw(decision_id, rate, turn)

    def rate_of(self, application: str | None) -> float:
        """The rate in force for an application's requests."""
        return self._sample.rate_of(application)

    def fit_budget(self) -> None:
        """Lower the rates where the traffic would exceed the budget of calls. Blocks."""
        if self._budget is None or not self._sample.is_on:
            return
        try:
            requests = self._statistics.daily_requests(
                datetime.now(UTC), by_application=self._sample.has_rates
            )
        except StoreError as exc:
            log.warning("the sampling rates stay as they are: %s", exc)
        else:
            calls = len(self._options.pool) - 1
            share = self._sample.fit_budget(requests, calls=calls, budget=self._budget)
            self._metrics.sampling_share.set(share)

    # Samples ---------------------------------------------------------------------------------

    async def add(self, sample: Sample) -> bool:
        """Store a sample once its decision is stored; returns False where that is not kept.

        Raises:
            StoreError: The store cannot be used.
        """
        await self._decision_writer.written(sample.decision_id)
        sample = replace(sample, answer_setup=self.answer_setup)
        return await self._store.run(self._samples.add, sample)

    async def unlabelled(self, application: str, before: str) -> list[str]:
        """As :meth:`app.monitoring.samples.store.SampleStore.unlabelled`."""
        if not self._samples.stores_requests:
            return []
        return await self._store.run(self._samples.unlabelled, application, before)

    async def get(self, decision_id: str) -> SampledDecision:
        """A sampled decision with its request. Raises NotFound, StoreError."""
        return await self._store.run(self._samples.get, decision_id)

    def count(self, outcome: str) -> None:
        """Count a sampled decision by what became of it."""
        self._metrics.samples.labels(outcome).inc()

    # Rows ------------------------------------------------------------------------------------

    async def rows(
        self,
        *,
        application: str | None = None,
        since: str | None = None,
        any_pool: bool = False,
        judge: str | None = None,
        labels: int | None = None,
    ) -> tuple[AsyncIterator[bytes], int]:
        """The decisions of the shadow sample as labelled rows, JSON lines, oldest first.

        Args:
            application: Only its requests; None: those of all.
            since: Only decisions from then on: UTC, ISO 8601.
            any_pool: All stored requests, each with the candidates of its own time.
            judge: The judge model whose verdicts rows carry; None: the one with verdicts on most;
                `LABELS_ALONE`: none.
            labels: The number of labels beside verdicts, fixed beforehand; None: as many as there
                are in random order.

        Returns:
            Some rows at a time, and how many lost their label beside a judge's verdicts. The store
            may fail between them: StoreError.

        Raises:
            InputError: There are fewer labels in random order.
            StoreError: The store cannot be used, or no key decrypts the newest requests.
        """

        def begin() -> tuple[Iterator[bytes], bytes, int]:
            lines, left_out = self._rows(
                self._scored_by, application, since, judge, labels, any_pool
            )
            return lines, _join(lines), left_out

        lines, first, left_out = await self._store.run(begin)

        async def parts() -> AsyncIterator[bytes]:
            part = first
            while part:
                yield part
                part = await self._store.run(_join, lines)

        return parts(), left_out

    def _rows(
        self,
        scored_by: tuple[str, Mapping[str, str]] | None,
        application: str | None,
        since: str | None,
        judge: str | None,
        labels: int | None,
        any_pool: bool,
    ) -> tuple[Iterator[bytes], int]:
        options, samples = self._options, self._samples
        samples.check_readable(application, since)

        def sent_now(exchange: SampledExchange) -> Mapping[str, str]:
            return options.conditions.read(exchange.request, exchange.path).digests

        return labelled_rows(
            partial(samples.rows, application=application, since=since),
            options.pool,
            group_by=options.group_by,
            drawn=options.drawn,
            together=options.together,
            sampled_under=options.sampled_under,
            conditions_of=cache(self._conditions_of),
            stores_requests=samples.stores_requests,
            own=[] if scored_by is None else self._store.ids_scored_by(*scored_by),
            sent_now=sent_now,
            any_pool=any_pool,
            judge=judge if samples.has_judgements(application, since) else LABELS_ALONE,
            labels=labels,
        )

    def _conditions_of(self, calibration_id: str) -> tuple[str, ...] | None:
        """The digests of a calibration's rows; None where they say nothing about its decisions."""
        try:
            first = self._store.record(calibration_id).populations[0]
        except StoreDamaged as exc:
            log.warning("%s: its decisions are no shadow rows", exc)
            return None
        return None if first.drawn else first.conditions  # drawn rows have other digests


def _join(lines: Iterator[bytes]) -> bytes:
    """Some of the lines; empty at the end."""
    part = bytearray()
    for line in lines:
        part += line
        if len(part) >= PART_BYTES:
            break
    return bytes(part)


# Labels of the shadow sample: which samples wait for one, and the verdicts of judge models.


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
