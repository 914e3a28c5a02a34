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
    base_url: Url | None = None
    model: str | None = None
    api_key_env: str | None = None
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 10.0  # for all ratings of a request
    prompt_chars: Annotated[int, Field(ge=256, le=100_000)] = 4096  # within its context

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
    equality: Equality = Equality.EXACT
    similarity: Annotated[float, Field(gt=0, lt=1)] = 0.9  # cosine, of `semantic`
    weight: Weight = Weight.ROUTER  # of `weighted`
    temperature: Annotated[float, Field(gt=0)] = 1.0  # of `weighted`
    options: Annotated[int, Field(ge=2)] = OPTIONS  # of `log_odds`: answers a question can have
    waves: Literal["all", "frugal"] = "all"  # call everyone at once, or as many as may decide
    open_ended: Literal["vote", "top"] = "vote"  # of `auto`: texts without a short answer
    evaluator: EvaluatorModel | None = None
    # By group, instead of `evaluator`.
    evaluators: dict[str, EvaluatorModel] = Field(default_factory=dict[str, EvaluatorModel])

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
