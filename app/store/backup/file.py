"""Backup file format: a zip with one member for each calibration, and a manifest at the end.

A member is a line of JSON with the record, and then its arrays as they are stored. The manifest has
the SHA-256 of each. Records are written and read one at a time: one of a million rows has tens of
megabytes.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Final, Literal, Self, TypeVar
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

from pydantic import Field, ValidationError

from app.errors import SettingsError
from app.settings.access import Key
from app.settings.base import Frozen
from app.settings.validation import problems
from app.store import now
from app.store.calibration_rows import is_whole
from app.store.tables import AnswerCalibrationRow, CalibrationRow, SeenRowsRow, WatchRow
from racer_core import __version__, strict_json
from racer_core.errors import InputError

FORMAT: Final = 1
_MANIFEST: Final = "manifest.json"
_CALIBRATIONS: Final = "calibrations"
_ANSWERS: Final = "answer_calibrations"
_SEEN_ROWS: Final = "seen_rows"
MEMBER_BYTES: Final = 2**31  # of one member: a record of two million rows is a tenth of it
_UNREADABLE: Final = (BadZipFile, EOFError, KeyError, NotImplementedError, RuntimeError, zlib.error)


class WatchMember(Frozen):
    """The drift alarms of a calibration or of one of its applications, as they are stored."""

    since: str
    state: str
    raised: str
    application: str


class RecordHeader(Frozen):
    """A stored calibration without its arrays."""

    id: str
    created_at: str
    artifact: str
    document: str
    digest: str
    chosen_at: str | None
    active: bool
    watches: tuple[WatchMember, ...]


class AnswerHeader(Frozen):
    """A stored calibration of the promise `same_answer` without its arrays."""

    id: str
    created_at: str
    activated_at: str | None
    answer_setup: str
    application: str
    document: str
    active: bool


class SeenRowsHeader(Frozen):
    """Rows whose curve over alpha was shown, without the hashes of their queries."""

    id: str  # digest of the rows
    seen_at: str
    terms: str


_ANSWER_FIELDS: Final = tuple(name for name in AnswerHeader.model_fields if name != "active")
HeaderT = TypeVar("HeaderT", RecordHeader, AnswerHeader, SeenRowsHeader)
Header = RecordHeader | AnswerHeader | SeenRowsHeader


StoreKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Member(Frozen):
    """A member of the file, and what its bytes must be."""

    id: str
    sha256: str


class MemberCounts(Frozen):
    """The content of the file in numbers, for people."""

    calibrations: int
    active: int
    watches: int
    keys: int
    answer_calibrations: int


class Manifest(Frozen):
    """The manifest of the file."""

    format: Literal[1]
    program: str
    created_at: str
    counts: MemberCounts
    calibrations: tuple[Member, ...]
    keys: tuple[Key, ...]
    answer_calibrations: tuple[Member, ...]
    # Only where an artifact carries it: which rows were shown, and the keys of their hashes.
    seen_rows: tuple[Member, ...] = ()
    seen_rows_keys: tuple[StoreKey, ...] = ()
    samples_key: StoreKey | None = None  # only in a gateway's own copy


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCalibration:
    """One calibration with everything that the store holds of it."""

    row: CalibrationRow
    active: bool  # it decides for its artifact
    watches: tuple[WatchRow, ...]  # by application


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswers:
    """One calibration of the promise `same_answer`."""

    row: AnswerCalibrationRow
    active: bool  # it decides for its application under its setup


class Writer:
    """Calibrations go in one after the other; the manifest comes last.

    Args:
        file: An empty zip.
    """

    def __init__(self, file: ZipFile) -> None:
        self._file = file
        self._members: list[Member] = []
        self._answers: list[Member] = []
        self._seen_rows: list[Member] = []
        self._active = self._watches = 0

    def add(self, stored: StoredCalibration) -> None:
        """Write one calibration."""
        row = stored.row
        watches = tuple(
            WatchMember(
                since=each.since,
                state=each.state,
                raised=each.raised,
                application=each.application,
            )
            for each in stored.watches
        )
        header = RecordHeader(
            id=row.id,
            created_at=row.created_at,
            artifact=row.artifact,
            document=row.document,
            digest=row.digest,
            chosen_at=row.chosen_at,
            active=stored.active,
            watches=watches,
        )
        self._members.append(self._write(_CALIBRATIONS, header, row.arrays))
        self._active += stored.active
        self._watches += len(watches)

    def add_answers(self, stored: StoredAnswers) -> None:
        """Write one calibration of the promise `same_answer`."""
        fields = {name: getattr(stored.row, name) for name in _ANSWER_FIELDS}
        header = AnswerHeader(**fields, active=stored.active)
        self._answers.append(self._write(_ANSWERS, header, stored.row.arrays))
        self._active += stored.active

    def add_seen_rows(self, row: SeenRowsRow) -> None:
        """Write that some rows were shown."""
        header = SeenRowsHeader(id=row.digest, seen_at=row.seen_at, terms=row.terms)
        self._seen_rows.append(self._write(_SEEN_ROWS, header, row.sketch))

    def finish(
        self,
        keys: tuple[Key, ...],
        *,
        seen_rows_keys: Sequence[bytes] = (),
        samples_key: bytes | None = None,
    ) -> Manifest:
        """Write the manifest, and return it."""
        manifest = Manifest(
            format=FORMAT,
            program=__version__,
            created_at=now(),
            counts=MemberCounts(
                calibrations=len(self._members),
                active=self._active,
                watches=self._watches,
                keys=len(keys),
                answer_calibrations=len(self._answers),
            ),
            calibrations=tuple(self._members),
            keys=keys,
            answer_calibrations=tuple(self._answers),
            seen_rows=tuple(self._seen_rows),
            seen_rows_keys=tuple(each.hex() for each in seen_rows_keys),
            samples_key=None if samples_key is None else samples_key.hex(),
        )
        self._file.writestr(_MANIFEST, manifest.model_dump_json(indent=1))
        return manifest

    def _write(self, folder: str, header: Header, arrays: bytes) -> Member:
        line = header.model_dump_json().encode() + b"\n"
        with self._file.open(f"{folder}/{header.id}", "w", force_zip64=True) as written:
            written.write(line)
            written.write(arrays)
        return Member(id=header.id, sha256=_sha256(line, arrays))


@contextmanager
def writing(path: Path, *, mode: int = 0o600) -> Generator[Writer]:
    """A backup that takes its name once it is whole; else no trace of it is left.

    Args:
        path: The file.
        mode: Its permissions.

    Raises:
        SettingsError: It cannot be written there.
    """
    try:
        number, unfinished = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(number, "wb") as file:
                with ZipFile(file, "w", ZIP_DEFLATED, compresslevel=1) as packed:
                    yield Writer(packed)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            Path(unfinished).replace(path)
        except BaseException:
            Path(unfinished).unlink()
            raise
    except OSError as exc:
        raise SettingsError(f"{path}: cannot be written ({exc.strerror})") from exc


class Backup:
    """A backup that is read. Use it as a context.

    Raises:
        InputError: It cannot be read, or is no backup that this program knows.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = ZipFile(path)
        except OSError as exc:
            raise InputError(f"{path}: cannot be read ({exc.strerror})") from exc
        except (*_UNREADABLE, ValueError) as exc:
            raise InputError(f"{path}: it is no backup, or was cut off or changed") from exc
        try:
            self.manifest = self._read_manifest()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def calibrations(self) -> Iterator[StoredCalibration]:
        """The calibrations, one at a time, each with its digests verified.

        Raises:
            InputError: One of them is not what was written.
        """
        for member in self.manifest.calibrations:
            stored = _decode(*self._member(_CALIBRATIONS, member, RecordHeader))
            if not is_whole(stored.row):
                raise self._damaged(f"the digest of calibration {member.id} does not match")
            yield stored

    def answers(self) -> Iterator[StoredAnswers]:
        """The calibrations of the promise `same_answer`, as :meth:`calibrations`."""
        for member in self.manifest.answer_calibrations:
            header, arrays = self._member(_ANSWERS, member, AnswerHeader)
            fields = header.model_dump(exclude={"active"})
            row = AnswerCalibrationRow(**fields, arrays=arrays)
            yield StoredAnswers(row=row, active=header.active)

    def seen_rows(self) -> Iterator[SeenRowsRow]:
        """The rows that were shown, as :meth:`calibrations`."""
        for member in self.manifest.seen_rows:
            header, sketch = self._member(_SEEN_ROWS, member, SeenRowsHeader)
            yield SeenRowsRow(
                digest=header.id, seen_at=header.seen_at, terms=header.terms, sketch=sketch
            )

    def _member(self, folder: str, member: Member, kind: type[HeaderT]) -> tuple[HeaderT, bytes]:
        line, arrays = self._read(f"{folder}/{member.id}")
        if _sha256(line, arrays) != member.sha256:
            raise self._damaged(f"{folder}/{member.id} is not what the manifest says")
        try:
            return kind.model_validate_json(line), arrays
        except ValidationError as exc:
            raise self._damaged(f"{folder}/{member.id} cannot be read") from exc

    def _read_manifest(self) -> Manifest:
        text = b"".join(self._read(_MANIFEST))
        try:
            fields = strict_json.load_object(text)
        except InputError as exc:
            raise self._damaged(f"its manifest: {exc}") from exc
        if fields.get("format") != FORMAT:
            raise InputError(
                f"{self._path}: its format is {fields.get('format')!r}, this program reads "
                f"{FORMAT}: restore it with racer {fields.get('program')}, which wrote it"
            )
        try:
            return Manifest.model_validate(fields)
        except ValidationError as exc:
            problem = "; ".join(sentence for _, sentence in problems(exc, Manifest))
            raise self._damaged(f"its manifest: {problem}") from exc

    def _read(self, name: str) -> tuple[bytes, bytes]:
        """The first line, and the rest."""
        try:
            if self._file.getinfo(name).file_size > MEMBER_BYTES:
                raise self._damaged(f"{name} has more than {MEMBER_BYTES} bytes")
            with self._file.open(name) as member:
                return member.readline(), member.read()
        except _UNREADABLE as exc:
            raise self._damaged(f"{name} cannot be read") from exc

    def _damaged(self, what: str) -> InputError:
        return InputError(f"{self._path} is damaged: {what}")


def _sha256(line: bytes, arrays: bytes) -> str:
    sha256 = hashlib.sha256(line)
    sha256.update(arrays)
    return sha256.hexdigest()


def _decode(header: RecordHeader, arrays: bytes) -> StoredCalibration:
    row = CalibrationRow(
        id=header.id,
        created_at=header.created_at,
        artifact=header.artifact,
        document=header.document,
        arrays=arrays,
        digest=header.digest,
        chosen_at=header.chosen_at,
    )
    watches = tuple(
        WatchRow(calibration_id=header.id, **each.model_dump()) for each in header.watches
    )
    return StoredCalibration(row=row, active=header.active, watches=watches)
