"""A gateway as one test sees it, and the gateways that tests share.

A case has a user name of its own, its metrics start at zero, and it finds its decisions by their
ids: tests on one gateway do not see each other, unless they change what all of them read (an
upload, a reload, an alarm). Such a test starts a gateway of its own.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ENVIRONMENT,
    ONE,
    CalibratedStores,
    Gateway,
    configure,
    running,
    user,
)
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until

RUNNING: Final = 12  # shared gateways at a time; the one that was used longest ago stops
_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Answer:
    """A chat answer, whole or streamed."""

    status: int
    body: dict[str, Any]  # of a stream: its last event
    text: str
    headers: Mapping[str, str]
    events: tuple[dict[str, Any], ...] = ()  # of a stream

    @property
    def racer(self) -> dict[str, Any]:
        """What the gateway says about its decision."""
        return self.body["racer"]

    @property
    def certificate(self) -> dict[str, Any]:
        """The certificate of the decision."""
        return self.racer["certificate"]

    @property
    def reasons(self) -> list[str]:
        """Why the certificate does not hold."""
        return self.certificate["reasons"]

    @property
    def decision_id(self) -> str:
        """The id of the decision."""
        return self.headers["x-racer-decision-id"]

    @property
    def error(self) -> dict[str, Any]:
        """The error of a refused request."""
        return self.body["error"]


@dataclass(frozen=True)
class Metrics:
    """What `/metrics` counts, from the start of a case on where `GatewayCase.metrics` made it."""

    samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    @classmethod
    def parsed(cls, text: str) -> Metrics:
        """From the text of `/metrics`."""
        found = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        return cls(found)

    def value(self, name: str, **labels: str) -> float:
        """The sum of all series of a name that have these labels; 0 without one."""
        wanted = labels.items()
        return sum(
            value
            for (found, its), value in self.samples.items()
            if found == name and wanted <= dict(its).items()
        )

    def by(self, name: str, label: str) -> dict[str, float]:
        """The sums by the values of a label, without zeros."""
        sums: Counter[str] = Counter()
        for (found, its), value in self.samples.items():
            if found == name:
                sums[dict(its)[label]] += value  # type: ignore[assignment]
        return {value: count for value, count in sums.items() if count}

    def since(self, earlier: Metrics) -> Metrics:
        """What was counted since then. Gauges have no meaning afterwards."""
        return Metrics({key: v - earlier.samples.get(key, 0.0) for key, v in self.samples.items()})


@dataclass
class GatewayCase:
    """A gateway and its scripted candidates, for one test.

    Attributes:
        gateway: For what stands not here: other endpoints, official clients, raw requests.
        pool: The candidates.
        user: The user of requests, of this case alone.
    """

    gateway: Gateway
    pool: FakePool
    user: str = field(default_factory=lambda: f"user-{next(_NUMBERS)}")
    _stack: ExitStack = field(default_factory=ExitStack)
    _before: Metrics = field(init=False)

    def __post_init__(self) -> None:
        self._before = self._metrics()

    @classmethod
    def start(
        cls,
        folder: Path,
        artifact: Path,
        pool: FakePool,
        *,
        stores: CalibratedStores | None = None,
        environment: Mapping[str, str] = ENVIRONMENT,
        **changes: Any,
    ) -> GatewayCase:
        """A gateway of one's own; with ``stores`` it is calibrated on 60 rows."""
        path = configure(folder, artifact, pool.url, **changes)
        stack = ExitStack()
        serving = running(path, dict(environment))
        if stores is not None:
            serving = stores.running(path, environment)
        return cls(stack.enter_context(serving), pool, _stack=stack)

    def stop(self) -> None:
        """Stop a gateway that `start` started; a shared one goes on."""
        self._stack.close()

    def ask(
        self,
        text: str = ONE,
        racer: dict[str, Any] | None = None,
        *,
        status: int = 200,
        **fields: Any,
    ) -> Answer:
        """A chat request; ``racer`` holds its options, ``fields`` those of the API."""
        response = self._post("/v1/chat/completions", self._chat(text, racer, fields), status)
        body = response.json()
        choices = body.get("choices", [])
        text = choices[0]["message"].get("content") or "" if choices else ""
        return Answer(status, body, text, response.headers)

    def stream(self, text: str = ONE, racer: dict[str, Any] | None = None, **fields: Any) -> Answer:
        """A streamed chat request: its text is joined, its body is the last event."""
        body = self._chat(text, racer, fields) | {"stream": True}
        response = self._post("/v1/chat/completions", body, 200)
        lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]", response.text
        events = tuple(json.loads(line) for line in lines[:-1])
        said = [e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"]]
        return Answer(200, events[-1], "".join(said), response.headers, events)

    def route(self, text: str = ONE, *, status: int = 200, **options: Any) -> dict[str, Any]:
        """POST /route."""
        return self._post("/route", {"query": text, **options}, status).json()

    def decision(self, answer: Answer) -> dict[str, Any]:
        """The record of a decision, once it is written."""
        path = f"/decisions/{answer.decision_id}"
        wait_until(lambda: self.gateway.get(path, ADMIN_KEY).status_code == 200)
        return self.gateway.get(path, ADMIN_KEY).json()

    def certificate(self, text: str = ONE, **fields: Any) -> dict[str, Any]:
        """The certificate of a chat answer."""
        return self.ask(text, **fields).certificate

    def metrics(self) -> Metrics:
        """What was counted since the case began."""
        return self._metrics().since(self._before)

    def _metrics(self) -> Metrics:
        return Metrics.parsed(self.gateway.get("/metrics", ADMIN_KEY).text)

    def _chat(
        self, text: str, racer: dict[str, Any] | None, fields: dict[str, Any]
    ) -> dict[str, Any]:
        body = {"model": "auto", "messages": user(text), "user": self.user, **fields}
        return body | ({"racer": racer} if racer else {})

    def _post(self, path: str, body: dict[str, Any], status: int) -> httpx2.Response:
        response = self.gateway.post(path, DATA_KEY, json=body)
        assert response.status_code == status, response.text
        return response


@dataclass
class SharedGateways:
    """Gateways by their configuration, each of which is started once.

    Args:
        folder: Where their stores are.
        stores: Starts calibrated ones.
        pool: Their candidates.
    """

    folder: Path
    stores: CalibratedStores
    pool: FakePool
    started: int = 0
    _running: OrderedDict[str, GatewayCase] = field(default_factory=OrderedDict[str, GatewayCase])

    def case(
        self, artifact: Path, *, calibrated: bool = True, group: str = "", **changes: Any
    ) -> GatewayCase:
        """A case on the gateway of a configuration and a group; ``calibrated``: on 60 rows."""
        key = json.dumps([str(artifact), calibrated, group, changes], sort_keys=True)
        if key not in self._running:
            while len(self._running) >= RUNNING:
                self._running.popitem(last=False)[1].stop()
            self.started += 1
            folder = self.folder / str(self.started)
            stores = self.stores if calibrated else None
            self._running[key] = GatewayCase.start(
                folder, artifact, self.pool, stores=stores, **changes
            )
        self._running.move_to_end(key)
        return GatewayCase(self._running[key].gateway, self.pool)

    def stop(self) -> None:
        """Stop all of them."""
        for case in self._running.values():
            case.stop()


Shared = Callable[..., GatewayCase]  # the fixture `shared`
