"""Shadow rows: decisions of the shadow sample as labelled rows, their judge and their population.

A decision without a label is a row, too, and is marked as unlabelled. Without such rows the sample
would depend on what candidates could answer and judges could decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import takewhile
from typing import Any, Final

from app.ids import random_part
from app.json_output import dump_json
from app.monitoring.decisions.record import DecisionRecord, are_like_rows
from app.monitoring.samples.record import SampledDecision, SampledExchange
from app.routing.conditions import ConditionReader
from app.routing.premises import is_whole_but_for_outages
from app.routing.query import MAX_ROW_BYTES, is_too_large_to_draw
from app.routing.reasons import Reason
from app.settings import GroupBy, Settings
from app.settings.applications import leave_out_digest, members_digest
from racer_core.calibration.certificate import base_reason
from racer_core.errors import InputError


def labelled_rows(
    read: Callable[[], Iterable[SampledDecision]],
    pool: Sequence[str],
    *,
    group_by: GroupBy,
    drawn: Collection[str],
    together: Collection[str] = (),
    sampled_under: str = "",
    conditions_of: Callable[[str], Sequence[str] | None],
    stores_requests: bool,
    own: Collection[str],
    sent_now: Callable[[SampledExchange], Mapping[str, str]],
    any_pool: bool = False,
    judge: str | None = None,
    labels: int | None = None,
) -> tuple[Iterator[bytes], int]:
    """Sampled decisions as rows, each a line of JSON; one of them is in memory at a time.

    These decisions are no rows:

    - only a part of the pool may or can serve the request, and no outage is the reason;
    - it was made under another ``group_by``;
    - it was drawn when applications had other requests, or from a drawn application to whose
      requests the gateway added something else: those that are sent the same now, by what clients
      put into them, are no random sample;
    - no requests are stored, and it has no scores, or scores of a text that is read otherwise now,
      or is unlike the rows and not of a drawn application;
    - its request is larger than a row may be;
    - its application has first and later turns together, and its request no session.

    Answers that are too long for a row are left out of it. The ``cluster`` of a later turn is its
    conversation. A decision whose stored request cannot be decrypted is a row, too, marked
    ``unreadable``: left out, the rows would depend on what can be decrypted.

    Args:
        read: Reads the decisions, oldest first. It is called twice where rows carry verdicts.
        pool: The router's pool, in order.
        group_by: The configured origin of groups; a group of another origin is another one.
        drawn: The applications whose rows are requests drawn from their traffic.
        together: The applications whose first and later turns are one population.
        sampled_under: What :func:`app.monitoring.samples.rows.population_digests` gives now.
        conditions_of: The digests of the rows of a decision's calibration, by its id, for a
            decision without a sample beside it; None: unknown.
        stores_requests: Whether requests are stored.
        own: The calibrations of the loaded artifact. Of other decisions, requests are rows whose
            candidates are sent the same now, and those that are not stored, without a label.
        sent_now: The digests of what candidates are sent for a request now, by name.
        any_pool: Rows are all stored requests, each with the candidates of its own time, and drawn
            decisions whose request is lost, without a label.
        judge: The judge whose verdicts rows carry, as :func:`choose_verdicts` takes it;
            ``LABELS_ALONE``: none.
        labels: The number of labels beside verdicts, as :func:`choose_verdicts` takes it.

    Returns:
        The lines, and how many rows lost their label beside verdicts.
    """

    def is_of_population(decision: DecisionRecord) -> bool:
        before, now = decision.sampled_under or "", sampled_under
        is_drawn = group_by == "application" and decision.group in drawn
        # Every request is sent again, or compared by itself, but for drawn ones.
        compared = 1 if any_pool or not is_drawn else 2
        return before.split(" ")[:compared] == now.split(" ")[:compared]

    def is_own(decision: DecisionRecord) -> bool:
        """Whether its scores are what the loaded router would say of its text."""
        is_read_alike = are_read_alike(decision.sampled_under, sampled_under)
        is_scored_alike = decision.set_calibration_id in own and not decision.router_changed
        return is_scored_alike and is_read_alike

    def row_of(each: SampledDecision) -> dict[str, Any] | None:
        sample, of_row = each.sample, pool
        exchange = None if sample is None else sample.exchange
        if each.decision.group_by != group_by:
            return None
        if not is_of_population(each.decision):
            return None
        is_together = group_by == "application" and each.decision.group in together
        if is_together and each.decision.turn is None:
            return None
        if any_pool:
            if sample is None or sample.is_unreadable:  # it was drawn, and its request is lost
                each = replace(each, decision=replace(each.decision, scores=None, query=None))
            elif exchange is None:
                return None
            else:
                of_row = tuple(sample.digests)
        elif not is_own(each.decision):
            if sample is not None and exchange is not None:
                now = sent_now(exchange)
                if any(sample.digests.get(name) != now[name] for name in pool):
                    return None
            elif each.decision.set_calibration_id is not None:
                is_lost = sample is None or sample.is_unreadable
                if not (is_lost and stores_requests):
                    return None  # its scores are another router's
                each = replace(each, decision=replace(each.decision, scores=None, query=None))
        return _row(each, of_row, drawn, conditions_of, stores_requests=stores_requests)

    def rows() -> Iterator[dict[str, Any]]:
        return (row for each in read() if (row := row_of(each)) is not None)

    verdicts = None if judge == LABELS_ALONE else choose_verdicts(rows(), judge, labels)
    choose = without_verdicts if verdicts is None else verdicts.row
    chosen = (row for each in rows() if (row := choose(each)) is not None)
    lines = (line for row in chosen if (line := _line(row)) is not None)
    return lines, 0 if verdicts is None else verdicts.left_out


def _line(row: Mapping[str, Any]) -> bytes | None:
    """A row as an upload takes it; without its answers where they are too long, None if it is."""
    for left_out in ((), ("answers", "calls")):
        line = dump_json({name: row[name] for name in row if name not in left_out}) + b"\n"
        if len(line) <= MAX_ROW_BYTES:
            return line
    return None


def _row(
    sampled: SampledDecision,
    pool: Sequence[str],
    drawn: Collection[str],
    conditions_of: Callable[[str], Sequence[str] | None],
    *,
    stores_requests: bool,
) -> dict[str, Any] | None:
    decision, sample = sampled.decision, sampled.sample
    down = [
        each.partition(":")[2]
        for each in decision.reasons
        if base_reason(each) == Reason.CANDIDATE_DOWN
    ]
    called = [name for name in decision.pool if name in pool]
    if not is_whole_but_for_outages(called, down, pool):
        return None
    if not decision.shadow_rate:
        return None
    exchange = None if sample is None else sample.exchange
    is_drawn = decision.group_by == "application" and decision.group in drawn
    conditions = _conditions(sampled, pool, conditions_of)
    is_too_large = Reason.REQUEST_TOO_LARGE in decision.reasons or (
        exchange is not None and is_too_large_to_draw(exchange.request)
    )
    if is_drawn and is_too_large:
        return None
    is_unreadable = sample is not None and sample.is_unreadable
    is_row = exchange is not None or is_drawn or is_unreadable
    if not is_row and not (conditions and _is_like_rows(decision)):
        return None
    row: dict[str, Any] = {"unreadable": True} if is_unreadable else {}
    is_scored = decision.scores is not None and len(decision.scores) == len(pool)
    if exchange is not None:
        row["request"] = exchange.request
        row["answers"] = {name: exchange.answers.get(name) for name in pool}
        row["calls"] = {name: each for name, each in exchange.calls.items() if name in pool}
    elif decision.scores is not None and is_scored:
        row |= {} if decision.query is None else {"query": decision.query}
        row["scores"] = dict(zip(pool, decision.scores, strict=True))
    elif decision.set_calibration_id is not None or stores_requests:
        row["scores"] = dict.fromkeys(pool, 0.0)  # without a label they count for nothing
    else:
        return None
    is_readable = exchange is not None or is_scored
    if is_readable and all(name in sampled.correct for name in pool):
        row["correct"] = {name: sampled.correct[name] for name in pool}
    else:
        row["unlabelled"] = True
    judged = _judged(sampled.judgements, pool) if is_readable else {}
    if judged:
        row["judged"] = {
            judge: {name: verdicts[name] for name in pool} for judge, verdicts in judged.items()
        }
    if exchange is None and sampled.is_later:
        row["later"] = True
    if decision.turn is not None:
        row |= {"cluster": decision.conversation, "turn": decision.turn}
    if conditions is not None:
        row["conditions"] = conditions
    name = "application" if decision.group_by == "application" else "group"
    return row | {
        name: decision.group,
        "weight": 1.0 / decision.shadow_rate,
        "decision_id": decision.decision_id,
    }


def _is_like_rows(decision: DecisionRecord) -> bool:
    """Whether it is of a kind that was labelled, be it of an application without rows."""
    return are_like_rows(
        [each for each in decision.reasons if base_reason(each) != Reason.GROUP_UNCALIBRATED]
    )


def _judged(
    judgements: Mapping[str, Mapping[str, bool]], names: Sequence[str]
) -> dict[str, Mapping[str, bool]]:
    """The verdicts of each judge that judged all of these candidates."""
    return {
        judge: verdicts
        for judge, verdicts in judgements.items()
        if all(name in verdicts for name in names)
    }


def _conditions(
    sampled: SampledDecision,
    pool: Sequence[str],
    conditions_of: Callable[[str], Sequence[str] | None],
) -> dict[str, str] | None:
    """The digests of what its candidates were sent, or would have been."""
    decision, sample = sampled.decision, sampled.sample
    if sample is not None:
        digests = {name: sample.digests[name] for name in pool if name in sample.digests}
        return digests if len(digests) == len(pool) else None
    if decision.set_calibration_id is None or not decision.answered_like_rows:
        return None
    vector = conditions_of(decision.set_calibration_id)
    return None if vector is None else dict(zip(pool, vector, strict=True))


# Judge verdicts of exported rows: those of one judge, beside labels on a random part of the rows.
#
# The correction of a judge's verdicts by labels needs both: the errors of one judge, measured on
# rows that are drawn at random. Labels as they come are no random part: the gateway itself labels
# what all candidates refuse, a checker labels what it understands, and people choose.

LABELS_ALONE: Final = ""  # instead of a judge's name: rows carry no verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenVerdicts:
    """Which rows carry the verdicts of one judge, and which their label, by decision id.

    Attributes:
        judge: The judge's name.
        rows: The rows that were there when this was chosen. Later ones wait for the next export, so
            that the labels stay a random part.
        judged: Those with this judge's verdicts.
        labelled: Those with a label.
        left_out: How many lost their label.
    """

    judge: str
    rows: frozenset[str]
    judged: frozenset[str]
    labelled: frozenset[str]
    left_out: int

    def row(self, row: dict[str, Any]) -> dict[str, Any] | None:
        """A row with these verdicts; None if it was not there."""
        decision = row["decision_id"]
        if decision not in self.rows:
            return None
        chosen = without_verdicts(row)
        if decision in self.judged:
            chosen |= {"judged": row["judged"][self.judge], "judge": self.judge}
        if "correct" in chosen and decision not in self.labelled:
            del chosen["correct"]
            chosen["unlabelled"] = True
        return chosen


def without_verdicts(row: dict[str, Any]) -> dict[str, Any]:
    """A row without the verdicts of judges."""
    return {name: value for name, value in row.items() if name != "judged"}


def choose_verdicts(
    rows: Iterable[dict[str, Any]], judge: str | None, labels: int | None = None
) -> ChosenVerdicts | None:
    """The verdicts of one judge, beside labels on a random part of the rows.

    Rows are ordered by the random part of their decision ids, as people are shown samples. Of rows
    with verdicts, those before the first without a label keep their labels, or as many of these as
    were fixed beforehand. If any row has verdicts, a row with a label alone loses it, which counts
    as a miss.

    The bound is proved for a number of labels that depends on no label. To stop where thresholds
    look good breaks it, as it breaks every test that is repeated until it passes.

    Args:
        rows: Rows with `decision_id` and, in `judged`, the complete verdicts of every judge.
        judge: The judge's name; None: the one with verdicts on most rows, of several the first by
            name.
        labels: The number of labels, fixed before they were given; None: as many as there are.

    Returns:
        The choice; None where no row has verdicts of such a judge.

    Raises:
        InputError: Fewer than ``labels`` rows stand before the first without a label.
    """
    verdicts: dict[str, Sequence[str]] = {}
    with_label = set[str]()
    for row in rows:
        verdicts[row["decision_id"]] = tuple(row.get("judged", ()))
        if "correct" in row:
            with_label.add(row["decision_id"])
    counts = Counter(sorted(name for names in verdicts.values() for name in names))
    if judge is None and counts:
        judge = counts.most_common(1)[0][0]
    if judge is None or judge not in counts:
        return None
    judged = [decision for decision, names in verdicts.items() if judge in names]
    labelled = list(takewhile(with_label.__contains__, sorted(judged, key=random_part)))
    if labels is not None and len(labelled) < labels:
        raise InputError(
            f"of the first {labels} judged rows in the order of the page's tab Label, row "
            f"{len(labelled) + 1} has no label: label what the tab shows first, or have the judge "
            "read more rows",
            param="labels",
        )
    labelled = frozenset(labelled[:labels])
    return ChosenVerdicts(
        judge=judge,
        rows=frozenset(verdicts),
        judged=frozenset(judged),
        labelled=labelled,
        left_out=len(with_label - labelled),
    )


# Digests of a sampled population: which requests there are, how they are sent and read.


def population_digests(settings: Settings, conditions: ConditionReader) -> str:
    """Digests of the requests that are sampled, as decisions store them, between spaces.

    The first, of which requests each application has and how their turns are drawn; the second, of
    what the gateway adds to any request; the third, of what the router does not read of them, where
    it does not read everything.
    """
    added = dump_json([conditions.added[name] for name in settings.pool])
    members = members_digest(settings.applications)
    digests = [members, blake2b(added, digest_size=8).hexdigest()]
    return " ".join([*digests, leave_out_digest(settings.applications)]).rstrip()


def are_read_alike(before: str | None, now: str) -> bool:
    """Whether the router read requests of earlier digests as it reads those of present ones.

    Args:
        before: Earlier digests; None: the request was not sampled.
        now: What :func:`population_digests` gives now.
    """
    return (before or "").split(" ")[2:] == now.split(" ")[2:]
