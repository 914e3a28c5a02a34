"""Reload: a changed configuration is taken over while requests go on, or refused whole."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from app import main, settings
from app.access.quotas import Quotas
from app.errors import RateLimited
from app.http.admission_queue import AdmissionQueue
from app.reload import Reload
from app.settings import Secrets, Settings
from app.settings.access import Key
from app.settings.reloading import ANY, RELOADED, Place, differences, is_reloaded
from app.upstream.replicas import open_targets
from racer_core.prices import PICO
from tests.kit.accounts import configured_key
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    TWO,
    UNANSWERABLE,
    CalibratedStores,
    Gateway,
    Serve,
    candidates,
    configure,
    decided,
    error_message,
    noisy,
    running,
)
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until

URL = "http://127.0.0.1:9/v1"
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]

Rewrite = Callable[..., Any]  # ``rewrite(gateway, routing={...})``


@pytest.fixture
def rewrite(artifact: Path, pool: FakePool) -> Rewrite:
    """Write another configuration for a gateway and return the answer to its reload."""

    def write(gateway: Gateway, *, upstream: str = pool.url, **changes: Any) -> Any:
        assert gateway.config is not None
        configure(gateway.config.parent, artifact, upstream, **changes)
        return gateway.post("/admin/reload", ADMIN_KEY)

    return write


# Which settings --------------------------------------------------------------------------------


def base(**changes: Any) -> Settings:
    """A configuration with some names of every kind."""
    key = configured_key("team")[1]
    values: dict[str, Any] = {
        "schema_version": 1,
        "artifact": "router",
        "candidates": [{"name": "gpt-4.1", "base_url": URL}, {"name": "poet", "base_url": URL}],
        "applications": {"bot": {"alpha": 0.2}},
        "access": {"keys": [key]},
    }
    return Settings.model_validate(values | changes)


def places(before: Settings, after: Settings) -> list[str]:
    """The places as a reload lists them."""
    return [".".join(place) for place in differences(before, after)]


def test_differences_are_named_by_their_place() -> None:
    """Candidates, keys and applications by name; a name may contain dots, and no value is shown."""
    before = base()
    other = {"name": "poet", "base_url": URL, "timeout_s": 5, "capabilities": {"tools": False}}
    first = before.candidates[0].model_dump()
    assert places(before, before) == []
    assert places(before, before.model_copy(update={"port": 1})) == ["port"]
    after = base(candidates=[first, other], access=before.access.model_dump())
    found = ["candidates.poet.timeout_s", "candidates.poet.capabilities.tools"]
    assert places(before, after) == found
    after = base(candidates=[first], applications={}, access={})
    assert places(before, after) == ["candidates.poet", "applications.bot", "access.keys.team"]
    keys = [configured_key(name)[1] for name in ("a", "b")]
    one, turned = base(access={"keys": keys}), base(access={"keys": keys[::-1]})
    assert places(one, turned) == ["access.keys"]
    limited = base(access={"keys": [keys[0] | {"concurrency": 3}, keys[1]]})
    assert places(one, limited) == ["access.keys.a.concurrency"]
    admin = base(access={"keys": keys, "admin": {"port": 9000}})
    assert places(one, admin) == ["access.admin"]


def test_a_fetched_artifact_is_its_digest() -> None:
    """Another URL of the same file, such as one that was signed again, is no difference."""

    def fetched(signature: str, digest: str, **changes: Any) -> Settings:
        url = f"https://host.example/router.tar?signature={signature}#sha256={digest * 64}"
        return base(access={}, artifact=url, **changes)

    before, signed_again = fetched("a", "0"), fetched("b", "0")
    assert before.remote_artifact != signed_again.remote_artifact
    assert places(before, signed_again) == []
    assert places(before, fetched("b", "0", limits={"fan_out": 3})) == ["limits.fan_out"]
    assert places(before, fetched("a", "1")) == ["artifact"]
    assert places(before, base(access={}, artifact=str(before.artifact))) == []


def test_the_order_and_the_names_of_candidates_need_a_restart() -> None:
    """They are the artifact's; a key, a pool and a candidate's server may change."""
    assert not is_reloaded(("candidates",))
    assert not is_reloaded(("candidates", "poet"))
    assert not is_reloaded(("candidates", "gpt-4.1", "model"))
    assert not is_reloaded(("applications", "bot", "keys"))
    assert not is_reloaded(("access", "admin"))
    assert not is_reloaded(("a", "setting", "of", "the", "future"))
    assert is_reloaded(("candidates", "gpt-4.1", "base_url"))
    assert is_reloaded(("access", "keys", "team", "hash"))
    assert is_reloaded(("pools", "small", "alpha"))


@pytest.mark.parametrize("place", RELOADED, ids=".".join)
def test_every_listed_setting_exists(place: Place) -> None:
    """A renamed setting does not stay listed under its old name, where it would need a restart."""
    model: Any = Settings
    for name in place:
        if name == ANY:
            continue
        assert issubclass(model, BaseModel)
        annotation = model.model_fields[name].annotation
        model = next(_models(annotation), annotation)


def _models(annotation: Any) -> Any:
    """The sections in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _models(inner)


