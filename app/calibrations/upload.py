"""Uploads of labelled rows: streamed to an unnamed temporary file, never whole in memory.

A file without a name disappears with the process, however that ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, cast

from fastapi import Request
from sqlalchemy.engine import make_url
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from app.calibrations.parsing import NO_ROOM
from app.concurrency.threads import SMALL_BYTES
from app.errors import StoreFull, UnsupportedBody
from app.wire import bodies
from racer_core.errors import InputError

_BLOCK_BYTES: Final = 2**20  # of one write
_NAME_CHARS: Final = 80
_FORMATS: Final = {
    "application/json": ".json",
    "application/x-ndjson": ".jsonl",
    "application/ndjson": ".jsonl",
    "application/jsonl": ".jsonl",
    "text/csv": ".csv",
    "application/vnd.apache.parquet": ".parquet",
}
_FORM: Final = "multipart/form-data"
_COMPRESSED: Final = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A received upload.

    Attributes:
        file: The contents, at their beginning; in memory up to 64 KiB.
        size: Size in bytes.
        sha256: Digest of the contents, in hex.
        name: Its end tells the format; error messages show it. Never used as a path.
        document: It is a JSON body, with options beside its rows.
        fields: The other fields of a form.
        folder: Where further temporary files belong.
    """

    file: BinaryIO
    size: int
    sha256: str
    name: str
    document: bool = False
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    folder: Path | None

    def close(self) -> None:
        """Close the file, which deletes it."""
        self.file.close()


def spool_folder(store: str) -> Path | None:
    """The folder of temporary files: beside a store that is a file; None is the system's own."""
    url = make_url(store)
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return Path(url.database).parent


async def receive(
    request: Request, limit: int, folder: Path | None, count: Callable[[int], None]
) -> Upload:
    """Receive a body of rows, or a form with a file of rows.

    Args:
        request: The request.
        limit: Maximum length of its body in bytes.
        folder: Where temporary files belong.
        count: Called with the number of bytes that have arrived; may raise.

    Raises:
        UnsupportedBody: The content type is unknown, or the data is compressed.
        TooLarge: The body is longer than ``limit`` bytes.
        InputError: The form is not valid, or has no file.
        StoreFull: The disk is full.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (*_FORMATS, _FORM):
        types = ", ".join((*_FORMATS, _FORM))
        raise UnsupportedBody(f"send the rows as one of {types}")
    file = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - the caller closes the upload
        max_size=SMALL_BYTES, dir=None if folder is None else str(folder)
    )
    stream = _counted(bodies.body_stream(request, limit), count)
    fields: dict[str, Any] = {}
    name = f"rows{_FORMATS.get(kind, '')}"
    try:
        with _disk_full_as_store_full():
            if kind == _FORM:
                form = _Form(request.headers, stream, max_files=1, max_fields=16)
                form.target = file
                name, fields = await _read_form(form)
            else:
                await _write(stream, file)
            size, digest = await asyncio.to_thread(_size_and_digest, file)
        _refuse_compressed(file, name)
    except BaseException:
        file.close()
        raise
    return Upload(
        file=cast("BinaryIO", file),
        size=size,
        sha256=digest,
        name=name,
        document=kind == "application/json",
        fields=fields,
        folder=folder,
    )


def from_file(file: BinaryIO, name: str) -> Upload:
    """An upload that is a file of this machine. Raises UnsupportedBody."""
    size, digest = _size_and_digest(file)
    _refuse_compressed(file, name)
    return Upload(file=file, size=size, sha256=digest, name=name[-_NAME_CHARS:], folder=None)


class _Form(MultiPartParser):
    """Writes the one file of a form to ``target``."""

    target: tempfile.SpooledTemporaryFile[bytes]

    def on_headers_finished(self) -> None:
        """A part begins."""
        super().on_headers_finished()
        if (upload := self._current_part.file) is not None:
            upload.file.close()
            upload.file = cast("BinaryIO", self.target)


async def _read_form(form: _Form) -> tuple[str, dict[str, Any]]:
    """Writes the file; returns its name and the other fields."""
    try:
        parsed: FormData = await form.parse()
    except MultiPartException as exc:
        raise InputError(f"not a valid form: {exc.message}") from exc
    file = parsed.get("file")
    if not isinstance(file, UploadFile):
        raise InputError('the form needs a file in the field "file"', param="file")
    return _name(file), {name: value for name, value in parsed.items() if name != "file"}


def _name(file: UploadFile) -> str:
    """The end of the file's name; without an extension, one that fits its content type."""
    name = (file.filename or "rows")[-_NAME_CHARS:]
    kind = (file.content_type or "").partition(";")[0].strip().lower()
    return name if "." in name else name + _FORMATS.get(kind, ".jsonl")


async def _counted(
    stream: AsyncGenerator[bytes], count: Callable[[int], None]
) -> AsyncGenerator[bytes]:
    size = 0
    async for part in stream:
        size += len(part)
        count(size)
        yield part


async def _write(stream: AsyncIterator[bytes], file: tempfile.SpooledTemporaryFile[bytes]) -> None:
    block = bytearray()
    async for part in stream:
        block += part
        if len(block) >= _BLOCK_BYTES:
            await asyncio.to_thread(file.write, bytes(block))
            block.clear()
    await asyncio.to_thread(file.write, bytes(block))


def _size_and_digest(file: IO[bytes]) -> tuple[int, str]:
    file.flush()
    file.seek(0)
    digest, size = hashlib.sha256(), 0
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
        size += len(block)
    file.seek(0)
    return size, digest.hexdigest()


def _refuse_compressed(file: IO[bytes], name: str) -> None:
    """Reject compressed files: a few kilobytes could expand to gigabytes."""
    begins = file.read(8)
    file.seek(0)
    found = next((kind for mark, kind in _COMPRESSED.items() if begins.startswith(mark)), None)
    if found is not None or name.lower().endswith((".gz", ".zip", ".zst", ".bz2", ".xz")):
        raise UnsupportedBody(
            f"{name}: {found or 'compressed'} files are not read; unpack it first"
        )


@contextmanager
def _disk_full_as_store_full() -> Generator[None]:
    try:
        yield
    except OSError as exc:
        if exc.errno not in NO_ROOM:
            raise
        raise StoreFull("there is no room on the disk for the upload; nothing was changed") from exc
