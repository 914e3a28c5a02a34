"""A candidate's answer, parsed: choices, token usage and timing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast

from app.errors import UpstreamError
from app.wire import parsing
from app.wire.format import AnswerKind, ApiFormat, Choice
from racer_core.aggregation.json_forms import tool_calls_text
from racer_core.numbers import log_probability
from racer_core.types import CallRecord


@dataclass(frozen=TYPE_CHECKING, slots=True, kw_only=True)
class Reply:
    """The answer of one candidate, parsed once.

    Attributes:
        candidate: The candidate's name.
        body: The document as it was sent; empty where it passed through as a stream.
        choices: Its choices, without their reasoning; none where it passed through.
        usage: Tokens as the candidate counted them; empty where it did not.
        seconds: Duration of the call, with retries.
        attempts: Number of calls made for it.
        kind: How much of an answer it has, of its best choice.
    """

    candidate: str
    body: Mapping[str, Any]
    choices: Sequence[Choice]
    usage: Mapping[str, int]
    seconds: float
    attempts: int = 1
    kind: AnswerKind = AnswerKind.ANSWER

    @classmethod
    def of(
        cls,
        candidate: str,
        body: Mapping[str, Any],
        api_format: ApiFormat,
        choices: Sequence[Choice] | None = None,
        *,
        seconds: float = 0.0,
        attempts: int = 1,
    ) -> Self:
        """Parse a whole answer; its choices are read from the body, or given."""
        choices = api_format.choices(body) if choices is None else choices
        return cls(
            candidate=candidate,
            body=body,
            choices=choices,
            usage=api_format.usage(body),
            seconds=seconds,
            attempts=attempts,
            kind=max([choice.kind for choice in choices]),
        )

    @property
    def best_choice(self) -> Choice:
        """The first choice of the best kind: a content filter may have ended those before it."""
        for choice in self.choices:
            if len(self.choices) == 1 or choice.kind is self.kind:
                return choice
        return Choice()

    @property
    def text(self) -> str:
        """The best choice's text; empty where it has none (a tool call, for example)."""
        return self.best_choice.text or ""

    @property
    def answer(self) -> str | None:
        """The best choice as rows record it: its text, or its tool calls as JSON.

        None where it is no answer: a refusal, a blank, reasoning alone, calls that cannot be read.
        """
        if self.kind is not AnswerKind.ANSWER:
            return None
        best = self.best_choice
        return tool_calls_text(best.tool_calls) if best.tool_calls else best.text

    @property
    def call_record(self) -> CallRecord:
        """What is known of the call."""
        best = self.best_choice
        tokens = {
            n: self.usage[n] for n in ("prompt_tokens", "completion_tokens") if n in self.usage
        }
        return {
            **({} if best.finish_reason is None else {"finish_reason": best.finish_reason}),
            **tokens,
            "seconds": round(self.seconds, 3),
            **({"tool_calls": len(best.tool_calls)} if best.tool_calls else {}),
        }

    def check_not_empty(self) -> None:
        """Raises UpstreamError if it has nothing of an answer, not even a blank text."""
        if self.kind is AnswerKind.NOTHING:
            raise parsing.empty(self.candidate)

    def as_json(self) -> Any:
        """The best choice as a text or tool calls, for requests that want every answer."""
        best = self.best_choice
        return [dict(call) for call in best.tool_calls] or best.text


# Text completions of evaluators, with the log-probabilities of the first token.


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The model to call, its name in messages, and its time limit."""

    name: str  # in errors and metrics
    target: str  # name of a candidate, or of an evaluator with a server of its own
    timeout_s: float  # of all attempts, from when the first one has its slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A model's continuation of a prompt."""

    text: str
    # Log-probabilities of the likeliest first tokens; None when the server sent none.
    top: Mapping[str, float] | None
    usage: dict[str, int]  # tokens as the server counted them


def completion(name: str, body: Mapping[str, Any]) -> Completion:
    """Read a text completion's first choice. Raises UpstreamError where it is invalid."""
    choices = parsing.as_objects(name, body.get("choices"))
    if not choices:
        raise UpstreamError(f"{name} sent no choice", kind="upstream_empty")
    text = choices[0].get("text")
    if not isinstance(text, str):
        raise parsing.invalid(name)
    return Completion(
        text=text,
        top=_top_logprobs(name, choices[0]),
        usage=parsing.counts(body.get("usage"), parsing.CHAT_USAGE),
    )


def _top_logprobs(name: str, choice: Mapping[str, Any]) -> dict[str, float] | None:
    """``{"top_logprobs": [{token: logprob, ...}, ...]}``, of which only the first token's."""
    logprobs = choice.get("logprobs")
    top = parsing.as_object(name, logprobs).get("top_logprobs") if logprobs is not None else None
    if not isinstance(top, list) or not top:
        return None
    values = parsing.as_object(name, cast("list[object]", top)[0])
    if any(log_probability(each) is None for each in values.values()):
        raise parsing.invalid(name)
    return values
