"""Settings of a checker whose verdicts are evidence in rounds (section `same_answer.evidence`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from app.settings.aggregation import EvaluatorModel, RatingModel
from app.settings.base import Frozen
from app.settings.candidates import Url


def judge_name(place: str) -> str:
    """Name of the judge of a section, in messages and metrics."""
    return f"the judge of {place}"


class Evidence(Frozen):
    """Checks each answer by itself: how likely it is right, from 0 to 1, weighs its vote."""

    url: Url | None = None
    """URL that is sent a request with one answer, as `checker.url` is, and returns whether it is
    right or how likely: `{"correct": {candidate: true, false, a number or null}}`. The bearer
    token is `$RACER_CHECKER_KEY`."""
    function: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = None
    """Installed Python function instead of `url`, such as `package.module:function`."""
    json_schema: Literal["request"] | dict[str, Any] | None = None
    """A JSON schema that answers meet, or `request`: that of the request's `response_format`.
    Needs the extra `label`."""
    judge: RatingModel | None = None
    """A model that says how likely an answer is right, by the log probabilities of vLLM's
    completions."""
    timeout_s: Annotated[float, Field(gt=0, le=60)] = 2.0
    """Timeout of one check in seconds; an answer that is not checked by then has no verdict."""
    concurrency: Annotated[int, Field(ge=1, le=64)] = 4
    """Checks of requests at once, by each gateway; of a function, child processes. One that finds
    no place within `timeout_s` is lost, and its request calls all candidates."""

    @property
    def kind(self) -> Literal["url", "function", "json_schema", "judge"]:
        """Which of the four it is."""
        if self.url is not None:
            return "url"
        if self.function is not None:
            return "function"
        return "judge" if self.json_schema is None else "json_schema"

    @property
    def rater(self) -> EvaluatorModel | None:
        """The judge, with the timeout of a check."""
        if self.judge is None:
            return None
        return EvaluatorModel(**self.judge.model_dump(), timeout_s=self.timeout_s)

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        kinds = (self.url, self.function, self.json_schema, self.judge)
        if sum(each is not None for each in kinds) != 1:
            raise ValueError("needs one of `url`, `function`, `json_schema` and `judge`")
        return self
