"""Choice of the grader from the options of the command line."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pydantic import SecretStr

from app.errors import SettingsError
from app.settings import Candidate, Secrets, Settings
from app.tools.labelling.graders import Grader, MathGrader, TextGrader
from app.tools.labelling.judge import Judge, judge_candidate
from app.tools.labelling.people import KIND, LabelDesk, PeopleGrader
from app.tools.labelling.request_grading import RequestGrader
from racer_core.aggregation.grading import Grade


@dataclass(frozen=True, slots=True, kw_only=True)
class GradingOptions:
    """How answers are graded: a ``Grade``, ``judge`` with the judge's name or URL, or ``page``."""

    kind: str
    judge: str | None = None  # a candidate's name, or a URL
    judge_model: str | None = None  # at that URL
    judge_key: str | None = field(default=None, repr=False)
    desk: LabelDesk | None = field(default=None, repr=False)  # where people grade, for `page`


def default_kind(settings: Settings) -> str:
    """The grade that calls answers equal where votes do, as far as there is one."""
    equality = settings.aggregation.equality.value
    return equality if equality in {each.value for each in Grade} else Grade.EXACT.value


def make_grader(
    grading: GradingOptions, settings: Settings, secrets: Secrets
) -> tuple[RequestGrader, Candidate | None]:
    """Return the grader, and the judge's model if a judge grades.

    Raises:
        SettingsError: There is no such judge.
    """
    base, judge = _base_grader(grading, settings, secrets)
    return RequestGrader(base), judge


def _base_grader(
    grading: GradingOptions, settings: Settings, secrets: Secrets
) -> tuple[Grader, Candidate | None]:
    if grading.kind != "judge":
        if grading.judge is not None:
            raise SettingsError("--judge needs --grade judge")
        if grading.kind == KIND:
            return PeopleGrader(grading.desk), None
        kind = Grade(grading.kind)
        return (MathGrader() if kind is Grade.MATH else TextGrader(kind)), None
    if grading.judge is None:
        raise SettingsError("--grade judge needs --judge: a candidate's name, or a URL")
    if grading.judge.startswith(("http://", "https://")):
        if grading.judge_model is None:
            raise SettingsError("a judge at a URL needs --judge-model, the model's name there")
        judge = judge_candidate(grading.judge, grading.judge_model)
        keys = {judge.name: SecretStr(grading.judge_key)} if grading.judge_key else {}
        return Judge(judge, settings, replace(secrets, candidate_keys=keys)), judge
    for candidate in settings.candidates:
        if candidate.name == grading.judge:
            return Judge(candidate, settings, secrets), candidate
    raise SettingsError(
        f"--judge {grading.judge}: neither a candidate ({', '.join(settings.pool)}) nor a URL"
    )
