"""Parser of one labelled row, with a message for every way in which it can be wrong.

    {"query": "...", "correct": {"a": true, "b": false}}           a map of the pool
    {"query": "...", "correct": ["a"], "candidates": ["a", "b"]}   a list and the pool
    {"messages": [{"role": "user", "content": "..."}], ...}        a query, or turns that lead to it

    {"request": {"messages": [...], "tools": [...]}, ...}          a whole request, as it was sent

    {"query": "...", "quality": {"a": 0.7, "b": 0.2}, ...}         grades of all answers, in [0, 1]

Without ``correct``, a quality of 0.5 or more counts as right, for routers, patterns and votes.
``candidates`` may also stand once in the file's header line. Rows with recorded ``answers`` for
the whole pool name it by their keys. ``conditions`` maps each candidate to the digest of what it
was sent, and ``confidences`` each evaluator to its confidences in the answers, as `racer label`
writes them. ``application``, or ``group``, names the population to which the row belongs, and
``cluster`` names the document, user or conversation that the row shares with others, and
``conversation`` the one of which the file has all turns, each with the turns before it.
``[]`` means that no candidate is right. Null or absent is rejected: reading "unknown" as "wrong" is
not conservative. A row of a random sample without a label says ``"unlabelled": true`` instead,
which counts as a miss in calibration, and ``decision_id`` names the decision that was sampled, by a
``turn`` of its cluster where the row has one.
``judged`` maps every candidate to the verdict of a judge model, also beside ``correct``; a row with
verdicts alone is no miss, for `racer calibrate` corrects the verdicts by the rows with both.
``judge`` names the judge, one for all rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from racer_core.errors import InputError
from racer_core.records.conversation import RoutedText, TextOfGroup, parse_messages
from racer_core.records.request import parse_request, request_conversation
from racer_core.records.row_numbers import (
    chance,
    refuse_unknown,
    row_quality,
    row_scores,
    row_weight,
    shown,
)
from racer_core.records.sampled import parse_turn
from racer_core.types import CallRecord, Confidences, LabelledRow, Turn, checked_pool

MAX_QUERY_CHARS = 8_192  # the default of `limits.query_chars`
CONFIDENCES = ("verbal", "p_true")  # kinds; `aggregation.weight` has the same names
RIGHT_QUALITY = 0.5  # a quality from which an answer counts as right
_DIGEST = re.compile(r"[0-9a-f]{32}")


class RowQuery(NamedTuple):
    """What a row asks.

    Attributes:
        query: The text of the turn that asks; empty for a row of scores.
        earlier: The other turns but system prompts.
        request: The whole request, without the gateway's own fields; None: turns of plain text.
    """

    query: str
    earlier: tuple[Turn, ...] = ()
    request: dict[str, Any] | None = None


def row_pool(row: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The pool that the row itself names; None when it names none."""
    if "candidates" in row:
        return checked_pool(_names(row["candidates"], "candidates"))
    for field in ("correct", "quality", "answers", "scores", "judged"):
        if isinstance(row.get(field), dict):
            return checked_pool(tuple(cast("dict[str, Any]", row[field])))
    return None


def parse_row(
    row: object,
    pool: tuple[str, ...],
    *,
    max_query_chars: int | None = None,
    header: bool = False,
    text: RoutedText | TextOfGroup | None = None,
    takes_unlabelled: bool = False,
) -> LabelledRow:
    """Check one row against the pool.

    Args:
        row: The parsed row.
        pool: The required pool.
        max_query_chars: A longer query is cut; None: none is.
        header: The file's header names the pool.
        text: The text to route on of several turns, also by the row's group; None refuses them.
        takes_unlabelled: Whether rows may say that they have no label.

    Raises:
        InputError: The message names the error without repeating the query.
    """
    if not isinstance(row, dict):
        raise InputError("a row must be a JSON object")
    fields = cast("dict[str, Any]", row)
    if "candidates" in fields and set(_names(fields["candidates"], "candidates")) != set(pool):
        raise InputError(f"its candidates are not the pool {shown(pool)}")
    scores = row_scores(fields, pool)
    quality = row_quality(fields, pool)
    judged = _judged(fields.get("judged"), pool)
    unlabelled = _is_unlabelled(fields, judged is not None, is_allowed=takes_unlabelled)
    content = RowQuery("") if scores else row_query(fields, text)
    decision_id = optional_text(fields, "decision_id") or None
    cluster = optional_text(fields, "cluster") or None
    conversation = optional_text(fields, "conversation") or None
    if conversation is not None:
        _refuse_in_conversation(fields)
    return LabelledRow(
        query=content.query[:max_query_chars],
        earlier=content.earlier,
        request=content.request,
        correct=frozenset() if unlabelled else _correct(fields, pool, quality, header=header),
        answers=_answers(fields.get("answers"), pool),
        reference=reference_text(fields),
        task=optional_text(fields, "task"),
        group=row_group(fields),
        cluster=cluster,
        conversation=conversation,
        scores=scores,
        conditions=_conditions(fields.get("conditions"), pool),
        confidences=_confidences(fields.get("confidences"), pool),
        calls=_calls(fields.get("calls"), pool),
        quality=quality,
        weight=row_weight(fields),
        unlabelled=unlabelled,
        decision_id=decision_id,
        turn=parse_turn(fields, decision_id, cluster),
        judged=judged,
        judge=optional_text(fields, "judge") or None,
    )


