"""A gateway on a real port with its clients, its configuration, and rows for its router."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import httpx2
import numpy as np
import uvloop
import yaml

from app import server, settings
from app.reload import Load
from app.settings import Secrets, Settings
from racer_core.types import LabelledRow, LabelledRows
from tests.kit.lazy import LazyModule

if TYPE_CHECKING:
    from anthropic import Anthropic
    from openai import OpenAI

anthropic, openai = LazyModule("anthropic"), LazyModule("openai")

POOL = ("adder", "speller", "poet")
DATA_KEY = "data-key-of-the-tests"
ADMIN_KEY = "admin-key-of-the-tests"

# Which candidates are right on which kind of query: the router learns it from the wording.
SKILLS = {
    "What is {} plus {}?": ("adder",),
    "Spell the number {} and then {}": ("speller",),
    "Compare {} with {} in one word": ("adder", "speller"),
    "Write a poem about {} and {}": (),
}
ONE = "What is 3 plus 4?"  # the adder alone is selected
TWO = "Compare 3 with 4 in one word"  # the adder and the speller
UNANSWERABLE = "Write a poem about 3 and 4"  # abstained
TRAINED = 200  # rows of the fixture `artifact`: fifty of each kind, more than the 40 neighbours


def labelled(start: int, count: int) -> LabelledRows:
    """Rows over the four kinds of query; no query twice for different ``start``."""
    templates = list(SKILLS.items())
    rows = [
        LabelledRow(query=text.format(number, number + 1), correct=frozenset(right))
        for number in range(start, start + count)
        for text, right in [templates[number % len(templates)]]
    ]
    return LabelledRows(pool=POOL, rows=tuple(rows))


def noisy(start: int, count: int, *, flipped: float = 0.3) -> LabelledRows:
    """The same, with labels that the wording does not tell: thresholds above 0 then differ."""
    rng = np.random.default_rng(start)
    rows = tuple(
        LabelledRow(
            query=row.query,
            correct=frozenset(
                name for name in POOL if (name in row.correct) != (rng.random() < flipped)
            ),
        )
        for row in labelled(start, count).rows
    )
    return LabelledRows(pool=POOL, rows=rows)


def as_json(rows: LabelledRows) -> list[dict[str, Any]]:
    """Rows as a client uploads them."""
    return [
        {"query": row.query, "correct": {name: name in row.correct for name in rows.pool}}
        for row in rows.rows
    ]


def user(text: str) -> list[Any]:
    """A conversation of one turn."""
    return [{"role": "user", "content": text}]


def decided(answer: dict[str, Any]) -> dict[str, Any]:
    """A decision without its id and its time, and without the remarks on its query."""
    decision = {k: v for k, v in answer.items() if k not in ("decision_id", "overhead_ms")}
    certificate = {k: v for k, v in decision["certificate"].items() if k != "remarks"}
    return decision | {"certificate": certificate}


def error_message(response: httpx2.Response, status: int) -> str:
    """The message of an error response, with the status checked."""
    assert response.status_code == status, response.text
    return response.json()["error"]["message"]


@dataclass
class Gateway:
    """A running gateway, and keys to talk to it."""

    url: str
    settings: Settings
    config: Path | None = None  # its configuration file
    clients: dict[Any, Any] = field(default_factory=dict)  # by key; made once, for they are slow
    lock: threading.Lock = field(default_factory=threading.Lock)

    def http(self, key: str | None = DATA_KEY, **options: Any) -> httpx2.Client:
        """A plain HTTP client of one's own."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        options = {"timeout": 60, "verify": False, "trust_env": False, **options}
        return httpx2.Client(base_url=self.url, headers=headers, **options)

    def openai(self, key: str = DATA_KEY) -> OpenAI:
        """The official client, without retries of its own."""
        return self._client(
            ("openai", key),
            lambda: openai.OpenAI(
                base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60
            ),
        )

    def anthropic(self, key: str = DATA_KEY) -> Anthropic:
        """Anthropic's client, without retries of its own."""
        return self._client(
            ("anthropic", key),
            lambda: anthropic.Anthropic(base_url=self.url, api_key=key, max_retries=0, timeout=60),
        )

    def post(self, path: str, key: str | None = DATA_KEY, **request: Any) -> httpx2.Response:
        """One request."""
        return self._client(key, lambda: self.http(key)).post(path, **request)

    def get(self, path: str, key: str | None = DATA_KEY, **request: Any) -> httpx2.Response:
        """One request."""
        return self._client(key, lambda: self.http(key)).get(path, **request)

    def _client(self, key: Any, make: Callable[[], Any]) -> Any:
        with self.lock:
            if key not in self.clients:
                self.clients[key] = make()
            return self.clients[key]

    def close(self) -> None:
        """Close every client."""
        for client in self.clients.values():
            client.close()

    def chat(self, text: str, racer: dict[str, Any] | None = None, **fields: Any) -> Any:
        """A whole chat completion as JSON, with the status checked."""
        response = self.ask(text, racer, **fields)
        assert response.status_code == 200, response.text
        return response.json()

    def ask(self, text: str, racer: dict[str, Any] | None = None, **fields: Any) -> httpx2.Response:
        """A chat request, whatever comes of it."""
        body = {"model": "auto", "messages": user(text), **fields}
        return self.post("/v1/chat/completions", json=body | ({"racer": racer} if racer else {}))

    def route(self, text: str, **options: Any) -> dict[str, Any]:
        """POST /route, with the status checked."""
        response = self.post("/route", json={"query": text, **options})
        assert response.status_code == 200, response.text
        return response.json()

    def decided(self, text: str, **options: Any) -> dict[str, Any]:
        """What POST /route decided, without what differs from one call to the next."""
        return decided(self.route(text, **options))

    def decided_without_store(self, text: str) -> dict[str, Any]:
        """As `decided`, without the reason which says that the store cannot be read."""
        decision = self.decided(text)
        decision["certificate"]["reasons"].remove("store_unreachable")
        return decision

    def calibrate(
        self, count: int = 400, *, rows: LabelledRows | None = None, **options: Any
    ) -> dict[str, Any]:
        """Upload rows and return the answer."""
        body = {"rows": as_json(rows or labelled(10_000, count)), **options}
        response = self.post("/calibrate", ADMIN_KEY, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def upload(self, rows: Sequence[dict[str, Any]], **options: Any) -> dict[str, Any]:
        """Calibrate on rows as a client writes them, and return the answer."""
        body = {"rows": rows, **options}
        return _checked(self.post("/calibrate", ADMIN_KEY, json=body))

    def once(self, rows: Sequence[dict[str, Any]], **options: Any) -> Self:
        """This gateway, calibrated on these rows unless it is calibrated."""
        if self.active() is None:
            self.upload(rows, **options)
        return self

    def refused(self, rows: Sequence[dict[str, Any]], status: int = 422, **options: Any) -> str:
        """The message about rows or options that are not accepted."""
        body = {"rows": rows, **options}
        return error_message(self.post("/calibrate", ADMIN_KEY, json=body), status)

    def decide(self, key: str = DATA_KEY, **body: Any) -> dict[str, Any]:
        """The certificate of a decision on any body, without a call."""
        return _checked(self.post("/route", key, json=body))["certificate"]

    def activate(self, calibration: str, **options: Any) -> httpx2.Response:
        """Make a stored calibration the active one."""
        return self.post(f"/calibrations/{calibration}/activate", ADMIN_KEY, json=options)

    def ready(self) -> dict[str, Any]:
        """What /readyz says; ``calibration`` is the active one."""
        return self.get("/readyz").json()

    def active(self) -> str | None:
        """The calibration that decides there."""
        return self.ready()["calibration"]

    def degraded(self) -> list[str]:
        """What a ready gateway says it lacks."""
        return _checked(self.get("/readyz")).get("degraded", [])

    def metric(self, series: str) -> float:
        """The value of a series, which is named as in the text of `/metrics`."""
        lines = self.get("/metrics", ADMIN_KEY).text.splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"{series} "))


