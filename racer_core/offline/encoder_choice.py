"""Choice of the encoder: the cheapest whose validation sets are not shown to be larger.

Encoders are ordered by the time of a new query, measured here. An encoder is passed over only if a
dearer one has smaller sets of ``cover`` at equal risk on the validation rows, by a one-sided paired
test: the one with the smallest mean. The sets of a row are averaged over the risk levels 0.05, 0.1
and 0.2, and adjusted for risk (:mod:`~racer_core.offline.paired`).

The test is that of all pairs together by random signs, which is at least as powerful as Holm's, as
encoders agree on most rows, and which allows for the smallest having been found on the same rows.
If no dearer encoder has smaller sets, the chance that another than the cheapest is chosen is at
most ``ERROR_RATE``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from racer_core.calibration.augmentation import checked_scores
from racer_core.calibration.patterns import PatternModel
from racer_core.encoder.base import Encoder
from racer_core.encoder.hub import DEFAULT_ENCODER, cached_folder
from racer_core.encoder.word_vectors import WORDLLAMA
from racer_core.errors import InputError, RowsError
from racer_core.offline.fit import RouterChoice, fit_embedded
from racer_core.offline.paired import significantly_below
from racer_core.offline.reporting import Progress, ReportingEncoder, silent
from racer_core.offline.selection import MIN_ROWS, ScoredRows, adjusted_sizes, choose_patterns
from racer_core.offline.train import checked_rows
from racer_core.records.conversation import fingerprint
from racer_core.records.units import rows_units
from racer_core.routers.base import Batch, Router, on_grid
from racer_core.types import FloatArray, LabelledRows

AUTO: Final = "auto"
_TRANSFORMERS: Final = (DEFAULT_ENCODER, "sentence-transformers/all-MiniLM-L6-v2")
ERROR_RATE: Final = 0.05  # chance that a dearer encoder is chosen for nothing
_KINDS: Final = ("knn", "mlp")
_TIMED: Final = 30  # queries, after a first one


def default_encoder(router: str, backend: str | None = None) -> str:
    """The encoder that is used where none is named: mDeBERTa on a GPU, on a CPU word vectors.

    RouterDC fine-tunes a transformer, and takes mDeBERTa everywhere.

    Args:
        router: Kind of the router.
        backend: ``cuda`` or ``cpu``; None looks for a GPU.
    """
    if router == "routerdc" or backend == "cuda":
        return DEFAULT_ENCODER
    if backend is None:
        import torch

        if torch.cuda.is_available():
            return DEFAULT_ENCODER
    return WORDLLAMA


def offered(names: Sequence[str]) -> tuple[str, ...]:
    """The names; ``auto`` becomes n-grams, word vectors, and usual transformers that are here."""
    usual = ["char-ngrams", WORDLLAMA, *filter(is_cached, _TRANSFORMERS)] if AUTO in names else []
    return tuple(dict.fromkeys([*(name for name in names if name != AUTO), *usual]))


def is_cached(name: str) -> bool:
    """Whether the hub's cache has the weights of a model."""
    return cached_folder(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredEncoder:
    """What an encoder costs, and the sets of a router on its embeddings.

    Attributes:
        name: As it was given.
        ms: Time of a new query, encoder and router, in milliseconds; a median.
        sizes: Risk-adjusted set sizes of the validation rows, shape (n,).
    """

    name: str
    ms: float
    sizes: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedEncoder:
    """An encoder beside the one with the smallest sets.

    Attributes:
        name: As it was given.
        ms: Time of a new query in milliseconds.
        size: Mean set at equal risk.
        difference: Its mean minus the smallest.
        half_width: 1.96 standard errors of the difference.
        larger: The test calls its sets larger than the smallest.
        chosen: Whether it is the cheapest that is not larger.
    """

    name: str
    ms: float
    size: float
    difference: float
    half_width: float
    larger: bool
    chosen: bool


def compare(
    measured: Sequence[MeasuredEncoder], units: NDArray[np.intp]
) -> tuple[ComparedEncoder, ...]:
    """The encoders from the cheapest to the dearest; exactly one is chosen.

    Args:
        measured: Encoders measured on the same rows.
        units: The unit of each row, such as its cluster, shape (n,).
    """
    ordered = sorted(measured, key=lambda each: each.ms)
    pairs = list(combinations(range(len(ordered)), 2))
    differences = [ordered[dear].sizes - ordered[cheap].sizes for cheap, dear in pairs]
    below = significantly_below(np.column_stack(differences), ERROR_RATE, units)
    smallest = min(range(len(ordered)), key=lambda i: float(ordered[i].sizes.mean()))
    larger = {cheap for (cheap, dear), is_below in zip(pairs, below, strict=True)
              if is_below and dear == smallest}  # fmt: skip
    chosen = next(i for i in range(len(ordered)) if i not in larger)
    found: list[ComparedEncoder] = []
    for i, each in enumerate(ordered):
        beyond = each.sizes - ordered[smallest].sizes
        found.append(
            ComparedEncoder(
                name=each.name,
                ms=each.ms,
                size=float(each.sizes.mean()),
                difference=float(beyond.mean()),
                half_width=1.96 * _standard_error(beyond, units),
                larger=i in larger,
                chosen=i == chosen,
            )
        )
    return tuple(found)


def choose_encoder(
    encoders: Mapping[str, Encoder],
    rows: LabelledRows,
    validation: LabelledRows | None,
    *,
    choice: RouterChoice,
    progress: Progress = silent,
) -> tuple[str, tuple[ComparedEncoder, ...]]:
    """Fit a router on every encoder's embeddings, and compare their sets and times.

    Encoders on a GPU come before others without a comparison: there a transformer is cheap, too.

    Args:
        encoders: Opened encoders by name.
        rows: Training rows.
        validation: Separate rows, which choose the patterns of ``cover``, too, for each encoder;
            None suffices for one encoder.
        choice: The router, KNN or MLP.
        progress: Called at each stage.

    Returns:
        The name of the chosen one, and the comparison; empty if there was none.

    Raises:
        InputError: Another router, or no validation rows.
        RowsError: Rows without queries, or too few validation rows that a candidate answers right.
    """
    on_gpu = {name: encoder for name, encoder in encoders.items() if encoder.spec.backend == "cuda"}
    encoders = on_gpu or encoders
    if len(encoders) == 1:
        return next(iter(encoders)), ()
    if choice.kind not in _KINDS:
        raise InputError(
            f"encoders are compared with the routers {' and '.join(_KINDS)}: give {choice.kind} "
            "one --encoder"
        )
    if validation is None:
        raise InputError("encoders are compared on validation rows: name one --encoder without any")
    rows = checked_rows(rows, rows.pool, "training rows")
    validation = checked_rows(validation, rows.pool, "validation rows")
    if (count := int(validation.labels(rows.pool).any(axis=1).sum())) < MIN_ROWS:
        raise RowsError(
            "validation rows",
            [
                f"{count} rows have a right candidate, and comparing encoders takes {MIN_ROWS}: "
                "label more, or name one --encoder"
            ],
        )
    measured = [
        _measured(name, ReportingEncoder(encoder, progress), encoder, rows, validation, choice)
        for name, encoder in encoders.items()
    ]
    compared = compare(measured, rows_units(validation))
    return next(each.name for each in compared if each.chosen), compared


def _measured(
    name: str,
    reporting: Encoder,
    encoder: Encoder,
    rows: LabelledRows,
    validation: LabelledRows,
    choice: RouterChoice,
) -> MeasuredEncoder:
    labels = rows.labels(rows.pool)
    router = fit_embedded(choice, reporting.encode(rows.queries).embeddings, labels)
    output = router.predict(Batch(validation.queries, reporting))
    scored = ScoredRows(
        pool=rows.pool,
        fingerprints=tuple(fingerprint("encoders", query) for query in validation.queries),
        scores=checked_scores(on_grid(output.scores)),
        neighbours=output.neighbours,
        labels=validation.labels(rows.pool),
    )
    patterns = choose_patterns(PatternModel.of(labels), scored)
    times = [_seconds(router, encoder, query) for query in validation.queries[: _TIMED + 1]]
    return MeasuredEncoder(
        name=name, ms=median(times[1:]) * 1e3, sizes=adjusted_sizes(scored, patterns)
    )


def _seconds(router: Router, encoder: Encoder, query: str) -> float:
    begun = time.perf_counter()
    router.predict(Batch([query], encoder))
    return time.perf_counter() - begun


def _standard_error(values: FloatArray, units: NDArray[np.intp]) -> float:
    """Of a mean over rows whose units are independent."""
    sums = np.bincount(units, values - values.mean())
    return float(np.sqrt((sums**2).sum()) / len(values))
