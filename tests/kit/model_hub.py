"""A model hub on 127.0.0.1: the interface that huggingface_hub asks, over folders of files.

Small files have git's digest as ETag, as on the hub. Weights and vocabularies are redirected to
another host with `X-Linked-Etag`, their sha256, and can break off half-way.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_LARGE = (".bin", ".model", ".safetensors")


@dataclass
class ModelHub:
    """A running hub.

    Attributes:
        models: A folder for each repository.
        commit: The commit of every repository's ``main``.
        requests: Method, path and ``Range`` of every request, oldest first.
        cuts: For the next downloads of large files, the bytes after which the connection breaks
            off; a ``None`` sends the whole file, as do all later ones.
    """

    models: dict[str, Path]
    commit: str = COMMIT
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    cuts: list[int | None] = field(default_factory=list)
    url: str = ""

    def paths(self, method: str) -> list[str]:
        """The paths that were asked by one method."""
        return [path for asked, path, _ in self.requests if asked == method]


@contextmanager
def running(models: dict[str, Path], commit: str = COMMIT) -> Generator[ModelHub]:
    """Serve repositories until the block ends."""
    hub = ModelHub(models, commit)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: ModelHub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr."""

    def _answer(self) -> None:
        self.hub.requests.append((self.command, self.path, self.headers.get("Range")))
        match self.path.strip("/").split("/"):
            case ["api", "models", owner, name, "revision", revision]:
                self._describe(f"{owner}/{name}", revision)
            case [owner, name, "resolve", revision, file]:
                self._resolve(f"{owner}/{name}", revision, file)
            case ["large", owner, name, file]:
                self._send_large((self.hub.models[f"{owner}/{name}"] / file).read_bytes())
            case _:
                self._reply(404, {})

    def _found(self, repository: str, revision: str) -> bool:
        if repository not in self.hub.models:
            self._reply(404, {"X-Error-Code": "RepoNotFound"})
        elif revision not in ("main", self.hub.commit):
            self._reply(404, {"X-Error-Code": "RevisionNotFound"})
        else:
            return True
        return False

    def _describe(self, repository: str, revision: str) -> None:
        if self._found(repository, revision):
            names = sorted(file.name for file in self.hub.models[repository].iterdir())
            found = {
                "id": repository,
                "sha": self.hub.commit,
                "siblings": [{"rfilename": name} for name in names],
            }
            self._reply(200, {"Content-Type": "application/json"}, json.dumps(found).encode())

    def _resolve(self, repository: str, revision: str, name: str) -> None:
        if not self._found(repository, revision):
            return
        commit = {"X-Repo-Commit": self.hub.commit}
        file = self.hub.models[repository] / name
        if not file.is_file():
            self._reply(404, {"X-Error-Code": "EntryNotFound", **commit})
            return
        content = file.read_bytes()
        if file.suffix in _LARGE:
            linked = {
                "X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"',
                "X-Linked-Size": str(len(content)),
                # Another host, as the hub's storage is.
                "Location": f"{self.hub.url.replace('127.0.0.1', 'localhost')}"
                f"/large/{repository}/{name}",
            }
            self._reply(302, commit | linked)
        else:
            git = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
            self._reply(200, commit | {"ETag": f'"{git}"'}, content)

    def _send_large(self, content: bytes) -> None:
        begin = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        headers = {"Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"}
        cut = self.hub.cuts.pop(0) if self.hub.cuts else None
        self._reply(206 if begin else 200, headers if begin else {}, content[begin:], cut)

    def _reply(
        self, status: int, headers: dict[str, str], body: bytes = b"", cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.close_connection = True
