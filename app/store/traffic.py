"""Traffic of the past week: how many requests there were, and how many have labels."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.store.tables import DecisionRow
from app.utc import ago, latest


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekOfTraffic:
    """Requests and labels of a week.

    Attributes:
        requests: Requests of the past week.
        judged: Those of them whose loss is known.
        labelled: The share of sampled decisions that get a label. It is that of the week before,
            whose labels count for no alarm any more if they are still missing; 1 if none was
            sampled.
    """

    requests: int = 0
    judged: int = 0
    labelled: float = 1.0


def past_week(session: Session, application: str | None = None) -> WeekOfTraffic:
    """The past week of an application; None: of all."""
    one, two = ago(timedelta(weeks=1)), ago(timedelta(weeks=2))
    this_week = DecisionRow.created_at.between(one, latest())
    of_it = () if application is None else (DecisionRow.application == application,)
    recent = select(func.count(), func.count(DecisionRow.loss))
    requests, judged = session.execute(recent.where(this_week, *of_it)).one()
    watched = select(func.count(), func.count().filter(DecisionRow.judged)).where(
        DecisionRow.watched, DecisionRow.created_at.between(two, one), *of_it
    )
    sampled, labelled = session.execute(watched).one()
    share = labelled / sampled if sampled else 1.0
    return WeekOfTraffic(requests=requests, judged=judged, labelled=share)