def checked_query(text: object) -> str:
    """Return a query's text, which is not blank."""
    if not isinstance(text, str):
        raise InputError("query must be a string", param="query")
    if not text.strip():
        raise InputError("query is empty", param="query")
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise InputError("query holds a lone surrogate, which is not text", param="query") from exc
    return text


def row_query(row: Mapping[str, Any], text: RoutedText | TextOfGroup | None) -> RowQuery:
    """What a row asks: its ``query``, the last of its ``messages``, or its whole ``request``.

    Raises:
        InputError: The text to route on is no text, or there are several turns and ``text`` is
            None.
    """
    if callable(text):
        text = text(row_group(row))
    if row.get("request") is not None:
        if beside := [name for name in ("query", "messages") if name in row]:
            raise InputError(f'give either "request" or "{beside[0]}"')
        request = parse_request(row["request"])
        conversation = request_conversation(request)
        conversation.text(text or "last_user")  # it has some
        earlier = conversation.earlier
        _refuse_turns("request", earlier, text)
        return RowQuery(conversation.query, earlier, request)
    if "messages" not in row:
        if "query" not in row:
            raise InputError('no "query" and no "request"')
        return RowQuery(checked_query(row["query"]))
    earlier, query = parse_messages(row["messages"])
    _refuse_turns("messages", earlier, text)
    return RowQuery(checked_query(query), earlier)


def _refuse_turns(field: str, earlier: tuple[Turn, ...], text: RoutedText | None) -> None:
    if earlier and text is None:
        raise InputError(
            f'"{field}" has several turns: they are another population than first turns, which '
            "only a running gateway calibrates beside them (racer calibrate), and "
            "`racer train` reads with --config"
        )


def _refuse_in_conversation(row: Mapping[str, Any]) -> None:
    """Refuse what a turn of a whole conversation cannot have."""
    for name in ("scores", "weight", "judged", "decision_id"):
        if row.get(name) is not None:
            raise InputError(
                f'"{name}" stands beside "conversation", and whole conversations are calibrated by '
                "their texts, unweighted and with labels: leave one of the two fields out"
            )


def _is_unlabelled(row: Mapping[str, Any], is_judged: bool, *, is_allowed: bool) -> bool:
    """Whether people gave no label; a row with a judge's verdicts need not say so."""
    value = row.get("unlabelled")
    has_label = any(row.get(name) is not None for name in ("correct", "quality"))
    if value is None or value is False:
        if has_label or not is_judged:
            return False
    elif value is not True:
        raise InputError('"unlabelled" must be true or false')
    elif has_label:
        raise InputError('"unlabelled" stands instead of "correct" and "quality"')
    if not is_allowed:
        raise InputError(
            "the row has no label, which is of use in calibration alone: label it, or leave it out"
        )
    return True


def _correct(
    row: Mapping[str, Any],
    pool: tuple[str, ...],
    quality: tuple[float, ...] | None,
    *,
    header: bool,
) -> frozenset[str]:
    value = row.get("correct")
    if value is None and quality is not None:
        graded = zip(pool, quality, strict=True)
        return frozenset(name for name, grade in graded if grade >= RIGHT_QUALITY)
    if value is None:
        raise InputError(
            'no label: "correct" is missing or null ([] means that no candidate is right)'
        )
    if isinstance(value, dict):
        labels = cast("dict[str, Any]", value)
        refuse_unknown(labels, pool)
        if missing := [name for name in pool if name not in labels]:
            raise InputError(f'"correct" has no label for {missing}')
        if wrong := [name for name in pool if not isinstance(labels[name], bool)]:
            raise InputError(f'"correct" must be true or false for {wrong}')
        return frozenset(name for name in pool if labels[name])
    names = _names(value, "correct")
    refuse_unknown(names, pool)
    if not header and set(row_pool(row) or ()) != set(pool):
        raise InputError('"correct" is a list, so "candidates" must name the judged candidates')
    if len(set(names)) != len(names):
        raise InputError('"correct" names a candidate twice')
    return frozenset(names)


