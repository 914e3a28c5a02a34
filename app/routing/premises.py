"""The premises of a decision: the facts from which all reasons of its certificate follow.

Each fact is found where it arises and returned as a value. The reasons are derived here alone, in
the order in which clients see them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.routing.reasons import Reason, breaks
from app.routing.row_selection import RowSelection, TurnKind


@dataclass(frozen=TYPE_CHECKING, slots=True, kw_only=True)
class CandidateChoice:
    """The candidates among which a set is chosen, and what narrowed the pool to them.

    Attributes:
        names: In the order of the pool.
        is_requested: The request lists candidates, or names a pool.
        has_unable: Some candidate cannot serve this kind of request.
        down: Candidates of which every replica is out.
    """

    names: tuple[str, ...]
    is_requested: bool = False
    has_unable: bool = False
    down: tuple[str, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why ``names`` is not the whole pool."""
        return (
            *((Reason.POOL_ASSUMED,) if self.is_requested else ()),
            *((Reason.UNLABELLED_KIND,) if self.has_unable else ()),
            *(Reason.CANDIDATE_DOWN.of(name) for name in self.down),
        )


def is_whole_but_for_outages(
    names: Collection[str], down: Collection[str], pool: Collection[str]
) -> bool:
    """Whether a decision among some candidates could be a row that is drawn from traffic.

    Args:
        names: The candidates among which its set is chosen.
        down: Those that it would call, too, if they were up.
        pool: The candidates of a row.
    """
    return set(pool) <= {*names, *down}


@dataclass(frozen=True, slots=True, kw_only=True)
class Premises:
    """What a certificate rests on.

    Attributes:
        rows: The rows whose threshold applies, and how the request differs from them.
        choice: The candidates among which the set is chosen.
        is_too_long: The router reads less, or more, of the query than it would of a row.
        is_too_large: No row of the request's application, whose rows are drawn, can be as large.
        is_not_drawn: Those rows are requests to the whole pool, or of known conversations, and the
            request is not.
        is_other_kind: The fields that differ make it a request of another kind than any row.
        is_pending: The smaller pool's threshold is still being computed.
        has_rows: The calibration has rows for these candidates.
        is_alpha_requested: The request, or the pool that it names, sets another alpha than the
            calibration.
        is_score_requested: The request sets another score than the calibration.
        is_group_requested: The request names its group, and the rows have groups.
        is_group_calibrated: Some row belongs to the request's group, or the rows have no groups.
    """

    rows: RowSelection
    choice: CandidateChoice
    is_too_long: bool
    is_too_large: bool
    is_not_drawn: bool
    is_other_kind: bool
    is_pending: bool
    has_rows: bool
    is_alpha_requested: bool
    is_score_requested: bool
    is_group_requested: bool
    is_group_calibrated: bool

    @property
    def is_covered(self) -> bool:
        """Whether no premise fails: the rows are drawn like the request."""
        return not any(map(breaks, self.reasons))

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons of the decision, in the order of a certificate."""
        rows = self.rows
        facts = (
            (self.is_too_long, Reason.QUERY_TOO_LONG),
            (self.is_too_large, Reason.REQUEST_TOO_LARGE),
            (self.is_not_drawn, Reason.NOT_DRAWN),
            (rows.is_chosen_by_conditions, Reason.LABELLED_CONDITIONS),
            (rows.turn is TurnKind.LATER or rows.is_after_answers, Reason.LATER_TURN),
            (rows.turn is TurnKind.UNCALIBRATED, Reason.MULTI_TURN),
            (rows.is_too_late, Reason.TOO_LATE_TURN),
            (self.is_pending, Reason.SUB_POOL_PENDING),
            (not self.has_rows, Reason.NO_CALIBRATION_FOR_POOL),
            (not self.is_group_calibrated, Reason.GROUP_UNCALIBRATED),
            (self.is_alpha_requested, Reason.ALPHA_ASSUMED),
            (self.is_score_requested, Reason.SCORE_ASSUMED),
            (self.is_group_requested, Reason.GROUP_ASSUMED),
        )
        return (
            *(Reason.CONDITIONS_DIFFER.of(field) for field in rows.differing),
            *((Reason.UNLABELLED_KIND,) if self.is_other_kind else ()),
            *self.choice.reasons,
            *(reason for is_so, reason in facts if is_so),
        )


def failure_reasons(failed: Collection[str], *, is_outvoted: bool) -> tuple[str, ...]:
    """A reason for each member of the set that gave no answer.

    Args:
        failed: The members.
        is_outvoted: The others decide the vote, whatever the failed ones would have answered.
    """
    reason = Reason.OUTVOTED_FAILED if is_outvoted else Reason.CANDIDATE_FAILED
    return tuple(reason.of(name) for name in failed)
