"""deploy/compose/pin.py writes the digests of images into `.env`, by the registry's own API."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from .dockerfile import ROOT

SCRIPT = ROOT / "deploy/compose/pin.py"


@dataclass
class Registry:
    """A registry on this machine, by the distribution specification; ``manifests`` by path."""

    manifests: dict[str, bytes] = field(default_factory=dict)
    token: str | None = None  # that is asked for
    address: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        url = urlsplit(request.path)
        if url.path == "/token":
            scope = parse_qs(url.query).get("scope")
            assert scope == ["repository:vllm/server:pull"]
            return 200, {}, json.dumps({"token": self.token}).encode()
        given = request.headers.get("authorization")
        if self.token is not None and given != f"Bearer {self.token}":
            realm = f'realm="http://{self.address}/token"'
            scope = 'service="registry",scope="repository:vllm/server:pull"'
            return 401, {"www-authenticate": f"Bearer {realm},{scope}"}, b""
        content = self.manifests.get(url.path)
        if content is None or "image.index.v1+json" not in request.headers.get("accept", ""):
            return 404, {}, b""
        return 200, {"docker-content-digest": digest(content)}, content


def digest(content: bytes) -> str:
    """As registries name a manifest."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.fixture
def registry() -> Iterator[Registry]:
    """One with a manifest under a tag."""
    registry = Registry({"/v2/vllm/server/manifests/v1": b'{"old": true}'})

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            status, headers, body = registry.answer(self)
            self.send_response(status)
            for name, value in (headers | {"content-length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_GET = do_HEAD = _answer

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.address = f"127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield registry
        server.shutdown()


def pin(path: Path) -> subprocess.CompletedProcess[str]:
    """Run the script on a file."""
    return subprocess.run(
        [sys.executable, "-I", SCRIPT, path], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("token", [None, "of-a-reader"])
def test_an_image_gets_its_digest_and_later_a_newer_one(
    token: str | None, registry: Registry, tmp_path: Path
) -> None:
    """All other lines, and who may read the file, stay. Red when a second run adds another."""
    registry.token = token
    image = f"{registry.address}/vllm/server:v1"
    env = tmp_path / ".env"
    env.write_text(f"# keys\nRACER_DATA_KEY=secret\nVLLM_IMAGE={image}\nGPU_A=0\n")
    env.chmod(0o600)
    for content in (b'{"old": true}', b'{"new": true}'):
        registry.manifests["/v2/vllm/server/manifests/v1"] = content
        done = pin(env)
        assert done.returncode == 0, done.stderr
        line = f"VLLM_IMAGE={image}@{digest(content)}"
        assert done.stdout == f"{line}\n"
        assert env.read_text() == f"# keys\nRACER_DATA_KEY=secret\n{line}\nGPU_A=0\n"
    assert stat.S_IMODE(env.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [".env"]


def test_an_image_that_is_not_there_changes_nothing(registry: Registry, tmp_path: Path) -> None:
    """Not even the lines of images that are."""
    known, unknown = (f"{registry.address}/vllm/server:{tag}" for tag in ("v1", "v2"))
    env = tmp_path / ".env"
    env.write_text(f"VLLM_IMAGE={known}\nGRAFANA_IMAGE={unknown}\n")
    done = pin(env)
    assert done.returncode == 1
    assert f"{unknown}: {registry.address} does not say its digest" in done.stderr
    assert env.read_text() == f"VLLM_IMAGE={known}\nGRAFANA_IMAGE={unknown}\n"


def test_names_are_read_as_engines_read_them() -> None:
    """Without a registry it is Docker Hub's; a port is no tag."""
    spec = importlib.util.spec_from_file_location("pin", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    hub = "registry-1.docker.io"
    assert module.parts("python:3.11") == (hub, "library/python", "3.11")
    assert module.parts("python") == (hub, "library/python", "latest")
    assert module.parts("vllm/vllm-openai:v1") == (hub, "vllm/vllm-openai", "v1")
    assert module.parts("localhost:5000/a/b") == ("localhost:5000", "a/b", "latest")
    assert module.parts("ghcr.io/a/b:c") == ("ghcr.io", "a/b", "c")
    example = (ROOT / "deploy/compose/.env.example").read_text(encoding="utf-8")
    found = {match["name"] for match in module.LINE.finditer(example)}
    assert found == {"VLLM_IMAGE", "PROMETHEUS_IMAGE", "GRAFANA_IMAGE"}
