"""The evaluator: a model that rates its confidence in the candidates' answers. Paper, Sec. 3.3.

Ratings only weigh votes. The set and its guarantee are fixed before an answer is rated, so a failed
rating voids no certificate.
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
from app.upstream.fleet import GATEWAY, Fleet
from racer_core.aggregation.answers import normalise
from racer_core.aggregation.vote import Weight

log = logging.getLogger(__name__)

CHECK_TIMEOUT_S: Final = 30.0  # at start: the first answer of a server is slow


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratings:
    """The evaluator's ratings of the answers to one request."""

    weights: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    failures: Mapping[str, str] = field(default_factory=dict[str, str])  # candidate -> kind
    usage: Mapping[str, int] = field(default_factory=dict[str, int])  # of all calls together
    calls: int = 0
    seconds: float = 0.0

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
    """Rates answers with the configured model; with `weight: router` it calls none."""

    def __init__(self, settings: Settings, fleet: Fleet) -> None:
        self._rule = settings.aggregation
        self._fleet = fleet
        self._raters = {
            name: _rater(name, spec, settings) for name, spec in self._rule.raters.items()
        }

    async def check(self) -> None:
        """Call every evaluator a few times: one that cannot rate as configured stops the start.

        Raises:
            SettingsError: An evaluator answers, but not as the configured weight requires.
            UpstreamError: An evaluator cannot be reached, or breaks.
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
        caller: str = GATEWAY,
    ) -> Ratings:
        """Rate the answers that can win a vote, all at once. Equal answers are not rated.

        Args:
            question: The question to the candidates.
            answers: Candidate to answer; equal texts are rated once.
            group: The group, whose own evaluator is called; None or a group without one takes the
                common evaluator.
            forms: Normal forms of the answers; None derives them by the configured equality.
            deadline: A ``time.monotonic()``; the evaluator has its own time limit, too.
            caller: The name of the API key that causes the calls.

        Returns:
            A weight for every readable answer; None where the evaluator gave none.
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
        rated = await asyncio.gather(
            *(self._rating(rater, each, deadline, caller) for each in distinct)
        )
        by_prompt = dict(zip(distinct, rated, strict=True))
        ratings = {name: by_prompt[each] for name, each in prompts.items()}
        return Ratings(
            weights={name: each.weight for name, each in ratings.items()},
            failures={name: each.failure for name, each in ratings.items() if each.failure},
            usage=_summed([each.usage for each in rated]),
            calls=len(distinct),
            seconds=time.monotonic() - started,
        )

    async def _rating(self, rater: _Rater, text: str, deadline: float, caller: str) -> _Rating:
        payload = _payload(rater, text, self._rule.weight)
        until = min(deadline, time.monotonic() + rater.endpoint.timeout_s)
        try:
            completion = await self._fleet.complete(
                rater.endpoint, payload, deadline=until, caller=caller
            )
        except UpstreamError as exc:
            return _Rating(failure=exc.kind)
        except Exception:  # our own fault, but no reason to fail the answer
            log.exception("%s failed unexpectedly", rater.endpoint.name)
            return _Rating(failure=UpstreamError.default_kind)
        weight = read(self._rule.weight, completion)
        failure = "evaluation_unreadable" if weight is None else None
        return _Rating(weight=weight, failure=failure, usage=completion.usage)

    async def _check(self, rater: _Rater) -> None:
        patient = replace(rater, endpoint=replace(rater.endpoint, timeout_s=CHECK_TIMEOUT_S))
        name, chars = rater.endpoint.name, rater.prompt_chars
        short = prompt("What is 1 plus 1?", "2", chars)
        completion = await self._probe(
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
        if self._rule.weight is Weight.VERBAL and read(Weight.VERBAL, completion) is None:
            log.warning(
                "%s rated a trial answer with neither 0 nor 1; wherever it does so, the majority "
                "decides the vote",
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
    """The evaluator of a group: at a candidate's server, or at its own."""
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
    """A request for one token, the likeliest."""
    payload = {"model": rater.model, "prompt": text, "max_tokens": 1, "temperature": 0}
    return payload | {"logprobs": TOP} if weight is Weight.P_TRUE else payload


def _summed(usages: list[Mapping[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for usage in usages for name in usage)
    return {name: sum(usage.get(name, 0) for usage in usages) for name in names}
