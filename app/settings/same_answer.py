"""Settings of the promise `same_answer`: calls in rounds (section `same_answer`)."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, cast

from pydantic import Field

from app.settings.base import Alpha, Frozen
from app.settings.candidates import Name
from app.settings.evidence import Evidence
from racer_core.aggregation.answers import Equality

SHADOW_RATE: Final = 0.05  # of a gateway that calibrates from its traffic
SHADOW_CALLS_PER_DAY: Final = 5_000
MAX_LABEL_WAIT_S: Final = 2.0 * 24 * 3_600  # a calibration is void when its rows are a week old
VOTE: Final = "vote"  # the reference that is the whole pool's vote
ANSWERABLE: Final = "answerable"  # the reference that is the labels: misses are the loss
# Equalities by which any two answers can be compared; `auto` is another one for each request, and
# a policy fitted on answers under one says nothing under another.
COMPARABLE: Final = tuple(each for each in Equality if each is not Equality.AUTO)


class SameAnswer(Frozen):
    """The promise `same_answer`: at most alpha of the answers differ from the reference's."""

    alpha: Alpha = 0.05
    """Largest share of requests whose answer differs from the reference's."""
    reference: Name = VOTE
    """The reference: `vote`, that of the whole pool, a candidate, or `answerable`: labels. Then at
    most alpha of the requests that some candidate answers right call none that does."""
    label_wait_s: Annotated[float, Field(ge=0.0, le=MAX_LABEL_WAIT_S)] = 3_600.0
    """With `reference: answerable`, how long a sampled request waits for its labels; without them
    it then counts as a miss."""
    max_rounds: Annotated[int, Field(ge=1, le=3)] = 2
    """Most rounds of calls of one request, 1 to 3."""
    evidence: Evidence | None = None
    """Checker of answers, whose verdicts weigh votes and end calls earlier; null: answers alone."""
    calibrate: Literal["from_traffic"] | None = None
    """`from_traffic`: the gateway calibrates by itself, as soon as enough requests are sampled,
    when their number has doubled, daily, and after an alarm; where that is refused for 7 days,
    certificates are void; null: on `racer calibrate --same-answer`. Without a sampling rate in
    `watching` it is 0.05, with 5,000 extra calls a day at most."""


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
