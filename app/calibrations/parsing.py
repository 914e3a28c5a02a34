"""Parser of uploads: labelled rows in, columns in two files out. Runs in any process."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Final

from app.calibrations.columns import ColumnWriter, draw_of
from app.routing.conditions import ConditionReader
from app.routing.prompt_digest import prompt_digest
from app.routing.query import (
    MAX_DRAWN_BYTES,
    MAX_ROW_BYTES,
    NO_CANDIDATE,
    is_too_large_to_draw,
    needs_of_body,
)
from app.wire.candidate_payload import BodySettings, request_fields
from racer_core.aggregation.answers import Equality
from racer_core.aggregation.reasoning import MARKERS, Markers, ReasoningFilter
from racer_core.aggregation.rule import AnswerRule
from racer_core.aggregation.wording import SHIPPED, TextRule
from racer_core.calibration.threshold import fewest_rows
from racer_core.errors import InputError, RowsError
from racer_core.records.checks import CheckedRows, RowLimits
from racer_core.records.conversation import RoutedText
from racer_core.records.document import read_document
from racer_core.records.left_out import LeftOut
from racer_core.records.reader import stream_rows
from racer_core.records.request import request_path
from racer_core.types import LabelledRow, RowsKind

MAX_ROWS: Final = 2_000_000
MAX_LINE_BYTES: Final = MAX_ROW_BYTES
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # on the disk
_REPORT_EVERY_S: Final = 0.2
_ROUNDING: Final = 1e-12
_CLOCK_EVERY: Final = 64  # rows between two looks at the clock


def check_reachable(alpha: float, delta: float | None) -> None:
    """Refuse levels that no upload has enough rows for, before any row is read. Raises InputError.

    Args:
        alpha: Risk level, in (0, 1).
        delta: P(risk <= alpha) >= 1 - delta; None bounds the mean.
    """
    fewest = fewest_rows(alpha, delta)
    if fewest is not None and fewest <= MAX_ROWS:
        return
    levels = f"alpha {alpha:g}" + ("" if delta is None else f" with delta {delta:g}")
    rows = "more rows than there can be" if fewest is None else f"{fewest:.3g} rows that count"
    raise InputError(
        f"{levels} takes {rows}, and a calibration has at most {MAX_ROWS:,}: take a larger one",
        param="alpha" if delta is None else "delta",
    )


Fields = Callable[[dict[str, Any]], None]
ReportBytes = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadInstructions:
    """How to read an upload.

    Attributes:
        name: The file's name in lower case; its end tells the format.
        source: What error messages call the file.
        document: It is a JSON body, with options beside its rows.
        pool: The candidates that the rows must label.
        query_chars: How many characters of a text the router reads.
        equality: When two recorded answers are the same; None leaves answers out.
        text_rule: The weights of the rule of sentences.
        salt: Salt of the queries' fingerprints.
        store_keys: Keys of the hashes by which shown rows are recognised, the store's own first.
        samples_key: Key of the draws of sampled rows, hexadecimal.
        text: What the router reads of a conversation.
        own_texts: What it reads in applications that have a text of their own.
        leave_out: What it does not read in applications that say so.
        markers: Around reasoning in recorded answers.
        candidates: How the candidates are served now.
        extra_fields: Fields of the deny list that are passed on to candidates.
        drawn: The applications whose rows are requests drawn from their traffic.
        capabilities: What each candidate supports, by name.
        prompts: The digest of a system prompt and tools -> the application that lists it.
        training_chars: Characters of the longest text of the router's training; None: unknown.
    """

    name: str
    source: str
    document: bool
    pool: tuple[str, ...]
    query_chars: int
    equality: Equality | None
    salt: str
    samples_key: str
    text: RoutedText
    candidates: tuple[BodySettings, ...]
    extra_fields: tuple[str, ...]
    store_keys: tuple[str, ...] = ("",)
    own_texts: Mapping[str, RoutedText] = field(default_factory=dict[str, RoutedText])
    leave_out: Mapping[str, tuple[LeftOut, ...]] = field(
        default_factory=dict[str, "tuple[LeftOut, ...]"]
    )
    drawn: tuple[str, ...] = ()
    capabilities: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict[str, Mapping[str, Any]]
    )
    prompts: Mapping[str, str] = field(default_factory=dict[str, str])
    markers: Markers = MARKERS
    text_rule: tuple[float, ...] = SHIPPED.weights
    training_chars: int | None = None

    @property
    def rule(self) -> AnswerRule | None:
        """When two recorded answers are the same; None leaves answers out."""
        if self.equality is None:
            return None
        return AnswerRule(
            equality=self.equality,
            reasoning=ReasoningFilter(self.markers),
            text=TextRule.of(self.text_rule),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Capabilities:
    """Capabilities of a candidate, as its settings state them."""

    tools: bool
    vision: bool
    json_schema: bool
    context_chars: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseSummary:
    """The result beside the two files of columns; see :class:`RowColumns`."""

    pool: tuple[str, ...]
    duplicates: int
    near_duplicates: int
    assumed: int
    guessed_kind: RowsKind


def parse(
    instructions: ReadInstructions,
    file: BinaryIO,
    texts: BinaryIO,
    arrays: BinaryIO,
    *,
    fields: Fields,
    progress: ReportBytes,
) -> ParseSummary:
    """Read all rows, or none.

    Args:
        instructions: How to read the upload.
        file: The upload.
        texts: Where to write the queries.
        arrays: Where to write everything else, as :func:`app.calibrations.columns.load` reads
            it.
        fields: Takes the fields beside the rows of a document, before the rows are read.
        progress: Takes the number of bytes read, and of all bytes.

    Raises:
        RowsError: A row is wrong, or there are too many; names each line.
        InputError: A document that is not JSON.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    conditions = _RowConditions(instructions)
    limits = RowLimits(
        line_bytes=MAX_LINE_BYTES,
        rows=MAX_ROWS,
        text=lambda group: instructions.own_texts.get(group or "", instructions.text),
        complete=conditions.complete,
        takes_unlabelled=True,
    )
    try:
        if instructions.document:
            rows = _document_rows(instructions, file, limits, fields)
        else:
            name, source, pool = instructions.name, instructions.source, instructions.pool
            rows = stream_rows(file, name, source, pool, limits)
        writer = ColumnWriter(
            pool=rows.pool,
            texts=texts,
            rule=instructions.rule,
            salt=instructions.salt,
            store_keys=instructions.store_keys,
            samples_key=bytes.fromhex(instructions.samples_key),
            text=instructions.text,
            own_texts=instructions.own_texts,
            leave_out=instructions.leave_out,
            query_chars=instructions.query_chars,
            training_chars=instructions.training_chars,
        )
        reported_at = 0.0
        for number, row in enumerate(rows):
            writer.add(row)
            if number % _CLOCK_EVERY == 0 and time.monotonic() - reported_at > _REPORT_EVERY_S:
                reported_at = time.monotonic()
                progress(file.tell(), size)
        if (problem := writer.problem_of_conversations) is not None:
            raise RowsError(instructions.source, [problem])
        if (unjudged := writer.labelled_without_verdicts) is not None:
            raise RowsError(
                instructions.source,
                [
                    f'row {unjudged}: "correct" stands without "judged", and other rows have '
                    "verdicts: the judge's errors are known only if it judges every labelled row. "
                    'Have the judge read it, too, or give the row "unlabelled": true instead of '
                    '"correct", or leave "judged" out of all rows'
                ],
            )
        if writer.other_judge is not None:
            number, first, other = writer.other_judge
            raise RowsError(
                instructions.source,
                [
                    f"row {number}: the verdicts are of the judge {other[:128]!r}, and those of "
                    f"earlier rows of {first[:128]!r}: rows carry one judge's verdicts. Upload the "
                    "rows of each judge alone (`GET /shadow/rows?judge=NAME`)"
                ],
            )
    except RowsError:
        raise
    except InputError as exc:
        if instructions.document:
            raise
        raise RowsError(instructions.source, [str(exc)]) from exc
    texts.flush()
    writer.save(arrays)
    arrays.flush()
    survey = rows.survey
    return ParseSummary(
        pool=rows.pool,
        duplicates=survey.duplicates,
        near_duplicates=writer.repeated_first_turns - survey.first_turn_duplicates,
        assumed=conditions.rows,
        guessed_kind=survey.guess,
    )


