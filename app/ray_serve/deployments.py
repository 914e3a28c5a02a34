"""Ray Serve deployments of ``deploy/ray/serve.yaml``: gateways, and the router that they share."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import lifespan, settings
from app.errors import SettingsError
from app.main import create_gateway
from app.ray_serve.scorer import RayRouterBackend
from app.routing.artifact import has_artifact, open_trained
from app.routing.scorer import ScoredQuery
from app.settings import Secrets, Settings
from app.telemetry import logs
from app.telemetry.metrics import Metrics
from racer_core.errors import ArtifactError
from racer_core.trained_router import RouterScores

# Serve forms a batch from the requests of one pass of the event loop. The encoder worker behind it
# forms the batches that are scored, when its thread is free, and rejects requests beyond its queue.
# Serve would form them too early: when many requests wait, batches must be large.
_TOGETHER: Final = 16
_BATCHES: Final = 1024


class Arguments(BaseModel, extra="forbid"):
    """What ``serve.yaml`` gives the application.

    Attributes:
        config: The YAML configuration, at the same place on every node; a relative path begins
            where Ray was started.
    """

    config: Path


def build(arguments: dict[str, Any]) -> serve.Application:
    """The application that ``import_path`` names. Limits come from the configuration."""
    # A replica may run where Ray was started elsewhere, and an error should name the whole path.
    config = Arguments.model_validate(arguments).config.absolute()
    configured, _ = _load(config)
    limits = configured.limits
    router = None
    if has_artifact(configured):
        router = _deployment(Router, max_ongoing_requests=_TOGETHER * _BATCHES)
        router = router.bind(config)
    gateway = _deployment(
        serve.ingress()(Gateway),
        # The gateway's own limit rejects requests with a clear error; they count here, too.
        max_ongoing_requests=2 * limits.in_flight,
        graceful_shutdown_timeout_s=limits.drain_delay_s + limits.drain_s,
    )
    return gateway.bind(config, router)


def _deployment(kind: Any, **options: Any) -> serve.Deployment:
    return cast("serve.Deployment", serve.deployment(kind, **options))


class Router:
    """Artifact and encoder on one thread, and on a GPU or a part of it if it is given one."""

    async def __init__(self, config: Path) -> None:
        configured, _ = _load(config)
        opened = await asyncio.to_thread(lifespan.router_here, configured, Metrics())
        self._artifact = opened.trained.artifact.digest
        self._scoring = await opened.scoring.__aenter__()  # it ends with the replica's process

    async def score(self, query: str, artifact: str) -> ScoredQuery | BaseException:
        """Score one query. An error of it is a value, for what is raised comes with its stack."""
        self._refuse_other(artifact)
        return await self._together(query)

    async def score_rows(self, texts: Sequence[str], artifact: str) -> RouterScores:
        """Score rows of a calibration, behind live queries."""
        self._refuse_other(artifact)
        return await asyncio.to_thread(self._scoring.score_rows, texts)

    async def embed(self, texts: Sequence[str], artifact: str) -> NDArray[np.float32]:
        """Embeddings of texts, (B, D)."""
        self._refuse_other(artifact)
        return await self._scoring.embed(texts)

    @serve.batch(
        max_batch_size=_TOGETHER, batch_wait_timeout_s=0.0, max_concurrent_batches=_BATCHES
    )
    async def _together(self, queries: list[str]) -> list[ScoredQuery | BaseException]:
        return await asyncio.gather(*map(self._scoring.score, queries), return_exceptions=True)

    def _refuse_other(self, artifact: str) -> None:
        if artifact != self._artifact:
            raise ArtifactError("this replica of the router has another artifact than the gateway")


class Gateway:
    """The gateway of ``racer serve`` behind Serve's proxies, without an encoder of its own."""

    def __init__(self, config: Path, router: DeploymentHandle[Any] | None) -> None:
        self._config = config
        self._router = router

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """What Serve runs, its lifespan included."""
        return _Opening(self._config, self._router)


class _Opening:
    """The application, opened when its server starts and closed when it stops."""

    def __init__(self, config: Path, router: DeploymentHandle[Any] | None) -> None:
        self._config = config
        self._router = router
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            assert self._app is not None
            await self._app(scope, receive, _without_id(send))

    async def _live(self, receive: Receive, send: Send) -> None:
        configured, secrets = _load(self._config)
        with logs.logging_to(sys.stderr, configured.telemetry.log):
            async with lifespan.open_services(configured, secrets, self._open_router) as services:
                await receive()
                self._app = create_gateway(services)
                await send({"type": "lifespan.startup.complete"})
                await receive()
        await send({"type": "lifespan.shutdown.complete"})

    def _open_router(self, configured: Settings, _: Metrics) -> lifespan.OpenedRouter:
        if self._router is None:  # the artifact was not there when the application was deployed
            raise ArtifactError(
                "the application has no router replicas: deploy it again with `serve run` to load "
                "the artifact"
            )
        trained = open_trained(configured)
        scoring = RayRouterBackend(self._router, trained.artifact.digest)
        return lifespan.OpenedRouter(trained, nullcontext(scoring))


def _without_id(send: Send) -> Send:
    """Remove the request id header: Serve adds the same header to every answer."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [each for each in message["headers"] if each[0] != b"x-request-id"]
        await send(message)

    return sent


def _load(config: Path) -> tuple[Settings, Secrets]:
    """Load and check the configuration of a gateway behind Serve's public proxies."""
    configured, secrets = settings.load(config, host="0.0.0.0", port=0)  # hence keys are required
    if configured.access.admin is not None:
        raise SettingsError(f"{config}: access.admin: Serve has one listener; leave it out")
    if configured.artifact is not None and secrets.store(configured).startswith("sqlite"):
        raise SettingsError(
            f"{config}: replicas share a PostgreSQL: set ${configured.store_env} on every node"
        )
    return configured, secrets
