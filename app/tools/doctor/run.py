"""Health report: runs all checks, in the order of their dependencies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from app.calibrations.carried import read_carried
from app.calibrations.service import setup_digest
from app.settings import Secrets, Settings
from app.tools.doctor import (
    artifact,
    calibration,
    clock,
    configuration,
    encoder,
    endpoints,
    gpu,
    ports,
    sampling,
    store,
)
from app.tools.doctor.finding import Finding
from racer_core.errors import ArtifactError
from racer_core.trained_router import TrainedRouter


def run_checks(path: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check everything that a configuration names, and this machine.

    Args:
        path: The configuration.
        environment: Environment variables, with the secrets.
    """
    finding, opened = configuration.check(path, environment)
    yield finding
    if opened is None:
        yield gpu.check(gpu.inspect(), None)
        return
    settings, secrets = opened
    finding, trained = artifact.check(settings)
    yield finding
    yield from _machine_findings(settings, trained)
    found_endpoints, listings = endpoints.check(settings, secrets)
    yield from found_endpoints
    yield clock.check(listings)
    if settings.has_store:
        yield from _store_findings(settings, secrets, trained)
    yield from ports.check(settings)


def _machine_findings(settings: Settings, trained: TrainedRouter | None) -> Iterator[Finding]:
    backend = settings.encoder.backend if trained is None else trained.artifact.encoder.backend
    if trained is not None:
        yield encoder.check(trained.artifact.encoder)
    yield gpu.check(gpu.inspect(), backend)


def _store_findings(
    settings: Settings, secrets: Secrets, trained: TrainedRouter | None
) -> Iterator[Finding]:
    setup = None
    if trained is not None:
        setup = setup_digest(trained.artifact.digest, settings.candidates)
    findings, inspection = store.check(secrets.store(settings), setup)
    yield from findings
    if inspection is not None:
        yield sampling.check(settings, inspection, has_artifact=trained is not None)
    if inspection is not None and setup is not None:
        assert settings.artifact is not None  # it was opened
        try:
            carried = read_carried(settings.artifact, setup, settings.pool)
        except ArtifactError as exc:
            yield calibration.refused(exc)
        else:
            yield calibration.check(
                inspection, settings.routing.alpha, datetime.now(UTC), carried and carried.record
            )
