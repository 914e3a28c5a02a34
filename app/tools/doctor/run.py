"""All checks in the order in which they build on each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

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
    store,
)
from app.tools.doctor.finding import Finding
from racer_core.racer import Trained


def run_checks(path: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Look at everything that a configuration names, and at this machine.

    Args:
        path: The configuration.
        environment: Where its secrets are.
    """
    found, opened = configuration.check(path, environment)
    yield found
    if opened is None:
        yield gpu.check(gpu.look(), None)
        return
    settings, secrets = opened
    found, trained = artifact.check(settings)
    yield found
    yield from _machine(settings, trained)
    found_endpoints, listings = endpoints.check(settings, secrets)
    yield from found_endpoints
    yield clock.check(listings)
    if settings.artifact is not None:  # without one no store is opened
        yield from _kept(settings, secrets, trained)
    yield from ports.check(settings)


def _machine(settings: Settings, trained: Trained | None) -> Iterator[Finding]:
    backend = settings.encoder.backend if trained is None else trained.artifact.encoder.backend
    if trained is not None:
        yield encoder.check(trained.artifact.encoder)
    yield gpu.check(gpu.look(), backend)


def _kept(settings: Settings, secrets: Secrets, trained: Trained | None) -> Iterator[Finding]:
    setup = None
    if trained is not None:
        setup = setup_digest(trained.artifact.digest, settings.candidates)
    findings, found = store.check(secrets.store(settings), setup)
    yield from findings
    if found is not None and setup is not None:
        yield calibration.check(found, settings.routing.alpha, datetime.now(UTC))
