"""Ray Serve deployments of ``deploy/ray/serve.yaml``: gateways, and the router that they share."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Metric
from pydantic import BaseModel
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from app import lifespan, settings
from app.errors import SettingsError
from app.ray_serve.application import Application
from app.ray_serve.metrics import MetricsExport
from app.ray_serve.proxy import CALLBACK, CANDIDATES, middlewares
from app.ray_serve.scorer import RayRouterBackend
from app.routing.artifact_files import has_artifact, open_trained
from app.routing.scorer import RouterBackend, ScoredQuery
from app.settings import Secrets, Settings
from app.settings.validation import suggestion
from app.telemetry.metrics import Metrics
from racer_core import artifacts
from racer_core.errors import ArtifactError
from racer_core.trained_router import RouterScores

log = logging.getLogger(__name__)

# Serve forms a batch from the requests of one pass of the event loop. The encoder worker behind it
# forms the batches that are scored, when its thread is free, and rejects requests beyond its queue.
# Serve would form them too early: when many requests wait, batches must be large.
_TOGETHER: Final = 16
_BATCHES: Final = 1024
_AGAIN_S: Final = 10.0  # between the starts of two loads, where the first fails
_MIDDLEWARES: Final = f"{middlewares.__module__}:{middlewares.__name__}"


class Arguments(BaseModel, extra="forbid"):
    """What ``serve.yaml`` gives the application.

    Attributes:
        config: The YAML configuration, at the same place on every node; a relative path begins
            where Ray was started.
        calibrated: Requests go only to gateways for which ``GET /readyz?calibrated=true`` is 200:
            others wait for a calibration at their start, and are unhealthy later. Where it is
            false, a first calibration can be uploaded to the application itself.
    """

    config: Path
    calibrated: bool = False


def build(arguments: dict[str, Any]) -> serve.Application:
    """The application that ``import_path`` names. Limits come from the configuration."""
    parsed = Arguments.model_validate(arguments)
    # A replica may run where Ray was started elsewhere, and an error should name the whole path.
    config = parsed.config.absolute()
    configured, _ = load(config, {})
    limits = configured.limits
    router = _deployment(Router, max_ongoing_requests=_TOGETHER * _BATCHES)
    gateway = _deployment(
        serve.ingress()(Gateway),
        # The gateway's own limit rejects requests with a clear error; they count here, too.
        max_ongoing_requests=2 * limits.in_flight,
        graceful_shutdown_timeout_s=limits.drain_delay_s + limits.drain_s,
        user_config={},  # serve.yaml may have another; with null, Serve would not call reconfigure
    )
    return gateway.bind(config, router.bind(config), parsed.calibrated)


def _deployment(kind: Any, **options: Any) -> serve.Deployment:
    return cast("serve.Deployment", serve.deployment(kind, **options))


class Router:
    """Artifact and encoder on one thread, and on a GPU or a part of it if it is given one.

    An artifact that comes after the start is loaded when a gateway that has it asks first.
    """

    _scoring: RouterBackend

    async def __init__(self, config: Path) -> None:
        self._configured, _ = load(config, {})
        self._artifact: str | None = None  # the digest of what is loaded
        self._loading: asyncio.Task[None] | None = None
        self._again_at = 0.0  # monotonic: when a load that failed may be repeated
        if has_artifact(self._configured):
            await self._load()

    async def score(self, query: str, artifact: str) -> ScoredQuery | BaseException:
        """Score one query. An error of it is a value, for what is raised comes with its stack."""
        await self._ensure_loaded(artifact)
        return await self._together(query)

    async def score_rows(self, texts: Sequence[str], artifact: str) -> RouterScores:
        """Score rows of a calibration, behind live queries."""
        await self._ensure_loaded(artifact)
        return await asyncio.to_thread(self._scoring.score_rows, texts)

    async def embed(self, texts: Sequence[str], artifact: str) -> NDArray[np.float32]:
        """Embeddings of texts, (B, D)."""
        await self._ensure_loaded(artifact)
        return await self._scoring.embed(texts)

    @serve.batch(
        max_batch_size=_TOGETHER, batch_wait_timeout_s=0.0, max_concurrent_batches=_BATCHES
    )
    async def _together(self, queries: list[str]) -> list[ScoredQuery | BaseException]:
        return await asyncio.gather(*map(self._scoring.score, queries), return_exceptions=True)

    async def _ensure_loaded(self, artifact: str) -> None:
        """Have the artifact of a gateway loaded. Raises ArtifactError where it is not."""
        if self._artifact is None:
            if self._loading is None or (
                self._loading.done() and time.monotonic() > self._again_at
            ):
                self._refuse_absent(artifact)
                self._loading = asyncio.create_task(self._load(), name="loading the artifact")
            await asyncio.shield(self._loading)  # for the next request, if this one is given up
        if artifact != self._artifact:
            raise ArtifactError("this replica of the router has another artifact than the gateway")

    def _refuse_absent(self, artifact: str) -> None:
        found, folder = None, self._configured.artifact
        with suppress(OSError):
            found = folder and artifacts.digest(folder)
        if found is None or not artifact.startswith(found):
            raise ArtifactError(
                f"a replica of the router does not have the gateway's artifact at {folder}: copy "
                "it to the same path on every node"
            )

    async def _load(self) -> None:
        self._again_at = time.monotonic() + _AGAIN_S
        metrics = Metrics()
        opened = await asyncio.to_thread(lifespan.router_here, self._configured, metrics)
        # Both end with the replica's process.
        self._scoring = await opened.scoring.__aenter__()
        self._export = exported_samples(metrics.registry.collect, "racer_router_")
        self._artifact = opened.trained.artifact.scoring_digest


class Gateway:
    """The gateway of ``racer serve`` behind Serve's proxies, without an encoder of its own."""

    def __init__(
        self, config: Path, router: DeploymentHandle[Any], is_calibrated_only: bool
    ) -> None:
        if CALLBACK not in os.environ:
            log.warning(
                "requests of a replica that dies fail with a bare 500: set %s=%s in the "
                "environment of `ray start` on every node",
                CALLBACK,
                _MIDDLEWARES,
            )
        self._router = router
        self._application = Application(
            partial(load, config), self._open_router, is_calibrated_only=is_calibrated_only
        )
        self._export = exported_samples(self._application.metrics, "racer_")

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """What Serve runs, its lifespan included."""
        return self._application

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Open the application, or open it anew: Serve calls this at the start and at changes."""
        await self._application.configure(user_config)

    def check_health(self) -> None:
        """Raise if requests should go to another replica: Serve calls this every 10 s."""
        self._application.check()

    def _open_router(self, configured: Settings, _: Metrics) -> lifespan.OpenedRouter:
        trained = open_trained(configured)
        scoring = RayRouterBackend(self._router, trained.artifact.scoring_digest)
        return lifespan.OpenedRouter(trained, nullcontext(scoring))


def exported_samples(collect: Callable[[], Iterable[Metric]], prefix: str) -> asyncio.Task[None]:
    """Export metrics as long as the process lives; the task must be kept."""
    export = MetricsExport(serve.get_replica_context().replica_tag, collect, prefix)
    return asyncio.create_task(export.run(), name="metrics export")


def load(config: Path, changes: dict[str, Any]) -> tuple[Settings, Secrets]:
    """Load and check the configuration of a gateway behind Serve's public proxies.

    Args:
        config: The YAML file.
        changes: Settings in place of the file's; of a section only the given ones.
    """
    names = Settings.model_fields.keys()
    if unknown := sorted(changes.keys() - names):
        hint = suggestion(unknown[0], names)
        raise SettingsError(
            f"user_config: there is no setting {', '.join(unknown)}{hint and f'; {hint}'}"
        )
    served: dict[str, Any] = {**changes, "host": "0.0.0.0", "port": 0}  # hence keys are required
    configured, secrets = settings.load(config, **served)
    if configured.access.admin is not None:
        raise SettingsError(f"{config}: access.admin: Serve has one listener; leave it out")
    if CALLBACK not in os.environ and (open_to_all := _below_candidates(configured)) is not None:
        raise SettingsError(
            f"candidates.{open_to_all}: Serve's proxies would serve {CANDIDATES} to the network "
            f"without a key: set {CALLBACK}={_MIDDLEWARES} in the environment of `ray start` on "
            "every node, and start Ray again"
        )
    if configured.artifact is not None and secrets.store(configured).startswith("sqlite"):
        raise SettingsError(
            f"{config}: replicas share a PostgreSQL: set ${configured.store_env} on every node"
        )
    return configured, secrets


def _below_candidates(configured: Settings) -> str | None:
    """A candidate at the path that the proxies' middleware protects."""
    for candidate in configured.candidates:
        paths = [urlsplit(url).path for url in candidate.replicas]
        if any(f"{path}/".startswith(f"{CANDIDATES}/") for path in paths):
            return candidate.name
    return None
