"""Reasons and remarks in a certificate: premises that failed or were assumed; facts of the query.

The docstring of a member is its row in docs/reference/errors.md: for a reason first the cause, then
the remedy.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from racer_core.calibration.certificate import HOLDING as CORE_HOLDING
from racer_core.calibration.certificate import CoreReason, base_reason


class Reason(StrEnum):
    """A premise that failed, or an assumption that a client should know."""

    NOT_CALIBRATED = "not_calibrated"
    """No calibration is active. `routing.fallback` chose the candidates, and no row.

    `GET /readyz` says what is missing and which command comes next; for the promise `same_answer`
    it is `racer calibrate --same-answer`.
    """

    MULTI_TURN = "multi_turn_uncalibrated"
    """A later turn of a conversation; the calibration has too few rows of such turns.

    Add rows of several turns to the upload: `racer doctor` prints a command that makes some.
    """

    TOO_LATE_TURN = "turn_beyond_sample"
    """The turn comes later in its conversation than any that the sample draws: of later turns the
    first 2^k <= 1 / rate, so that no two rows share a conversation.

    Lower `watching.shadow_rate`, and calibrate again.
    """

    UNLABELLED_KIND = "unlabelled_request_kind"
    """The request has tools, images, audio or a turn of the user that is no plain text, and no row
    is of that kind. `routing.on_uncovered` decides.

    Label rows that are such requests.
    """

    QUERY_TOO_LONG = "query_too_long"
    """The query is longer than `limits.query_chars`, and its rows were read under another limit.

    Calibrate again, or shorten the query.
    """

    REQUEST_TOO_LARGE = "request_too_large"
    """The rows were drawn from the application's traffic, and none can hold a request of more than
    896 KiB.

    Send less.
    """

    NOT_DRAWN = "not_drawn"
    """The rows were drawn from the application's traffic, and none is a request for a part of the
    pool: by its own choice, its key's, or because a candidate cannot serve it. Or its turns are
    `together`, and the request has no session.

    Ask for the whole pool, send `x-session-id`, or give the key and the kind of request an
    application of their own with `premise: alike`.
    """

    NO_CALIBRATION_FOR_POOL = "no_calibration_for_pool"
    """No calibration row is answered by a candidate that the request allows, or none is of
    its group.

    Allow more candidates, or upload rows that cover them.
    """

    GROUP_UNCALIBRATED = CoreReason.GROUP_UNCALIBRATED.value
    """No calibration row belongs to the request's group; or every row has a group, and the request
    has none. The threshold of all rows was used.

    Upload rows of the group, or without one; ask with a group that has rows.
    """

    GROUPING_CHANGED = "grouping_changed"
    """Since the calibration, `routing.group_by` changed, or what belongs to `applications`, or one
    of their `text`.

    Set it back, or upload the rows again.
    """

    ABSTAINED_STRONGEST = "abstained_strongest"
    """The router abstained, and `on_abstain: strongest` called the best candidate.

    Set `on_abstain: refuse`.
    """

    ROWS_IN_CLUSTERS = CoreReason.ROWS_IN_CLUSTERS.value
    """The rows are a list of questions, or sampled turns of conversations, and several share a
    cluster: they are not independent.

    Calibrate with `one_per_cluster`. Of a file drawn at random from traffic say so; of turns that
    the gateway sampled, lower `watching.shadow_rate`.
    """

    ALPHA_PICKED = CoreReason.ALPHA_PICKED.value
    """Alpha was chosen after these rows were seen, and graded or weighted rows have no band.

    Calibrate on other rows.
    """

    CHOSEN_BY_FIGURES = CoreReason.CHOSEN_BY_FIGURES.value
    """The calibration was activated by its id: rolled back to, promoted, or a canary. Its figures
    could be seen before, and a bound on the average calibration says nothing of one that was chosen
    for its figures.

    Calibrate on fresh rows: an upload that activates looks at no figure.
    """

    TRAINING_OVERLAP = CoreReason.TRAINING_OVERLAP.value
    """The calibration has rows that trained the router, and `allow_overlap` accepted them.

    Calibrate on rows that trained nothing.
    """

    ROW_SCORES_UNVERIFIED = "row_scores_unverified"
    """Calibration rows brought router scores that no stored decision has.

    Upload rows with `query` or `request`.
    """

    ALPHA_ASSUMED = CoreReason.ALPHA_ASSUMED.value
    """The request chose alpha, or a named pool with another alpha; or, of graded or weighted rows,
    the key's `max_alpha` lowered it. Of `same_answer`: alpha is not the calibration's. Or a budget
    above its soft limit chose alpha (`above_soft`).

    Nothing, if the choice depended neither on the query nor on such rows.
    """

    SCORE_ASSUMED = CoreReason.SCORE_ASSUMED.value
    """The request chose the nonconformity score.

    Nothing, if the choice did not depend on the query.
    """

    POOL_ASSUMED = "pool_assumed_independent_of_query"
    """The request chose its candidates, or a named pool.

    Nothing, if the choice did not depend on the query.
    """

    GROUP_ASSUMED = "group_assumed_independent_of_query"
    """The request chose its group.

    Nothing, if the choice did not depend on the query. With untrusted callers set
    `routing.group_by: key`.
    """

    LABELLED_CONDITIONS = "labelled_conditions"
    """A part of all rows decided the request: those that were labelled under its conditions, or
    drawn from its application.

    Nothing.
    """

    LATER_TURN = "later_turn"
    """A later turn of a conversation, decided by rows of such turns or of whole conversations. The
    bound holds while earlier answers come from where those of the rows came: from the same sets,
    or fallback (`sample.later_turns_answered_by` in the evidence of sampled turns).

    Nothing; after a change of calibration sample later turns anew.
    """

    REFERENCE_UNAVAILABLE = "reference_unavailable"
    """Of the promise `same_answer`: the reference is down, failed, or may not be called by the
    request. The vote of the other candidates was returned.

    Allow the reference, or repair it.
    """

    EVIDENCE_UNAVAILABLE = "evidence_unavailable"
    """Of the promise `same_answer`: the gateway lost a checker's verdict, by the request's deadline
    or because no process of the checker could be started, and the vote may depend on it. All
    candidates were called.

    Read `racer_evidence_total`; have the checker take less time.
    """

    TERMS_ASSUMED = "terms_assumed_independent_of_query"
    """Of the promise `same_answer`: the request chose a reference or number of rounds other than
    its application's, or the calibration has others.

    Nothing, if the choice did not depend on the query; after a change of the section calibrate.
    """

    STORE_UNREACHABLE = "store_unreachable"
    """The store cannot be read. The last calibration that was read decides; alarms and activations
    of other gateways since then are not known.

    Repair the database: the gateway follows it again by itself.
    """

    ALPHA_INFEASIBLE = CoreReason.ALPHA_INFEASIBLE.value
    """Alpha is below 1/(n + 1). The whole pool was called.

    Choose a larger alpha, or calibrate with more rows: 0.1 takes 9 rows that count, 0.05
    takes 19, 0.01 takes 99.
    """

    UNLABELLED_EXCEEDS_ALPHA = CoreReason.UNLABELLED_EXCEEDS_ALPHA.value
    """Rows without a label count as misses, and are more than alpha allows. The whole pool was
    called.

    Label more of the rows.
    """

    ROUTER_FAILED = "router_failed_whole_pool"
    """The router failed, or took longer than `limits.route_timeout_s`. The whole pool was
    called.

    Read the cause in the log line `the router failed; the whole pool is called`.
    """

    ROUTER_OUT = "router_out_whole_pool"
    """The router does not respond: it scored nothing for `limits.route_timeout_s`. The whole pool
    was called at once, and the router is not asked until it answers a trial.

    Restart the encoder's process or the gateway; see its device. `/readyz` has `router` in
    `degraded`.
    """

    SUB_POOL_PENDING = "sub_pool_pending_whole_pool"
    """The threshold of the reduced pool was still being computed. All of that pool was
    called.

    Nothing: the threshold is stored for the next request.
    """

    FAN_OUT_LIMITED = "fan_out_limited"
    """The set was larger than `limits.fan_out`. Its best candidates were called.

    Raise the limit, or choose a larger alpha.
    """

    OBSERVED = "observe_only"
    """`routing.observe` called one fixed candidate instead of the set.

    Remove the setting when the trial is over.
    """

    PINNED = "pinned"
    """`x-session-id` kept candidates of earlier turns instead of those that the threshold chose,
    and no rows of whole conversations decide the request.

    Add rows of whole conversations (`conversation`), omit the header, or set
    `routing.session_ttl_s` to null.
    """

    LEADER = "leader_streamed"
    """`racer.stream: leader` called the best candidate alone.

    Stream with `vote`.
    """

    ABOVE_BUDGET = "above_budget"
    """A budget is above its soft limit, and its `above_soft: cheapest` called the cheapest
    candidate alone.

    Raise the budget's `soft`, or set another `above_soft`.
    """

    NO_VOTE = "no_vote"
    """`aggregation.open_ended: top` called the best candidate alone.

    Set it to `vote`.
    """

    SET_UNANSWERED = "set_unanswered"
    """No candidate of the set answered with a text, a tool call or a refusal. Rows label such
    answers wrong, so the set misses.

    Raise the limit on tokens.
    """

    # The reasons below carry the name of a field, a drift stream or a candidate: "stale:risk".
    CONDITIONS_DIFFER = "conditions_differ"
    """The field `<name>` makes what the candidates are sent differ from what the rows were labelled
    with. `endpoint`: another endpoint; `messages.system`: a system prompt; `rows`: the rows were
    labelled with other parameters than are configured now.

    Leave the field out, so that `candidates[].parameters` apply, or label rows with it:
    `racer doctor` prints the command.
    """

    ROUTER_CHANGED = "router_changed"
    """`<name>` decides scores and is not what it was for the rows: the file that the option
    `option.<option>` of a plug-in router names, its code (`code.<module>`), or the version of a
    library (`library.<distribution>`) that it or the encoder uses. `unreadable_files`: what these
    are now cannot be read; the log says why.

    Get it back and restart, or restart and calibrate again.
    """

    STALE = "stale"
    """A drift alarm of the stream `<name>` was raised since the calibration became active, for the
    request's application. `stale:age`: the calibration is older than
    `watching.expire_after_days`. Of `same_answer` also: no refresh from traffic succeeded for 7
    days.

    Find the cause, then calibrate on fresh rows.
    """

    CANDIDATE_FAILED = "candidate_failed"
    """The selected candidate `<name>` failed, and its answer could have changed the vote.

    `calls` in the `racer` object says how the candidate failed.
    """

    OUTVOTED_FAILED = "outvoted_candidate_failed"
    """The candidate `<name>` failed, and its answer could not have changed the vote.

    `calls` in the `racer` object says how the candidate failed.
    """

    CANDIDATE_DOWN = "candidate_down"
    """The candidate `<name>` was down before the set was chosen. The threshold of the remaining
    pool was used, which assumes that the outage does not depend on the query.

    Repair the candidate.
    """

    def of(self, name: str) -> str:
        """Return the reason with the name of a stream or a candidate."""
        return f"{self}:{name}"


class Remark(StrEnum):
    """A fact about the query that voids nothing: rows are a sample of traffic, rare queries too.

    Of a query that the router reads in part, no repeat is known, because other queries may have the
    same part. A void certificate has the same remarks.
    """

    CALIBRATION_QUERY = "calibration_query"
    """The query is one of the calibration rows that decide such requests. Rows of `same_answer`
    keep no query, and have no such remark.
    """

    REPEATED_QUERY = "repeated_query"
    """The same API key sent the query to this gateway process before."""

    UNLIKE_ROWS = "unlike_rows"
    """The query is outside what was calibrated: less like the router's training rows than 99 of 100
    calibration rows are. The bound, an average over queries like the rows, says little of it.
    At most 1 % of queries drawn like the rows have the remark. Only KNN routers tell, from 99 rows.
    """


REPEATS: Final = frozenset({Remark.CALIBRATION_QUERY, Remark.REPEATED_QUERY})  # seen before

# The guarantee holds with these: premises that only the caller can break, rows of the request's own
# kind, sets that are the whole pool, and causes outside the query.
HOLDING: Final[frozenset[str]] = CORE_HOLDING | {
    Reason.POOL_ASSUMED,
    Reason.GROUP_ASSUMED,
    Reason.TERMS_ASSUMED,
    Reason.LABELLED_CONDITIONS,
    Reason.LATER_TURN,
    Reason.STORE_UNREACHABLE,
    Reason.ROUTER_FAILED,
    Reason.ROUTER_OUT,
    Reason.SUB_POOL_PENDING,
    Reason.OUTVOTED_FAILED,
    Reason.CANDIDATE_DOWN,
}


def breaks(reason: str) -> bool:
    """Whether a reason voids the guarantee."""
    return base_reason(reason) not in HOLDING
