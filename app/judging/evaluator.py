"""The evaluator: a model that rates its confidence in the candidates' answers. Paper, Sec. 3.3.

Ratings only weigh votes. The set and its guarantee are fixed before an answer is rated, so a failed
rating voids no certificate.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from app.judging.rater import Rater
from app.settings import Settings, rater_name
from app.upstream.fleet import GATEWAY, Fleet
from racer_core.aggregation.answers import Equality, normalise


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratings:
    """The evaluator's ratings of the answers to one request."""

    weights: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    failures: Mapping[str, str] = field(default_factory=dict[str, str])  # candidate -> kind
    usage: Mapping[str, int] = field(default_factory=dict[str, int])  # of all calls together
    calls: int = 0
    seconds: float = 0.0
    candidate: str | None = None  # that is the evaluator; None: another model
    is_estimated: bool = False  # what the calls used

    def as_json(self) -> dict[str, Any] | None:
        """The wire form, without the weights; None where no evaluator was called."""
        if not self.calls:
            return None
        return {
            "calls": self.calls,
            "ms": round(self.seconds * 1e3, 2),
            "failures": dict(self.failures),
            "usage": dict(self.usage),
        }


UNRATED: Final = Ratings()


class Evaluator:
    """Rates answers with the configured model; with `weight: router` it calls none."""

    def __init__(self, settings: Settings, fleet: Fleet) -> None:
        self._rule = settings.aggregation
        self._raters = {
            name: Rater(
                name=name, spec=spec, kinds=(self._rule.weight,), settings=settings, fleet=fleet
            )
            for name, spec in self._rule.raters.items()
        }

    @property
    def is_configured(self) -> bool:
        """Whether there is a model that rates."""
        return bool(self._raters)

    async def check(self) -> None:
        """Call every evaluator a few times: one that cannot rate as configured stops the start.

        Raises:
            SettingsError: An evaluator answers, but not as the configured weight requires.
            UpstreamError: An evaluator cannot be reached, or breaks.
        """
        for rater in self._raters.values():
            await rater.check(
                cure="start it before the gateway, or choose `weight: router`",
                other="choose `weight: verbal`",
            )

    async def rate(
        self,
        question: str,
        answers: Mapping[str, str],
        group: str | None,
        forms: Mapping[str, str | None] | None = None,
        *,
        deadline: float = math.inf,
        caller: str = GATEWAY,
        left: Callable[[Ratings], None] | None = None,
    ) -> Ratings:
        """Rate the answers that can win a vote, all at once. Equal answers are not rated.

        Args:
            question: The question to the candidates.
            answers: Candidate to answer; equal texts are rated once.
            group: The group, whose own evaluator is called; None or a group without one takes the
                common evaluator.
            forms: Forms of the answers, the same for answers that count as one; None: those of
                the same text do.
            deadline: A ``time.monotonic()``; the evaluator has its own time limit, too.
            caller: The name of the API key that causes the calls.
            left: Takes the calls, without weights, where the client leaves meanwhile.

        Returns:
            A weight for every readable answer; None where the evaluator gave none.
        """
        if not self._raters:
            return UNRATED
        if forms is None:
            forms = {name: normalise(Equality.EXACT, text) for name, text in answers.items()}
        readable = {name: text for name, text in answers.items() if forms.get(name) is not None}
        if len({forms[name] for name in readable}) < 2:
            return UNRATED
        rater = self._raters.get(rater_name(group)) or self._raters[rater_name(None)]
        started = time.monotonic()
        until = min(deadline, started + rater.timeout_s)
        texts = readable.values()
        try:
            rated = await rater.rate(question, texts, deadline=until, caller=caller)
        except asyncio.CancelledError:
            if left is not None:
                calls = rater.unheard(question, texts)
                left(
                    Ratings(
                        usage=calls.usage,
                        calls=calls.calls,
                        seconds=time.monotonic() - started,
                        candidate=rater.candidate,
                        is_estimated=True,
                    )
                )
            raise
        weight = self._rule.weight
        ratings = {name: rated.ratings[text] for name, text in readable.items()}
        return Ratings(
            weights={name: each.values[weight] for name, each in ratings.items()},
            failures={
                name: each.failures[weight] for name, each in ratings.items() if each.failures
            },
            usage=rated.usage,
            calls=rated.calls,
            seconds=time.monotonic() - started,
            candidate=rater.candidate,
        )