# Refused whole ---------------------------------------------------------------------------------


def test_what_needs_a_restart_is_named_and_nothing_is_applied(
    serve: Serve, rewrite: Rewrite
) -> None:
    """The change of a key in the same file is not applied either."""
    gateway = serve()
    key, entry = configured_key("team")
    assert gateway.post("/admin/reload").status_code == 403, "the data key reloads nothing"
    refused = rewrite(
        gateway, access={"keys": [entry]}, host="127.0.0.2", encoder={"backend": "cpu"}
    )
    message = error_message(refused, 409)
    assert refused.json()["error"]["code"] == "reload_refused"
    assert message.startswith("host, encoder.backend: cannot be changed without a restart")
    assert "access.keys" not in message
    assert gateway.get("/v1/models", key).status_code == 401
    done = rewrite(gateway, access={"keys": [entry]})
    assert (done.status_code, done.json()) == (200, {"changed": ["access.keys.team"]})
    assert gateway.get("/v1/models", key).status_code == 200
    assert rewrite(gateway, access={"keys": [entry]}).json() == {"changed": []}


def test_a_file_that_is_not_valid_changes_nothing(serve: Serve, rewrite: Rewrite) -> None:
    """The message is that of the start."""
    gateway = serve()
    for changes, sentence in (
        ({"routing": {"alpha": 2}}, "routing.alpha: must be"),
        ({"limits": {"in_fligth": 2}}, "did you mean `in_flight`?"),
        ({"pools": {"small": {"candidates": ["nobody"]}}}, "'nobody' is no candidate"),
    ):
        message = error_message(rewrite(gateway, **changes), 409)
        assert sentence in message
        assert "Nothing was changed" in message
    assert gateway.config is not None
    gateway.config.unlink()
    assert "cannot be read" in error_message(gateway.post("/admin/reload", ADMIN_KEY), 409)
    assert gateway.chat(ONE)["choices"][0]["message"]["content"] == "42"


def test_a_reload_that_fails_half_way_is_repeated_by_the_next() -> None:
    """Red when the next one finds no difference, and a part keeps the old configuration."""
    old, new = base(access={}), base(access={}, limits={"fan_out": 3})
    reload, followed = Reload(old, lambda: (new, Secrets())), list[int]()

    def fails_once(_: Settings, __: Secrets) -> None:
        followed.append(0)
        if len(followed) == 1:
            raise RuntimeError("half way")

    reload.subscribe(fails_once)
    reload.subscribe(lambda settings, _: followed.append(settings.limits.fan_out))
    with pytest.raises(RuntimeError, match="half way"):
        asyncio.run(reload())
    assert asyncio.run(reload()) == ["limits.fan_out"]
    assert followed == [0, 0, 3]
    assert asyncio.run(reload()) == []


# Requests --------------------------------------------------------------------------------------


def test_a_request_in_flight_ends_as_it_began(
    serve: Serve, rewrite: Rewrite, pool: FakePool
) -> None:
    """The address of all candidates changes while one answers; the next request goes there."""
    gateway = serve()
    before = gateway.ready()
    gate = threading.Event()
    pool.say("adder", "the old server", gate=gate)
    with FakePool() as other, ThreadPoolExecutor(1) as threads:
        other.say("adder", "the new server")
        begun = threads.submit(gateway.chat, ONE)
        wait_until(lambda: "adder" in pool.running)
        done = rewrite(gateway, upstream=other.url)
        assert done.json() == {
            "changed": [f"candidates.{name}.base_url" for name in ("adder", "speller", "poet")]
        }
        assert not begun.done(), "the reload waits for no request"
        gate.set()
        assert gateway.chat(ONE)["choices"][0]["message"]["content"] == "the new server"
        assert begun.result()["choices"][0]["message"]["content"] == "the old server"
        assert gateway.ready() == before, "the calibration stays active"


