"""Evaluation by random splits of scored rows.

The spread over splits is that of re-splitting one pool of rows, not an independent standard error.
With several divisions it includes the choice of the training rows and the training of the router.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from racer_core.calibration.split_risk import SplitRisk
from racer_core.offline.evaluation_result import (
    AVERAGE,
    MERGED,
    BestSetting,
    Evaluation,
    EvaluatorKey,
    Runs,
    Setting,
)
from racer_core.offline.protocol import CalibrationScope, Split, split_benchmarks
from racer_core.offline.reporting import Progress, silent
from racer_core.offline.same_answer import SequenceKey
from racer_core.offline.split_evaluation import SplitEvaluation
from racer_core.offline.standard_errors import ClusterSums
from racer_core.offline.table import EvaluationTable


def evaluate(
    *tables: EvaluationTable,
    encoder: str,
    router: str,
    dtype: str | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """Split, calibrate and measure; repeated as the protocol demands.

    Args:
        tables: The table of each division of the protocol, in order; it has the division's splits.
        encoder: Its name, for the report.
        router: Its kind, for the report.
        dtype: The number format of the encoder, for the report; None without an encoder.
        progress: Called after each split.
    """
    table = tables[0]
    protocol = replace(table.protocol, scores=table.orders)
    rng = np.random.default_rng(protocol.seed)
    cells: dict[Setting, Runs] = {}
    laws: dict[Setting, list[SplitRisk | None]] = {}
    controls: dict[str, Runs] = {}
    choices: list[BestSetting] = []
    evaluators: dict[EvaluatorKey, Runs] = {}
    sequences: dict[SequenceKey, Runs] = {}
    rows: dict[str, tuple[int, int, int]] = {}
    sums = _cluster_sums(tables)
    for number, own in enumerate(_by_split(tables), 1):
        for scope, part in _scopes(own, rng):
            rows[scope] = len(part.calibration), len(part.validation), len(part.test)
            run = SplitEvaluation(table=own, scope=scope, part=part, rng=rng, sums=sums[scope])
            for setting, measured, law in run.cells():
                laws.setdefault(setting, []).append(law)
                _append(cells.setdefault(setting, {}), measured)
            _append(controls.setdefault(scope, {}), run.controls())
            choices += run.choices()
            for key, measured in run.evaluators():
                _append(evaluators.setdefault(key, {}), measured)
            for sequence, measured in run.sequences():
                _append(sequences.setdefault(sequence, {}), measured)
        progress("splits", number, protocol.splits)
    if len(controls) > 1:
        cells |= _averaged_cells(cells)
        controls[AVERAGE] = _averaged(list(controls.values()))
    return Evaluation(
        pool=table.pool,
        encoder=encoder,
        router=router,
        dtype=dtype,
        protocol=protocol,
        rows=rows,
        n_train=table.n_train,
        copies=table.copies,
        kinds=table.kinds,
        guessed=table.guessed,
        learned=table.learned,
        answered=table.classes is not None,
        cells=cells,
        laws=laws,
        controls=controls,
        choices=tuple(choices),
        evaluators=evaluators,
        sequences=sequences,
        unrated={} if table.rated is None else table.rated.unrated,
        resampled={scope: each.draws(rng, protocol.splits) for scope, each in sums.items()},
    )


def _cluster_sums(tables: Sequence[EvaluationTable]) -> dict[str, ClusterSums]:
    """Empty sums for every scope, wide enough for the clusters of its rows in all divisions."""
    names = tables[0].benchmarks
    if tables[0].protocol.calibrated == CalibrationScope.MERGED and len(names) > 1:
        of_scope = {MERGED: [table.error_clusters for table in tables]}
    else:
        of_scope = {
            name: [table.error_clusters[table.benchmarks[name]] for table in tables]
            for name in names
        }
    return {
        scope: ClusterSums(min(int(x.min()) for x in own), max(int(x.max()) for x in own) + 1)
        for scope, own in of_scope.items()
    }


def _by_split(tables: Sequence[EvaluationTable]) -> Iterator[EvaluationTable]:
    """The table of each split: those of the first division, then those of the next."""
    for division, table in enumerate(tables):
        for _ in range(table.protocol.splits_of(division)):
            yield table


def _scopes(table: EvaluationTable, rng: np.random.Generator) -> Iterator[tuple[str, Split]]:
    """The scopes of one repetition: each benchmark, or all of them merged."""
    parts = split_benchmarks(table.benchmarks, table.rows.split_units, table.protocol, rng)
    if table.protocol.calibrated == CalibrationScope.EACH or len(parts) == 1:
        yield from parts.items()
        return
    yield (
        MERGED,
        Split(
            calibration=np.concatenate([part.calibration for part in parts.values()]),
            validation=np.concatenate([part.validation for part in parts.values()]),
            test=np.concatenate([part.test for part in parts.values()]),
        ),
    )


def _append(runs: Runs, measured: Mapping[str, float]) -> None:
    for name, value in measured.items():
        runs.setdefault(name, []).append(value)


def _averaged_cells(cells: Mapping[Setting, Runs]) -> dict[Setting, Runs]:
    """The mean over benchmarks in every split."""
    groups: dict[Setting, list[Runs]] = {}
    for setting, runs in cells.items():
        key = Setting(
            scope=AVERAGE, risk_target=setting.risk_target, score=setting.score, alpha=setting.alpha
        )
        groups.setdefault(key, []).append(runs)
    return {key: _averaged(parts) for key, parts in groups.items()}


def _averaged(parts: list[Runs]) -> Runs:
    return {name: np.mean([part[name] for part in parts], axis=0).tolist() for name in parts[0]}
