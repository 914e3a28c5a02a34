"""Settings of the promise `same_answer`: calls in rounds (section `same_answer`)."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self, cast

from pydantic import Field, model_validator

from app.settings.aggregation import EvaluatorModel, RatingModel
from app.settings.base import Alpha, Frozen
from app.settings.candidates import Name, Url

# Settings of a checker whose verdicts are evidence in rounds (section `same_answer.evidence`).


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


SHADOW_RATE: Final = 0.05  # of a gateway that calibrates from its traffic
SHADOW_CALLS_PER_DAY: Final = 5_000
MAX_LABEL_WAIT_S: Final = 2.0 * 24 * 3_600  # a calibration is void when its rows are a week old
VOTE: Final = "vote"  # the reference that is the whole pool's vote
ANSWERABLE: Final = "answerable"  # the reference that is the labels: misses are the loss


class SameAnswer(Frozen):
    """The promise `same_answer`: at most alpha of the answers differ from the reference's."""

    alpha: Alpha = 0.05
    """Largest share of requests whose answer differs from the reference's."""
    reference: Name = VOTE
    """The reference: `vote`, that of the whole pool, a candidate, or `answerable`: labels. Then at
    most alpha of the requests that some candidate answers right call none that does."""
    label_wait_s: Annotated[float, Field(ge=0.0, le=MAX_LABEL_WAIT_S)] = 3_600.0
    """With `reference: answerable`, how long a sampled request waits for its labels. Without them
    it then counts as a miss in calibrations, and as none in the alarm."""
    max_rounds: Annotated[int, Field(ge=1, le=3)] = 2
    """Most rounds of calls of one request, 1 to 3."""
    evidence: Evidence | None = None
    """Checker of answers, whose verdicts weigh votes and end calls earlier; null: answers alone."""
    calibrate: Literal["from_traffic"] | None = None
    """`from_traffic`: the gateway calibrates by itself, as soon as enough requests are sampled,
    when their number has doubled, daily, and after an alarm; where that is refused nothing is
    certified until the next one, and without new samples for 7 days certificates are void; null:
    on `racer calibrate --same-answer`. Without a sampling rate in `watching` it is 0.05, with
    5,000 extra calls a day at most."""


def with_sampling(values: object) -> object:
    """The configuration as it is written, with sampling where it calibrates from traffic.

    Sampling costs calls, so the defaults apply only where the operator asks for calibration from
    traffic and sets no rate.
    """
    if not isinstance(values, dict):
        return values
    given = cast("dict[str, Any]", values)
    watching: object = given.get("watching") or {}
    applications: object = given.get("applications") or {}
    if not (isinstance(watching, dict) and isinstance(applications, dict)):
        return given  # what is wrong is said by the models
    sampling = cast("dict[str, Any]", watching)
    sections: list[object] = [given, *cast("dict[str, object]", applications).values()]
    if "shadow_rate" in sampling or not any(map(_calibrates, sections)):
        return given
    usual = {"shadow_rate": SHADOW_RATE, "shadow_calls_per_day": SHADOW_CALLS_PER_DAY}
    return given | {"watching": usual | sampling}


def _calibrates(place: object) -> bool:
    """Whether the requests of a configuration, or of an application, calibrate without a rate."""
    if not isinstance(place, dict) or "shadow_rate" in place:
        return False
    section = cast("dict[str, Any]", place).get("same_answer")
    return isinstance(section, dict) and bool(cast("dict[str, Any]", section).get("calibrate"))
