"""An artifact by URL and digest: what is downloaded, what is unpacked, and what is refused."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import socket
import ssl
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from app import settings
from app.errors import SettingsError
from app.routing import artifact_files
from app.routing.artifact_files import download, fetch, unpack
from app.settings.remote_artifact import RemoteArtifact
from racer_core import artifacts
from racer_core.errors import ArtifactError, install_hint
from tests.kit.gateway import ENVIRONMENT, TWO, configure, running
from tests.kit.hostile.process import certify
from tests.kit.upstream import FakePool

Change = Callable[[tarfile.TarFile], object]


class Files:
    """A server of files on this machine; a redirect is a path to another URL."""

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.paths: list[str] = []
        files = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                files.paths.append(self.path)
                place = self.path.partition("?")[0]
                data = files.found.get(place)
                if place in files.redirects:
                    self.send_response(302)
                    self.send_header("location", files.redirects[place])
                    data = b""
                elif data is not None and (part := self.headers.get("range")) is not None:
                    first, _, last = part.removeprefix("bytes=").partition("-")
                    self.send_response(206)
                    self.send_header("content-range", f"bytes {first}-{last}/{len(data)}")
                    data = data[int(first) : int(last or len(data)) + 1]
                else:
                    self.send_response(404 if data is None else 200)
                self.finish_head(data)
                self.wfile.write(data or b"")

            def do_HEAD(self) -> None:
                data = files.found.get(self.path.partition("?")[0])
                self.send_response(404 if data is None else 200)
                self.finish_head(data)

            def finish_head(self, data: bytes | None) -> None:
                self.send_header("content-length", str(len(data or b"")))
                self.send_header("etag", '"1"')
                self.send_header("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def add(self, path: str, data: bytes) -> str:
        """Serve some bytes; the value of `artifact` for them."""
        self.found[path] = data
        return f"{self.url}{path}#sha256={hashlib.sha256(data).hexdigest()}"


@pytest.fixture
def files() -> Iterator[Files]:
    """A running server."""
    served = Files()
    thread = threading.Thread(target=served.server.serve_forever)
    thread.start()
    try:
        yield served
    finally:
        served.server.shutdown()
        thread.join()
        served.server.server_close()


@pytest.fixture
def configured(tmp_path: Path, pool: FakePool) -> Callable[[str], settings.Settings]:
    """Settings with an artifact."""

    def load(artifact: str) -> settings.Settings:
        path = configure(tmp_path / "gateway", artifact, pool.url)
        return settings.load(path, ENVIRONMENT)[0]

    return load


def packed(folder: Path, mode: str = "w:gz", name: str = "artifact") -> bytes:
    """A folder as an archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        archive.add(folder, arcname=name)
    return buffer.getvalue()


