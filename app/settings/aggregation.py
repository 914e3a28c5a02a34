"""Settings of aggregation: the vote, and LLM evaluators of answers (section `aggregation`)."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from app.settings.base import Frozen, VariableName
from app.settings.candidates import Url
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.reasoning import MARKERS, ReasoningFilter
from racer_core.aggregation.vote import OPTIONS, Method, Weight


class RatingModel(Frozen):
    """A model that rates answers: one of the candidates, or a model at a server of its own."""

    candidate: str | None = None
    """The candidate that rates answers; alternatively `base_url` and `model`."""
    base_url: Url | None = None
    """Server of an evaluator that is no candidate."""
    model: str | None = None
    """Model name of the evaluator at that server."""
    api_key_env: VariableName | None = None
    """Environment variable with the evaluator's API key."""
    prompt_chars: Annotated[int, Field(ge=256, le=100_000)] = 4096
    """Longest prompt in characters; the middle of a longer one is cut."""

    @model_validator(mode="after")
    def _has_one_server(self) -> Self:
        server = (self.base_url, self.model)
        own = any(field is not None for field in (*server, self.api_key_env))
        if (self.candidate is not None and own) or (self.candidate is None and None in server):
            raise ValueError("give either `candidate`, or `base_url` and `model`")
        return self


class EvaluatorModel(RatingModel):
    """An evaluator of the answers to a request."""

    timeout_s: Annotated[float, Field(gt=0, le=600)] = 10.0
    """Timeout in seconds for all ratings of a request."""


class Aggregation(Frozen):
    """How answers are merged: the vote and its evaluators."""

    method: Method = Method.MAJORITY
    """Voting rule: `majority`, `weighted`, `log_odds` or `stacked`."""
    equality: Equality = Equality.AUTO
    """When two answers count as equal: `choice`, `number`, `exact`, `json`, `tool_call`, `math`,
    `text`, `semantic`, or `auto`: `json` where it is asked for, `choice` for lettered options, else
    `text`."""
    similarity: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """With `semantic`: cosine similarity from which two texts count as equal."""
    weight: Weight = Weight.ROUTER
    """With `weighted`: weights of the `router`, or an evaluator's `verbal` or `p_true`."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """With `weighted`: temperature of the weights; larger is more even."""
    options: Annotated[int, Field(ge=2)] = OPTIONS
    """With `log_odds`: number of possible answers to a question."""
    waves: Literal["all", "frugal"] = "all"
    """`all` calls the whole set at once; `frugal` first calls as many as decide if they agree."""
    open_ended: Literal["vote", "top"] = "vote"
    """With `auto`, for open-ended texts: `vote`, or `top` to call only the best (void)."""
    reasoning_markers: tuple[tuple[str, str], ...] = tuple(MARKERS)
    """Opening and closing markers of reasoning in a text, which is no part of an answer."""
    evaluator: EvaluatorModel | None = None
    """Evaluator of answers, for the weights `verbal` and `p_true`."""
    evaluators: dict[str, EvaluatorModel] = Field(default_factory=dict[str, EvaluatorModel])
    """Evaluators by group, used instead of `evaluator`; same fields."""

    @field_validator("reasoning_markers")
    @classmethod
    def _markers_differ(cls, markers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        openings = [opening for opening, _ in markers]
        closings = {closing for _, closing in markers}
        if len(set(openings)) < len(openings) or not closings.isdisjoint(openings):
            raise ValueError("no marker may open twice, or both open and close")
        if not all(name.strip() for pair in markers for name in pair):
            raise ValueError("a marker must not be blank")
        return markers

    @model_validator(mode="after")
    def _evaluators_are_used(self) -> Self:
        if self.weight is not Weight.ROUTER and self.method is not Method.WEIGHTED:
            raise ValueError(f"`weight: {self.weight}` needs `method: weighted`")
        if self.weight is Weight.ROUTER and self.raters:
            raise ValueError("an evaluator needs `weight: verbal` or `weight: p_true`")
        if self.weight is not Weight.ROUTER and self.evaluator is None:
            raise ValueError(f"`weight: {self.weight}` needs an `evaluator` that rates the answers")
        return self

    @property
    def rule(self) -> str:
        """Everything that decides a vote on given answers, in one line."""
        parts = self.method, self.equality, self.weight, self.temperature, self.options
        return " ".join(map(str, (*parts, self.reasoning_markers)))

    @property
    def reasoning(self) -> ReasoningFilter:
        """Removes the reasoning from answers."""
        return ReasoningFilter(self.reasoning_markers)

    @property
    def raters(self) -> dict[str, EvaluatorModel]:
        """Evaluators by their name in messages and metrics; no candidate can have such a name."""
        common = {} if self.evaluator is None else {rater_name(None): self.evaluator}
        return common | {rater_name(group): each for group, each in self.evaluators.items()}


def rater_name(group: str | None) -> str:
    """Name of the common evaluator, or of a group's, in messages and metrics."""
    return "the evaluator" if group is None else f"the evaluator of {group}"
