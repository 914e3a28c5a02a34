"""Ray Serve deployments: calls of the gateway to its router, refusals and imports."""

from __future__ import annotations

import asyncio
import importlib
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest

from app import lifespan
from app.errors import Overloaded, SettingsError
from app.lifespan import OpenedRouter
from app.routing.scorer import ScoredQuery
from app.settings import Settings
from app.telemetry.metrics import Metrics
from racer_core.errors import ArtifactError
from racer_core.racer import Racer
from tests.kit.gateway import ENVIRONMENT, ONE, configure
from tests.kit.lazy import LazyModule

ray_errors = LazyModule("ray.exceptions")
serve_errors = LazyModule("ray.serve.exceptions")
deployments = LazyModule("app.ray_serve.deployments")
ray_scorer = LazyModule("app.ray_serve.scorer")

ROOT = Path(__file__).parents[2]
STORE = {"RACER_STORE_URL": "postgresql://racer@127.0.0.1:1/unreachable"}
TEXTS = [f"What is {n} plus {n + 1}?" for n in range(300)]


class Response(Future[Any]):
    """What a handle gives: awaited on a loop, or waited for on a thread."""

    def __await__(self) -> Any:
        return asyncio.wrap_future(self).__await__()


@dataclass
class Handle:
    """A router's handle whose answers are made here; the next calls come to ``faults``."""

    racer: Racer
    faults: list[Exception | Overloaded] = field(default_factory=list)
    value: Any = None  # instead of the router's
    hang: bool = False
    calls: list[tuple[Any, str]] = field(default_factory=list)
    responses: list[Response] = field(default_factory=list)

    def __getattr__(self, method: str) -> Any:
        if method not in ("score", "score_rows", "embed"):
            raise AttributeError(method)
        return _Method(self, method)


@dataclass
class _Method:
    handle: Handle
    name: str

    def remote(self, texts: str | Sequence[str], artifact: str) -> Response:
        handle, response = self.handle, Response()
        handle.calls.append((texts, artifact))
        handle.responses.append(response)
        if handle.hang:
            return response
        if handle.faults:
            response.set_exception(handle.faults.pop(0))
        elif handle.value is not None:
            response.set_result(handle.value)
        else:
            response.set_result(self._answer(texts))
        return response

    def _answer(self, texts: str | Sequence[str]) -> Any:
        racer = self.handle.racer
        if isinstance(texts, str):
            return ScoredQuery(racer.score([texts]).scores[0].tolist(), False, None)
        return (
            racer.encoder.encode(texts).embeddings if self.name == "embed" else racer.score(texts)
        )


@pytest.fixture(scope="module")
def loaded(artifact: Path) -> Racer:
    """The artifact with its encoder."""
    return Racer.load(artifact)


@pytest.fixture
def handle(loaded: Racer) -> Handle:
    """A router that answers."""
    return Handle(loaded)


@pytest.fixture
def scoring(handle: Handle) -> Any:
    """The gateway's side of it."""
    return ray_scorer.RayRouterBackend(cast("Any", handle), "digest")


def test_rows_come_back_in_their_places(scoring: Any, handle: Handle, loaded: Racer) -> None:
    """Red when pieces change places, or one is left out; every call names the artifact."""
    counts: list[tuple[int, int]] = []
    found, right = scoring.score_rows(TEXTS, lambda *each: counts.append(each)), loaded.score(TEXTS)
    assert np.array_equal(found.scores, right.scores)
    assert np.array_equal(found.truncated, right.truncated)
    assert found.neighbours is not None
    assert right.neighbours is not None
    assert np.array_equal(found.neighbours, right.neighbours)
    assert {artifact for _, artifact in handle.calls} == {"digest"}
    assert counts == sorted(counts)
    assert {count for _, count in counts} == {len(TEXTS)}


def test_a_call_to_a_dead_replica_is_repeated_once(
    scoring: Any, handle: Handle, loaded: Racer
) -> None:
    """Of a query, of a piece of a calibration and of texts. Red without the second attempt."""
    handle.faults = [ray_errors.ActorDiedError()]
    assert asyncio.run(scoring.score(ONE)).scores == loaded.score([ONE]).scores[0].tolist()
    handle.faults = [ray_errors.ActorDiedError()]
    assert np.array_equal(scoring.score_rows(TEXTS).scores, loaded.score(TEXTS).scores)
    handle.faults = [ray_errors.ActorDiedError()]
    assert asyncio.run(scoring.embed([ONE])).shape[0] == 1
    handle.faults = [ray_errors.ActorDiedError(), ray_errors.ActorDiedError()]
    with pytest.raises(ray_errors.ActorDiedError):
        asyncio.run(scoring.score(ONE))


