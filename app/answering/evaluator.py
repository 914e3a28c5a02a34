"""Asks an evaluator model how sure it is of the candidates' answers. Paper, Sec. 3.3.

Its ratings only weigh votes: the set and its guarantee are settled before an answer is rated, so a
rating that fails voids nothing.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from app.answering.evaluator_prompt import TOP, prompt, read
from app.errors import SettingsError, UpstreamError
from app.settings import EvaluatorModel, Settings, rater_name
from app.upstream.completions import Completion, Endpoint
from app.upstream.fleet import Fleet
from racer_core.aggregation.answers import normalise
from racer_core.aggregation.vote import Weight

log = logging.getLogger(__name__)

CHECK_TIMEOUT_S: Final = 30.0  # at start; a server's first answer is slow


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratings:
    """What the evaluator said about the answers of one request."""

    weights: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    failures: Mapping[str, str] = field(default_factory=dict[str, str])  # candidate -> kind
    usage: Mapping[str, int] = field(default_factory=dict[str, int])  # of all calls together
    calls: int = 0
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any] | None:
        """The wire form of what stands beside the weights; None when nobody was asked."""
        if not self.calls:
            return None
        return {
            "calls": self.calls,
            "ms": round(self.seconds * 1e3, 2),
            "failures": dict(self.failures),
            "usage": dict(self.usage),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rater:
    endpoint: Endpoint
    model: str
    prompt_chars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rating:
    weight: float | None = None
    failure: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict[str, int])


class Evaluator:
    """Rates answers with the configured model; with `weight: router` it asks nobody."""

    def __init__(self, settings: Settings, fleet: Fleet) -> None:
        self._rule = settings.aggregation
        self._fleet = fleet
        self._raters = {
            name: _rater(name, spec, settings) for name, spec in self._rule.raters.items()
        }

    async def check(self) -> None:
        """Ask every evaluator a few times, so that what it cannot do stops the start.

        Raises:
            SettingsError: It answers, but not as the configured weight needs it to.
            UpstreamError: It cannot be reached, or breaks.
        """
        for rater in self._raters.values():
            await self._check(rater)

    async def rate(
        self,
        question: str,
        answers: Mapping[str, str],
        group: str | None,
        forms: Mapping[str, str | None] | None = None,
        *,
        deadline: float = math.inf,
    ) -> Ratings:
        """Rate the answers that can win a vote, all at once; nobody is asked when they agree.

        Args:
            question: What the candidates were asked.
            answers: Candidate to answer; equal texts are rated once.
            group: Whose evaluator is asked; None, or one without its own, takes the common one.
            forms: What the answers count as; None reads them by the configured equality.
            deadline: A ``time.monotonic()``; the evaluator has its own limit, too.

        Returns:
            A weight for every readable answer, None where the evaluator gave none.
        """
        if not self._raters:
            return Ratings()
        if forms is None:
            forms = {name: normalise(self._rule.equality, text) for name, text in answers.items()}
        readable = {name: text for name, text in answers.items() if forms.get(name) is not None}
        if len({forms[name] for name in readable}) < 2:
            return Ratings()
        rater = self._raters.get(rater_name(group)) or self._raters[rater_name(None)]
        prompts = {
            name: prompt(question, text, rater.prompt_chars) for name, text in readable.items()
        }
        distinct = list(dict.fromkeys(prompts.values()))
        started = time.monotonic()
        said = await asyncio.gather(*(self._rating(rater, each, deadline) for each in distinct))
        by_prompt = dict(zip(distinct, said, strict=True))
        ratings = {name: by_prompt[each] for name, each in prompts.items()}
        return Ratings(
            weights={name: each.weight for name, each in ratings.items()},
            failures={name: each.failure for name, each in ratings.items() if each.failure},
            usage=_summed([each.usage for each in said]),
            calls=len(distinct),
            seconds=time.monotonic() - started,
        )

    async def _rating(self, rater: _Rater, text: str, deadline: float) -> _Rating:
        payload = _payload(rater, text, self._rule.weight)
        until = min(deadline, time.monotonic() + rater.endpoint.timeout_s)
        try:
            completion = await self._fleet.complete(rater.endpoint, payload, deadline=until)
        except UpstreamError as exc:
            return _Rating(failure=exc.kind)
        except Exception:  # ours, but no reason to fail the answer
            log.exception("%s failed unexpectedly", rater.endpoint.name)
            return _Rating(failure=UpstreamError.default_kind)
        weight = read(self._rule.weight, completion)
        failure = "evaluation_unreadable" if weight is None else None
        return _Rating(weight=weight, failure=failure, usage=completion.usage)

    async def _check(self, rater: _Rater) -> None:
        patient = replace(rater, endpoint=replace(rater.endpoint, timeout_s=CHECK_TIMEOUT_S))
        name, chars = rater.endpoint.name, rater.prompt_chars
        short = prompt("What is 1 plus 1?", "2", chars)
        said = await self._probe(
            _payload(patient, short, Weight.VERBAL),
            patient.endpoint,
            f"{name} refused a text completion: check its `base_url` and `model`, and that it "
            "serves /completions as vLLM does",
        )
        longest = prompt("What is one plus one? " * chars, "2", chars)
        await self._probe(
            _payload(patient, longest, Weight.VERBAL),
            patient.endpoint,
            f"{name} refused a prompt of {chars:,} characters: lower its `prompt_chars`",
        )
        if self._rule.weight is Weight.VERBAL and read(Weight.VERBAL, said) is None:
            log.warning(
                "%s rated a trial answer with neither 0 nor 1: where it does so, the vote is the "
                "majority's",
                name,
            )
        if self._rule.weight is Weight.P_TRUE:
            completion = await self._probe(
                _payload(patient, short, Weight.P_TRUE),
                patient.endpoint,
                f"{name} refused `logprobs: {TOP}`: start vLLM with `--max-logprobs {TOP}` or "
                "more, or choose `weight: verbal`",
            )
            if completion.top is None:
                raise SettingsError(
                    f"{name} answered without logprobs, which `weight: p_true` reads: serve it "
                    "with vLLM, or choose `weight: verbal`"
                )

    async def _probe(
        self, payload: Mapping[str, Any], endpoint: Endpoint, refusal: str
    ) -> Completion:
        deadline = time.monotonic() + endpoint.timeout_s
        try:
            return await self._fleet.complete(endpoint, payload, deadline=deadline)
        except UpstreamError as exc:
            if exc.kind == "upstream_rejected":
                raise SettingsError(refusal) from exc
            if exc.lasting or exc.kind == "upstream_invalid_response":
                raise SettingsError(
                    f"{exc}: check the evaluator's `base_url`, `model` and `api_key_env`"
                ) from exc
            cure = "start it before the gateway, or choose `weight: router`"
            raise type(exc)(f"{exc}: {cure}", kind=exc.kind) from exc


def _rater(name: str, spec: EvaluatorModel, settings: Settings) -> _Rater:
    """Where a rater is: at one of the candidates' servers, or at its own."""
    if spec.candidate is None:
        target, model = name, spec.model or name
    else:
        candidate = next(each for each in settings.candidates if each.name == spec.candidate)
        target, model = candidate.name, candidate.served_as
    return _Rater(
        endpoint=Endpoint(name=name, target=target, timeout_s=spec.timeout_s),
        model=model,
        prompt_chars=spec.prompt_chars,
    )


def _payload(rater: _Rater, text: str, weight: Weight) -> dict[str, Any]:
    """One token, the likeliest."""
    asked = {"model": rater.model, "prompt": text, "max_tokens": 1, "temperature": 0}
    return asked | {"logprobs": TOP} if weight is Weight.P_TRUE else asked


def _summed(usages: list[Mapping[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for usage in usages for name in usage)
    return {name: sum(usage.get(name, 0) for usage in usages) for name in names}
