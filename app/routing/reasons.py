"""Every reason that a certificate can carry; docs/design.md explains each."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """A premise that failed, or one that is assumed and worth saying."""

    CONDITIONS_DIFFER = "conditions_differ"
    MULTI_TURN = "multi_turn_uncalibrated"
    UNLABELLED_KIND = "unlabelled_request_kind"
    QUERY_TOO_LONG = "query_too_long"
    NO_CALIBRATION_FOR_POOL = "no_calibration_for_pool"
    ABSTAINED_STRONGEST = "abstained_strongest"
    TRAINING_OVERLAP = "training_overlap"
    ROW_SCORES_UNVERIFIED = "row_scores_unverified"
    ALPHA_ASSUMED = "alpha_assumed_independent_of_query"
    SCORE_ASSUMED = "score_assumed_independent_of_query"
    POOL_ASSUMED = "pool_assumed_independent_of_query"
    GROUP_ASSUMED = "group_assumed_independent_of_query"
    LATER_TURN = "later_turn"
    ALPHA_INFEASIBLE = "alpha_infeasible_whole_pool"
    ABSTENTION_EXCEEDS_ALPHA = "abstention_exceeds_alpha_whole_pool"
    ROUTER_FAILED = "router_failed_whole_pool"
    SUB_POOL_PENDING = "sub_pool_pending_whole_pool"
    FAN_OUT_LIMITED = "fan_out_limited"
    OBSERVED = "observe_only"
    PINNED = "pinned"
    LEADER = "leader_streamed"
    NO_VOTE = "no_vote"
    # These are followed by ":" and a name: of a stream of the drift alarms, of a candidate.
    STALE = "stale"
    CANDIDATE_FAILED = "candidate_failed"
    OUTVOTED_FAILED = "outvoted_candidate_failed"
    CANDIDATE_DOWN = "candidate_down"

    def of(self, name: str) -> str:
        """The reason as it names a stream or a candidate."""
        return f"{self}:{name}"


# These hold: premises that nobody but the caller can break, rows of the request's own kind, sets
# that are the whole pool, and causes outside the query.
_REMARKS: Final = frozenset(
    {
        Reason.ALPHA_ASSUMED,
        Reason.SCORE_ASSUMED,
        Reason.POOL_ASSUMED,
        Reason.GROUP_ASSUMED,
        Reason.LATER_TURN,
        Reason.ALPHA_INFEASIBLE,
        Reason.ABSTENTION_EXCEEDS_ALPHA,
        Reason.ROUTER_FAILED,
        Reason.SUB_POOL_PENDING,
        Reason.OUTVOTED_FAILED,
        Reason.CANDIDATE_DOWN,
    }
)


def breaks(reason: str) -> bool:
    """Whether a reason voids the guarantee."""
    return reason.partition(":")[0] not in _REMARKS
