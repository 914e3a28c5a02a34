"""The configured artifact: fetched as a tar file if it has a URL, opened, and checked.

The archive is downloaded once and unpacked into the cache. The configured digest decides what is
accepted, wherever the bytes come from. A folder that is in the cache was checked when it was
unpacked, and is used without any request.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import lzma
import os
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Final, TypeVar, cast
from urllib.parse import urlsplit

from app.errors import NoRouter, SettingsError
from app.routing.router_breaker import RouterBreaker
from app.routing.scoring_inputs import ScoringInputs
from app.settings import Settings
from app.settings.base import is_loopback
from app.settings.remote_artifact import RemoteArtifact
from app.utc import is_within, text_of
from racer_core import artifacts
from racer_core.aggregation.vote import Method
from racer_core.errors import ArtifactError, install_hint
from racer_core.racer import Racer
from racer_core.trained_router import TrainedRouter

if TYPE_CHECKING:
    import httpx2


log = logging.getLogger(__name__)

MAX_BYTES: Final = 16 * 2**30  # of the download, and of all files together
MAX_FILES: Final = 10_000
DOWNLOAD_S: Final = 3600.0
STALE_S: Final = 24 * DOWNLOAD_S  # of a folder into which nothing is downloaded any more
SCRATCH: Final = ".fetched-"  # begin of such a folder's name
_CONNECT_S: Final = 10.0
SILENCE_S: Final = 30.0  # between two pieces
_REDIRECTS: Final = 5
_PIECE: Final = 2**20
_DAMAGED: Final = (
    tarfile.TarError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    ValueError,
)


def fetch(settings: Settings) -> None:
    """Make sure that a remote artifact is in its folder; blocks.

    Raises:
        ArtifactError: It cannot be downloaded, has another digest, or is no plain tar file.
    """
    remote, folder = settings.remote_artifact, settings.artifact
    if remote is None or folder is None or folder.is_dir():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        remove_stale(folder.parent)
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder.parent) as name:
            archive, unpacked = Path(name) / "archive", Path(name) / "files"
            log.warning("the artifact is downloaded from %s", remote.shown)
            with archive.open("wb") as file:
                download(remote, file)
            with archive.open("rb") as file:
                unpack(file, unpacked)
            _rename(_artifact_in(unpacked), folder)
    except OSError as exc:
        raise ArtifactError(
            f"the artifact cannot be written to {folder.parent}: {exc.strerror or exc}; set "
            "`cache` to a folder with room that the gateway may write"
        ) from exc
    except ArtifactError as exc:
        raise ArtifactError(f"artifact {remote.shown}: {exc}") from exc


def remove_stale(cache: Path) -> None:
    """Remove what killed starts left; a younger folder may be another gateway's download."""
    for folder in cache.glob(f"{SCRATCH}*"):
        with suppress(OSError):
            written_at = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
            if not is_within(text_of(written_at), timedelta(seconds=STALE_S)):
                shutil.rmtree(folder)


def download(remote: RemoteArtifact, file: BinaryIO, *, max_bytes: int = MAX_BYTES) -> None:
    """Write what the URL gives to a file, and compare its digest.

    Raises:
        ArtifactError: It cannot be had, is too large, or is another file.
    """
    digest, size, end = hashlib.sha256(), 0, time.monotonic() + DOWNLOAD_S
    with _pieces(remote) as pieces:
        for piece in pieces:
            size += len(piece)
            if size > max_bytes:
                raise ArtifactError(f"it has more than {max_bytes} bytes, which is the limit")
            if time.monotonic() > end:
                raise ArtifactError(f"it was not downloaded within {DOWNLOAD_S:.0f} s")
            digest.update(piece)
            file.write(piece)
    if digest.hexdigest() != remote.sha256:
        raise ArtifactError(
            f"its digest is sha256={digest.hexdigest()}, and `artifact` names {remote.sha256}: if "
            "the new file is meant, change the setting"
        )