def test_too_many_queries_are_overload_not_failure(scoring: Any, handle: Handle) -> None:
    """At the replica or before it. Red when the whole pool would be called instead."""
    handle.value = Overloaded("far behind")
    with pytest.raises(Overloaded, match=r"^far behind$"):
        asyncio.run(scoring.score(ONE))
    handle.faults = [serve_errors.BackPressureError(1, 1)]
    with pytest.raises(Overloaded):
        asyncio.run(scoring.score(ONE))
    handle.value = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):  # no score, whatever it was
        asyncio.run(scoring.score(ONE))


def test_another_error_is_raised_at_once(scoring: Any, handle: Handle) -> None:
    """Asking again what a router cannot do would double the load."""
    handle.faults = [ray_errors.RayTaskError("score", "its stack", ValueError("broken"))]
    with pytest.raises(ray_errors.RayTaskError):
        asyncio.run(scoring.score(ONE))
    assert len(handle.calls) == 1


def test_a_calibration_that_is_given_up_leaves_nothing_behind(scoring: Any, handle: Handle) -> None:
    """Fails when replicas go on with the rows of a cancelled job."""
    handle.hang = True

    def give_up(done: int, _: int) -> None:
        if len(handle.calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scoring.score_rows(TEXTS, give_up)
    assert len(handle.responses) == 2
    assert all(each.cancelled() for each in handle.responses)


def test_an_error_of_the_router_is_raised_as_it_was_there(loaded: Racer) -> None:
    """Without the address, the process and the stack that Ray adds, for clients may read it."""

    def refused() -> Any:
        error = ray_errors.RayTaskError("score", "a stack", ArtifactError("another artifact"))
        return error.as_instanceof_cause()

    scoring = ray_scorer.RayRouterBackend(Handle(loaded, faults=[refused()]), "digest")
    with pytest.raises(ArtifactError, match=r"^another artifact$"):
        asyncio.run(scoring.embed([ONE]))
    scoring = ray_scorer.RayRouterBackend(Handle(loaded, faults=[refused()]), "digest")
    with pytest.raises(ArtifactError, match=r"^another artifact$"):
        scoring.score_rows(TEXTS)


@pytest.fixture
def configuration(tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration, and the environment of a node."""
    for name, value in (ENVIRONMENT | STORE).items():
        monkeypatch.setenv(name, value)
    return configure(tmp_path / "node", artifact, "http://127.0.0.1:1/v1")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[OpenedRouter]:
    """What replicas open; they never close it, but a test must."""
    found: list[OpenedRouter] = []

    def router_here(configured: Settings, metrics: Metrics) -> OpenedRouter:
        found.append(open_router(configured, metrics))
        return found[-1]

    open_router = lifespan.router_here
    monkeypatch.setattr(lifespan, "router_here", router_here)
    monkeypatch.setattr("app.ray_serve.deployments.exported_samples", lambda *_: None)
    return found


@asynccontextmanager
async def replica(configuration: Path, opened: list[OpenedRouter]) -> AsyncGenerator[Any]:
    """A replica of the router, as Serve makes it."""
    router = deployments.Router.__new__(deployments.Router)
    await router.__init__(configuration)
    try:
        yield router
    finally:
        for each in opened:
            await each.scoring.__aexit__(None, None, None)


def test_a_replica_of_the_router_refuses_a_gateway_of_another_artifact(
    configuration: Path, loaded: Racer, opened: list[OpenedRouter]
) -> None:
    """In the middle of a rollout: its scores would meet thresholds of other scores."""

    async def ask() -> None:
        async with replica(configuration, opened) as router:
            for scores in (router.score(ONE, "x"), router.score_rows([ONE], "x")):
                with pytest.raises(ArtifactError):
                    await scores
            with pytest.raises(ArtifactError):
                await router.embed([ONE], "x")
            scored = await router.score_rows(TEXTS, loaded.artifact.digest)
            assert np.array_equal(scored.scores, loaded.score(TEXTS).scores)

    asyncio.run(ask())


def test_a_replica_of_the_router_loads_an_artifact_that_comes_later(
    configuration: Path, artifact: Path, loaded: Racer, opened: list[OpenedRouter], tmp_path: Path
) -> None:
    """Once, however many ask; before that each is refused. Fails when it needs a deployment."""
    later, digest = tmp_path / "later", loaded.artifact.digest
    configure(configuration.parent, later, "http://127.0.0.1:1/v1")

    async def ask() -> None:
        async with replica(configuration, opened) as router:
            for _ in range(2):
                with pytest.raises(ArtifactError):
                    await router.score(ONE, digest)
            assert opened == []
            shutil.copytree(artifact, later)
            given_up = asyncio.create_task(router.score_rows(TEXTS, digest))
            await asyncio.sleep(0)  # until the load has begun
            given_up.cancel()
            scored = await asyncio.gather(*(router.score_rows(TEXTS, digest) for _ in range(3)))
            for each in scored:
                assert np.array_equal(each.scores, loaded.score(TEXTS).scores)
            assert len(opened) == 1

    asyncio.run(ask())


def test_a_load_that_fails_is_not_repeated_by_each_request(
    configuration: Path,
    artifact: Path,
    loaded: Racer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """And nothing is loaded for a gateway of another artifact. Fails when each request loads."""
    later, loads = tmp_path / "later", list[Settings]()
    configure(configuration.parent, later, "http://127.0.0.1:1/v1")

    def fails(configured: Settings, _: Metrics) -> OpenedRouter:
        loads.append(configured)
        raise ArtifactError("its encoder cannot be opened")

    monkeypatch.setattr(lifespan, "router_here", fails)

    async def ask() -> None:
        async with replica(configuration, []) as router:
            shutil.copytree(artifact, later)
            with pytest.raises(ArtifactError, match="does not have the gateway's artifact"):
                await router.score(ONE, "x")
            assert loads == []
            for _ in range(3):
                with pytest.raises(ArtifactError, match="its encoder cannot be opened"):
                    await router.score(ONE, loaded.artifact.digest)
            assert len(loads) == 1

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("changes", "environment"),
    [
        ({"access": {"admin": {"port": 9000}}}, STORE),
        ({}, {}),
        ({}, STORE | {"RACER_DATA_KEY": ""}),
    ],
    ids=["a second listener", "a store of its own", "no key"],
)
def test_a_replica_does_not_start_with_what_serve_cannot_keep(
    tmp_path: Path,
    artifact: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    environment: dict[str, str],
) -> None:
    """Fails when calibrations would be lost with a replica, or no key were required."""
    monkeypatch.delenv("RACER_STORE_URL", raising=False)
    for name, value in (ENVIRONMENT | environment).items():
        monkeypatch.setenv(name, value)
    path = configure(tmp_path / "node", artifact, "http://127.0.0.1:1/v1", **changes)
    with pytest.raises(SettingsError):
        deployments.build({"config": str(path)})


def test_a_relative_configuration_is_the_same_file_on_every_node(
    configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray may be started in another folder elsewhere; an error says where the file should be."""
    monkeypatch.chdir(configuration.parent)
    # Ray has no public name for the arguments that a deployment is bound to.
    gateway = deployments.build({"config": configuration.name})._bound_deployment
    config, router, is_calibrated_only = gateway.init_args
    assert (config, is_calibrated_only) == (configuration, False)
    assert router._bound_deployment.init_args == (configuration,)
    with pytest.raises(SettingsError, match=f"^{configuration.parent}/nowhere.yaml: cannot be "):
        deployments.build({"config": "nowhere.yaml"})


def test_a_gateway_loads_no_encoder() -> None:
    """The demo's encoder needs torch; a gateway that decides by its artifact does not."""
    config = ROOT / "deploy/demo/racer.yaml"
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from app import settings\n"
        "from app.ray_serve import deployments\n"
        "from app.routing import artifact_files\n"
        f"loaded = settings.load(Path({str(config)!r}), {{}})[0]\n"
        "assert artifact_files.open_trained(loaded).pool\n"
        "print('torch' in sys.modules)\n"
        "sys.modules['torch'] = None  # an import fails at once, where torch would take seconds\n"
        "try:\n"
        "    artifact_files.open_racer(loaded)\n"
        "except ModuleNotFoundError as exc:\n"
        "    print(exc.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.split()[-2:] == [b"False", b"torch"]


class Gauge:
    """One of Ray's gauges, without a cluster."""

    values: ClassVar[dict[str, dict[tuple[tuple[str, str], ...], float]]] = {}

    def __init__(self, name: str, _: str, tags: tuple[str, ...]) -> None:
        self._name, self._tags = name, tags
        self.values.setdefault(name, {})

    def set(self, value: float, tags: dict[str, str]) -> None:
        """Keep the value."""
        assert set(tags) == set(self._tags)
        self.values[self._name][tuple(sorted(tags.items()))] = value


def test_every_sample_is_exported_with_its_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when two replicas would write one series, so that rate() means nothing."""
    exporting = importlib.import_module("app.ray_serve.metrics")
    monkeypatch.setattr(exporting, "Gauge", Gauge)
    metrics = Metrics()
    metrics.requests_of("/route", 200, "", "true", "").inc(3)
    metrics.overhead_seconds.observe(0.2)
    for replica in ("a", "b"):
        collect = metrics.registry.collect
        exporting.MetricsExport(replica, collect).copy(collect())
    labels = {"route": "/route", "status": "200", "application": "", "certified": "true"}
    key = tuple(sorted({**labels, "reason": "", "replica": "a"}.items()))
    assert Gauge.values["racer_requests_total"][key] == 3
    assert Gauge.values["racer_overhead_seconds_bucket"][("le", "0.25"), ("replica", "b")] == 1
    samples = {s.name for f in metrics.registry.collect() for s in f.samples}
    assert {name for name in samples if not name.endswith("_created")} == Gauge.values.keys()
