"""Decision record: the log entry of one routed query, enough to decide it again; no answer."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final, Self

from app.json_output import dump_json
from app.routing.decision import AnswerGuarantee, ChosenBy, RoutingRecord
from app.routing.reasons import REPEATS, Reason
from racer_core.calibration.certificate import base_reason

# Queries outside the populations of first turns: they are no evidence of anything.
_UNLIKE_ROWS: Final = frozenset(
    {
        Reason.NOT_CALIBRATED,
        Reason.MULTI_TURN,
        Reason.LATER_TURN,
        Reason.UNLABELLED_KIND,
        Reason.QUERY_TOO_LONG,
        Reason.REQUEST_TOO_LARGE,
        Reason.NOT_DRAWN,
        Reason.ROUTER_FAILED,
        Reason.ROUTER_OUT,
        Reason.GROUP_UNCALIBRATED,
        Reason.GROUPING_CHANGED,
        Reason.ROUTER_CHANGED,
    }
)
# A score depends on the query alone; whether an answer is right depends on the request's parameters
# too.
_ANSWERED_UNLIKE_ROWS: Final = _UNLIKE_ROWS | {Reason.CONDITIONS_DIFFER}


class RequestEnd(StrEnum):
    """How the request ended."""

    ANSWERED = "answered"  # with an answer, a refusal, or the decision where only that was wanted
    CANCELLED = "cancelled"  # the client disconnected before
    FAILED = "failed"  # with an error: no candidate gave a whole answer, or none was to be called


def are_like_rows(reasons: Collection[str]) -> bool:
    """Whether the query is drawn like the rows of first turns that set its threshold."""
    return _UNLIKE_ROWS.isdisjoint(map(base_reason, reasons))


def are_answered_like_rows(reasons: Collection[str]) -> bool:
    """Whether its answers, too, are requested as the rows' were, so that its loss is evidence."""
    return _ANSWERED_UNLIKE_ROWS.isdisjoint(map(base_reason, reasons))


@dataclass(frozen=True, kw_only=True)
class DecisionRecord(RoutingRecord):
    """One routed query: its decision, and its request.

    Attributes:
        decision_id: The value of ``x-racer-decision-id``.
        created_at: UTC, ISO 8601, as ``app.store.now`` gives it.
        key: The name of the caller's key.
        holds: Whether the certificate held in the end.
        reasons: Every reason in it.
        served_by: The candidate whose text was returned, if any.
        answered: The candidates that answered.
        sampling_rate: The sampling rate in force for the request; None where it could not be drawn.
        shadow_rate: The sampling rate of a decision in the shadow sample; None outside it.
        sampled_under: Of a sampled decision, what
            :func:`app.monitoring.samples.rows.population_digests` gave; None outside it.
        answer_setup: Of a sampled decision that the promise `same_answer` serves at the terms of
            its application, what :func:`app.same_answer.calibrations.answer_setup` gave; None:
            it is no row of that promise.
        conversation: The conversation by whose turn it was drawn for the shadow sample; None: by
            its id.
        turn: The number of that turn.
        outcome: How the request ended. Every decision is recorded, however its request ended:
            otherwise the records would be biased towards patient clients and easy queries.
        query: The text that the router read, if the operator stores queries.
        group_by: ``Settings.group_by``, which says what the group means.
        sequence: Of the promise `same_answer`: the order of calls, and the calls made.
        cost: What its calls cost, with their usage, as :mod:`app.answering.cost_meter` gives it;
            None: candidates had no prices, and it is in no form.
    """

    decision_id: str
    created_at: str
    key: str
    holds: bool
    reasons: tuple[str, ...] = ()
    served_by: str | None = None
    answered: tuple[str, ...] = ()
    sampling_rate: float | None = None
    shadow_rate: float | None = None
    sampled_under: str | None = None
    answer_setup: str | None = None
    conversation: str | None = None
    turn: int | None = None
    outcome: RequestEnd = RequestEnd.ANSWERED
    query: str | None = None
    group_by: str = "request"
    sequence: AnswerGuarantee | None = None
    cost: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, routing: RoutingRecord, **request: Any) -> Self:
        """The record of a request that a decision served, equal to one made field by field.

        It takes over the attributes of ``routing``, its stored form among them, in one step: with
        33 fields that is a quarter of the time.

        Args:
            routing: The part of the decision.
            **request: All other fields.
        """
        request["stored"] = routing.stored
        record = cls.__new__(cls)
        object.__setattr__(record, "__dict__", vars(routing) | request)
        return record

    @property
    def set_calibration_id(self) -> str | None:
        """The calibration of its scores; None: none was active, or answers decided."""
        return None if self.sequence is not None else self.calibration_id

    @property
    def application(self) -> str:
        """The application of the request; empty where none is configured."""
        return (self.group or "") if self.group_by == "application" else ""

    @property
    def router_changed(self) -> bool:
        """Whether other files or code scored it than the rows of its calibration."""
        return Reason.ROUTER_CHANGED in map(base_reason, self.reasons)

    @property
    def like_rows(self) -> bool:
        """The query is drawn like the rows of the first population, and the router scored it."""
        return self.scores is not None and not self.population and are_like_rows(self.reasons)

    @property
    def answered_like_rows(self) -> bool:
        """Verdicts on its answers are evidence of the risk that those rows bound."""
        return self.like_rows and are_answered_like_rows(self.reasons)

    def as_json(self) -> dict[str, Any]:
        """The wire form."""
        return self._request_as_json() | self.routing_as_json()

    def _request_as_json(self) -> dict[str, Any]:
        shown = {name: getattr(self, name) for name in _REQUEST_FIELDS}
        if self.cost is None:
            del shown["cost"]
        return shown | {"sequence": self.sequence and self.sequence.as_json()}

    def as_its_key_sees_it(self) -> DecisionRecord:
        """The same, as the data key that made it may read it.

        ``repeated`` tells of the key's own queries and of the rows, as the remarks do, and not of
        the queries of other keys. Of the configuration it reads nothing.
        """
        repeated = not REPEATS.isdisjoint(self.remarks)
        return replace(self, repeated=repeated, sampled_under=None, answer_setup=None)

    def document(self) -> str:
        """The stored JSON: every field but the neighbours, which have a column of their own."""
        request = dump_json(self._request_as_json()).decode()
        return f"{request[:-1]},{self.stored.fields[1:]}"  # one object of both

    @classmethod
    def from_document(cls, document: str, neighbours: tuple[int, ...] | None) -> DecisionRecord:
        """Read ``document`` back."""
        stored: dict[str, Any] = json.loads(document)
        for name in ("pool", "selected", "scores", "reasons", "answered", "projection", "remarks"):
            stored[name] = None if stored[name] is None else tuple(stored[name])
        sequence = stored["sequence"] and AnswerGuarantee.from_json(stored["sequence"])
        stored["sequence"] = sequence
        if stored["lambda_hat"] is None:  # infinite; the least threshold calls the first round
            stored["lambda_hat"] = -math.inf if sequence and not sequence.trivial else math.inf
        stored["chosen_by"] = ChosenBy(stored["chosen_by"])
        stored["outcome"] = RequestEnd(stored["outcome"])
        stored["neighbours"] = neighbours
        return cls(**stored)


_ROUTING_FIELDS: Final = {each.name for each in fields(RoutingRecord)}
_REQUEST_FIELDS: Final = tuple(
    each.name for each in fields(DecisionRecord) if each.name not in _ROUTING_FIELDS
)
