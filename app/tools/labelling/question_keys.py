"""Keys of questions in the files of `racer label`: digests of what identifies a question."""

from __future__ import annotations

import hashlib

from racer_core import strict_json
from racer_core.records.questions import CopyCounter, Question, question_identity
from racer_core.records.row import optional_text, row_query
from racer_core.types import LabelledRow


def digest(text: str) -> str:
    """SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def question_key(question: Question) -> str:
    """The key of a question."""
    return digest(question.identity)


def row_key(row: LabelledRow, copies: CopyCounter) -> str:
    """The key of the question of a row, whose earlier copies were counted."""
    copy = copies.next(row.query, row.earlier, row.cluster, request=row.request)
    return digest(
        question_identity(
            row.query,
            row.earlier,
            row.cluster,
            copy,
            request=row.request,
            decision_id=row.decision_id,
        )
    )


def line_key(line: bytes, copies: CopyCounter) -> str | None:
    """The same of the row in a line; None if the line holds no row."""
    value = strict_json.load_object(line)
    decision_id = optional_text(value, "decision_id") or None
    if decision_id is not None:
        return digest(question_identity("", (), None, 0, decision_id=decision_id))
    if not {"query", "messages", "request"} & value.keys():
        return None
    query, earlier, request = row_query(value, "conversation")
    cluster = optional_text(value, "cluster") or None
    copy = copies.next(query, earlier, cluster, request=request)
    return digest(question_identity(query, earlier, cluster, copy, request=request))
