"""Takes labelled rows in, builds a record, keeps it and swaps it in, all off the event loop."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import secrets
from collections.abc import Sequence
from typing import Any

from app.active import ActiveCalibration
from app.reasons import Reason
from app.schemas import CalibrateOptions
from app.settings import Candidate, Settings
from app.store import Record, Store, StoreError, now
from app.worker import RoutingWorker
from racer_core.calibration.calibration import Calibration, CalibrationOptions
from racer_core.racer import Racer
from racer_core.types import LabelledRows


class CalibrationService:
    """The only writer of the store."""

    def __init__(
        self,
        settings: Settings,
        racer: Racer,
        worker: RoutingWorker,
        store: Store,
        active: ActiveCalibration,
    ) -> None:
        self._settings = settings
        self._racer = racer
        self._worker = worker
        self._store = store
        self._active = active
        self._setup = _setup_digest(racer.artifact.digest, settings.candidates)
        self._one_at_a_time = asyncio.Lock()

    async def open(self) -> None:
        """Load the active record of an earlier run, if it fits the artifact."""
        try:
            record = await asyncio.to_thread(self._store.active)
        except StoreError as exc:  # serve on: new rows can still be uploaded
            self._active.refuse(f"{exc}: upload labelled rows to POST /calibrate")
            return
        if record is not None:
            await self._use(record)

    async def calibrate(self, rows: LabelledRows, options: CalibrateOptions) -> dict[str, Any]:
        """Score the rows, keep the record, activate it if asked; nothing changes on any error."""
        record = await asyncio.to_thread(self._build, rows, options)
        activate = options.activate and not options.dry_run
        if not options.dry_run:
            async with self._one_at_a_time:
                await asyncio.to_thread(
                    self._store.add,
                    record,
                    activate=activate,
                    expected_active_id=options.expected_active_id,
                )
                if activate:
                    await self._active.swap(record)
        return {
            "id": None if options.dry_run else record.id,
            "created_at": record.created_at,
            "active": activate,
            "artifact": record.artifact,
            "evidence": record.evidence,
        }

    async def activate(self, calibration_id: str, expected_active_id: str | None) -> Record:
        """Make a kept record the active one.

        Raises:
            NotFound: No such record.
            Conflict: Another record is active than expected, or it was made for another artifact.
        """
        async with self._one_at_a_time:
            record = await asyncio.to_thread(
                self._store.activate,
                calibration_id,
                expected_active_id,
                self._setup,
            )
            await self._active.swap(record)
        return record

    async def _use(self, record: Record) -> None:
        if record.artifact != self._setup:
            self._active.refuse(
                f"calibration {record.id} was made with another artifact, or with candidates that "
                "were served otherwise: upload its rows again to POST /calibrate"
            )
            return
        await self._active.swap(record)

    def _build(self, rows: LabelledRows, options: CalibrateOptions) -> Record:
        routing = self._settings.routing
        own_scores = any(row.scores is not None for row in rows.rows)
        # Without leave to overlap, `calibrate` refuses any.
        overlap = len(self._racer.overlap(rows)) if options.allow_overlap else 0
        calibration = self._racer.calibrate(
            rows,
            options=CalibrationOptions(
                alpha=routing.alpha if options.alpha is None else options.alpha,
                delta=options.delta,
                score=options.score or routing.score,
                risk_target=options.risk_target or routing.risk_target,
                r=options.r,
                null_threshold=self._racer.artifact.null_threshold,
                smoothing_salt=secrets.token_bytes(16) if options.smoothing == "hash" else None,
            ),
            allow_overlap=options.allow_overlap,
            scorer=self._worker.score_rows,
            prices=self._settings.prices,
        )
        return Record(
            id=f"cal-{secrets.token_hex(8)}",
            created_at=now(),
            artifact=self._setup,
            calibration=calibration,
            evidence=evidence(calibration)
            | {
                "duplicates": rows.duplicates,
                # Alike but for case, space or Unicode form: they count as one less than they seem.
                "near_duplicates": len(rows) - len(set(calibration.fingerprints)),
                "overlap": overlap,
            },
            void_reasons=tuple(
                reason
                for reason, applies in (
                    (Reason.TRAINING_OVERLAP, overlap > 0),
                    # Nobody can tell whether the serving router would have given these scores.
                    (Reason.ROW_SCORES_UNVERIFIED, own_scores),
                )
                if applies
            ),
        )


def _setup_digest(artifact: str, candidates: Sequence[Candidate]) -> str:
    """The artifact and how its candidates are served: rows labelled for another are no rows."""
    served = [[each.name, each.model or each.name, each.parameters] for each in candidates]
    told = json.dumps([artifact, served], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()


def evidence(calibration: Calibration) -> dict[str, Any]:
    """What a calibration shows for itself; mean_size is on its own rows, hence slightly low."""
    options = calibration.options
    lambda_hat = calibration.lambda_hat(options.alpha, options.score)
    sets = calibration.sets(
        calibration.scores,
        calibration.fingerprints,
        lambda_hat,
        options.score,
        calibration.neighbours,
    )
    feasible = math.isfinite(lambda_hat)
    return {
        "alpha": options.alpha,
        "delta": options.delta,
        "score": options.score,
        "risk_target": options.risk_target,
        "r": options.r,
        "n": calibration.n,
        "rows": len(calibration.fingerprints),
        "lambda_hat": lambda_hat if feasible else None,
        "feasible": feasible,
        "min_n": _min_n(options.alpha, options.delta),
        "risk_q95": calibration.risk_q95(options.alpha),
        "mean_size": float(sets.selected.sum(axis=1).mean()),
        "abstain": float((~sets.selected.any(axis=1)).mean()),
    }


def _min_n(alpha: float, delta: float | None) -> int | None:
    """The fewest rows that make alpha feasible: 1/(n + 1) <= alpha, or (1 - alpha)^n <= delta.

    None where no number of rows could be counted.
    """
    if delta is not None:
        fewest = math.log(delta) / math.log1p(-alpha)
        return math.ceil(fewest) if math.isfinite(fewest) else None
    if math.isinf(1 / alpha):
        return None
    n = max(1, round(1 / alpha) - 1)
    return n if 1 / (n + 1) <= alpha else n + 1  # one division, as in `allowed_misses`
