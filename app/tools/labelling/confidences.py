"""Recording of evaluators' confidences in labelled answers, verbal and P(True). Paper, Sec. 3.3.

Every answer is rated by the code that weighs votes when serving (:mod:`app.judging.rater`), so
that offline votes have the weights of served ones. A failed rating is null, as it is when serving;
no label depends on it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from app.errors import SettingsError
from app.judging.rater import UNREADABLE, Rater, Rating
from app.settings import EvaluatorModel, Secrets, Settings, rater_name
from app.telemetry.metrics import Metrics
from app.upstream.fleet import Fleet
from racer_core.aggregation.vote import Weight

MAX_FAILURES_IN_A_ROW: Final = 20  # then an evaluator is not called again in this run
KINDS: Final = (Weight.VERBAL, Weight.P_TRUE)
_OTHER: Final = "label without it"
_CURE: Final = f"start its server, or {_OTHER}"

# Kind of confidence -> value in [0, 1]; None is a rating that failed.
AnswerConfidences = Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingOptions:
    """Which evaluators rate the answers, and in which form."""

    evaluators: tuple[str, ...] = ()  # candidates; none: the evaluators of the configuration
    kinds: tuple[Weight, ...] = KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingPlan:
    """The evaluators of each question; by default none."""

    kinds: tuple[Weight, ...] = ()
    common: tuple[str, ...] = ()  # of questions whose group has none of its own
    of_groups: Mapping[str, str] = field(default_factory=dict[str, str])
    # Name in the rows -> name in messages and metrics, and the model.
    models: Mapping[str, tuple[str, EvaluatorModel]] = field(
        default_factory=dict[str, tuple[str, EvaluatorModel]]
    )

    def evaluators(self, group: str | None) -> tuple[str, ...]:
        """The evaluators of a group's questions."""
        if group is not None and group in self.of_groups:
            return (self.of_groups[group],)
        return self.common

    def is_complete(self, values: AnswerConfidences | None) -> bool:
        """Whether all kinds of confidence were recorded, as numbers or as failures."""
        return values is not None and all(kind in values for kind in self.kinds)

    def identities(self, settings: Settings) -> dict[str, Any]:
        """What makes the confidences of an evaluator comparable."""
        served = {each.name: each.served_as for each in settings.candidates}
        return {
            name: {
                "model": spec.model or served[spec.candidate or name],
                "prompt_chars": spec.prompt_chars,
            }
            for name, (_, spec) in self.models.items()
        }


def rating_plan(options: RatingOptions | None, settings: Settings) -> RatingPlan:
    """The plan of the command line's options; None rates nothing.

    Raises:
        SettingsError: An evaluator is no candidate, two have one name, or there is none.
    """
    if options is None:
        return RatingPlan()
    configured = settings.aggregation.raters
    if options.evaluators:
        specs = {spec.candidate: spec for spec in configured.values() if spec.candidate}
        for name in options.evaluators:
            if name not in settings.pool:
                raise SettingsError(
                    f"--evaluator {name}: no candidate ({', '.join(settings.pool)}); an evaluator "
                    "at a server of its own is set in `aggregation.evaluator`"
                )
        names = tuple(dict.fromkeys(options.evaluators))
        models = {
            name: (f"the evaluator {name}", specs.get(name, EvaluatorModel(candidate=name)))
            for name in names
        }
        return RatingPlan(kinds=options.kinds, common=names, models=models)
    if not configured:
        raise SettingsError(
            "--confidence needs an evaluator: give --evaluator CANDIDATE, or set "
            "`aggregation.evaluator` in the configuration"
        )
    models = dict[str, tuple[str, EvaluatorModel]]()
    for title, spec in configured.items():
        name = recorded_name(spec)
        if name in models and models[name][1] != spec:
            raise SettingsError(
                f"two evaluators of the configuration have the name {name!r} in rows: give them "
                "equal settings, or rate with --evaluator"
            )
        models.setdefault(name, (title, spec))
    common = settings.aggregation.evaluator
    return RatingPlan(
        kinds=options.kinds,
        common=() if common is None else (recorded_name(common),),
        of_groups={
            group: recorded_name(spec) for group, spec in settings.aggregation.evaluators.items()
        },
        models=models,
    )


def recorded_name(spec: EvaluatorModel) -> str:
    """The name of an evaluator in rows: the candidate, or the model at its own server."""
    return spec.candidate or spec.model or rater_name(None)


@dataclass(slots=True)
class RatingCounts:
    """Counts of ratings and failures."""

    calls: int = 0  # to evaluators
    failures: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])  # by name
    given_up: set[str] = field(default_factory=set[str])

    @property
    def failed(self) -> int:
        """Confidences that are null."""
        return sum(kinds.total() for kinds in self.failures.values())

    def causes(self) -> Iterator[str]:
        """The failures, as text."""
        for name, kinds in sorted(self.failures.items()):
            for kind, count in sorted(kinds.items()):
                yield f"{name}: {count} {kind}"


class ConfidenceRecorder:
    """Rates answers as planned. Open it before use.

    It has a fleet of its own, so that failed ratings do not count against a candidate.
    """

    def __init__(self, plan: RatingPlan, settings: Settings, secrets: Secrets) -> None:
        self.plan = plan
        self._fleet = Fleet(settings, secrets, metrics=Metrics())
        self._raters = {
            name: Rater(
                name=title, spec=spec, kinds=plan.kinds, settings=settings, fleet=self._fleet
            )
            for name, (title, spec) in plan.models.items()
        }
        self._failures_in_a_row: Counter[str] = Counter()
        self.counts = RatingCounts()

    async def __aenter__(self) -> Self:
        await self._fleet.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._fleet.__aexit__()

    async def check(self) -> None:
        """Call every evaluator a few times, before candidates are paid for.

        Raises:
            SettingsError: An evaluator answers, but not as its kinds of confidence require.
            UpstreamError: An evaluator cannot be reached, or breaks.
        """
        raters = self._raters.values()
        await asyncio.gather(*(each.check(cure=_CURE, other=_OTHER) for each in raters))

    async def rate(
        self, evaluator: str, question: str, texts: Collection[str]
    ) -> Mapping[str, AnswerConfidences] | None:
        """The confidences in some answers, by text; None if the evaluator was given up."""
        if self._failures_in_a_row[evaluator] >= MAX_FAILURES_IN_A_ROW:
            self.counts.given_up.add(evaluator)
            return None
        rated = await self._raters[evaluator].rate(question, texts)
        self.counts.calls += rated.calls
        for rating in rated.ratings.values():
            self.counts.failures.setdefault(evaluator, Counter()).update(
                f"{kind} {why}" for kind, why in rating.failures.items()
            )
            self._failures_in_a_row[evaluator] = (
                self._failures_in_a_row[evaluator] + 1 if _call_failed(rating) else 0
            )
        return {
            text: {kind.value: value for kind, value in rating.values.items()}
            for text, rating in rated.ratings.items()
        }


def _call_failed(rating: Rating) -> bool:
    """Whether there was no reply; an unreadable one is the model's own."""
    return any(why != UNREADABLE for why in rating.failures.values())
