"""Replicas that die with requests in flight, settings that change, and metrics of all replicas."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx2
import psutil
import pytest
import yaml

from tests.kit.gateway import ADMIN_KEY, ONE, Gateway, noisy, user
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

from .conftest import ROOT, RUNNING_S, Cluster, Deploy

pytestmark = [pytest.mark.scale, pytest.mark.timeout(300)]

README = ROOT / "deploy/ray/README.md"
MANY = 12  # at once, so that both replicas have some
BODY = {"model": "auto", "messages": user(ONE)}


def busy(cluster: Cluster, pool: FakePool) -> list[psutil.Process]:
    """Gateways that have a connection to the candidates."""
    port = urlsplit(pool.url).port
    return [
        each
        for each in cluster.replicas("Gateway")
        if any(found.raddr and found.raddr.port == port for found in each.net_connections("tcp"))
    ]


@pytest.fixture
def two(
    cluster: Cluster, served: tuple[Gateway, Deploy], pool: FakePool
) -> Iterator[tuple[Gateway, Deploy]]:
    """Two gateways that answer, and are not calibrated: the first candidate is called."""
    gateway, deploy = served
    if len(cluster.replicas("Gateway")) != 2:
        deploy(Gateway=2, Router=1)
    pool.say("adder", "42", delay_s=0.2)

    def are_busy() -> bool:
        with ThreadPoolExecutor(MANY) as threads:
            list(threads.map(gateway.chat, [ONE] * MANY))
        return len(busy(cluster, pool)) == 2

    assert until(are_busy, RUNNING_S)
    pool.reset()
    yield gateway, deploy
    pool.reset()


def samples(cluster: Cluster, name: str, label: str = "") -> dict[str, float]:
    """Values of a metric by replica, as Prometheus finds them at the nodes."""
    found: dict[str, float] = {}
    for url in cluster.metrics:
        text = httpx2.get(url, verify=False, trust_env=False).text
        for labels, value in re.findall(rf"^ray_{name}{{(.*)}} (\S+)$", text, re.MULTILINE):
            if label in labels:
                (replica,) = re.findall(r'\breplica="(\w+)"', labels)
                found[replica] = float(value)
    return found


def names(text: str) -> set[str]:
    """The names of samples, but for NaN and the times at which counters were made."""
    found = re.findall(r"^(\w+)[ {].*(?<!NaN)$", text, re.MULTILINE)
    return {each for each in found if not each.endswith("_created")}


def test_requests_in_flight_at_a_dead_replica_are_answered_by_another(
    two: tuple[Gateway, Deploy], cluster: Cluster, pool: FakePool
) -> None:
    """Every client gets its answer. Red with one of Serve's own errors, a bare 500."""
    gateway, _ = two
    gate = threading.Event()
    pool.say("adder", "42", gate=gate)
    with ThreadPoolExecutor(MANY) as threads:
        asked = [threads.submit(gateway.ask, ONE) for _ in range(MANY)]
        assert until(lambda: len(pool.running) == MANY, 30)
        busy(cluster, pool)[0].kill()
        gate.set()
        answers = [each.result() for each in asked]
    assert [(each.status_code, each.json()["racer"]["served_by"]) for each in answers] == [
        (200, "adder")
    ] * MANY
    assert len(pool.requests) > MANY  # some were in flight at the one that died


def test_a_stream_of_a_dead_replica_ends_with_the_error_envelope(
    two: tuple[Gateway, Deploy], cluster: Cluster, pool: FakePool
) -> None:
    """And the others go on. Red when a stream just stops, which looks like its end."""
    gateway, _ = two
    pool.say("adder", "4" * 30, pause_s=0.1)
    begun = threading.Semaphore(0)

    def stream() -> tuple[int, list[str]]:
        with (
            gateway.http() as client,
            client.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True}) as response,
        ):
            lines: list[str] = []
            for line in response.iter_lines():
                if not lines:
                    begun.release()
                if line:
                    lines.append(line)
            return response.status_code, lines

    with ThreadPoolExecutor(MANY) as threads:
        streams = [threads.submit(stream) for _ in range(MANY)]
        for _ in range(MANY):
            assert begun.acquire(timeout=60)
        busy(cluster, pool)[0].kill()
        results = [each.result() for each in streams]
    assert {status for status, _ in results} == {200}
    ends = [lines[-1].removeprefix("data: ") for _, lines in results]
    cut = [json.loads(end)["error"]["code"] for end in ends if end != "[DONE]"]
    assert cut == ["replica_lost"] * len(cut)
    assert 0 < len(cut) < MANY, ends