def _judged(value: object, pool: tuple[str, ...]) -> frozenset[str] | None:
    if value is None:
        return None
    verdicts = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if set(verdicts) != set(pool) or any(not isinstance(each, bool) for each in verdicts.values()):
        raise InputError('"judged" must be an object: each candidate of the pool to true or false')
    return frozenset(name for name in pool if verdicts[name])


def _answers(value: object, pool: tuple[str, ...]) -> dict[str, str | None]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError('"answers" must be an object: candidate to text or null')
    answers = cast("dict[str, Any]", value)
    refuse_unknown(answers, pool)
    if any(text is not None and not isinstance(text, str) for text in answers.values()):
        raise InputError('"answers" must be texts or null')
    return answers


def _conditions(value: object, pool: tuple[str, ...]) -> dict[str, str]:
    if value is None:
        return {}
    digests = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if set(digests) != set(pool):
        raise InputError('"conditions" must be an object: each candidate to a digest')
    if any(not isinstance(each, str) or not _DIGEST.fullmatch(each) for each in digests.values()):
        raise InputError('"conditions" holds no digests of `racer label`: 32 hexadecimal digits')
    return digests


def _calls(value: object, pool: tuple[str, ...]) -> dict[str, CallRecord]:
    calls = _object(value, "calls")
    refuse_unknown(calls, pool)
    return {
        name: {
            each: known
            for each, known in _object(record, f"calls.{name[:40]}").items()
            if isinstance(known, str | int | float)
        }
        for name, record in calls.items()
    }


def _confidences(value: object, pool: tuple[str, ...]) -> Confidences:
    """Null stands for an absent object, as columns of parquet write it."""
    return {
        evaluator: {
            kind: _ratings(ratings, pool, f"confidences.{evaluator[:40]}.{kind}")
            for kind, ratings in _checked_kinds(kinds, evaluator).items()
            if ratings is not None
        }
        for evaluator, kinds in _object(value, "confidences").items()
        if kinds is not None
    }


def _checked_kinds(value: object, evaluator: str) -> dict[str, Any]:
    if not evaluator.strip():
        raise InputError('"confidences" has an evaluator without a name')
    kinds = _object(value, f"confidences.{evaluator[:40]}")
    if unknown := [kind for kind in kinds if kind not in CONFIDENCES]:
        raise InputError(
            f'"confidences" has the unknown kind {unknown[0][:40]!r}; choose from '
            f"{', '.join(CONFIDENCES)}"
        )
    return kinds


def _ratings(value: object, pool: tuple[str, ...], field: str) -> dict[str, float | None]:
    ratings = _object(value, field)
    refuse_unknown(ratings, pool)
    return {
        name: None if ratings[name] is None else chance(ratings[name], f'"{field}" of {name!r}')
        for name in pool
        if name in ratings
    }


def _object(value: object, field: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f'"{field}" must be an object')
    return cast("dict[str, Any]", value)


def _names(value: object, field: str) -> list[str]:
    names = cast("list[Any]", value) if isinstance(value, list) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise InputError(f'"{field}" must be a list of candidate names')
    return names


def row_group(row: Mapping[str, Any]) -> str | None:
    """The group of a row, under either of its names."""
    group, application = optional_text(row, "group"), optional_text(row, "application")
    if None not in (group, application) and group != application:
        raise InputError('"application" and "group" are two names of one field: give one of them')
    return application if group is None else group


def reference_text(row: Mapping[str, Any]) -> str | None:
    """The reference as text: tool calls and structured output may stand as JSON themselves."""
    value = row.get("reference")
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return optional_text(row, "reference")


def optional_text(row: Mapping[str, Any], field: str) -> str | None:
    """A field as text; numbers become text; null, absent and NaN (an empty cell) are None."""
    value = row.get(field)
    if value is None or value != value:
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    raise InputError(f'"{field}" must be a string')
