"""Chat services of one configuration: of the fallback before an artifact is loaded, and after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from app.answering.answer_cache import AnswerCaches
from app.answering.answer_forms import AnswerReader, Embed
from app.answering.cost_meter import Costs
from app.answering.evidence import EvidenceChecks
from app.answering.repeats import Repeats
from app.answering.service import ChatService
from app.answering.shadow_calls import ShadowCalls
from app.answering.spending import Spending
from app.judging.math_pool import MathPool
from app.monitoring.monitor import Monitor
from app.routing.active_calibration import ActiveCalibration
from app.routing.artifact_files import LoadedRouter
from app.routing.candidate_choice import CandidateChooser
from app.routing.conditions import ConditionReader
from app.routing.fallback import FallbackRouting
from app.routing.groups import Grouping
from app.routing.request import Routing
from app.routing.row_selection import RowSelector
from app.routing.service import RoutingService
from app.same_answer.calibrations import AnswerCalibrations
from app.same_answer.routing import SameAnswerRouting
from app.settings import Settings
from app.telemetry.metrics import Metrics
from app.telemetry.tracing import Tracer
from app.upstream.fleet import Fleet
from racer_core import artifacts
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.wording import SHIPPED, TextRule
from racer_core.records.conversation import fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatServices:
    """Makes the chat services of one configuration: one for the fallback, one for a router.

    Another configuration has its own (``dataclasses.replace``), so that a request that has begun
    keeps the service of its own. Decisions and sessions that they remember are theirs alone.
    """

    settings: Settings
    fleet: Fleet
    grouping: Grouping
    conditions: ConditionReader
    mathematics: MathPool
    active: ActiveCalibration | None
    monitor: Monitor | None
    shadow_calls: ShadowCalls
    evidence: EvidenceChecks
    answer_calibrations: AnswerCalibrations
    answer_caches: AnswerCaches | None  # None: no answers are cached
    metrics: Metrics
    tracer: Tracer | None
    costs: Costs | None  # None: candidates have no prices
    spending: Spending | None  # None: there is no budget
    salt: str = field(default_factory=artifacts.new_salt)  # of this process
    _made: dict[LoadedRouter | None, ChatService] = field(
        init=False, default_factory=dict[LoadedRouter | None, ChatService]
    )

    def of(self, router: LoadedRouter | None) -> ChatService:
        """The chat service with a router, or with the fallback alone; each is made once."""
        made = self._made.get(router)
        if made is None:
            made = self._by_fallback() if router is None else self._by_router(router)
            self._made[router] = made
        return made

    def _by_fallback(self) -> ChatService:
        """Without an artifact: queries are fingerprinted with a key of this process."""
        hashed = partial(fingerprint, self.salt)
        fallback = self._fallback(hashed)
        return self._chat(
            fallback, fallback, hashed, embed=None, stacked=None, text=None, artifact=None
        )

    def _by_router(self, router: LoadedRouter) -> ChatService:
        """With a router; the fallback answers while no calibration is active."""
        assert self.active is not None
        trained, scoring = router.trained, router.scoring
        fallback = self._fallback(trained.fingerprint)
        routing = RoutingService(
            settings=self.settings,
            trained=trained,
            scoring=scoring,
            active=self.active,
            grouping=self.grouping,
            rows=RowSelector(
                self.settings.routing.text, self.conditions.added, self.settings.own_texts
            ),
            candidates=self._candidates(),
            fallback=fallback,
            inputs=router.inputs,
            metrics=self.metrics,
        )
        return self._chat(
            routing,
            fallback,
            trained.fingerprint,
            embed=scoring.embed,
            stacked=trained.artifact.stacked,
            text=trained.artifact.text_rule,
            artifact=trained.artifact.digest,
        )

    def _candidates(self) -> CandidateChooser:
        return CandidateChooser(self.settings, self.fleet.down)

    def _fallback(self, fingerprint: Callable[[str], bytes]) -> FallbackRouting:
        return FallbackRouting(
            settings=self.settings,
            candidates=self._candidates(),
            grouping=self.grouping,
            fingerprint=fingerprint,
            metrics=self.metrics,
        )

    def _chat(
        self,
        routing: Routing,
        fallback: FallbackRouting,
        fingerprint: Callable[[str], bytes],
        *,
        embed: Embed | None,
        stacked: StackedVote | None,
        text: TextRule | None,
        artifact: str | None,
    ) -> ChatService:
        reader = AnswerReader(
            embed,
            self.mathematics.form,
            similarity=self.settings.aggregation.similarity,
            text=text or SHIPPED,
            embed_chars=self.settings.limits.query_chars,
        )
        return ChatService(
            settings=self.settings,
            routing=routing,
            fleet=self.fleet,
            reader=reader,
            monitor=self.monitor,
            shadow_calls=self.shadow_calls,
            evidence=self.evidence,
            stacked=stacked,
            same_answer=SameAnswerRouting(
                settings=self.settings,
                calibrations=self.answer_calibrations,
                candidates=self._candidates(),
                fallback=fallback,
                grouping=self.grouping,
                fingerprint=fingerprint,
                metrics=self.metrics,
            ),
            repeats=self.answer_caches and Repeats(self.answer_caches, self.settings, artifact),
            metrics=self.metrics,
            costs=self.costs,
            spending=self.spending,
            tracer=self.tracer,
        )
