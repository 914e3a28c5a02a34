"""Which training rows are nearest to a query: among all of them, or among the likeliest lists.

Cosine similarity of rows of length 1; numpy only. The last bits of a product differ with its shape,
so similarities are compared on a grid and ties go to the earlier row: a query has the same
neighbours in whatever batch and process, and calibration sees the function that serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from racer_core.errors import InputError
from racer_core.types import FloatArray

DECIMALS: Final = 6  # of the grid
_LONGEST: Final = 1.001  # squared length that rounding explains


class Neighbours(Protocol):
    """The training rows, numbered in their order."""

    def __len__(self) -> int:
        """How many there are, n."""
        ...

    def nearest(self, queries: FloatArray, reach: int) -> NDArray[np.intp]:
        """The ``reach`` nearest rows of each query (B, D), nearest first, shape (B, reach)."""
        ...

    def tensors(self) -> Mapping[str, NDArray[np.generic]]:
        """Everything stored, for an artifact."""
        ...

    def settings(self) -> Mapping[str, Any]:
        """Everything chosen, for an artifact's manifest."""
        ...


def load(tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> Neighbours:
    """Rebuild what was saved; InputError when it does not fit together."""
    return InvertedFile.load(tensors, settings) if "list_sizes" in tensors else Scan.load(tensors)


@dataclass(frozen=True)
class Scan:
    """Exact search: every row (n, D) is compared with every query."""

    embeddings: NDArray[np.float32]

    @classmethod
    def load(cls, tensors: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild from :meth:`tensors`."""
        embeddings = tensors["embeddings"]
        if embeddings.ndim != 2:
            raise InputError(f"embeddings have shape {embeddings.shape}")
        return cls(embeddings)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.embeddings)

    def nearest(self, queries: FloatArray, reach: int) -> NDArray[np.intp]:
        """The nearest of all rows."""
        return nearest_first(np.round(queries @ self._columns, DECIMALS), reach)

    @cached_property
    def _columns(self) -> FloatArray:
        """The rows as (D, n) in double precision, copied once."""
        return self.embeddings.T.astype(np.float64)

    def tensors(self) -> Mapping[str, NDArray[np.generic]]:
        """The rows as they came."""
        return {"embeddings": self.embeddings}

    def settings(self) -> Mapping[str, Any]:
        """Nothing is chosen."""
        return {}


@dataclass(frozen=True, kw_only=True)
class InvertedFile:
    """Approximate search: a query is compared with the rows of the lists whose centres are nearest.

    What is compared is compared exactly, with the grid and the ties of :class:`Scan`: probing all
    lists gives the same neighbours.

    Attributes:
        embeddings: Rows of length 1, list after list, shape (n, D).
        rows: Which training row each of them is, shape (n,).
        sizes: How many rows each list has, shape (L,).
        centres: Of length 1, shape (L, D).
        probes: How many lists a query is compared with for its j + 1 nearest rows, shape (J,); the
            last one is for more of them too.
        recall: The share of nearest rows that were found so when ``probes`` were chosen, the
            smallest over j.
    """

    embeddings: NDArray[np.float32]
    rows: NDArray[np.int64]
    sizes: NDArray[np.int64]
    centres: NDArray[np.float32]
    probes: NDArray[np.int64]
    recall: float

    def __post_init__(self) -> None:
        """Refuse lists that do not hold each row once, and rows that are not of length 1."""
        whole = (self.rows, self.sizes, self.probes)
        if {each.dtype for each in whole} != {np.dtype(np.int64)}:
            raise InputError("rows, sizes and probes of the lists must be whole numbers")
        if {self.embeddings.dtype, self.centres.dtype} != {np.dtype(np.float32)}:
            raise InputError("embeddings and centres of the lists must be in single precision")
        count, width = self.centres.shape if self.centres.ndim == 2 else (0, 0)
        n = self.rows.size
        if (
            self.embeddings.shape != (n, width)
            or self.rows.shape != (n,)
            or self.sizes.shape != (count,)
        ):
            raise InputError(
                f"embeddings {self.embeddings.shape}, rows {self.rows.shape}, sizes "
                f"{self.sizes.shape} and centres {self.centres.shape} of the lists do not fit"
            )
        if not np.array_equal(np.sort(self.rows), np.arange(n)):
            raise InputError("the lists do not hold each training row once")
        # Each is at most n, so that their sum cannot wrap around.
        if not ((self.sizes >= 1) & (self.sizes <= n)).all() or self.sizes.sum() != n:
            raise InputError(f"the sizes of the lists are not those of {n} rows")
        for name, vectors in (("rows", self.embeddings), ("centres", self.centres)):
            if not (np.einsum("nd,nd->n", vectors, vectors) <= _LONGEST).all():  # nor NaN
                raise InputError(f"{name} of the lists are longer than 1, or no numbers")
        if self.probes.ndim != 1 or not self.probes.size:
            raise InputError(f"probes of the lists have shape {self.probes.shape}")
        if not ((self.probes >= 1) & (self.probes <= count)).all():
            raise InputError(f"probes of the lists are not between 1 and {count}")
        if not 0.0 <= self.recall <= 1.0:
            raise InputError(f"recall is {self.recall}")

    @classmethod
    def load(cls, tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> Self:
        """Rebuild from :meth:`tensors` and :meth:`settings`."""
        recall = settings["recall"]
        if not isinstance(recall, int | float):
            raise InputError(f"recall is {recall!r}")
        return cls(
            embeddings=tensors["listed_embeddings"],
            rows=tensors["listed_rows"],
            sizes=tensors["list_sizes"],
            centres=tensors["list_centres"],
            probes=tensors["list_probes"],
            recall=recall,
        )

    def __len__(self) -> int:
        """How many there are."""
        return len(self.embeddings)

    def nearest(self, queries: FloatArray, reach: int) -> NDArray[np.intp]:
        """The nearest rows of the likeliest lists."""
        return np.stack([self._nearest(query, reach) for query in queries])

    def _nearest(self, query: FloatArray, reach: int) -> NDArray[np.intp]:
        """Of one query alone, so that no other one of its batch can matter."""
        places = self._close(query, self._likeliest(query, reach), reach)
        similarity = np.round(self.embeddings[places].astype(np.float64) @ query, DECIMALS)
        rows = self.rows[places]
        return rows[np.lexsort((rows, -similarity))[:reach]]

    def _likeliest(self, query: FloatArray, reach: int) -> NDArray[np.intp]:
        """Lists by the similarity of their centres; more where so many hold too few rows."""
        similarity = np.round(self._centres @ query, DECIMALS)[None]
        probes = int(self.probes[min(reach, len(self.probes)) - 1])
        while self.sizes[lists := nearest_first(similarity, probes)[0]].sum() < reach:
            probes = min(2 * probes, len(self.sizes))
        return lists

    def _close(
        self, query: FloatArray, lists: NDArray[np.intp], reach: int
    ) -> NDArray[np.integer[Any]]:
        """Where the rows are that may be among the nearest; single precision leaves out others."""
        starts, sizes, single = self._starts[lists], self.sizes[lists], query.astype(np.float32)
        spans = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
        similarity = np.concatenate([self.embeddings[start:end] @ single for start, end in spans])
        places = np.arange(len(similarity)) + np.repeat(starts - np.cumsum(sizes) + sizes, sizes)
        kth = np.partition(similarity, -reach)[-reach]
        # A product of vectors of length 1, to a thousandth, is off by D/2 eps at most in single
        # precision, and by half an eps more for the query's rounding; the grid moves each side by
        # half of its step. Both sides of the comparison are products.
        slack = 1.001 * (len(query) + 1) * np.finfo(np.float32).eps + 10.0**-DECIMALS
        return places[similarity >= kth - slack]

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """Where each list begins, shape (L,)."""
        return np.cumsum(self.sizes) - self.sizes

    @cached_property
    def _centres(self) -> FloatArray:
        """The centres in double precision, copied once."""
        return self.centres.astype(np.float64)

    def tensors(self) -> Mapping[str, NDArray[np.generic]]:
        """None under the name that :class:`Scan` has: rows in another order are other rows."""
        return {
            "listed_embeddings": self.embeddings,
            "listed_rows": self.rows,
            "list_sizes": self.sizes,
            "list_centres": self.centres,
            "list_probes": self.probes,
        }

    def settings(self) -> Mapping[str, Any]:
        """The recall that the probes were chosen for."""
        return {"recall": self.recall}


def nearest_first(similarity: NDArray[np.floating[Any]], reach: int) -> NDArray[np.intp]:
    """The ``reach`` most similar columns of each row, shape (B, reach); ties go to the earlier."""
    last = reach - 1
    kth = -np.partition(-similarity, last, axis=1)[:, last : last + 1]
    nearer, equal = similarity > kth, similarity == kth
    places = reach - nearer.sum(axis=1, keepdims=True)
    chosen = nearer | (equal & (np.cumsum(equal, axis=1) <= places))
    columns = np.nonzero(chosen)[1].reshape(len(similarity), reach)
    order = np.argsort(-np.take_along_axis(similarity, columns, axis=1), axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1)