def tar(change: Change) -> io.BytesIO:
    """An archive that holds what a function adds."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        change(archive)
    buffer.seek(0)
    return buffer


def member(name: str, data: bytes = b"", **fields: Any) -> Change:
    """A function that adds one member."""

    def add(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        for field, value in fields.items():
            setattr(info, field, value)
        archive.addfile(info, io.BytesIO(data))

    return add


# The setting -----------------------------------------------------------------------------------

DIGEST = "0" * 64


@pytest.mark.parametrize(
    "artifact",
    [
        f"https://host.example/a/artifact.tar.gz#sha256={DIGEST}",
        f"https://host.example:8443/artifact.tar?token=x#sha256={DIGEST}",
        f"http://127.0.0.1:8000/artifact.tar.gz#sha256={DIGEST}",
        f"s3://bucket/a/artifact.tar.gz#sha256={DIGEST}",
    ],
)
def test_a_url_stands_for_a_folder_in_the_cache(
    configured: Callable[[str], settings.Settings], tmp_path: Path, artifact: str
) -> None:
    """The folder is known by the digest alone, before anything is downloaded."""
    found = configured(artifact)
    assert found.artifact == tmp_path / "gateway" / "cache" / "artifacts" / DIGEST
    assert found.remote_artifact == RemoteArtifact(artifact.partition("#")[0], DIGEST)
    assert found.has_store


@pytest.mark.parametrize(
    ("artifact", "sentence"),
    [
        ("https://host.example/artifact.tar.gz", "`sha256sum FILE` prints"),
        ("https://host.example/artifact.tar.gz#sha256=12", "`sha256sum FILE` prints"),
        (f"https://host.example/artifact.tar.gz#md5={DIGEST}", "`sha256sum FILE` prints"),
        (f"http://host.example/artifact.tar.gz#sha256={DIGEST}", "expected a folder, or the URL"),
        (f"file:///artifact.tar.gz#sha256={DIGEST}", "expected a folder, or the URL"),
        (f"https://me:secret@host.example/a.tar#sha256={DIGEST}", "must hold no user or password"),
        (f"https://[::1/a.tar#sha256={DIGEST}", "expected a folder, or the URL"),
    ],
)
def test_a_url_without_a_digest_or_in_plain_text_is_refused(
    configured: Callable[[str], settings.Settings], artifact: str, sentence: str
) -> None:
    """Before anything is asked; a secret is not repeated."""
    with pytest.raises(SettingsError) as caught:
        configured(artifact)
    assert sentence in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_cache_can_be_elsewhere(tmp_path: Path, pool: FakePool) -> None:
    """Absolute, or relative to the file."""
    url = f"https://host.example/a.tar#sha256={DIGEST}"
    for cache, expected in (("kept", tmp_path / "g" / "kept"), (str(tmp_path), tmp_path)):
        path = configure(tmp_path / "g", url, pool.url, cache=cache)
        found = settings.load(path, ENVIRONMENT)[0]
        assert found.artifact == expected / "artifacts" / DIGEST


# A gateway -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "name"), [("w:gz", "artifact"), ("w", "."), ("w:xz", ".")])
def test_a_gateway_starts_with_a_downloaded_artifact(
    files: Files, artifact: Path, tmp_path: Path, pool: FakePool, mode: str, name: str
) -> None:
    """Packed with or without its folder; the second start asks nobody."""
    url = files.add("/artifact.tar.gz", packed(artifact, mode, name))
    path = configure(tmp_path / "gateway", url, pool.url)
    with running(path, ENVIRONMENT) as gateway:
        gateway.calibrate(60)
        before = gateway.decided(TWO)
        assert before["certificate"]["holds"]
        folder = gateway.settings.artifact
        assert folder is not None
        assert artifacts.digest(folder) == artifacts.digest(artifact)
        assert [each.name for each in folder.parent.iterdir()] == [folder.name]
    assert files.paths == ["/artifact.tar.gz"]
    files.found.clear()
    with running(path, ENVIRONMENT) as gateway:
        assert gateway.decided(TWO) == before
    assert files.paths == ["/artifact.tar.gz"]


def test_another_file_is_refused(
    files: Files, artifact: Path, configured: Callable[[str], settings.Settings]
) -> None:
    """Every byte counts; nothing of it stays in the cache, and the URL's query is not shown."""
    data = packed(artifact)
    url = files.add("/artifact.tar.gz", data).replace("#", "?token=secret#")
    files.found["/artifact.tar.gz"] = data[:-1] + bytes([data[-1] ^ 1])
    found = configured(url)
    with pytest.raises(ArtifactError, match="its digest is sha256=") as caught:
        fetch(found)
    assert "secret" not in str(caught.value)
    assert f"{files.url}/artifact.tar.gz" in str(caught.value)
    assert found.artifact is not None
    assert list(found.artifact.parent.iterdir()) == []


