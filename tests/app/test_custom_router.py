"""Custom routers behind the gateway: if one fails, the whole pool is called."""

from __future__ import annotations

import importlib
import json
import os
import threading
import tomllib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from racer_core import artifacts
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import ArtifactError, RacerError
from racer_core.offline.train import train
from racer_core.racer import Racer
from racer_core.routers import inputs
from tests.kit.command_results import failed, parsed, write
from tests.kit.commands import install
from tests.kit.gateway import (
    ADMIN_KEY,
    ONE,
    POOL,
    SKILLS,
    TWO,
    Command,
    Gateway,
    Restart,
    Serve,
    as_json,
    labelled,
)
from tests.kit.monitored import sampled, shadow_rows
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "routers.md"
EXAMPLE = ROOT / "deploy" / "score-service-router"
WHOLE_POOL = "router_failed_whole_pool"

SOURCE = '''
import time
import numpy as np
from racer_core.routers.base import RouterOutput

FAULT = None  # set by the tests
SKILLS = {"What": (0.9, 0.1, 0.1), "Spell": (0.1, 0.9, 0.1), "Compare": (0.8, 0.8, 0.1)}

class ByFirstWord:
    """Knows who is good at what by the first word of a query."""
    def __init__(self, *, pool):
        assert pool == ("adder", "speller", "poet")
    def predict(self, batch):
        scores = np.array([SKILLS.get(text.split()[0], (0.1, 0.1, 0.1)) for text in batch.texts])
        match FAULT:
            case "raise": raise ConnectionError("the service is gone")
            case "nan": scores[:] = np.nan
            case "above 1": scores += 1
            case "one row short": scores = scores[1:]
            case "one column short": scores = scores[:, 1:]
            case "nothing": return None
            case "slow": time.sleep(1)
        return RouterOutput(scores)
'''
FAULTS = ["raise", "nan", "above 1", "one row short", "one column short", "nothing", "slow"]


@pytest.fixture
def router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """The package, installed; calling the fixture makes its router fail."""
    points = {"by-first-word": "first_word_router:ByFirstWord"}
    install(tmp_path / "package", monkeypatch, SOURCE, module="first_word_router",
            entry_points=points)  # fmt: skip
    module: Any = importlib.import_module("first_word_router")
    yield lambda fault: setattr(module, "FAULT", fault)
    module.FAULT = None


@pytest.fixture
def own_artifact(router: object, tmp_path: Path) -> Path:
    """Trained, which for such a router means: tau was chosen."""
    folder = tmp_path / "own"
    train(labelled(0, 40), labelled(5_000, 200), folder, encoder=CharNgramEncoder(),
          kind="by-first-word")  # fmt: skip
    return folder