class _RowConditions:
    """Conditions of rows: without digests those of what the current configuration sends for them.

    Digests may be those of an earlier configuration, which cannot be computed again. But equal
    digests stand for requests that are sent alike, and those of plain text for plain text.

    Attributes:
        rows: How many rows came without digests.
    """

    def __init__(self, instructions: ReadInstructions) -> None:
        self._reader = ConditionReader(instructions.candidates)
        self._extra_fields = instructions.extra_fields
        self._drawn = frozenset(instructions.drawn)
        self._prompts = instructions.prompts
        self._capabilities = {
            name: _Capabilities(**each) for name, each in instructions.capabilities.items()
        }
        self._pool = instructions.pool
        self._key = bytes.fromhex(instructions.samples_key)
        plain = self._reader.configured.of(self._pool)
        # The vector of digests in a row -> that of what the configuration sends for its request.
        self._sent_now = {plain: plain}
        self.rows = 0

    def _check_draw(self, row: LabelledRow) -> None:
        """Raises InputError if a sampled row was not drawn at the rate that its weight states."""
        draw = draw_of(row, self._key)
        if row.decision_id is None or draw is None:
            return
        rate = 1.0 / row.weight
        # Of a rate's inverse the last bits may be lost.
        if not draw < rate * (1.0 + _ROUNDING) <= (1.0 + _ROUNDING) ** 2:
            raise InputError(
                f"the decision {row.decision_id[:64]} was not drawn at the rate {rate:.4g} that "
                "its weight states: use the rows of `GET /shadow/rows` of this store unchanged"
            )

    def complete(self, row: LabelledRow) -> LabelledRow:
        """The row, a whole request with digests.

        Raises:
            InputError: Its request has fields that are not passed on to candidates, or belongs to
                an application that the row does not name, or its digests are those of another
                request.
        """
        self._check_draw(row)
        is_drawn = row.group in self._drawn
        is_sampled_score = row.scores is not None and row.decision_id is not None
        if is_drawn and row.request is None and not is_sampled_score:
            raise InputError(
                f"rows of the application {row.group!r} are drawn from its traffic: they must be "
                'whole requests ("request")'
            )
        self.rows += not row.conditions
        if row.request is None:
            return row
        path = request_path(row.request)
        fields = request_fields(row.request, path, allowed=self._extra_fields)
        if is_drawn and is_too_large_to_draw(fields):
            raise InputError(
                f"its request is larger than {MAX_DRAWN_BYTES:,} bytes, and rows that are drawn "
                "cover no such request: leave the row out"
            )
        sent = self._reader.read(fields, path)
        query = needs_of_body(fields, path, sent)
        unable = [name for name, able in self._capabilities.items() if not query.suits(able)]
        if is_drawn and unable:
            raise InputError(
                f"its request is none that {unable[0]!r} can serve, by its `capabilities`, and "
                "rows that are drawn cover no such request: leave the row out (a row of "
                "the sample: take those since `capabilities` changed)"
            )
        if unable and len(unable) == len(self._capabilities):
            raise InputError(NO_CANDIDATE)
        if row.group is None and self._prompts:
            named = self._prompts.get(prompt_digest(fields, path) or "")
            if named is not None:
                raise InputError(
                    f"its system prompt and tools are those of the application {named!r}: name the "
                    f'application of the row, "application": "{named}" or another'
                )
        if is_drawn and row.conditions not in ({}, sent.digests):
            raise InputError(
                "it was labelled under another configuration of the candidates, or its request "
                "was changed: label it again"
            )
        if not row.conditions:
            return replace(row, conditions=sent.digests)
        vector, now = tuple(map(row.conditions.__getitem__, self._pool)), sent.of(self._pool)
        if self._sent_now.setdefault(vector, now) != now:
            raise InputError(
                '"conditions" are the digests of a request that differs from "request" in more '
                'than the text: leave "conditions" out, or label the row again'
            )
        return row


def _document_rows(
    instructions: ReadInstructions, file: BinaryIO, limits: RowLimits, fields: Fields
) -> CheckedRows:
    document = read_document(file, MAX_LINE_BYTES)
    fields({name: value for name, value in document.fields.items() if name != "candidates"})
    return CheckedRows(
        document.rows, instructions.source, instructions.pool, limits=limits, unit="row"
    )
