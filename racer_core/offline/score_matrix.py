"""Matrix of router scores from a file: the output of a router that ran elsewhere.

Four forms, by the name of the file:

- ``.npy``: an array (n, K), rows in the order of the labelled rows, columns in that of their pool.
- ``.npz``: ``scores`` (n, K) and ``candidates`` (K names); with ``queries`` (n texts) the rows may
  stand in any order, without it they stand in the order of the labelled rows.
- ``.jsonl``, ``.ndjson``, ``.json`` (also with ``.gz``): ``{"query": ..., "scores": {name: f}}``.
- ``.parquet``: a column ``query`` and one column for each candidate.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from racer_core.errors import InputError
from racer_core.records import formats
from racer_core.records.conversation import fingerprint
from racer_core.records.reader import read_bytes
from racer_core.routers.base import Batch, RouterOutput
from racer_core.types import FloatArray


@dataclass(frozen=True, slots=True)
class ScoreMatrix:
    """A router whose scores are looked up by the query.

    Attributes:
        by_query: The scores of each query in the order of the pool, by its key.
    """

    by_query: Mapping[bytes, Sequence[float]]

    @classmethod
    def of(cls, queries: Sequence[str], scores: FloatArray) -> Self:
        """Scores of shape (n, K) for n queries.

        Raises:
            InputError: Equal queries with unequal scores: a router's scores follow from the query.
        """
        by_query: dict[bytes, Sequence[float]] = {}
        for number, (query, own) in enumerate(zip(queries, scores.tolist(), strict=True), 1):
            if by_query.setdefault(_key(query), own) != own:
                raise InputError(
                    f"row {number} repeats an earlier query with other scores; a router's scores "
                    "follow from the query: give each query one row of scores"
                )
        return cls(by_query)

    def predict(self, batch: Batch) -> RouterOutput:
        """The stored scores.

        Raises:
            InputError: A query has none.
        """
        found = [self.by_query.get(_key(text)) for text in batch.texts]
        if missing := [text for text, own in zip(batch.texts, found, strict=True) if own is None]:
            raise InputError(
                f"{len(missing)} of {len(found)} queries have no scores "
                f"(first: {missing[0][:60]!r}); score every row, or leave the row out"
            )
        return RouterOutput(np.array(found, dtype=np.float64))


def read_scores(path: Path, pool: Sequence[str], queries: Sequence[str]) -> ScoreMatrix:
    """Read a matrix of scores in [0, 1].

    Args:
        path: The file; its name decides the form.
        pool: The candidates of the labelled rows.
        queries: The queries of the labelled rows in the order of their files.

    Raises:
        InputError: The file cannot be read, lacks a candidate or a row, or holds no chances.
    """
    try:
        data, name = formats.unpacked(
            read_bytes(path), path.name.lower(), formats.MAX_UNPACKED_BYTES
        )
        if name.endswith((".npy", ".npz")):
            own, scores = _array(data, pool)
        else:
            own, scores = _rows(data, name, pool)
        if scores.ndim != 2 or scores.shape[1] != len(pool):
            raise InputError(f"scores of shape {scores.shape} for {len(pool)} candidates")
        if not ((scores >= 0.0) & (scores <= 1.0)).all():
            raise InputError("scores are chances of being right: numbers from 0 to 1")
        if own is None and len(scores) != len(queries):
            raise InputError(
                f"{len(scores)} rows of scores for {len(queries)} labelled rows: scores without "
                "queries stand in the order of all --data files, one row each"
            )
        own = queries if own is None else own
        if len(own) != len(scores):
            raise InputError(f"{len(scores)} rows of scores for {len(own)} queries")
        return ScoreMatrix.of(own, scores)
    except InputError as exc:
        raise InputError(f"{path}: {exc}") from exc


def _array(data: bytes, pool: Sequence[str]) -> tuple[Sequence[str] | None, FloatArray]:
    """Queries, if the file has them, and scores of an array file."""
    try:
        loaded: Any = np.load(io.BytesIO(data), allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return None, cast(Any, loaded).astype(np.float64)
        parts = {name: loaded[name] for name in loaded.files}
        scores = parts["scores"].astype(np.float64)
        candidates = [str(name) for name in parts["candidates"]]
    except KeyError as exc:
        raise InputError(f"no array {exc} in the file, which needs scores and candidates") from exc
    except (OSError, ValueError, EOFError, TypeError) as exc:
        raise InputError(f"not an array file that can be read ({exc})") from exc
    _check_candidates(candidates, pool)
    if scores.ndim == 2 and scores.shape[1] == len(candidates):
        scores = scores[:, [candidates.index(name) for name in pool]]
    queries = parts.get("queries")
    return (None if queries is None else [str(each) for each in queries]), scores


def _rows(data: bytes, name: str, pool: Sequence[str]) -> tuple[Sequence[str], FloatArray]:
    """Queries and scores of JSON rows or of a parquet table."""
    file = io.BytesIO(data)
    if name.endswith(".csv"):
        raise InputError("scores are read from .npy, .npz, .jsonl, .ndjson, .json and .parquet")
    numbered = formats.table(file, name).rows if formats.is_table(name) else None
    queries: list[str] = []
    scores: list[list[float]] = []
    for number, row in formats.json_objects(file, name) if numbered is None else numbered:
        if isinstance(row, InputError):
            raise InputError(f"row {number}: {row}")
        fields = cast("dict[str, Any]", row) if isinstance(row, dict) else {}
        own = fields.get("scores", {k: v for k, v in fields.items() if k != "query"})
        query = fields.get("query")
        if not isinstance(query, str) or not isinstance(own, dict):
            raise InputError(f"row {number}: it needs a query and scores")
        values = cast("dict[str, Any]", own)
        _check_candidates(list(values), pool)
        try:
            scores.append([float(values[name]) for name in pool])
        except (TypeError, ValueError):
            raise InputError(f"row {number}: a score is not a number") from None
        queries.append(query)
    return queries, np.array(scores, dtype=np.float64).reshape(len(scores), len(pool))


def _check_candidates(names: Sequence[str], pool: Sequence[str]) -> None:
    if sorted(names) != sorted(pool):
        raise InputError(f"its candidates {list(names)} are not those of the rows, {list(pool)}")


def _key(query: str) -> bytes:
    """Texts that differ in case, space or Unicode form share their key, as they do as rows."""
    return fingerprint("scores", query)