def _checked(response: httpx2.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return response.json()


def candidates(url: str, **changes: Any) -> list[dict[str, Any]]:
    """The three candidates at one URL; ``changes`` are fields by name, or for all of them."""
    own = {name: changes.pop(name, {}) for name in POOL}
    return [{"name": n, "base_url": url, "timeout_s": 5} | changes | own[n] for n in POOL]


def configure(folder: Path, artifact: Path, upstream: str, **changes: Any) -> Path:
    """Write a configuration for the three candidates."""
    values: dict[str, Any] = {
        "schema_version": 1,
        "port": 0,
        "artifact": str(artifact),
        "candidates": candidates(upstream),
    }
    # `cover` would call one of two who are always right together; tests of votes need both.
    routing = {"score": "gap"} | changes.pop("routing", {})
    # The same few queries over and over are a drift; tests of alarms turn them on.
    watching = {"false_alarm": None} | changes.pop("watching", {})
    # What one test lets fail must not be out for the next; tests of circuits say when it is.
    fleet = {"failures": 1000} | changes.pop("fleet", {})
    # Votes are then shown by their texts; tests of sentences say `auto` or `text`.
    aggregation = {"equality": "exact"} | changes.pop("aggregation", {})
    folder.mkdir(exist_ok=True)
    path = folder / "racer.yaml"
    values |= {
        "routing": routing, "watching": watching, "fleet": fleet, "aggregation": aggregation
    } | changes  # fmt: skip
    path.write_text(yaml.dump(values, Dumper=yaml.CSafeDumper), encoding="utf-8")
    return path


@contextmanager
def running(path: Path, environment: dict[str, str]) -> Generator[Gateway]:
    """Serve a configuration in a thread, as ``racer serve`` does in a process."""
    load = partial(settings.load, path, environment)
    configured, secrets = load()
    started = threading.Event()
    with ServerThread(configured, secrets, started, load) as thread:
        host, port = thread.listener.getsockname()[:2]
        gateway = Gateway(f"http://{host}:{port}", configured, path)
        try:
            yield gateway
        finally:
            gateway.close()


class ServerThread:
    """The server's event loop in a thread, stopped on the way out."""

    def __init__(
        self,
        configured: Settings,
        secrets: Secrets,
        started: threading.Event,
        load: Load | None = None,
    ) -> None:
        self.listener = server.bind(configured)
        self._handle = server.Server(configured, secrets, self.listener, load)
        self._started = started
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            uvloop.run(self._handle.serve(ready=self._started.set))
        except BaseException as exc:  # noqa: BLE001 - raised where the test waits
            self._error = exc
            self.listener.close()
            self._started.set()

    def __enter__(self) -> ServerThread:
        self._thread.start()
        assert self._started.wait(30)
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.stop()
        self._thread.join(30)
        if self._error is not None:
            raise self._error


ENVIRONMENT = {"RACER_DATA_KEY": DATA_KEY, "RACER_ADMIN_KEY": ADMIN_KEY}

Serve = Callable[..., Gateway]  # the fixture `serve`
Restart = Callable[..., AbstractContextManager[Gateway]]  # the fixture `restart`
Command = Callable[..., tuple[int, str, str]]  # the fixture `racer`


ROWS: Final = 60
STORE: Final = "racer.db"  # the default of the setting `store`
# Settings that neither the reading of rows nor their calibration reads.
_OF_REQUESTS: Final = {"access", "fleet", "telemetry"}
_OF_ROWS: Final = ("query_chars", "extra_fields")  # of `limits`
_STATE: Final = ("limits", "leases")  # tables of the gateway that ran


class CalibratedStores:
    """Starts gateways that are calibrated on 60 rows.

    Args:
        folder: Where the templates are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._templates: dict[str, Path] = {}

    @contextmanager
    def running(self, path: Path, environment: Mapping[str, str]) -> Generator[Gateway]:
        """Serve a configuration whose folder has no store yet."""
        key, store = _key(path, environment), path.parent / STORE
        template = self._templates.get(key)
        if template is not None:
            shutil.copy(template, store)
        with running(path, dict(environment)) as gateway:
            if template is None:
                gateway.calibrate(ROWS)
                if store.exists():  # else it is elsewhere
                    self._templates[key] = self._saved(store)
            yield gateway

    def _saved(self, store: Path) -> Path:
        saved = self._folder / f"{len(self._templates)}.db"
        with closing(sqlite3.connect(store)) as source, closing(sqlite3.connect(saved)) as copy:
            source.backup(copy)
            for table in _STATE:
                copy.execute(f"DELETE FROM {table}")
            copy.commit()
        return saved


def _key(path: Path, environment: Mapping[str, str]) -> str:
    values: dict[str, Any] = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
    limits = values.get("limits") or {}
    manifest = path.parent / values["artifact"] / "manifest.json"
    return json.dumps(
        [
            {name: each for name, each in values.items() if name not in {*_OF_REQUESTS, "limits"}},
            [limits.get(name) for name in _OF_ROWS],
            sorted(environment.items()),
            manifest.read_text(encoding="utf-8"),
        ],
        sort_keys=True,
        default=str,
    )


def configuration(folder: Path, upstream: str, **changes: Any) -> Path:
    """Candidates, and no artifact."""
    values = {"schema_version": 1, "port": 0, "candidates": candidates(upstream), **changes}
    path = folder / "racer.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


# Second names, the description itself, and the page.
UNDESCRIBED = {
    "POST /v1/route",
    "POST /v1/calibrate",
    "GET /docs",
    "GET /docs/oauth2-redirect",
    "GET /openapi.json",
    "GET /ui",
    "GET /ui/{name}",
}