def test_settings_change_without_another_process(
    two: tuple[Gateway, Deploy], cluster: Cluster
) -> None:
    """By `user_config`; what cannot change is refused whole, and a metric says so.

    Red when Serve replaces the replicas, or stops them because of a wrong setting.
    """
    gateway, deploy = two
    before = {each.pid for each in cluster.replicas("Gateway")}

    def served_by() -> set[str]:
        return {gateway.chat(ONE)["racer"]["served_by"] for _ in range(10)}

    def refused() -> float:
        return sum(samples(cluster, "racer_user_config_refused").values())

    changed = {"routing": {"fallback": "poet"}}
    deploy(changed, Gateway=2, Router=1)
    assert until(lambda: served_by() == {"poet"}, RUNNING_S)
    deploy({"routing": {"fallback": "speller"}, "limits": {"queue": 3}}, Gateway=2, Router=1)
    assert until(lambda: refused() == 2.0, RUNNING_S)
    assert served_by() == {"poet"}
    deploy(changed, Gateway=2, Router=1)
    assert until(lambda: refused() == 0.0, RUNNING_S)
    assert {each.pid for each in cluster.replicas("Gateway")} == before


def test_a_node_is_scraped_for_the_metrics_of_each_of_its_replicas(
    two: tuple[Gateway, Deploy], cluster: Cluster
) -> None:
    """The counters of all replicas grow by the number of requests: rate() is that of all.

    Relabelled as the README says, the names are those of /metrics, which alerts have.
    """
    gateway, _ = two

    for _ in range(20):
        assert gateway.get("/docs").status_code == 200

    def counted() -> list[float]:
        return [*samples(cluster, "racer_requests_total", 'route="/docs"').values()]

    assert until(lambda: sum(counted()) == 20, 30.0, every_s=0.5), counted()
    (block,) = re.findall(r"```yaml\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (rule,) = yaml.safe_load(block)["metric_relabel_configs"]
    scraped = "".join(
        httpx2.get(url, verify=False, trust_env=False).text for url in cluster.metrics
    )
    relabelled = {
        match.expand(rule["replacement"].replace("$", "\\"))
        for name in names(scraped)
        if (match := re.fullmatch(rule["regex"], name))
    }
    assert names(gateway.get("/metrics").text) <= relabelled
    assert re.search(r"^ray_racer_lost_replica_requests_total{.*outcome=.repeated", scraped, re.M)


def test_what_cannot_be_repeated_gets_the_envelope_and_what_waits_is_answered(
    two: tuple[Gateway, Deploy], cluster: Cluster
) -> None:
    """An upload is cut off when all gateways die; a request then waits for a new one."""
    gateway, _ = two
    begun, dead = threading.Event(), threading.Event()

    def rows() -> Iterator[bytes]:
        yield b'{"rows": ['
        begun.set()
        dead.wait(30)
        yield b"]}"

    def upload() -> httpx2.Response:
        with gateway.http(ADMIN_KEY) as client:
            return client.post(
                "/calibrate", content=rows(), headers={"content-type": "application/json"}
            )

    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(upload)
        assert begun.wait(60)
        time.sleep(3.0)  # until a replica reads it
        for each in cluster.replicas("Gateway"):
            each.kill()
        dead.set()
        response = asked.result()
    assert (response.status_code, response.json()["error"]["code"]) == (503, "replica_lost")
    assert gateway.get("/readyz").status_code == 200


def test_a_rollout_waits_for_its_calibration(two: tuple[Gateway, Deploy], cluster: Cluster) -> None:
    """With `calibrated`: the new replicas take requests once a calibration is active.

    Red when a replica without a certificate replaces one, or the calibration could not be uploaded.
    """
    gateway, deploy = two
    before = {each.pid for each in cluster.replicas("Gateway")}
    deploy(Gateway=2, Router=1, calibrated=True)
    assert until(lambda: len({e.pid for e in cluster.replicas("Gateway")} - before) > 0, RUNNING_S)
    assert {e.pid for e in cluster.replicas("Gateway")} & before
    assert gateway.ready()["calibration"] is None
    active = gateway.calibrate(rows=noisy(10_000, 300))["id"]

    def replaced() -> bool:
        assert gateway.get("/healthz").status_code == 200
        found = {each.pid for each in cluster.replicas("Gateway")}
        return len(found) == 2 and not found & before

    assert until(replaced, RUNNING_S)
    assert all(gateway.ready()["calibration"] == active for _ in range(10))
