"""How answers are merged, and who rates them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from app.settings.base import Frozen
from app.settings.candidates import Url
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.vote import OPTIONS, Method, Weight


class EvaluatorModel(Frozen):
    """Who rates answers: one of the candidates, or a model at a server of its own."""

    candidate: str | None = None
    """The candidate that rates answers; this, or a server of its own."""
    base_url: Url | None = None
    """The server of an evaluator that is no candidate."""
    model: str | None = None
    """The evaluator's name at that server."""
    api_key_env: str | None = None
    """The variable that holds the evaluator's key."""
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 10.0
    """Seconds for all ratings of a request."""
    prompt_chars: Annotated[int, Field(ge=256, le=100_000)] = 4096
    """The longest prompt that it is given; what is longer loses its middle."""

    @model_validator(mode="after")
    def _says_where(self) -> Self:
        server = (self.base_url, self.model)
        own = any(field is not None for field in (*server, self.api_key_env))
        if (self.candidate is not None and own) or (self.candidate is None and None in server):
            raise ValueError("give either `candidate`, or `base_url` and `model`")
        return self


class Aggregation(Frozen):
    """How answers are merged."""

    method: Method = Method.MAJORITY
    """How answers are merged: `majority`, `weighted`, `log_odds` or `stacked`."""
    equality: Equality = Equality.EXACT
    """When two answers are the same: `choice`, `number`, `exact`, `json`, `tool_call`, `math`,
    `semantic`, `auto`."""
    similarity: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Cosine from which two texts are one, of `semantic`."""
    weight: Weight = Weight.ROUTER
    """Whose weights, of `weighted`: `router`, or an evaluator's `verbal` or `p_true`."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """How evenly weights count, of `weighted`."""
    options: Annotated[int, Field(ge=2)] = OPTIONS
    """Of `log_odds`: how many answers a question can have."""
    waves: Literal["all", "frugal"] = "all"
    """`all` calls everyone at once, `frugal` first as many as would decide if they agreed."""
    open_ended: Literal["vote", "top"] = "vote"
    """Of `auto`, for texts without a short answer: `vote`, or `top` calls the best alone (void)."""
    evaluator: EvaluatorModel | None = None
    """Who rates answers, for weights other than the router's."""
    evaluators: dict[str, EvaluatorModel] = Field(default_factory=dict[str, EvaluatorModel])
    """Evaluators by group, instead of `evaluator`, with the same fields."""

    @model_validator(mode="after")
    def _evaluators_are_used(self) -> Self:
        if self.weight is not Weight.ROUTER and self.method is not Method.WEIGHTED:
            raise ValueError(f"`weight: {self.weight}` needs `method: weighted`")
        if self.weight is Weight.ROUTER and self.raters:
            raise ValueError("an evaluator is asked with `weight: verbal` or `weight: p_true` only")
        if self.weight is not Weight.ROUTER and self.evaluator is None:
            raise ValueError(f"`weight: {self.weight}` needs an `evaluator` that rates the answers")
        return self

    @property
    def raters(self) -> dict[str, EvaluatorModel]:
        """Every evaluator by its name in messages and metrics, which no candidate can have."""
        common = {} if self.evaluator is None else {rater_name(None): self.evaluator}
        return common | {rater_name(group): each for group, each in self.evaluators.items()}


def rater_name(group: str | None) -> str:
    """The common evaluator, or a group's own, in messages and metrics."""
    return "the evaluator" if group is None else f"the evaluator of {group}"
