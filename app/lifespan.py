"""Opens artifact, worker, upstream and store; yields Services; closes in reverse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from app.active import ActiveCalibration
from app.calibrations import CalibrationService
from app.errors import SettingsError
from app.routing import RoutingService
from app.security import Gatekeeper
from app.service import ChatService
from app.settings import Secrets, Settings
from app.store import Store
from app.telemetry import Telemetry
from app.upstream import Upstream
from app.worker import RoutingWorker
from racer_core.aggregation.vote import Method
from racer_core.racer import Racer


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What handlers need, opened."""

    settings: Settings
    gatekeeper: Gatekeeper
    telemetry: Telemetry
    store: Store
    active: ActiveCalibration
    routing: RoutingService
    chat: ChatService
    calibrations: CalibrationService


@asynccontextmanager
async def open_services(settings: Settings, secrets: Secrets) -> AsyncGenerator[Services]:
    """Open everything, before a socket accepts: what is wrong is one sentence and an exit code.

    Raises:
        ArtifactError: The artifact does not fit the configuration or this machine.
        SettingsError: The store cannot be opened, or an evaluator cannot do what is configured.
        UpstreamError: An evaluator cannot be reached.
    """
    async with AsyncExitStack() as stack:
        telemetry = Telemetry()
        racer = await asyncio.to_thread(open_racer, settings)
        store = stack.enter_context(await asyncio.to_thread(Store, settings.store))
        limits = settings.limits
        worker = await stack.enter_async_context(
            RoutingWorker(racer, queue=limits.queue, batch=limits.batch, telemetry=telemetry)
        )
        upstream = await stack.enter_async_context(
            Upstream(settings.candidates, secrets, limits, telemetry)
        )
        active = ActiveCalibration(telemetry)
        calibrations = CalibrationService(settings, racer, worker, store, active)
        await calibrations.open()
        routing = RoutingService(settings, racer, worker, active, telemetry)
        chat = ChatService(settings, routing, upstream, racer.artifact.stacked)
        await chat.check()
        yield Services(
            settings=settings,
            gatekeeper=Gatekeeper(secrets, settings.access.admin_key_env),
            telemetry=telemetry,
            store=store,
            active=active,
            routing=routing,
            chat=chat,
            calibrations=calibrations,
        )


def open_racer(settings: Settings) -> Racer:
    """Load artifact and encoder, and compare them with the configuration. Raises as above."""
    racer = Racer.load(settings.artifact, settings.pool)
    spec, wanted = racer.artifact.encoder, settings.encoder
    for field in ("backend", "dtype"):
        asked, has = getattr(wanted, field), getattr(spec, field)
        if asked is not None and asked != has:
            raise SettingsError(
                f"encoder.{field} is {asked}, but the artifact was trained with {has}: change the "
                "setting, or train again with `racer train`"
            )
    for candidate, was in zip(settings.candidates, racer.artifact.candidates, strict=True):
        if was.model is not None and was.model != (candidate.model or candidate.name):
            raise SettingsError(
                f"candidate {candidate.name} was labelled as the model {was.model!r}, the "
                f"configuration has {candidate.model or candidate.name!r}: change it back, or "
                "label and train again"
            )
        if was.parameters is not None and dict(was.parameters) != candidate.parameters:
            raise SettingsError(
                f"candidate {candidate.name} was labelled with the parameters "
                f"{dict(was.parameters)}, the configuration has {candidate.parameters}: change "
                "them back, or label and train again"
            )
    if settings.aggregation.method is Method.STACKED and racer.artifact.stacked is None:
        raise SettingsError(
            "aggregation.method is stacked, but the artifact has no stacked vote: train it on rows "
            "with answers, or choose another method"
        )
    return racer


def _services(request: Request) -> Services:
    return request.app.state.services


OpenServices = Annotated[Services, Depends(_services)]
