"""The application of one gateway replica on Ray Serve: changed settings, and its calibration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from app import lifespan
from app.errors import NotReady, ReloadRefused, SettingsError
from app.services import MissingPart, Services
from tests.kit.gateway import ADMIN_KEY, DATA_KEY, ENVIRONMENT, candidates, user
from tests.kit.lazy import LazyModule
from tests.kit.upstream import FakePool
from tests.kit.waiting import eventually

application = LazyModule("app.ray_serve.application")
deployments = LazyModule("app.ray_serve.deployments")


@pytest.fixture
def pool() -> Iterator[FakePool]:
    """Candidates."""
    with FakePool() as fake:
        yield fake


@pytest.fixture
def config(tmp_path: Path, pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration without a router: the first candidate answers `auto`."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    values = {"schema_version": 1, "candidates": candidates(pool.url)}
    path = tmp_path / "racer.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def made(config: Path, *, is_calibrated_only: bool = False) -> Any:
    """The application of a replica, not open yet."""
    return application.Application(
        partial(deployments.load, config),
        lifespan.router_here,
        is_calibrated_only=is_calibrated_only,
    )


def run(made: Any, work: Callable[[httpx2.AsyncClient], Coroutine[Any, Any, None]]) -> None:
    """Do something with a client, inside the lifespan that Serve runs."""

    async def main() -> None:
        received = asyncio.Queue[dict[str, Any]]()
        sent = asyncio.Queue[dict[str, Any]]()
        live = asyncio.create_task(made({"type": "lifespan"}, received.get, sent.put))
        await received.put({"type": "lifespan.startup"})
        assert (await sent.get())["type"] == "lifespan.startup.complete"
        client = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=made),
            base_url="http://gateway",
            headers={"authorization": f"Bearer {DATA_KEY}"},
        )
        try:
            async with client:
                await work(client)
        finally:
            await received.put({"type": "lifespan.shutdown"})
            await live

    asyncio.run(main())


async def ask(client: httpx2.AsyncClient) -> str:
    """The candidate that answers `auto`."""
    body = {"model": "auto", "messages": user("What is 3 plus 4?")}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()["racer"]["served_by"]


def test_changed_settings_answer_at_once_and_begun_requests_as_they_began(
    config: Path, pool: FakePool
) -> None:
    """Red when a request is lost by the change, or mixes both."""
    gateway = made(config)

    async def work(client: httpx2.AsyncClient) -> None:
        await gateway.configure({})
        pool.say("adder", "42", delay_s=0.5)
        begun = asyncio.create_task(ask(client))
        await eventually(lambda: "adder" in pool.running)
        await gateway.configure({"routing": {"fallback": "poet"}})
        assert await ask(client) == "poet"
        assert await begun == "adder"

    run(gateway, work)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"limits": {"queue": 7, "drain_s": 3}}, r"limits\.queue, limits\.drain_s: cannot be"),
        ({"routing": {"fallback": "nobody"}}, r"routing\.fallback: 'nobody' is no candidate"),
        ({"routing": {"alpha": 2}}, r"routing\.alpha"),
        ({"rooting": {}}, r"there is no setting rooting; did you mean `routing`\?"),
        ({"access": {"admin": {"port": 9}}}, r"access\.admin"),
    ],
    ids=["fixed", "wrong", "out of range", "no setting", "not on Serve"],
)
def test_changes_that_cannot_be_used_are_refused_whole(
    config: Path, changes: dict[str, Any], named: str
) -> None:
    """With the setting's name. A running replica goes on; a new one does not start with them."""
    good = {"routing": {"fallback": "poet"}}
    gateway = made(config)

    async def work(client: httpx2.AsyncClient) -> None:
        with pytest.raises(ReloadRefused, match=named):
            await gateway.configure(changes)
        await gateway.configure(good)
        await gateway.configure(changes | {"pools": {"small": {"candidates": ["adder"]}}})
        assert gateway.refusal
        assert next(iter(gateway.metrics())).samples[0].value == 1.0
        assert await ask(client) == "poet"
        assert (await client.get("/v1/models/auto/small")).status_code == 404
        await gateway.configure(good)
        assert gateway.refusal is None

    run(gateway, work)


@pytest.mark.parametrize("field", ["base_url", "base_urls"])
def test_candidates_of_the_same_serve_need_its_middleware(
    config: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    """Without it the proxies serve them to the whole network, and ask for no key."""
    url = "http://127.0.0.1:8080/candidates/v1"
    own = {"name": "adder", field: url if field == "base_url" else [url]}
    changes = {"candidates": [own]}
    variable = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(SettingsError, match=rf"candidates\.adder: .*{variable}=app\.ray_serve"):
        deployments.load(config, changes)
    elsewhere = {"name": "adder", "base_url": "http://pool.example/candidates2/v1"}
    deployments.load(config, {"candidates": [elsewhere]})
    monkeypatch.setenv(variable, "app.ray_serve.proxy:middlewares")
    deployments.load(config, changes)


def test_a_replica_takes_requests_only_once_it_is_calibrated(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when Serve would send requests to a gateway whose /readyz?calibrated=true is 503."""
    missing: list[MissingPart] = [MissingPart(part="calibration", reason="none", next="calibrate")]
    monkeypatch.setattr(Services, "missing", property(lambda _: tuple(missing)))
    monkeypatch.setattr("app.ray_serve.application.LOOK_S", 0.01)
    gateway = made(config, is_calibrated_only=True)

    async def work(client: httpx2.AsyncClient) -> None:
        opening = asyncio.create_task(gateway.configure({}))
        await asyncio.sleep(0.1)
        assert not opening.done()
        with pytest.raises(NotReady):
            gateway.check()
        found = missing.pop()
        await opening
        gateway.check()
        missing.append(found)
        with pytest.raises(NotReady, match=r"Missing: calibration \(none\)"):
            gateway.check()
        assert await ask(client) == "adder"

    run(gateway, work)


def test_one_replica_alone_is_not_reloaded(config: Path) -> None:
    """`POST /admin/reload` reaches one of them: it would then answer unlike the others."""
    gateway = made(config)

    async def work(client: httpx2.AsyncClient) -> None:
        await gateway.configure({})
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        response = await client.post("/admin/reload", headers=headers)
        assert response.status_code == 409
        assert "user_config" in response.json()["error"]["message"]

    run(gateway, work)


def test_an_uncalibrated_replica_can_be_reached_by_default(config: Path) -> None:
    """Or the first calibration could not be uploaded."""
    gateway = made(config)

    async def work(client: httpx2.AsyncClient) -> None:
        with pytest.raises(NotReady, match="user_config"):
            gateway.check()
        assert [each.name for each in gateway.metrics()] == ["racer_user_config_refused"]
        await gateway.configure({})
        gateway.check()
        assert (await client.get("/readyz?calibrated=true")).status_code == 503
        assert await ask(client) == "adder"
        assert "racer_requests" in {each.name for each in gateway.metrics()}

    run(gateway, work)
