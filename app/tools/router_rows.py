"""Reader of the rows that a router learns from, and of those that choose its settings."""

from __future__ import annotations

from pathlib import Path

from app.settings import Settings
from racer_core.offline.training_rows import with_texts
from racer_core.records import reader
from racer_core.records.row import MAX_QUERY_CHARS
from racer_core.types import LabelledRows, RowsKind


def read_rows(path: Path, settings: Settings | None, kind: RowsKind | None) -> LabelledRows:
    """Read rows, with and without labels, each with the text that the router reads of it.

    Args:
        path: The file.
        settings: The pool, and what the router reads of each application's requests; None: the
            pool is that of the rows, and they are single queries.
        kind: What the file is; None: not said.

    Raises:
        RowsError: The file or a row in it is wrong.
    """
    if settings is None:
        return reader.read_rows(
            path, max_query_chars=MAX_QUERY_CHARS, kind=kind, takes_unlabelled=True
        )
    text_of = settings.text_of
    rows = reader.read_rows(path, settings.pool, kind=kind, text=text_of, takes_unlabelled=True)
    return with_texts(rows, text_of, settings.leave_out_of, settings.limits.query_chars)
