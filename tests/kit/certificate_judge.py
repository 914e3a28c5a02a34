"""An independent judge of certificates, from what upstream servers received.

The judge reads recorded bodies, never the gateway's decisions: it knows which rows were uploaded,
what each candidate was sent for them, which candidates answered, and which alarms were raised.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

# The field of a body that holds the conversation, and the type of its text parts.
TURNS: Final = {
    "/v1/chat/completions": ("messages", "text"),
    "/v1/completions": ("prompt", ""),
    "/v1/responses": ("input", "input_text"),
}
# Fields that change no answer, by the API that has them; `n` only beside free choices.
_EVERYWHERE: Final = ("model", "user", "stream", "stream_options")
HARMLESS: Final = {
    "/v1/chat/completions": {*_EVERYWHERE, "metadata", "store", "n", "logprobs", "top_logprobs"},
    "/v1/completions": {*_EVERYWHERE, "n", "logprobs"},
    "/v1/responses": {*_EVERYWHERE, "metadata", "store", "top_logprobs"},
}


def read_body(path: str, body: Mapping[str, Any], renamed: Collection[str] = ()) -> str:
    """What a candidate was sent, but for the query and harmless fields.

    Args:
        path: The path at the server.
        body: The body as it arrived there.
        renamed: Fields that the configuration renames, under both names; none is harmless, and
            none says that another one is.
    """
    harmless = set(HARMLESS[path])
    is_greedy = body.get("temperature") == 0 and "temperature" not in renamed
    if is_greedy and path != "/v1/responses":
        harmless.add("seed")
    if "tools" not in {*body, *renamed} and path != "/v1/completions":
        harmless.add("parallel_tool_calls")
    if {"use_beam_search", "best_of"} & {*body, *renamed}:
        harmless.discard("n")
    harmless -= set(renamed) - {"model"}
    rest = {name: value for name, value in body.items() if name not in harmless}
    name, part = TURNS[path]
    turns = rest.pop(name, "")
    others: list[Any] = []
    if isinstance(turns, list):
        others = [
            [place, turn]
            for place, turn in enumerate(turns)
            if not _is_plain(turn, part, is_last=place == len(turns) - 1)
        ]
    elif not isinstance(turns, str):
        others = [turns]
    numbers = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in rest.items()
    }
    return json.dumps([path, body["model"], others, sorted(numbers.items())])


def _is_plain(turn: Any, part: str, *, is_last: bool) -> bool:
    """Whether a row can state the turn: plain text of user or assistant."""
    if not isinstance(turn, dict):
        return False
    present = {name for name, value in turn.items() if value is not None}
    text = turn.get("content")
    if (
        isinstance(text, list)
        and len(text) == 1
        and text[0] | {"text": ""}
        == {
            "type": part,
            "text": "",
        }
    ):
        text = text[0]["text"]
    return (
        present - {"type"} == {"role", "content"}
        and turn.get("type", "message") == "message"
        and isinstance(text, str)
        and turn["role"] in (("user",) if is_last else ("user", "assistant"))
    )


@dataclass(frozen=True, kw_only=True)
class LabelledPart:
    """Rows of one upload that were labelled alike.

    Attributes:
        sent: What each candidate was sent, as `read_body` gives it.
        is_later: They are turns after the first of a conversation.
        rows: The group and the right candidates of each row; rows of one query all count.
    """

    sent: Mapping[str, str]
    is_later: bool
    rows: Sequence[tuple[str | None, frozenset[str]]]

    def is_like(self, other: LabelledPart) -> bool:
        """Whether rows of both are of one kind."""
        return (self.sent, self.is_later) == (other.sent, other.is_later)


@dataclass(frozen=True, kw_only=True)
class KnownCalibration:
    """An upload, and the settings under which it was read."""

    parts: Sequence[LabelledPart]
    alpha: float
    group_by: str
    text: str
    query_chars: int

    @property
    def stored(self) -> Sequence[LabelledPart]:
        """The parts of kinds with rows enough for a threshold, and of the most first turns."""

        def rows(part: LabelledPart) -> int:
            return sum(len(each.rows) for each in self.parts if each.is_like(part))

        most = max((rows(part) for part in self.parts if not part.is_later), default=0)
        return [
            part
            for part in self.parts
            if self.allows(rows(part)) or (rows(part) == most and not part.is_later)
        ]

    def allows(self, rows: int) -> bool:
        """Whether this number of rows has a finite threshold at the calibration's alpha."""
        return self.alpha * (rows + 1) >= 1 - 1e-9


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One certified request, and what is known of it beside the certificate.

    Attributes:
        racer: The `racer` object.
        header: `x-racer-guarantee`.
        is_stream: The answer came as events.
        executes: Candidates were to be called.
        sent: What each candidate was sent, as `read_body` gives it; also those that a copy of the
            request named, because the set left them out.
        called: The candidates that received the request itself.
        answers: The text of each candidate that answers; a blank is an answer without a vote.
        allowed: The candidates that the request may be routed among.
        failing: The candidates that may have been out before the request.
        is_later: The request is a later turn.
        chars: The length of the text that the router reads, or of which it reads the beginning.
        query_chars: `limits.query_chars` at the time.
        group: The group of the request.
        alpha: The risk level that the request, its pool and its key leave; None: the calibration's.
        max_alpha: The largest risk level of the key.
        fan_out: The largest number of candidates that are called.
        group_by: `routing.group_by` at the time.
        text: `routing.text` at the time.
        active: The calibrations that were active during the request.
        alarmed: Calibrations with a drift alarm before the request.
    """

    racer: Mapping[str, Any]
    header: str
    is_stream: bool
    executes: bool
    sent: Mapping[str, Collection[str]]
    called: Collection[str]
    answers: Mapping[str, str]
    allowed: Collection[str]
    failing: Collection[str]
    is_later: bool
    chars: int
    query_chars: int
    group: str | None
    alpha: float | None
    max_alpha: float | None
    fan_out: int
    group_by: str
    text: str
    active: Collection[str]
    alarmed: Collection[str]


def denial(seen: Observation, calibrations: Mapping[str, KnownCalibration]) -> str | None:
    """Why the certificate may not hold; None: it may."""
    certificate, selected = seen.racer["certificate"], seen.racer["selected"]
    guarantee, name = certificate["guarantee"], certificate["calibration_id"]
    if name not in seen.active:
        return f"calibration {name} was not active"
    if name in seen.alarmed:
        return f"calibration {name} had an alarm"
    known = calibrations[name]
    limits = {seen.query_chars, known.query_chars}
    if len(limits) > 1 and seen.chars > min(limits):
        return "the router reads another part of the query than it read of rows"
    alpha = known.alpha if seen.alpha is None else seen.alpha
    alpha = min(alpha, seen.max_alpha or 1)
    if guarantee["alpha"] != alpha:
        return f"alpha is {guarantee['alpha']}, not {alpha}"
    if lost := set(seen.allowed) - set(guarantee["pool"]) - set(seen.failing):
        return f"the pool lacks {sorted(lost)}"
    if strange := set(guarantee["pool"]) - set(seen.allowed):
        return f"the pool has {sorted(strange)}"
    return (
        _wrong_rows(seen, known)
        or _wrong_set(seen, alpha, certificate["lambda_hat"], selected)
        or _wrong_levels(seen)
        or (_unanswered(seen, selected) if seen.executes and selected else None)
    )


def _wrong_rows(seen: Observation, known: KnownCalibration) -> str | None:
    """Why the rows do not speak for the request."""
    certificate = seen.racer["certificate"]
    guarantee, n = certificate["guarantee"], certificate["n"]
    pool = guarantee["pool"]
    if guarantee["trivial"]:  # the whole pool, which misses nothing
        return None
    if seen.is_later and known.text != seen.text:
        return f"the router read {known.text} of the rows"
    parts = [part for part in known.stored if _is_alike(seen, part)]
    if not parts:
        return f"no row was labelled with {dict(seen.sent)}"
    is_exact = all(seen.sent.values())  # what each candidate of the calibration is sent is known
    counts = _count(parts, pool)
    group = None
    if set(_count(known.stored, pool)) != {None}:
        if known.group_by != seen.group_by:
            return f"rows were grouped by {known.group_by}"
        if seen.group not in counts:
            return f"no row belongs to the group {seen.group}"
        group = seen.group
        counts = Counter({group: counts[group]})
    if is_exact and (guarantee["group"], n) != (group, counts.total()):
        return f"{n} rows of {guarantee['group']} decided, not {counts.total()} of {group}"
    return f"only {counts.total()} rows are like the request" if n > counts.total() else None


def _is_alike(seen: Observation, part: LabelledPart) -> bool:
    """Whether candidates were sent what they were sent for the rows, as far as is known."""
    return part.is_later == seen.is_later and all(
        set(bodies) <= {part.sent[name]} for name, bodies in seen.sent.items()
    )


def _count(parts: Iterable[LabelledPart], pool: Collection[str]) -> Counter[str | None]:
    """The rows of each group that some candidate of the pool answers right."""
    counts = Counter[str | None]()
    for group, right in (row for part in parts for row in part.rows):
        counts[group] += not right.isdisjoint(pool)
    return counts


def _wrong_set(
    seen: Observation, alpha: float, threshold: float | None, selected: Collection[str]
) -> str | None:
    """Why the set is not that of the threshold."""
    certificate, scores = seen.racer["certificate"], seen.racer["pool_scores"]
    is_whole = set(selected) == set(certificate["guarantee"]["pool"])
    if threshold is None and not is_whole:
        return "the set is not the whole pool"
    if not is_whole and alpha * (certificate["n"] + 1) < 1 - 1e-9:
        return f"{certificate['n']} rows allow no alpha of {alpha}"
    if certificate["score"] == "gap" and selected:
        best = max(scores.values())
        # Ties are broken by noise of at most 1e-6.
        due = {j for j, f in scores.items() if threshold is None or best - f <= threshold - 1.1e-6}
        if not due <= set(selected):
            return f"the threshold selects {sorted(due)} as well"
    if seen.executes and not set(selected) <= set(scores):
        return "the set is not part of the pool"
    return None


def _wrong_levels(seen: Observation) -> str | None:
    """Why a set of another risk level is not that of its threshold."""
    for level in seen.racer.get("levels", ()):
        if len(level["selected"]) < seen.fan_out and (
            wrong := _wrong_set(seen, level["alpha"], level["lambda_hat"], level["selected"])
        ):
            return f"{wrong} at alpha {level['alpha']}"
    return None


def _unanswered(seen: Observation, selected: Sequence[str]) -> str | None:
    """Why the set did not answer, or the header claimed too much."""
    if seen.is_stream and seen.header == "holds":
        return "the header of a stream cannot know its end"
    if not seen.is_stream and seen.header != "holds":
        return f"the header says {seen.header}"
    answered = [each for each in selected if each in seen.answers and each in seen.called]
    silent = [each for each in selected if each not in answered]
    texts = [seen.answers[each] for each in answered if seen.answers[each].strip()]
    if not texts:
        return "no candidate of the set answered"
    if not silent:
        return None
    votes = Counter(texts).most_common(2)
    lead = votes[0][1] - sum(count for _, count in votes[1:])
    scores = seen.racer["pool_scores"]
    winner = seen.racer.get("served_by")
    wins_ties = winner is not None and winner == min(
        [winner, *silent], key=lambda name: (-scores[name], name)
    )
    if lead > len(silent) or (lead == len(silent) and wins_ties):
        return None
    return f"{silent} gave no answer, and the votes were {votes}"
