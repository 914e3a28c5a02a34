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

TURNS: Final = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/v1/responses": "input",
}
HARMLESS: Final = frozenset(
    ["model", "user", "metadata", "store", "stream", "stream_options", "n", "logprobs",
     "top_logprobs"]
)  # fmt: skip


def read_body(path: str, body: Mapping[str, Any], renamed: Collection[str] = ()) -> str:
    """What a candidate was sent, but for the query and harmless fields.

    Args:
        path: The path at the server.
        body: The body as it arrived there.
        renamed: Fields that the configuration renames, under both names; none is harmless.
    """
    harmless = set(HARMLESS)
    temperature = body.get("temperature")
    if temperature == 0 and not isinstance(temperature, bool):
        harmless.add("seed")
    if "tools" not in body:
        harmless.add("parallel_tool_calls")
    for name in ("response_format", "text"):
        if body.get(name) in ({"type": "text"}, {"format": {"type": "text"}}):
            harmless.add(name)
    harmless -= set(renamed) - {"model"}
    rest = {name: value for name, value in body.items() if name not in harmless}
    turns = rest.pop(TURNS[path], "")
    others: list[Any] = []
    if isinstance(turns, list):
        others = [
            [place, turn]
            for place, turn in enumerate(turns)
            if not _is_plain(turn, is_last=place == len(turns) - 1)
        ]
    elif not isinstance(turns, str):
        others = [turns]
    numbers = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in rest.items()
    }
    return json.dumps([path, body["model"], others, sorted(numbers.items())])


def _is_plain(turn: Any, *, is_last: bool) -> bool:
    """Whether a row can state the turn: plain text of user or assistant."""
    if not isinstance(turn, dict):
        return False
    present = {name for name, value in turn.items() if value is not None}
    text = turn.get("content")
    if isinstance(text, list) and len(text) == 1 and set(text[0]) == {"type", "text"}:
        text = text[0]["text"]
    return (
        present - {"type"} == {"role", "content"}
        and turn.get("type", "message") == "message"
        and isinstance(text, str)
        and turn["role"] in (("user",) if is_last else ("user", "assistant"))
    )


@dataclass(frozen=True, kw_only=True)
class LabelledPart:
    """Rows of one upload that were labelled alike."""

    sent: Mapping[str, str]  # by candidate, as `read_body` gives it
    is_later: bool  # turns after the first of a conversation
    groups: Counter[str | None]  # how many rows each group has


@dataclass(frozen=True, kw_only=True)
class KnownCalibration:
    """An upload, and the settings under which it was read."""

    parts: Sequence[LabelledPart]
    group_by: str
    text: str

    @property
    def has_groups(self) -> bool:
        """Whether some row has a group."""
        return any(set(part.groups) != {None} for part in self.parts)


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
        is_too_long: The router reads only the beginning of the query.
        group: The group of the request.
        alpha: The requested risk level.
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
    is_too_long: bool
    group: str | None
    alpha: float | None
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
    if seen.is_too_long:
        return "the router did not read the whole query"
    if seen.alpha is not None and guarantee["alpha"] != seen.alpha:
        return "another alpha was requested"
    if lost := set(seen.allowed) - set(guarantee["pool"]) - set(seen.failing):
        return f"the pool lacks {sorted(lost)}"
    return (
        _wrong_rows(seen, calibrations[name])
        or _wrong_set(seen, guarantee, certificate, selected)
        or (_unanswered(seen, selected) if seen.executes and selected else None)
    )


def _wrong_rows(seen: Observation, known: KnownCalibration) -> str | None:
    """Why the rows do not speak for the request."""
    certificate = seen.racer["certificate"]
    pool = certificate["guarantee"]["pool"]
    alike = [
        part
        for part in known.parts
        if part.is_later == seen.is_later
        and (not part.is_later or known.text == seen.text)
        and all(bodies <= {part.sent[name]} for name, bodies in _known(seen.sent, pool))
    ]
    if not alike:
        return f"no row was labelled with {dict(_known(seen.sent, pool))}"
    if known.has_groups and known.group_by != seen.group_by:
        return f"rows were grouped by {known.group_by}"
    counts = sum((part.groups for part in alike), Counter[str | None]())
    has_groups = set(counts) != {None}
    if has_groups and seen.group is not None and seen.group not in counts:
        return f"no row belongs to the group {seen.group}"
    if (group := certificate["guarantee"]["group"]) not in (None, seen.group):
        return f"the threshold is that of the group {group}"
    most = counts[group] if group is not None else sum(counts.values())
    if certificate["n"] > most:
        return f"{certificate['n']} rows decided, and only {most} are like the request"
    return None


def _known(
    sent: Mapping[str, Collection[str]], pool: Iterable[str]
) -> list[tuple[str, frozenset[str]]]:
    return [(name, frozenset(sent[name])) for name in pool if sent.get(name)]


def _wrong_set(
    seen: Observation, guarantee: Mapping[str, Any], certificate: Mapping[str, Any], selected: Any
) -> str | None:
    """Why the set is not that of the threshold."""
    is_whole = set(selected) == set(guarantee["pool"])
    if not is_whole and guarantee["alpha"] * (certificate["n"] + 1) < 1:
        return f"{certificate['n']} rows allow no alpha of {guarantee['alpha']}"
    scores, threshold = seen.racer["pool_scores"], certificate["lambda_hat"]
    if certificate["score"] == "gap" and selected:
        best = max(scores.values())
        due = {j for j, f in scores.items() if threshold is None or best - f <= threshold - 1e-9}
        if not due <= set(selected):
            return f"the threshold selects {sorted(due)} as well"
    if seen.executes and not set(selected) <= set(scores):
        return "the set is not part of the pool"
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
    if texts and not silent:
        return None
    votes = Counter(texts).most_common(2)
    lead = votes[0][1] - sum(count for _, count in votes[1:]) if votes else 0
    scores = seen.racer["pool_scores"]
    winner = seen.racer.get("served_by")
    wins_ties = winner is not None and winner == min(
        [winner, *silent], key=lambda name: (-scores[name], name)
    )
    if lead > len(silent) or (lead == len(silent) and wins_ties):
        return None
    return f"{silent} gave no answer, and the votes were {votes}"