def unpack(file: BinaryIO, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
    """Write the folders and plain files of a tar file, compressed or not, into a new folder.

    Raises:
        ArtifactError: It is no tar file, is too large, or holds something else: a link, a device,
            a path that leads outside.
    """
    folder.mkdir()
    size = 0
    try:
        with tarfile.open(fileobj=file, mode="r:*") as archive:
            for count, member in enumerate(archive, 1):
                size += member.size
                if size > max_bytes or count > MAX_FILES:
                    raise ArtifactError(
                        f"it unpacks to more than {max_bytes} bytes or {MAX_FILES} files, which "
                        "are the limits"
                    )
                target = folder / _checked(member)
                _make_folder(target if member.isdir() else target.parent, member.name)
                if member.isreg():
                    _write(cast("IO[bytes]", archive.extractfile(member)), target)
    except _DAMAGED as exc:
        raise ArtifactError(f"it is no whole tar file ({exc})") from exc


def _checked(member: tarfile.TarInfo) -> PurePosixPath:
    path = PurePosixPath(member.name)
    if not (member.isreg() or member.isdir()):
        raise ArtifactError(f"{member.name!r} in it is neither a file nor a folder")
    if path.is_absolute() or ".." in path.parts:
        raise ArtifactError(f"{member.name!r} in it leads out of the artifact's folder")
    return path


def _make_folder(folder: Path, member: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as exc:
        raise ArtifactError(f"{member!r} in it is below a file") from exc


def _write(source: IO[bytes], target: Path) -> None:
    try:
        with target.open("xb") as file:
            shutil.copyfileobj(source, file, _PIECE)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as exc:
        raise ArtifactError(f"{target.name!r} is in it twice") from exc


def _artifact_in(folder: Path) -> Path:
    """The folder with the manifest: the archive's root, or the only folder in it."""
    inside = list(folder.iterdir())
    if len(inside) == 1 and inside[0].is_dir():
        folder = inside[0]
    if not (folder / "manifest.json").is_file():
        raise ArtifactError(
            "it holds no manifest.json: pack the folder that `racer train` wrote, with "
            "`tar -czf artifact.tar.gz artifact`"
        )
    return folder


def _rename(unpacked: Path, folder: Path) -> None:
    try:
        unpacked.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another gateway of this machine unpacked it meanwhile
            raise


@contextmanager
def _pieces(remote: RemoteArtifact) -> Generator[Iterable[bytes]]:
    """The bytes that a URL gives. Raises ArtifactError, also while they are read."""
    if urlsplit(remote.url).scheme == "s3":
        with _from_s3(remote) as pieces:
            yield pieces
    else:
        with _from_web(remote) as pieces:
            yield pieces


@contextmanager
def _from_web(remote: RemoteArtifact) -> Generator[Iterable[bytes]]:
    import httpx2

    client = httpx2.Client(
        timeout=httpx2.Timeout(SILENCE_S, connect=_CONNECT_S),
        headers={"accept-encoding": "identity"},  # the digest is of the file itself
        follow_redirects=True,
        max_redirects=_REDIRECTS,
        event_hooks={"request": [_refuse_plain]},
    )
    try:
        with client, client.stream("GET", remote.url) as response:
            if response.status_code != 200:
                raise ArtifactError(f"the server answers {response.status_code}")
            yield response.iter_raw()
    except httpx2.TimeoutException as exc:
        raise ArtifactError("the server did not answer in time") from exc
    except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
        raise ArtifactError(f"it cannot be downloaded ({exc or type(exc).__name__})") from exc


def _refuse_plain(request: httpx2.Request) -> None:
    """Refuse a redirect to another scheme than https, but on this machine."""
    url = request.url
    if url.scheme != "https" and not is_loopback(url.host):
        raise ArtifactError(f"the server redirects to {url.scheme}://{url.host}, not to https")


@contextmanager
def _from_s3(remote: RemoteArtifact) -> Generator[Iterable[bytes]]:
    try:
        import_module("s3fs")  # which fsspec looks for by name
        fsspec: Any = import_module("fsspec")
    except ImportError as exc:
        raise ArtifactError(f"{exc.name} is not installed: {install_hint('s3')}") from exc
    try:
        with fsspec.open(remote.url, "rb") as file:
            yield _read(file)
    except ArtifactError:
        raise
    except Exception as exc:  # botocore's errors have no common base beside it
        raise ArtifactError(f"it cannot be downloaded ({exc})") from exc


def _read(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece


# The artifact loader: opens the configured artifact and checks it against the configuration.

Opened = TypeVar("Opened", bound=TrainedRouter)


@dataclass(frozen=True, slots=True, eq=False)
class LoadedRouter:
    """A trained router, the open backend that computes its scores, and what decides them."""

    trained: TrainedRouter
    scoring: RouterBreaker
    inputs: ScoringInputs


def is_there(folder: Path) -> bool:
    """Whether the folder has some file of an artifact, whole or not."""
    return any((folder / name).is_file() for name in artifacts.FILES)


def has_artifact(settings: Settings) -> bool:
    """Whether an artifact can be opened now: one that is fetched, or one in a folder."""
    folder = settings.artifact
    return settings.remote_artifact is not None or (folder is not None and is_there(folder))


def open_racer(settings: Settings) -> Racer:
    """Load artifact and encoder, and check them against the configuration.

    Raises:
        ArtifactError: The artifact does not fit the configuration or this machine.
        SettingsError: The configuration names another model, backend or dtype than the artifact.
    """
    return _opened(Racer, settings)


def open_trained(settings: Settings) -> TrainedRouter:
    """Load the artifact without its encoder, which another process has."""
    return _opened(TrainedRouter, settings)


def _opened(kind: type[Opened], settings: Settings) -> Opened:
    if settings.artifact is None:
        raise SettingsError(NoRouter.sentence)
    fetch(settings)
    opened = kind.load(settings.artifact, settings.pool)
    spec, wanted = opened.artifact.encoder, settings.encoder
    for field in ("backend", "dtype"):
        configured, trained = getattr(wanted, field), getattr(spec, field)
        if configured is not None and configured != trained:
            raise SettingsError(
                f"encoder.{field} is {configured}, but the artifact was trained with {trained}: "
                "change the setting, or train again with `racer train`"
            )
    for candidate, labelled in zip(settings.candidates, opened.artifact.candidates, strict=True):
        if labelled.model is not None and labelled.model != (candidate.model or candidate.name):
            raise SettingsError(
                f"candidate {candidate.name} was labelled as the model {labelled.model!r}, the "
                f"configuration has {candidate.model or candidate.name!r}: change it back, or "
                "label and train again"
            )
        if labelled.parameters is not None and dict(labelled.parameters) != candidate.parameters:
            raise SettingsError(
                f"candidate {candidate.name} was labelled with the parameters "
                f"{dict(labelled.parameters)}, the configuration has {candidate.parameters}: "
                "change them back, or label and train again"
            )
    if settings.aggregation.method is Method.STACKED and opened.artifact.stacked is None:
        raise SettingsError(
            "aggregation.method is stacked, but the artifact has no stacked vote: train it on rows "
            "with answers, or choose another method"
        )
    return opened