def test_a_router_of_ones_own_routes(serve: Serve, own_artifact: Path, pool: FakePool) -> None:
    """From its entry point to the set that is called."""
    assert artifacts.load(own_artifact).router.settings()["name"] == "by-first-word"
    racer = serve(artifact=own_artifact).chat(ONE)["racer"]
    assert racer["selected"] == ["adder"]
    assert racer["certificate"]["reasons"] == []
    assert pool.models_called() == ["adder"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_router_of_ones_own_that_fails_calls_the_whole_pool(
    serve: Serve, own_artifact: Path, pool: FakePool, router: Callable[[str], None], fault: str
) -> None:
    """Whatever it does instead of scoring; the next query is routed again."""
    limits = {"route_timeout_s": 0.5} if fault == "slow" else {}
    gateway = serve(artifact=own_artifact, limits=limits)
    router(fault)
    racer = gateway.chat(ONE, {"explain": True})["racer"]
    assert sorted(racer["selected"]) == sorted(POOL)
    reason = "router_out_whole_pool" if fault == "slow" else WHOLE_POOL
    assert racer["certificate"]["reasons"] == [reason]
    assert racer["certificate"]["holds"] is True
    assert pool.models_called() == sorted(POOL)
    if fault != "slow":
        router("")
        assert gateway.chat(ONE)["racer"]["selected"] == ["adder"]


@pytest.mark.parametrize("fault", [each for each in FAULTS if each != "slow"])
def test_a_router_of_ones_own_that_fails_at_the_start(
    own_artifact: Path, router: Callable[[str], None], fault: str
) -> None:
    """Said at once, not at the first request."""
    Racer.load(own_artifact, POOL)
    router(fault)
    with pytest.raises(ArtifactError, match="router"):
        Racer.load(own_artifact, POOL)


@pytest.mark.parametrize("fault", ["raise", "nan", "above 1", "one row short"])
def test_a_router_of_ones_own_that_fails_while_calibrating(
    serve: Serve, own_artifact: Path, pool: FakePool, router: Callable[[str], None], fault: str
) -> None:
    """The rows are refused, and what was active stays so."""
    gateway = serve(artifact=own_artifact)
    before = gateway.ready()
    router(fault)
    answer = gateway.post("/calibrate", ADMIN_KEY, json={"rows": as_json(labelled(20_000, 40))})
    assert answer.status_code >= 400
    router("")
    assert gateway.ready() == before


@pytest.mark.parametrize("fault", ["raise", "nan"])
def test_a_router_of_ones_own_that_fails_while_training(
    tmp_path: Path, router: Callable[[str], None], fault: str
) -> None:
    """One sentence, and no artifact."""
    router(fault)
    with pytest.raises(RacerError, match="router"):
        train(labelled(0, 40), labelled(5_000, 40), tmp_path / "own",
              encoder=CharNgramEncoder(), kind="by-first-word")  # fmt: skip
    assert not (tmp_path / "own").exists()


# What decides its scores ---------------------------------------------------------------------

BY_FILE = """
import json
import numpy as np
from racer_core.routers.base import RouterOutput

class ByFile:
    def __init__(self, *, pool, model):
        with open(model) as file:
            self.skills = json.load(file)
    def predict(self, batch):
        unknown = (0.1, 0.1, 0.1)
        return RouterOutput(
            np.array([self.skills.get(text.split()[0], unknown) for text in batch.texts])
        )
"""
MODEL = {"What": (0.9, 0.1, 0.1), "Spell": (0.1, 0.9, 0.1), "Compare": (0.8, 0.8, 0.1)}
OTHER = MODEL | {"What": (0.1, 0.1, 0.9)}  # calls the poet where the adder alone is right


@pytest.fixture
def by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An artifact whose router reads a model file that its option names."""
    points = {"by-file": "file_router:ByFile"}
    install(tmp_path / "package", monkeypatch, BY_FILE, module="file_router", entry_points=points)
    (tmp_path / "model.json").write_text(json.dumps(MODEL))
    train(labelled(0, 40), labelled(5_000, 200), tmp_path / "own", encoder=CharNgramEncoder(),
          kind="by-file", options={"model": str(tmp_path / "model.json")})  # fmt: skip
    return tmp_path / "own"


def reasons(gateway: Gateway, text: str = ONE) -> list[str]:
    """Of the certificate of a query, which is cached from the second time on."""
    return gateway.route(text)["certificate"]["reasons"]


def test_a_replaced_model_file_voids_certificates(
    restart: Restart, by_file: Path, tmp_path: Path
) -> None:
    """While the gateway runs, and after a restart until its rows are scored by the new one.

    Red when the file is no input: every certificate held, and every such query was missed. Both
    files have one size and one time of change, as a copy that keeps times leaves them.
    """
    model, changed = tmp_path / "model.json", ["router_changed:option.model"]
    with restart(artifact=by_file) as gateway:
        gateway.calibrate()
        assert reasons(gateway) == []
        for content, expected in ((OTHER, changed), (MODEL, []), (OTHER, changed)):
            before = model.stat()
            model.write_text(json.dumps(content))
            os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
            wait_until(lambda expected=expected: reasons(gateway) == expected)
        assert gateway.route(ONE)["selected"] == ["adder"], "it has read the file that was there"
        refusal = gateway.refused(as_json(labelled(20_000, 400)), 409)
        assert refusal == (
            "rows cannot be calibrated on: what decides the router's scores was changed since it "
            "was loaded (option.model); nothing was changed here: restart the gateway, which then "
            "reads it, and upload the rows again"
        )
    with restart(artifact=by_file) as gateway:
        certificate = gateway.route(ONE)["certificate"]
        assert (certificate["holds"], certificate["reasons"]) == (False, changed)
        gateway.calibrate(rows=labelled(20_000, 400))
        assert reasons(gateway) == []
    model.write_text(json.dumps(MODEL))
    with restart(artifact=by_file) as gateway:
        assert reasons(gateway) == changed


def test_scores_of_a_replaced_model_are_no_rows(
    restart: Restart, by_file: Path, tmp_path: Path
) -> None:
    """A sampled decision is a row by its scores only if the model of now gave them.

    Red when a calibration's id alone said whose they are.
    """
    model, watching = tmp_path / "model.json", {"shadow_rate": 1.0}
    for content, query, own in ((MODEL, ONE, 1), (OTHER, TWO, 0), (MODEL, "What is 5 + 6?", 2)):
        model.write_text(json.dumps(content))
        with restart(artifact=by_file, watching=watching) as gateway:
            if query == ONE:
                gateway.calibrate()
            gateway.chat(query)
            sampled(gateway, 1)
            rows = shadow_rows(gateway)
        assert len(rows) == own
        for row in rows:
            assert [*row["scores"].values()] == pytest.approx(MODEL["What"], abs=1e-5)


@pytest.mark.parametrize("fault", [PermissionError, ValueError, RecursionError])
def test_unreadable_files_void_certificates(
    serve: Serve,
    by_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: type[Exception],
) -> None:
    """Whatever reading them raises, and until they are read as before: the watch goes on."""
    gateway = serve(artifact=by_file)
    assert reasons(gateway) == []
    with monkeypatch.context() as patched:
        patched.setattr(inputs, "find_spec", raising(fault("no such luck")))
        wait_until(lambda: reasons(gateway) == ["router_changed:unreadable_files"])
    wait_until(lambda: reasons(gateway) == [])
    assert caplog.text.count("no such luck") == 1, "it is said once"


def raising(error: Exception) -> Callable[[str], object]:
    """A function that fails."""

    def fail(_: str) -> object:
        raise error

    return fail


def test_changed_code_voids_certificates(restart: Restart, by_file: Path, tmp_path: Path) -> None:
    """Of the same version, in an installation that can be edited."""
    with restart(artifact=by_file) as gateway:
        gateway.calibrate()
        assert reasons(gateway) == []
    (tmp_path / "package" / "file_router.py").write_text(BY_FILE + "# another rule")
    with restart(artifact=by_file) as gateway:
        assert reasons(gateway) == ["router_changed:code.file_router"]


def test_another_version_of_a_library_voids_certificates(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also of an encoder's, whose tokens or numbers may then be others."""
    folder = tmp_path / "gateway"
    monkeypatch.setattr(artifacts, "LIBRARIES", {"char-ngrams": ("numpy",)})
    gateway = serve(folder=folder, calibrated=False)
    gateway.calibrate()
    assert reasons(gateway) == []
    monkeypatch.setattr(inputs, "version", lambda _: "0.1")
    other = serve(folder=folder, calibrated=False)
    assert reasons(other) == ["router_changed:library.numpy"]


def test_processes_that_score_must_have_the_same_files(by_file: Path, tmp_path: Path) -> None:
    """The encoder process of a machine, or a replica of the router: its digest is compared."""
    before = artifacts.load(by_file)
    (tmp_path / "model.json").write_text(json.dumps(OTHER))
    after = artifacts.load(by_file)
    assert before.digest == after.digest
    assert before.scoring_digest != after.scoring_digest
    assert after.scoring_digest.startswith(after.digest)


# The example of the document -----------------------------------------------------------------


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language."""
    parts = DOCUMENT.read_text(encoding="utf-8").split(f"```{language}\n")[1:]
    return [part.split("```")[0] for part in parts]


class ScoreService:
    """A small service that scores by the wording of a query; ``mode`` makes it misbehave."""

    def __init__(self) -> None:
        self.mode = "fine"
        self.heard: list[tuple[str | None, list[str]]] = []
        self.free = threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                queries: list[str] = json.loads(body)["queries"]
                service.heard.append((self.headers["authorization"], queries))
                if service.mode == "slow":
                    service.free.wait(10)
                self.send_response(500 if service.mode == "error" else 200)
                self.send_header("content-type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(service.answer(queries)).encode())

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/scores"

    def answer(self, queries: list[str]) -> dict[str, Any]:
        """Chances by name, in an order that is not the pool's."""
        right = [
            next((skills for text, skills in SKILLS.items() if text[:7] == query[:7]), ())
            for query in queries
        ]
        names = ["poet", "speller"] if self.mode == "one name short" else sorted(POOL)[::-1]
        return {"scores": [{n: 0.9 if n in who else 0.1 for n in names} for who in right]}

    def close(self) -> None:
        """Release waiting requests and stop."""
        self.free.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def service() -> Iterator[ScoreService]:
    """On a port of its own."""
    service = ScoreService()
    yield service
    service.close()


@pytest.fixture
def documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The document's example, installed as its pyproject.toml says."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))
    points = project["project"]["entry-points"]["racer.routers"]
    [module] = project["tool"]["setuptools"]["py-modules"]
    monkeypatch.setenv("SCORE_SERVICE_KEY", "the-key")
    install(
        tmp_path / "package", monkeypatch,
        (EXAMPLE / f"{module}.py").read_text(encoding="utf-8"), module=module,
        entry_points=points, name=project["project"]["name"],
        version=project["project"]["version"],
    )  # fmt: skip


@pytest.fixture
def trained(documented: None, service: ScoreService, racer: Command, tmp_path: Path) -> Path:
    """The document's own command line, with this service and these files."""
    data = write(tmp_path / "train.jsonl", labelled(0, 40))
    validation = write(tmp_path / "validation.jsonl", labelled(5_000, 200))
    folder = tmp_path / "artifact"
    line = next(b for b in blocks("sh") if "--router score-service" in b)
    given = {"http://127.0.0.1:9000/scores": service.url, "train.jsonl": str(data),
             "validation.jsonl": str(validation), "artifact": str(folder)}  # fmt: skip
    words = line.replace("\\\n", " ").split("racer train", 1)[1].split()
    words = [given.get(word, word.replace(*next(iter(given.items())))) for word in words]
    assert parsed(racer("train", *words, "--json"))["router"] == "custom"
    return folder


def test_the_documents_router_routes(
    trained: Path, service: ScoreService, serve: Serve, pool: FakePool
) -> None:
    """Its key comes from the environment and is not in the artifact; options are."""
    gateway = serve(artifact=trained)
    assert gateway.chat(ONE)["racer"]["selected"] == ["adder"]
    assert service.heard[-1] == ("Bearer the-key", [ONE])
    manifest = (trained / "manifest.json").read_text()
    assert "the-key" not in manifest
    options = json.loads(manifest)["router"]["options"]
    assert options == {"url": service.url, "deadline_s": 0.5}


@pytest.mark.parametrize("mode", ["slow", "error", "one name short"])
def test_a_failure_of_the_documented_router_calls_the_whole_pool(
    trained: Path, service: ScoreService, serve: Serve, pool: FakePool, mode: str
) -> None:
    """By its own deadline of half a second, far below the 10 of the gateway."""
    gateway = serve(artifact=trained)
    service.mode = mode
    answer = gateway.route(ONE)
    assert sorted(answer["selected"]) == sorted(POOL)
    assert answer["certificate"]["reasons"] == [WHOLE_POOL]
    assert answer["overhead_ms"] < 5_000
    service.mode = "fine"
    assert gateway.route(ONE)["selected"] == ["adder"]


def test_the_documents_router_without_its_service(
    trained: Path, service: ScoreService, racer: Command, tmp_path: Path
) -> None:
    """The gateway says so at the start; exit code 2."""
    from tests.kit.gateway import configure

    path = configure(tmp_path / "config", trained, "http://127.0.0.1:1/v1")
    assert racer("validate", "--config", path)[0] == 0
    service.mode = "error"
    failed(racer("validate", "--config", path), 2, "score-service", "500")
