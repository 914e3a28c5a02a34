"""Calibration without a gateway, into the folder of an artifact.

The rows go through the same service as an upload, on a store that lives for this one calibration.
What the artifact carries is restored into it before, and written back afterwards: the active
calibration, and which rows were shown, so that an alpha picked from their curve is known as such.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from app.calibrations.carried import FILE
from app.calibrations.service import CalibrationService, setup_digest
from app.calibrations.upload import from_file
from app.routing.active_calibration import ActiveCalibration
from app.routing.artifact_files import open_racer
from app.routing.calibration_sync import CalibrationSync
from app.routing.conditions import ConditionReader
from app.routing.encoder_worker import EncoderWorker
from app.routing.groups import Grouping
from app.routing.scoring_inputs import ScoringInputs
from app.settings import Settings
from app.store import Store
from app.store.backup.calibrations import restore, save_carried
from app.store.backup.file import Backup
from app.telemetry.metrics import Metrics
from app.tools.gateway_client import Progress, unpacked
from racer_core.errors import InputError
from racer_core.racer import Racer

_SENDER: Final = "racer calibrate"  # in the evidence, where an upload has the name of its key


def calibrate_artifact(
    settings: Settings, rows: Path, options: Mapping[str, Any], progress: Progress
) -> dict[str, Any]:
    """Calibrate the configured artifact, and write into its folder what it carries from now on.

    Args:
        settings: The configuration that gateways with this artifact have.
        rows: A file of labelled rows.
        options: As `POST /calibrate` takes them; None: not given.
        progress: Takes how far it is.

    Returns:
        What `POST /calibrate` answers.

    Raises:
        ArtifactError: The artifact does not fit the configuration or this machine.
        InputError: The rows, the options, or what the artifact carries cannot be read.
        CalibrationError: The rows cannot be calibrated on.
        InfeasibleAlphaError: Too few rows count; the artifact carries what it did.
    """
    racer, folder = open_racer(settings), settings.artifact
    assert folder is not None  # it was opened
    carried = folder / FILE
    setup = setup_digest(racer.artifact.digest, settings.candidates)
    given = {name: each for name, each in options.items() if each is not None}
    with (
        tempfile.TemporaryDirectory() as temporary,
        Store(f"sqlite:///{temporary}/calibration.db") as store,
    ):
        if carried.exists():
            _restore(store, carried)
        result = asyncio.run(_calibrate(settings, racer, store, setup, rows, given, progress))
        save_carried(store, setup, carried)
        return result


def _restore(store: Store, carried: Path) -> None:
    try:
        with Backup(carried) as backup:
            restore(store, backup, activate=False)
    except InputError as exc:
        raise InputError(
            f"{exc}: get the file back, or remove it, which forgets which rows were shown"
        ) from exc


async def _calibrate(
    settings: Settings,
    racer: Racer,
    store: Store,
    setup: str,
    rows: Path,
    options: dict[str, Any],
    progress: Progress,
) -> dict[str, Any]:
    metrics, limits = Metrics(), settings.limits
    conditions = ConditionReader(settings.candidates, limits.extra_fields)
    grouping = await asyncio.to_thread(Grouping.open, settings.group_by, settings.applications)
    active = ActiveCalibration(metrics)
    calibration_sync = CalibrationSync(
        store,
        active,
        text=settings.routing.text,
        grouping=settings.grouping,
        metrics=metrics,
    )
    await calibration_sync.follow(setup)
    async with (
        EncoderWorker(
            racer,
            queue=limits.queue,
            queue_s=limits.queue_s,
            batch=limits.batch,
            metrics=metrics,
        ) as scoring,
        CalibrationService(
            settings=settings,
            trained=racer,
            scorer=scoring,
            inputs=ScoringInputs(racer.artifact),
            store=store,
            active=active,
            calibration_sync=calibration_sync,
            setup=setup,
            grouping=grouping,
            conditions=conditions,
            sampled_scores=lambda decision_ids, setup: {},  # this store has no decisions
            sampling_rates=lambda since: [],
        ) as service,
    ):
        with unpacked(rows) as (name, file):
            job = service.start(from_file(file, name), options, _SENDER)
            while not job.ended:
                await job.changed()
                progress(*job.progress.stage)
        return job.outcome()