def test_a_fetch_that_fails_stops_the_start(
    files: Files,
    artifact: Path,
    configured: Callable[[str], settings.Settings],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sentence each: no file, no server, no artifact in it, no extra, no place to keep it."""
    readme = files.add("/readme.tar", tar(member("readme", b"x")).getvalue())
    nothing = f"artifact.tar#sha256={DIGEST}"
    monkeypatch.setitem(sys.modules, "s3fs", None)
    for url, message in (
        (f"{files.url}/{nothing}", "the server answers 404"),
        (f"http://127.0.0.1:9/{nothing}", "it cannot be downloaded"),
        (readme, r"holds no manifest\.json: .*tar -czf"),
        (f"s3://bucket/{nothing}", re.escape(install_hint("s3"))),
    ):
        with pytest.raises(ArtifactError, match=message):
            fetch(configured(url))
    shutil.rmtree(tmp_path / "gateway" / "cache")
    (tmp_path / "gateway" / "cache").write_text("a file", encoding="utf-8")
    with pytest.raises(ArtifactError, match="set `cache` to a folder"):
        fetch(configured(files.add("/artifact.tar.gz", packed(artifact))))


def test_a_server_that_falls_silent_is_left(
    configured: Callable[[str], settings.Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when a start waits for ever."""
    monkeypatch.setattr(artifact_files, "SILENCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/artifact.tar#sha256={DIGEST}"
        with pytest.raises(ArtifactError, match="did not answer in time"):
            fetch(configured(url))


def test_a_redirect_leads_to_https_alone(
    files: Files, artifact: Path, configured: Callable[[str], settings.Settings]
) -> None:
    """Or to this machine, as here; a proxy on the way could read what a URL grants."""
    data = packed(artifact)
    files.add("/real.tar.gz", data)
    files.redirects["/there"] = f"{files.url}/real.tar.gz"
    files.redirects["/away"] = "http://host.example/real.tar.gz"
    digest = hashlib.sha256(data).hexdigest()
    with pytest.raises(ArtifactError, match=r"redirects to http://host\.example, not to https"):
        fetch(configured(f"{files.url}/away#sha256={digest}"))
    found = configured(f"{files.url}/there#sha256={digest}")
    fetch(found)
    assert found.artifact is not None
    assert (found.artifact / "manifest.json").is_file()


def test_https_is_verified(
    files: Files, artifact: Path, configured: Callable[[str], settings.Settings], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A certificate that nobody signed is refused, one that the machine trusts is not."""
    certificate = certify(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    files.server.socket = context.wrap_socket(files.server.socket, server_side=True)
    files.url = files.url.replace("http://", "https://")
    found = configured(files.add("/artifact.tar.gz", packed(artifact)))
    with pytest.raises(ArtifactError, match="it cannot be downloaded"):
        fetch(found)
    monkeypatch.setenv("SSL_CERT_FILE", f"{certificate}.crt")
    fetch(found)
    assert found.artifact is not None
    assert (found.artifact / "manifest.json").is_file()


def test_what_a_killed_start_left_is_removed(
    files: Files, artifact: Path, configured: Callable[[str], settings.Settings]
) -> None:
    """After a day: a younger folder may be that of a gateway which is downloading now."""
    found = configured(files.add("/artifact.tar.gz", packed(artifact)))
    assert found.artifact is not None
    old, young = (found.artifact.parent / f".fetched-{name}" for name in ("old", "young"))
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / "archive").write_bytes(b"half")
    day_ago = time.time() - artifact_files.STALE_S - 1
    os.utime(old, (day_ago, day_ago))
    fetch(found)
    assert not old.exists()
    assert young.exists()


# Archives --------------------------------------------------------------------------------------


NO_FILE = "neither a file nor a folder"
REFUSED: dict[str, tuple[list[Change], str]] = {
    "parent": ([member("../escaped", b"x")], "leads out of"),
    "inner parent": ([member("artifact/../../escaped", b"x")], "leads out of"),
    "absolute": ([member("/tmp/escaped", b"x")], "leads out of"),
    "symbolic link": ([member("link", type=tarfile.SYMTYPE, linkname="/etc/passwd")], NO_FILE),
    "hard link": ([member("link", type=tarfile.LNKTYPE, linkname="../escaped")], NO_FILE),
    "below a link": (
        [member("out", type=tarfile.SYMTYPE, linkname=".."), member("out/escaped", b"x")],
        NO_FILE,
    ),
    "device": ([member("device", type=tarfile.CHRTYPE)], NO_FILE),
    "pipe": ([member("pipe", type=tarfile.FIFOTYPE)], NO_FILE),
    "name twice": ([member("./manifest.json", b"[]")], "is in it twice"),
    "file and folder": ([member("manifest.json/x", b"2")], "in it is below a file"),
    "many files": ([member(f"empty/{number}") for number in range(6)], "or 5 files"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_nothing_but_files_and_folders_inside_is_unpacked(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was packed before it is in the folder; nothing is anywhere else."""
    monkeypatch.setattr(artifact_files, "MAX_FILES", 5)
    changes, message = REFUSED[kind]

    def add(archive: tarfile.TarFile) -> None:
        for each in [member("manifest.json", b"{}"), *changes]:
            each(archive)

    folder = tmp_path / "in" / "folder"
    folder.parent.mkdir()
    with pytest.raises(ArtifactError, match=message):
        unpack(tar(add), folder)
    written = {each.name for each in tmp_path.rglob("*") if each.is_file() and each.stat().st_size}
    assert written == {"manifest.json"}


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    """A bomb: 4 KB that would be 4 MB. Nothing of the member that is too large is written."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member("small", b"x" * 1000)(archive)
        member("bomb", bytes(4 * 2**20))(archive)
    assert len(buffer.getvalue()) < 10_000
    buffer.seek(0)
    with pytest.raises(ArtifactError, match="unpacks to more than 1000000 bytes"):
        unpack(buffer, tmp_path / "folder", max_bytes=1_000_000)
    assert [each.name for each in (tmp_path / "folder").iterdir()] == ["small"]


def test_a_download_that_is_too_large_is_left(files: Files, tmp_path: Path) -> None:
    """Whatever the server says its length is."""
    url, _, digest = files.add("/large", bytes(3 * 2**20)).partition("#sha256=")
    with (
        (tmp_path / "file").open("wb") as file,
        pytest.raises(ArtifactError, match="more than 1048576 bytes"),
    ):
        download(RemoteArtifact(url, digest), file, max_bytes=2**20)
    assert (tmp_path / "file").stat().st_size <= 2**20


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_an_archive_that_was_cut_off_is_refused(
    artifact: Path, tmp_path: Path, share: float
) -> None:
    """It was cut before its digest was taken."""
    data = packed(artifact)
    with pytest.raises(ArtifactError, match="no whole tar file"):
        unpack(io.BytesIO(data[: int(len(data) * share)]), tmp_path / "folder")


# s3:// -----------------------------------------------------------------------------------------


def test_an_artifact_is_read_from_a_bucket(
    files: Files, artifact: Path, configured: Callable[[str], settings.Settings],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The protocol against a server on this machine, with the credentials of the environment."""
    pytest.importorskip("s3fs")
    data = packed(artifact)
    files.add("/bucket/artifact.tar.gz", data)
    for name, value in {
        "AWS_ENDPOINT_URL": files.url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    digest = hashlib.sha256(data).hexdigest()
    found = configured(f"s3://bucket/artifact.tar.gz#sha256={digest}")
    fetch(found)
    assert found.artifact is not None
    assert artifacts.digest(found.artifact) == artifacts.digest(artifact)
    assert any(each.startswith("/bucket/artifact.tar.gz") for each in files.paths)
    with pytest.raises(ArtifactError, match="it cannot be downloaded"):
        fetch(configured(f"s3://bucket/nothing.tar.gz#sha256={DIGEST}"))
