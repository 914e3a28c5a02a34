"""A gateway on a real port in front of scripted candidates, with a router that needs no weights."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
import uvloop
import yaml

from app import server, settings
from app.cli.main import main
from app.settings import Secrets, Settings
from app.store import Store
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
from racer_core.types import LabelledRow, LabelledRows

from . import databases
from .fake_pool import FakePool

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
NOBODY = "Write a poem about 3 and 4"  # abstained


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


SEEN_S = 1.0  # ten times the goal for an upstream to see that nobody waits any more


def until(condition: Callable[[], bool], seconds: float = SEEN_S) -> bool:
    """Whether it becomes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def decided(answer: dict[str, Any]) -> dict[str, Any]:
    """A decision without its id and its time."""
    return {k: v for k, v in answer.items() if k not in ("decision_id", "overhead_ms")}


@dataclass
class Gateway:
    """A running gateway, and keys to talk to it."""

    url: str
    settings: Settings
    clients: dict[Any, Any] = field(default_factory=dict)  # by key; made once, for they are slow
    lock: threading.Lock = field(default_factory=threading.Lock)

    def http(self, key: str | None = DATA_KEY, **options: Any) -> httpx2.Client:
        """A plain HTTP client of one's own."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        options = {"timeout": 60, "verify": False, "trust_env": False, **options}
        return httpx2.Client(base_url=self.url, headers=headers, **options)

    def openai(self, key: str = DATA_KEY) -> openai.OpenAI:
        """The official client, without retries of its own."""
        return self._client(
            ("openai", key),
            lambda: openai.OpenAI(
                base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60
            ),
        )

    def post(self, path: str, key: str | None = DATA_KEY, **request: Any) -> httpx2.Response:
        """One request."""
        return self._client(key, lambda: self.http(key)).post(path, **request)

    def get(self, path: str, key: str | None = DATA_KEY) -> httpx2.Response:
        """One request."""
        return self._client(key, lambda: self.http(key)).get(path)

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

    def calibrate(
        self, count: int = 400, *, rows: LabelledRows | None = None, **options: Any
    ) -> dict[str, Any]:
        """Upload rows and return the answer."""
        body = {"rows": as_json(rows or labelled(10_000, count)), **options}
        response = self.post("/calibrate", ADMIN_KEY, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def ready(self) -> dict[str, Any]:
        """What /readyz says; ``calibration`` is the active one."""
        return self.get("/readyz").json()


@pytest.fixture(scope="session")
def postgres() -> Iterator[databases.Postgres]:
    """PostgreSQL on a port of its own, for all tests of this process."""
    if databases.binaries() is None:
        pytest.skip(databases.WHY_NOT)
    with databases.postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.scale)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store, of every kind that there is."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'racer.db'}"
    return request.getfixturevalue("postgres").create()


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    """An empty store of either kind."""
    with Store(database) as opened:
        yield opened


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A KNN router on character n-grams, trained on 400 rows."""
    folder = tmp_path_factory.mktemp("artifact")
    train(labelled(0, 400), labelled(5_000, 200), folder, encoder=CharNgramEncoder(), kind="knn")
    return folder


@pytest.fixture(scope="session")
def noisy_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A router that is unsure: it learnt from noisy labels."""
    folder = tmp_path_factory.mktemp("noisy")
    train(noisy(0, 400), noisy(5_000, 200), folder, encoder=CharNgramEncoder(), kind="knn")
    return folder


@pytest.fixture(scope="session")
def _pool() -> Iterator[FakePool]:
    fake = FakePool()
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def pool(_pool: FakePool) -> FakePool:
    """Scripted candidates; everyone answers 42 until told otherwise."""
    _pool.reset()
    return _pool


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
    folder.mkdir(exist_ok=True)
    path = folder / "racer.yaml"
    values |= {"routing": routing, "watching": watching, "fleet": fleet} | changes
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


@contextmanager
def running(path: Path, environment: dict[str, str]) -> Generator[Gateway]:
    """Serve a configuration in a thread, as ``racer serve`` does in a process."""
    configured, secrets = settings.load(path, environment)
    started = threading.Event()
    with ServerThread(configured, secrets, started) as thread:
        host, port = thread.listener.getsockname()[:2]
        gateway = Gateway(f"http://{host}:{port}", configured)
        try:
            yield gateway
        finally:
            gateway.close()


class ServerThread:
    """The server's event loop in a thread, stopped on the way out."""

    def __init__(self, configured: Settings, secrets: Secrets, started: threading.Event) -> None:
        self.listener = server.bind(configured)
        self._handle = server.Server(configured, secrets, self.listener)
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


@pytest.fixture(scope="session")
def _gateway(
    tmp_path_factory: pytest.TempPathFactory, artifact: Path, _pool: FakePool
) -> Iterator[Gateway]:
    path = configure(tmp_path_factory.mktemp("gateway"), artifact, _pool.url)
    with running(path, ENVIRONMENT) as gateway:
        gateway.calibrate()
        yield gateway


@pytest.fixture
def gateway(_gateway: Gateway, pool: FakePool) -> Gateway:
    """A gateway with both keys, calibrated on 400 rows at alpha 0.1; shared, so leave it so."""
    return _gateway


Serve = Callable[..., Gateway]


@pytest.fixture
def serve(tmp_path: Path, artifact: Path, pool: FakePool) -> Iterator[Serve]:
    """Start gateways of one's own: ``serve(routing={...})`` changes the configuration.

    ``calibrated=False`` leaves out the 60 rows; ``environment`` holds the keys; ``artifact`` is
    another router; ``folder`` says where the store is, so that a second gateway finds the first's.
    """
    with ExitStack() as stack:
        count = 0

        def start(
            *,
            calibrated: bool = True,
            environment: dict[str, str] = ENVIRONMENT,
            artifact: Path = artifact,
            folder: Path | None = None,
            **changes: Any,
        ) -> Gateway:
            nonlocal count
            count += 1
            path = configure(folder or tmp_path / f"{count}", artifact, pool.url, **changes)
            gateway = stack.enter_context(running(path, environment))
            if calibrated:
                gateway.calibrate(60)
            return gateway

        yield start


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def racer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process: exit code, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()  # what a gateway of the test said before
        monkeypatch.setattr("sys.argv", ["racer", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as exc:
            code = int(exc.code or 0)
        return code, *capsys.readouterr()

    for variable in ("RACER_DATA_KEY", "RACER_ADMIN_KEY"):
        monkeypatch.delenv(variable, raising=False)
    return run
