"""The rater: one evaluator model's confidences in answers, verbal and P(True). Paper, Sec. 3.3.

Serving rates the answers of one request, `racer label` and `racer tune` recorded answers; all call
the model through this module, so that their confidences are the same.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from app.errors import SettingsError, UpstreamError
from app.judging.quoting import GAP, quoted
from app.settings import EvaluatorModel, Settings
from app.upstream.fleet import GATEWAY, Fleet
from app.upstream.reply import Completion, Endpoint
from app.wire.parsing import CHARS_PER_TOKEN
from racer_core.aggregation.vote import Weight

log = logging.getLogger(__name__)

CHECK_TIMEOUT_S: Final = 30.0  # at start: the first answer of a server is slow
UNREADABLE: Final = "evaluation_unreadable"  # the model replied, but with no confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """The confidences in one answer, and why some are missing."""

    values: Mapping[Weight, float | None]
    failures: Mapping[Weight, str] = field(default_factory=dict[Weight, str])
    usage: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedTexts:
    """The ratings of several answers to one question."""

    ratings: Mapping[str, Rating]  # by the answer's text
    calls: int
    usage: Mapping[str, int]  # of all calls together


class Rater:
    """Rates answers with one model; one call gives all kinds of confidence.

    Args:
        name: The evaluator's name in messages and metrics.
        spec: The model, its time limit and its longest prompt.
        kinds: `verbal`, `p_true`, or both.
        settings: The candidates, of which the evaluator may be one.
        fleet: Open, with the evaluator among its targets.
    """

    def __init__(
        self,
        *,
        name: str,
        spec: EvaluatorModel,
        kinds: Collection[Weight],
        settings: Settings,
        fleet: Fleet,
    ) -> None:
        if spec.candidate is None:
            target, self._model = name, spec.model or name
        else:
            candidate = next(each for each in settings.candidates if each.name == spec.candidate)
            target, self._model = candidate.name, candidate.served_as
        self.timeout_s = spec.timeout_s
        self.candidate = spec.candidate
        self._endpoint = Endpoint(name=name, target=target, timeout_s=spec.timeout_s)
        self._prompt_chars = spec.prompt_chars
        self._kinds = tuple(kinds)
        self._fleet = fleet

    async def rate(
        self,
        question: str,
        texts: Collection[str],
        *,
        deadline: float = math.inf,
        caller: str = GATEWAY,
    ) -> RatedTexts:
        """Rate answers to a question, all at once; equal prompts are sent once.

        Args:
            question: The question to the candidates.
            texts: The answers.
            deadline: A ``time.monotonic()``. Each call has the evaluator's own time limit, too,
                from when the evaluator takes it.
            caller: The name of the API key that causes the calls.
        """
        prompts = {text: prompt(question, text, self._prompt_chars) for text in texts}
        distinct = list(dict.fromkeys(prompts.values()))
        rated = await asyncio.gather(*(self._rating(each, deadline, caller) for each in distinct))
        by_prompt = dict(zip(distinct, rated, strict=True))
        return RatedTexts(
            ratings={text: by_prompt[each] for text, each in prompts.items()},
            calls=len(distinct),
            usage=_summed([each.usage for each in rated]),
        )

    def unheard(self, question: str, texts: Collection[str]) -> RatedTexts:
        """The calls of ratings that were cancelled, with an estimate of their prompts' tokens."""
        prompts = {prompt(question, text, self._prompt_chars) for text in texts}
        tokens = sum([math.ceil(len(each) / CHARS_PER_TOKEN) for each in prompts])
        return RatedTexts(ratings={}, calls=len(prompts), usage={"prompt_tokens": tokens})

    async def check(self, *, cure: str, other: str) -> None:
        """Call the evaluator a few times, to learn whether it can rate as configured.

        Args:
            cure: What to do about an evaluator that cannot be reached, for the message.
            other: What to do without log-probabilities, for the message.

        Raises:
            SettingsError: The evaluator answers, but not as its kinds of confidence require.
            UpstreamError: The evaluator cannot be reached, or breaks.
        """
        patient = replace(self._endpoint, timeout_s=CHECK_TIMEOUT_S)
        name, chars = patient.name, self._prompt_chars
        short = prompt("What is 1 plus 1?", "2", chars)
        completion = await self._probe(
            self._payload(short, logprobs=False),
            patient,
            f"{name} refused a text completion: check its `base_url` and `model`, and that it "
            "serves /completions as vLLM does",
            cure,
        )
        longest = prompt("What is one plus one? " * chars, "2", chars)
        await self._probe(
            self._payload(longest, logprobs=False),
            patient,
            f"{name} refused a prompt of {chars:,} characters: lower its `prompt_chars`",
            cure,
        )
        if Weight.VERBAL in self._kinds and read(Weight.VERBAL, completion) is None:
            log.warning(
                "%s rated a trial answer with neither 0 nor 1; wherever it does so, the majority "
                "decides the vote",
                name,
            )
        if Weight.P_TRUE in self._kinds:
            completion = await self._probe(
                self._payload(short, logprobs=True),
                patient,
                f"{name} refused `logprobs: {TOP}`: start vLLM with `--max-logprobs {TOP}` or "
                f"more, or {other}",
                cure,
            )
            if completion.top is None:
                raise SettingsError(
                    f"{name} answered without logprobs, which P(True) is read from: serve it "
                    f"with vLLM, or {other}"
                )

    async def _rating(self, text: str, deadline: float, caller: str) -> Rating:
        payload = self._payload(text, logprobs=Weight.P_TRUE in self._kinds)
        try:
            completion = await self._fleet.complete(
                self._endpoint, payload, deadline=deadline, caller=caller
            )
        except UpstreamError as exc:
            return self._failed(exc.kind)
        except Exception:  # our own fault, but no reason to fail the answer
            log.exception("%s failed unexpectedly", self._endpoint.name)
            return self._failed(UpstreamError.default_kind)
        values = {kind: read(kind, completion) for kind in self._kinds}
        unreadable = [kind for kind, value in values.items() if value is None]
        return Rating(
            values=values,
            failures=dict.fromkeys(unreadable, UNREADABLE),
            usage=completion.usage,
        )

    def _failed(self, kind: str) -> Rating:
        return Rating(
            values=dict.fromkeys(self._kinds, None), failures=dict.fromkeys(self._kinds, kind)
        )

    async def _probe(
        self, payload: Mapping[str, Any], endpoint: Endpoint, refusal: str, cure: str
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
            raise type(exc)(f"{exc}: {cure}", kind=exc.kind) from exc

    def _payload(self, text: str, *, logprobs: bool) -> dict[str, Any]:
        """A request for one token, the likeliest."""
        payload = {"model": self._model, "prompt": text, "max_tokens": 1, "temperature": 0}
        return payload | {"logprobs": TOP} if logprobs else payload


def _summed(usages: list[Mapping[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for usage in usages for name in usage)
    return {name: sum(usage.get(name, 0) for usage in usages) for name in names}


# The evaluator's prompt, and the parser of its completion. Paper, Sec. 3.3. Pure functions.
#
# Question and answer are others' texts: data, which must not imitate the lines of the prompt
# (prompt injection).

TOP: Final = 20  # tokens with log-probabilities, as in the paper

_PROMPT = (
    "Question: {}\n"
    "Proposed Answer: {}\n"
    "Now I will rate my confidence in the proposed answer as either (0) or (1).\n"
    "Proposed confidence: ("
)
_OWN_WORDS = re.compile(r"proposed\s+(?:answer|confidence)|rate\s+my\s+confidence", re.IGNORECASE)
_VERDICT = re.compile(r"\s*([01])\s*(?:\).*)?", re.DOTALL)  # "1", " 1" and "1)" are all a 1


def prompt(question: str, answer: str, max_chars: int) -> str:
    """The paper's prompt, of at most ``max_chars`` characters.

    Both texts are quoted, and the prompt's own words in them are replaced. The answer stands on one
    line: it cannot end its own line, nor imitate the lines after it. A text that is too long loses
    its middle, because conclusions stand at the end. Each of the two texts may fill half of the
    room, and the part that the other does not need.
    """
    room = max_chars - len(_PROMPT.format("", ""))
    question, answer = _shown(question, max_chars), " ".join(_shown(answer, max_chars).split())
    cut = _cut(answer, max(room - len(question), room // 2))
    return _PROMPT.format(_cut(question, room - len(cut)), cut)


def _shown(text: str, most: int) -> str:
    """A quoted text without the prompt's own words; it is cut first, as it may have megabytes."""
    return _OWN_WORDS.sub(GAP, quoted(_cut(text, most)))


def read(weight: Weight, completion: Completion) -> float | None:
    """The weight in [0, 1] that a completion states; None when it states none.

    ``verbal`` is the token itself. ``p_true`` is the probability of the token "1" among the
    likeliest, however it is spelt (" 1", "1)"), and 0 where it is not among them.
    """
    if weight is Weight.VERBAL:
        verdict = _VERDICT.fullmatch(completion.text)
        return float(verdict[1]) if verdict else None
    if completion.top is None:
        return None
    verdicts = {token: _VERDICT.fullmatch(token) for token in completion.top}
    ones = [token for token, verdict in verdicts.items() if verdict and verdict[1] == "1"]
    return min(1.0, math.fsum(math.exp(completion.top[token]) for token in ones))


def _cut(text: str, room: int) -> str:
    """The text, or its beginning and end if it is longer than ``room`` characters."""
    if len(text) <= room:
        return text
    left = room - len(GAP)
    return text[: left // 2] + GAP + text[len(text) - (left - left // 2) :]
