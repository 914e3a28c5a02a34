"""Gateways and routers on a Ray cluster decide what one gateway in one process decides."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2
import numpy as np
import pytest

from app.store import Store
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    TWO,
    Gateway,
    configure,
    decided,
    labelled,
    noisy,
    running,
    user,
)
from tests.kit.lazy import LazyModule
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

from .conftest import RUNNING_S, Cluster, Deploy

openai = LazyModule("openai")

pytestmark = pytest.mark.scale

log = logging.getLogger(__name__)  # `--log-cli-level=INFO` shows the figures

SEEDS: Final = (0, 1)  # of the rows of two calibrations
QUERIES: Final = tuple(row.query for row in labelled(20_000, 60).rows)
# No router responded: to this query, or to one of which this gateway still waited for the answer.
WHOLE_POOL = {"router_failed_whole_pool", "router_out_whole_pool"}
NOTICED_S: Final = 10.0  # until Ray sends nothing more to a node that is gone
AGREED_S: Final = 10.0  # ten times the goal for all gateways to use a calibration


def rows_of(seed: int) -> Any:
    """Every seed has another threshold."""
    return noisy(10_000 + 1_000 * seed, 300)


@pytest.fixture(scope="module")
def local(
    tmp_path_factory: pytest.TempPathFactory, artifact: Path, pool: FakePool
) -> Iterator[dict[int, Gateway]]:
    """A gateway of one process for each seed, calibrated on its rows."""
    with ExitStack() as stack:
        found: dict[int, Gateway] = {}
        for seed in SEEDS:
            path = configure(tmp_path_factory.mktemp("local"), artifact, pool.url)
            found[seed] = stack.enter_context(running(path, ENVIRONMENT))
            found[seed].calibrate(rows=rows_of(seed))
        yield found


@pytest.fixture(scope="module")
def calibrations(served: tuple[Gateway, Deploy]) -> dict[str, int]:
    """The seed of each calibration that the cluster was given; the last one is active."""
    gateway, _ = served
    return {gateway.calibrate(rows=rows_of(seed))["id"]: seed for seed in SEEDS}


def without_id(answer: dict[str, Any]) -> dict[str, Any]:
    """A decision without what differs between two gateways."""
    found = decided(answer)
    found["certificate"] = {k: v for k, v in found["certificate"].items() if k != "calibration_id"}
    return found


def test_a_calibration_over_the_cluster_has_the_same_scores(
    calibrations: dict[str, int], local: dict[int, Gateway]
) -> None:
    """Float for float, and the same neighbours, as stored. Red when pieces change places."""
    with Store(os.environ["RACER_STORE_URL"]) as store:
        for name, seed in calibrations.items():
            with Store(local[seed].settings.store) as other:
                here = other.record(other.summaries()[0].id).calibration
            there = store.record(name).calibration
            assert there.fingerprints == here.fingerprints
            assert np.array_equal(there.scores, here.scores)
            assert there.neighbours is not None
            assert np.array_equal(there.neighbours, here.neighbours)


def test_decisions_are_those_of_one_process(
    served: tuple[Gateway, Deploy], calibrations: dict[str, int], local: dict[int, Gateway]
) -> None:
    """Scores, set and certificate, float for float."""
    gateway, _ = served
    active = list(calibrations)[-1]
    assert until(lambda: gateway.ready()["calibration"] == active, AGREED_S)
    for query in QUERIES:
        assert without_id(gateway.route(query)) == without_id(
            local[calibrations[active]].route(query)
        )


def test_the_surface_is_that_of_one_process(
    served: tuple[Gateway, Deploy], calibrations: dict[str, int], local: dict[int, Gateway]
) -> None:
    """Keys, refusals and streams: the official client sees no difference."""
    assert calibrations
    gateways = (served[0], local[SEEDS[-1]])
    for key, path, body in (
        (None, "/route", {"query": TWO}),
        ("a-key-that-is-in-no-list", "/route", {"query": TWO}),
        ("data-key-of-the-tests", "/calibrations/x/activate", {}),
        ("data-key-of-the-tests", "/route", {"query": ""}),
        ("data-key-of-the-tests", "/v1/chat/completions", {"model": "unknown", "messages": []}),
        ("data-key-of-the-tests", "/nowhere", {}),
    ):
        one, other = (each.post(path, key, json=body) for each in gateways)
        assert (one.status_code, one.json()) == (other.status_code, other.json())
        for each in (one, other):
            assert len(each.headers.get_list("x-request-id")) == 1  # Serve has one, too
    for each in gateways:
        stream = each.openai().chat.completions.create(
            model="auto", messages=user(TWO), stream=True
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "42"
        with pytest.raises(openai.BadRequestError):
            each.openai().chat.completions.create(model="auto", messages=[])


@dataclass
class Storm:
    """Clients that ask without a break, and what each of their requests came to."""

    gateway: Gateway
    seen: list[dict[str, Any]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def ask(self, seed: int, path: str) -> None:
        """One client, until it is over."""
        rng = random.Random(seed)
        with self.gateway.http() as client:
            while not self.over.is_set():
                query = rng.choice(QUERIES)
                chat = {"model": "auto", "messages": user(query)}
                body = chat if path.endswith("completions") else {"query": query}
                begun = time.monotonic()
                try:
                    answer = client.post(path, json=body)
                    status, text = answer.status_code, answer.text
                except httpx2.TransportError as exc:
                    status, text = 0, repr(exc)
                decision: dict[str, Any] = {}
                if status == 200:
                    whole = answer.json()
                    decision = whole.get("racer", whole)
                self.seen.append(
                    {
                        "begun": begun,
                        "ended": time.monotonic(),
                        "query": query,
                        "status": status,
                        "said": text[:200],
                        "decision": decision,
                    }
                )

    def rate(self, seconds: float) -> float:
        """Requests answered a second, from now on."""
        before = len(self.seen)
        time.sleep(seconds)
        return (len(self.seen) - before) / seconds


@pytest.mark.timeout(400)
def test_no_certificate_is_wrong_while_replicas_come_calibrations_change_and_a_node_goes(
    cluster: Cluster,
    served: tuple[Gateway, Deploy],
    calibrations: dict[str, int],
    local: dict[int, Gateway],
    pool: FakePool,
) -> None:
    """Whatever is answered is what one process answers under the calibration that it names.

    Asked without a break while 1 gateway becomes 3 and 1 router 2, while two calibrations take
    turns and a third is uploaded, and while the node with one of the routers is lost. No request
    fails: those that were under way when it went are answered by another replica. Until Ray has
    noticed, a query may still be sent to the router there, and then the whole pool is called.
    """
    gateway, deploy = served
    right = {
        name: {query: without_id(local[seed].route(query)) for query in QUERIES}
        for name, seed in calibrations.items()
    }
    pool.scripts.clear()
    for name in ("adder", "speller", "poet"):
        pool.say(name, "42", delay_s=0.5)  # so that some are under way when the node goes
    storm = Storm(gateway)
    with ThreadPoolExecutor(8) as threads:
        clients = [threads.submit(storm.ask, seed, "/route") for seed in range(4)]
        clients += [threads.submit(storm.ask, seed, "/v1/chat/completions") for seed in range(4, 8)]
        try:
            alone = storm.rate(4.0)
            deploy(Gateway=3, Router=2)
            kinds = ("Gateway", "Router")
            assert until(lambda: all(cluster.on_second(kind) for kind in kinds), RUNNING_S)
            time.sleep(3.0)  # until proxies know of them
            together = storm.rate(4.0)
            names = list(calibrations)
            for turn in range(6):
                wanted = names[turn % 2]
                answer = gateway.activate(wanted)
                assert answer.status_code == 200, answer.text
                time.sleep(0.3)
            third = gateway.calibrate(rows=rows_of(SEEDS[0]))["id"]
            right[third] = right[names[0]]
            time.sleep(1.0)
            lost = time.monotonic()
            cluster.lose_second()
            gone = time.monotonic()
            after = storm.rate(8.0)
        finally:
            storm.over.set()
        for client in clients:
            client.result()
    failed = [each for each in storm.seen if each["status"] != 200]
    whole = [each for each in storm.seen if WHOLE_POOL & set(_reasons(each))]
    log.info("requests/s: one replica %.0f, three %.0f, a node less %.0f", alone, together, after)
    log.info("%d requests, %d failed, %d for all", len(storm.seen), len(failed), len(whole))
    assert not failed
    for each in whole:
        assert each["begun"] <= gone + NOTICED_S, each
        assert lost <= each["ended"], each
    counts = Counter[str]()
    for each in storm.seen:
        if each in whole:
            continue
        certificate = each["decision"]["certificate"]
        wanted = right[certificate["calibration_id"]][each["query"]]
        for name in ("selected", "scores", "pool_scores", "abstained"):
            assert each["decision"][name] == wanted[name]
        assert certificate["lambda_hat"] == wanted["certificate"]["lambda_hat"]
        counts[certificate["calibration_id"]] += 1
    assert counts.keys() == right.keys()

    assert gateway.ready()["calibration"] == third
    listed = gateway.get("/calibrations", ADMIN_KEY).json()
    assert right.keys() <= {each["id"] for each in listed["data"]}


def _reasons(request: dict[str, Any]) -> list[str]:
    return request["decision"].get("certificate", {}).get("reasons", [])