def test_no_request_is_lost_while_the_configuration_changes(serve: Serve, rewrite: Rewrite) -> None:
    """120 requests during 20 reloads of limits, keys, pools and addresses."""
    gateway = serve()
    extra = configured_key("team")[1]
    with FakePool() as other, ThreadPoolExecutor(8) as threads:
        stop = threading.Event()

        def reload_again() -> int:
            count = 0
            while count < 20 or not stop.is_set():
                upstream = other.url if count % 2 else None
                changes = {
                    "access": {"keys": [extra] * (count % 2)},
                    "pools": {"small": {"candidates": ["adder"]}} if count % 3 else {},
                    "limits": {"fan_out": 2 + count % 2, "in_flight": 200 + count},
                }
                done = rewrite(gateway, **changes, **({"upstream": upstream} if upstream else {}))
                assert done.status_code == 200, done.text
                count += 1
            return count

        reloading = threads.submit(reload_again)
        asked = [threads.submit(gateway.ask, (ONE, TWO)[number % 2]) for number in range(120)]
        statuses = [each.result().status_code for each in asked]
        stop.set()
        assert reloading.result() >= 20
    assert statuses == [200] * 120


def test_failed_logins_and_waiting_requests_outlive_a_reload(
    serve: Serve, rewrite: Rewrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reload forgives no wrong key, and its limit is the new one; the queue stays one queue."""
    queues: list[AdmissionQueue] = []

    def queue() -> AdmissionQueue:
        queues.append(AdmissionQueue())
        return queues[-1]

    monkeypatch.setattr(main, "AdmissionQueue", queue)
    gateway = serve(access={"failures_per_minute": 3}, calibrated=False)

    def statuses(count: int) -> list[int]:
        return [gateway.get("/v1/models", "wrong").status_code for _ in range(count)]

    assert statuses(3) == [401] * 3
    changed = rewrite(gateway, access={"failures_per_minute": 3}, limits={"fan_out": 3})
    assert changed.json() == {"changed": ["limits.fan_out"]}
    assert statuses(1) == [429]
    rewrite(gateway, access={"failures_per_minute": 6}, limits={"fan_out": 3})
    assert statuses(3) == [401, 401, 429]
    assert len(queues) == 1


def test_limits_follow_and_usage_stays() -> None:
    """On an injected clock: buckets, running requests, and the limits of the process."""
    now = [0.0]
    entry = configured_key("a", requests_per_minute=2, concurrency=1)[1]

    def key(**changes: Any) -> Key:
        return Key.model_validate(entry | changes)

    quotas = Quotas([key()], in_flight=3, body_bytes=100, clock=lambda: now[0])
    with quotas.admit("a", is_work=True) as running_request:
        running_request.hold(100)
        quotas.reconfigure([key(concurrency=2)], in_flight=1, body_bytes=150)
        with pytest.raises(RateLimited, match="1 requests running"):
            quotas.admit("a", is_work=True)
        with quotas.admit("a", is_work=False) as second:
            second.hold(50)
        with pytest.raises(RateLimited, match="requests of the minute"):
            quotas.admit("a", is_work=False)
    quotas.reconfigure([key(requests_per_minute=60, concurrency=5)], in_flight=1, body_bytes=150)
    assert [(each.limit.amount, each.free) for each in quotas.shares()] == [(60 * PICO, 58 * PICO)]
    now[0] += 1
    quotas.admit("a", is_work=True)
    quotas.reconfigure([key(requests_per_minute=None, concurrency=5)], in_flight=2, body_bytes=150)
    quotas.admit("a", is_work=True)
    assert not quotas.shares()


def test_candidates_that_stay_keep_their_circuit_breakers() -> None:
    """Replicas are kept under another timeout, and made anew for another address, key or limit."""
    first = {"name": "gpt-4.1", "base_url": URL}
    before = open_targets(base(), Secrets())["gpt-4.1"]

    def replicas_under(**changes: Any) -> Any:
        poet = {"name": "poet", "base_url": URL}
        after = base(candidates=[first | changes, poet])
        target = open_targets(after, Secrets(), {"gpt-4.1": before})["gpt-4.1"]
        assert target.timeout_s == changes.get("timeout_s", before.timeout_s)
        return target.replicas

    assert replicas_under(timeout_s=7) is before.replicas
    others = {"base_url": f"{URL}/b"}, {"concurrency": 3}, {"headers": {"x-a": "b"}}
    for changes in (*others, {"verify_tls": False}):
        assert replicas_under(**changes) is not before.replicas


# A reload does what a restart does ----------------------------------------------------------------


def outcomes(gateway: Gateway) -> list[Any]:
    """What becomes of some fixed requests, with their certificates."""
    asked = [
        *[gateway.ask(text) for text in (ONE, TWO, UNANSWERABLE)],
        gateway.ask(ONE, {"alpha": 0.001}),
        gateway.ask(ONE, tools=TOOLS),
        gateway.ask(ONE, model="auto/small"),
    ]
    return [(each.status_code, _shown(each.json())) for each in asked]


def _shown(body: dict[str, Any]) -> Any:
    """The decision, without what depends on the order in which answers came; or the error."""
    if "racer" not in body:
        return body["error"]
    of_calls = ("calls", "votes", "usage", "usage_incomplete")
    return {name: each for name, each in decided(body["racer"]).items() if name not in of_calls}


BOT: dict[str, Any] = {"keys": ["data"]}
CHANGES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"limits": {"fan_out": 1}}),
    ({}, {"candidates": {"adder": {"capabilities": {"tools": False}}}}),
    ({}, {"routing": {"on_abstain": "strongest"}}),
    ({}, {"routing": {"on_infeasible": "reject"}}),
    ({}, {"routing": {"observe": "poet"}}),
    ({}, {"pools": {"small": {"candidates": ["adder"], "alpha": 0.2}}}),
    ({"applications": {"bot": BOT}}, {"applications": {"bot": BOT | {"alpha": 0.3}}}),
    (
        {"applications": {"bot": BOT}},
        {"applications": {"bot": BOT | {"on_uncovered": "speller"}}},
    ),
]


@pytest.mark.parametrize(("start", "changed"), CHANGES, ids=[str(after) for _, after in CHANGES])
def test_a_reload_decides_as_a_restart(
    start: dict[str, Any],
    changed: dict[str, Any],
    tmp_path: Path,
    artifact: Path,
    pool: FakePool,
    calibrated_stores: CalibratedStores,
) -> None:
    """Certificates of fixed requests are equal, and the change has an effect on some."""

    def write(name: str, changes: dict[str, Any]) -> Path:
        own = changes.get("candidates", {})
        changes = changes | {"candidates": candidates(pool.url, **own)}
        return configure(tmp_path / name, artifact, pool.url, **changes)

    with calibrated_stores.running(write("reloaded", start), ENVIRONMENT) as gateway:
        before = outcomes(gateway)
        write("reloaded", start | changed)
        done = gateway.post("/admin/reload", ADMIN_KEY)
        assert done.json()["changed"], done.text
        reloaded = outcomes(gateway)
    with calibrated_stores.running(write("restarted", start), ENVIRONMENT):
        pass  # a store with the same calibration
    with running(write("restarted", start | changed), ENVIRONMENT) as gateway:
        assert outcomes(gateway) == reloaded
    assert before != reloaded


def test_votes_compare_answers_by_the_new_equality(
    serve: Serve, rewrite: Rewrite, pool: FakePool
) -> None:
    """Two sentences with one number are two answers, then one, and two again."""
    sentences = {"adder": "It is 53.", "speller": "The sum of both is **53**", "poet": "62 it is"}
    for name, text in sentences.items():
        pool.say(name, text)
    gateway = serve(aggregation={"equality": "exact"})

    def votes() -> list[float]:
        body = gateway.chat(ONE, {"alpha": 0.001, "explain": True})
        return sorted(body["racer"]["votes"].values())

    assert votes() == [1, 1, 1]
    done = rewrite(gateway, aggregation={"equality": "number"})
    assert done.json()["changed"] == ["aggregation.equality"]
    assert votes() == [1, 2]
    assert rewrite(gateway, aggregation={"equality": "exact"}).status_code == 200
    assert votes() == [1, 1, 1]


def test_uploads_are_calibrated_under_the_new_defaults(
    tmp_path: Path, artifact: Path, pool: FakePool, calibrated_stores: CalibratedStores
) -> None:
    """Alpha, score, risk target and prices: the evidence is that of a gateway that restarted."""
    changed: dict[str, Any] = {
        "routing": {"alpha": 0.25, "score": "cover_cost", "risk_target": "paper"},
        "candidates": candidates(pool.url, price=2.0),
    }

    def evidence(gateway: Gateway) -> dict[str, Any]:
        made = gateway.calibrate(rows=noisy(20_000, 200), dry_run=True)
        return made["evidence"]

    first = configure(tmp_path / "reloaded", artifact, pool.url)
    with calibrated_stores.running(first, ENVIRONMENT) as gateway:
        configure(first.parent, artifact, pool.url, **changed)
        assert gateway.post("/admin/reload", ADMIN_KEY).status_code == 200
        reloaded = evidence(gateway)
    second = configure(tmp_path / "restarted", artifact, pool.url)
    with calibrated_stores.running(second, ENVIRONMENT):
        pass
    configure(second.parent, artifact, pool.url, **changed)
    with running(second, ENVIRONMENT) as gateway:
        assert evidence(gateway) == reloaded
    assert reloaded["alpha"] == 0.25


def test_sampling_follows(serve: Serve, rewrite: Rewrite) -> None:
    """From none to every request, and back; the rate in force is shown."""
    gateway = serve()

    def rate() -> float:
        return gateway.get("/drift", ADMIN_KEY).json()["shadow"]["rate"]

    assert rate() == 0
    watching = {"shadow_rate": 1.0, "shadow_calls_per_day": 1_000_000}
    assert rewrite(gateway, watching=watching).status_code == 200
    assert rate() == 1
    assert rewrite(gateway, watching={}).status_code == 200
    assert rate() == 0


def test_the_first_data_key_is_asked_for(serve: Serve, rewrite: Rewrite) -> None:
    """A local gateway without keys has them at once; its admin key stays."""
    gateway = serve(environment={"RACER_ADMIN_KEY": ADMIN_KEY})
    assert gateway.get("/v1/models", None).status_code == 200
    key, entry = configured_key("team")
    assert rewrite(gateway, access={"keys": [entry]}).status_code == 200
    assert gateway.get("/v1/models", None).status_code == 401
    assert gateway.get("/v1/models", key).status_code == 200


def test_the_last_data_key_stays(serve: Serve, rewrite: Rewrite) -> None:
    """Without one, a gateway on loopback would accept every request, also those of a proxy."""
    key, entry = configured_key("team")
    gateway = serve(environment={"RACER_ADMIN_KEY": ADMIN_KEY}, access={"keys": [entry]})
    message = error_message(rewrite(gateway, access={"keys": []}), 409)
    assert message.startswith("access.keys: ")
    assert "data key" in message
    assert gateway.get("/v1/models", None).status_code == 401
    assert gateway.get("/v1/models", key).status_code == 200
    other, entry = configured_key("other")
    assert rewrite(gateway, access={"keys": [entry]}).status_code == 200
    assert gateway.get("/v1/models", other).status_code == 200


def test_a_reload_reads_the_overrides_of_the_command_line(tmp_path: Path) -> None:
    """They are no difference to the file."""
    path = configure(tmp_path, tmp_path / "none", URL, port=8080)
    configured, _ = settings.load(path, ENVIRONMENT, port=0)

    def load() -> tuple[Settings, Secrets]:
        return settings.load(path, ENVIRONMENT, port=0)

    assert asyncio.run(Reload(configured, load)()) == []


def test_spent_quotas_stay_spent(serve: Serve, rewrite: Rewrite) -> None:
    """A reload of another setting refills no bucket; a larger limit leaves what was spent."""
    key, entry = configured_key("team", requests_per_minute=2)
    gateway = serve(access={"keys": [entry]})
    assert [gateway.get("/v1/models", key).status_code for _ in range(3)] == [200, 200, 429]
    assert rewrite(gateway, access={"keys": [entry], "hosts": ["a.example"]}).status_code == 200
    assert gateway.get("/v1/models", key).status_code == 429
    assert rewrite(gateway, access={"keys": []}).status_code == 200
    assert gateway.get("/v1/models", key).status_code == 401
