"""Uploads of rows: accepted formats, resource limits and bounded memory."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.calibrations.columns import load
from app.calibrations.jobs import Progress
from app.calibrations.parsing import MAX_LINE_BYTES, ReadInstructions, parse
from app.calibrations.upload import Upload, spool_folder
from app.calibrations.upload_reader import read_rows
from app.errors import JobCancelled
from app.wire.candidate_payload import BodySettings
from racer_core.aggregation.answers import Equality
from racer_core.errors import InputError, RowsError
from racer_core.records.conversation import fingerprint
from racer_core.records.document import read_document
from racer_core.records.formats import read_parquet
from racer_core.types import RowsKind
from tests.kit.gateway import ADMIN_KEY, POOL, Serve, configure
from tests.kit.network import free_port
from tests.kit.processes import serving
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until

LABELS = '{"adder": true, "speller": false, "poet": false}'
LIST = RowsKind.QUESTIONS
QUIET = Progress(lambda: None)


def lines(count: int, start: int = 0) -> bytes:
    """NDJSON of ``count`` rows."""
    return b"".join(
        f'{{"query": "row {i}?", "correct": {LABELS}}}\n'.encode()
        for i in range(start, start + count)
    )


def order(name: str, **changes: Any) -> ReadInstructions:
    """What is to be read, as the gateway would ask for it."""
    instructions: dict[str, Any] = {
        "name": name, "source": name, "document": False, "pool": POOL, "query_chars": 8_192,
        "equality": Equality.EXACT, "text": "last_user", "salt": "salt", "samples_key": "00",
        "candidates": tuple(BodySettings(name=name, served_as=name) for name in POOL),
        "extra_fields": (),
    }  # fmt: skip
    return ReadInstructions(**instructions | changes)


def upload(data: bytes, folder: Path) -> Upload:
    """An upload that has come in."""
    return Upload(file=io.BytesIO(data), size=len(data), sha256="", name="x", folder=folder)


def on_disk(data: bytes, folder: Path) -> Upload:
    """The same in a file, so that another process can read it."""
    path = folder / "upload"
    path.write_bytes(data)
    return Upload(file=path.open("rb"), size=len(data), sha256="", name="x", folder=folder)


def ignore_field(_: dict[str, Any]) -> None:
    """Ignore the fields beside the rows."""


def refusal(data: bytes, name: str, folder: Path, **changes: Any) -> str:
    """What is wrong with a file that is read in a process of its own."""
    with on_disk(data, folder).file as file:
        sent = Upload(file=file, size=2**20, sha256="", name="x", folder=folder)
        with pytest.raises((RowsError, InputError)) as caught:
            read_rows(sent, order(name, **changes), QUIET, ignore_field)
    return str(caught.value)


# Columns --------------------------------------------------------------------------------------

RICH = [
    {"query": "What is 3 plus 4? é😀", "correct": ["adder"], "candidates": POOL, "group": "en",
     "answers": {"adder": "7", "speller": " 7.", "poet": "a rose"}},
    {"query": "Zahl?", "correct": [], "candidates": POOL, "answers": {"adder": None}},
    {"scores": {"poet": 0.25, "adder": 0.5, "speller": 1}, "correct": list(POOL),
     "candidates": POOL, "group": "de"},
]  # fmt: skip


@pytest.mark.parametrize("apart", [False, True], ids=["here", "in a process"])
@pytest.mark.parametrize("name", ["x.jsonl", "x.json"])
def test_columns_say_what_the_rows_said(tmp_path: Path, name: str, apart: bool) -> None:
    """Texts, labels, scores, groups, and who gave the same answer, here and from a process."""
    text = json.dumps(RICH) if name == "x.json" else "".join(f"{json.dumps(r)}\n" for r in RICH)
    data = text.encode()
    sent = on_disk(data, tmp_path)
    if apart:
        sent = Upload(file=sent.file, size=2**20, sha256="", name="x", folder=tmp_path)
    with sent.file:
        rows = read_rows(sent, order(name), QUIET, ignore_field)
    assert list(rows.queries) == ["What is 3 plus 4? é😀", "Zahl?", ""]
    assert rows.queries[1:] == ["Zahl?", ""]
    assert rows.labels.tolist() == [[True, False, False], [False] * 3, [True] * 3]
    assert rows.groups == ("en", None, "de")
    names = ("what is  3 PLUS 4? É😀", "zahl?", "\0row 2")  # alike but for case and space
    assert rows.fingerprints == tuple(fingerprint("salt", name) for name in names)
    assert rows.scores[2].tolist() == [0.5, 1.0, 0.25]
    assert np.isnan(rows.scores[:2]).all()
    assert rows.answers is not None
    assert rows.answers.classes.tolist() == [[0, 0, 1], [-1, -1, -1], [-1, -1, -1]]
    assert rows.answered.tolist() == [True, True, False]


# Hostile files --------------------------------------------------------------------------------


def repeated(text: str, rows: int) -> bytes:
    """Parquet in which a text stands once, and every row points at it."""
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), [text])
    buffer = io.BytesIO()
    table = pa.table({"query": column, "adder": np.ones(rows, np.int8)})
    pq.write_table(table, buffer, compression="zstd", store_schema=False)
    return buffer.getvalue()


def zeros(count: int) -> bytes:
    """Parquet whose footer declares far more bytes than the file has."""
    buffer = io.BytesIO()
    table = pa.table({"query": pa.array([b"\0" * count])})
    pq.write_table(table, buffer, compression="zstd", use_dictionary=False)
    return buffer.getvalue()


HOSTILE: dict[str, tuple[Callable[[], bytes], str, str]] = {
    "long line": (
        lambda: lines(1) + b'{"query": "' + b"y" * MAX_LINE_BYTES + b'"}\n' + lines(1, 1),
        "x.jsonl", "line 2: longer than 1,048,576 bytes",
    ),
    "endless line": (lambda: b"[" * (MAX_LINE_BYTES * 8), "x.jsonl", "line 1: longer"),
    "endless value": (lambda: b'{"rows": ["' + b"y" * MAX_LINE_BYTES * 4, "x.json", "row 1: "),
    "many brackets": (lambda: b'{"rows": ' + b"[" * 10_000_000, "x.json", "nested"),
    "many fields": (
        lambda: ("{" + ",".join(f'"{i}": 1' for i in range(99)) + ', "rows": []}').encode(),
        "x.json", "fields beside the rows",
    ),
    "rows twice": (lambda: b'{"rows": [], "rows": []}', "x.json", "same key twice"),
    "field twice": (lambda: b'{"a": 1, "a": 1, "rows": []}', "x.json", "same key twice"),
    "two documents": (lambda: b'{"rows": []} []', "x.json", "behind the document"),
    "comma at the end": (lambda: b'{"rows": [],}', "x.json", "not JSON"),
    "comma in the list": (lambda: b'{"rows": [{},]}', "x.json", "row 2: not JSON"),
    "no comma": (lambda: b'{"rows": [{} {}]}', "x.json", "row 2: not JSON"),
    "no end": (lambda: b'{"rows": [{}', "x.json", "row 2: not JSON"),
    "a name that is none": (lambda: b'{1: 2, "rows": []}', "x.json", "must be a string"),
    "endless cell": (lambda: b'query,adder\n"' + b"y" * 10_000_000, "x.csv", "line 2"),
    "many columns": (lambda: b"," * 1_001 + b"\n", "x.csv", "1,002 columns"),
    "nul": (lambda: b"query,adder\nhi\0?,1\n", "x.csv", "line 2: holds a NUL"),
    "utf-16 without mark": (lambda: "query,adder\n".encode("utf-16-le"), "x.csv", "NUL"),
    "surrogate": (lambda: b'{"query": "\\ud800", "correct": []}', "x.jsonl", "surrogate"),
    "cesu": (lambda: b'{"query": "\xed\xa0\x80"}', "x.jsonl", "line 1: not UTF-8"),
    "dictionary bomb": (lambda: repeated("y" * 2**20, 3_000), "x.parquet", "unpacks to more"),
    "many rows": (lambda: repeated("a", 10**7), "x.parquet", "more than 2,000,000 rows"),
    "rows of nothing": (lambda: repeated("a", 10**6), "x.parquet", "unpacks to more"),
    "footer bomb": (lambda: zeros(65 * 2**20), "x.parquet", "unpacks to more"),
    "wide parquet": (
        lambda: repeated_columns(1_001), "x.parquet", "1,001 columns, over the limit",
    ),
    "half a parquet": (lambda: repeated("a", 9)[:-9], "x.parquet", "not a parquet file"),
}  # fmt: skip


def repeated_columns(count: int) -> bytes:
    """Parquet with ``count`` columns."""
    buffer = io.BytesIO()
    pq.write_table(pa.table({str(i): [1] for i in range(count)}), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("rows", "most", "words"),
    [(300_000, 299_999, "more than 299,999 rows"), (300_000, None, "unpacks to more")],
)
def test_declared_sizes_are_checked_before_a_row_is_read(
    rows: int, most: int | None, words: str
) -> None:
    """The footer states them: a few bytes declare any number of rows that repeat themselves."""
    data = repeated("a", rows)
    assert len(data) < rows / 100
    with pytest.raises(InputError, match=words):
        read_parquet(io.BytesIO(data), most)
    _, read = read_parquet(io.BytesIO(repeated("a", 200_000)), 200_000)
    assert next(read) == (1, {"query": "a", "adder": 1})


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_one_sentence(tmp_path: Path, case: str) -> None:
    """Whatever it holds, it says what is wrong with it, and costs little memory and time."""
    make, name, words = HOSTILE[case]
    message = refusal(make(), name, tmp_path)
    assert words in message
    assert len(message) < 500
    assert "yyy" not in message
    assert "line 3" not in message


class ShortReads(io.BytesIO):
    """A file whose reads return at most ``step`` bytes."""

    def __init__(self, data: bytes, step: int) -> None:
        super().__init__(data)
        self._step = step

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes; none at the end."""
        del size
        return super().read(self._step)


@pytest.mark.parametrize("step", range(1, 9))
def test_a_document_may_be_cut_anywhere(step: int) -> None:
    """Read a few bytes at a time it says the same: characters, numbers, escapes and marks."""
    fields = {"alpha": 0.125, "candidates": ["é", "😀"], "rows": [{"a": 1.5e3}, ["\"x\\"], 12, "ü"],
            "delta": -0.5}  # fmt: skip
    for text in (json.dumps(fields), json.dumps(fields, ensure_ascii=False, indent=2)):
        document = read_document(ShortReads(b"\xef\xbb\xbf" + text.encode(), step))
        header, *rows = document.rows
        assert header == (0, {"candidates": fields["candidates"]})
        assert [value for _, value in rows] == fields["rows"]
        assert document.fields == {name: fields[name] for name in fields if name != "rows"}


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    """In every text format."""
    texts = {
        "x.jsonl": lines(1),
        "x.json": b"[" + lines(1) + b"]",
        "x.csv": b"query,adder,speller,poet\nrow 0?,1,0,0\n",
    }
    for name, data in texts.items():
        rows = read_rows(upload(b"\xef\xbb\xbf" + data, tmp_path), order(name), QUIET, ignore_field)
        assert list(rows.queries) == ["row 0?"]


def test_answers_stay_behind_where_texts_cannot_be_compared(tmp_path: Path) -> None:
    """Without an equality there are no classes, and the answers are not stored."""
    data = json.dumps(RICH[0]).encode()
    rows = read_rows(upload(data, tmp_path), order("x.jsonl", equality=None), QUIET, ignore_field)
    assert rows.answers is None
    assert rows.answered.tolist() == [True]


def test_columns_that_do_not_fit_are_refused() -> None:
    """The result of the process that parses untrusted bytes is checked."""
    texts, arrays = io.BytesIO(), io.BytesIO()
    source, counted = io.BytesIO(lines(3)), lambda *_: None
    parse(order("x.jsonl"), source, texts, arrays, fields=ignore_field, progress=counted)
    counts: dict[str, Any] = {"duplicates": 0, "near_duplicates": 0, "assumed": 0}
    assert len(load(POOL, texts, arrays, guessed_kind=LIST, **counts)) == 3
    cut = io.BytesIO(texts.getvalue()[:-1])
    for pool, written, words in ((POOL, cut, "do not fit"), (POOL[:2], texts, "shape")):
        with pytest.raises(ValueError, match=words):
            load(pool, written, arrays, guessed_kind=LIST, **counts)


def test_too_many_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit itself may be reached."""
    monkeypatch.setattr("app.calibrations.parsing.MAX_ROWS", 10)
    assert len(read_rows(upload(lines(10), tmp_path), order("x.jsonl"), QUIET, ignore_field)) == 10
    with pytest.raises(RowsError, match="more than 10 rows"):
        read_rows(upload(lines(11), tmp_path), order("x.jsonl"), QUIET, ignore_field)


def test_a_reader_that_dies_is_an_error_of_the_file(tmp_path: Path) -> None:
    """A crash of a parser, or the kernel ending it, is not a crash of the gateway."""
    with on_disk(lines(5_000), tmp_path).file as file:
        sent = Upload(file=file, size=2**20, sha256="", name="x", folder=tmp_path)

        def dies(done: int, total: int) -> None:
            children = subprocess.run(
                ["pgrep", "-P", str(os.getpid()), "-f", "app.calibrations.row_reader_process"],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            os.kill(int(children.stdout.split()[0]), 11)

        progress = Progress(lambda: dies(0, 0))
        with pytest.raises(RowsError, match=r"ended its reader \(exit code -11\)"):
            read_rows(sent, order("x.jsonl"), progress, ignore_field)


def test_fields_beside_the_rows_arrive_whole(tmp_path: Path) -> None:
    """Up to their limit, also where JSON escapes make them three times as long on the way."""
    junk = "é" * 500_000
    document = json.dumps({"junk": junk, "rows": [json.loads(lines(1))]}, ensure_ascii=False)
    heard: list[dict[str, Any]] = []
    sent = on_disk(document.encode(), tmp_path)
    with sent.file:
        rows = read_rows(sent, order("x.json", document=True), QUIET, heard.append)
    assert len(rows) == 1
    assert heard == [{"junk": junk}]


def test_cancelling_ends_the_reader_at_once(tmp_path: Path) -> None:
    """Even if it is silent: its first message never arrives."""
    document = b'{"rows": [' + b",".join(lines(400_000).splitlines()) + b'], "alpha": 0.2}'
    heard: list[dict[str, Any]] = []
    with on_disk(document, tmp_path).file as file:
        sent = Upload(file=file, size=2**20, sha256="", name="x", folder=tmp_path)
        progress = Progress(lambda: None)
        threading.Timer(0.2, progress.cancel).start()
        with pytest.raises(JobCancelled):
            read_rows(sent, order("x.json", document=True), progress, heard.append)
    assert heard == []


def test_a_reader_has_little_room_and_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment holds none of the gateway's secrets; memory and time are limited."""
    monkeypatch.setenv("RACER_ADMIN_KEY", "CANARY-of-the-environment")
    environments: list[str] = []
    limits: list[str] = []

    def look() -> None:
        if limits:  # each look reads what the whole machine runs
            return
        for process in Path("/proc").glob("[0-9]*"):
            try:
                is_reader = b"row_reader_process" in (process / "cmdline").read_bytes()
                if is_reader and f" {os.getpid()} " in (process / "stat").read_text():
                    environments.append((process / "environ").read_text())
                    limits.append((process / "limits").read_text())
            except OSError:
                continue

    with on_disk(lines(5_000), tmp_path).file as file:
        sent = Upload(file=file, size=2**20, sha256="", name="x", folder=tmp_path)
        read_rows(sent, order("x.jsonl"), Progress(look), ignore_field)
    assert environments
    assert not any("CANARY" in each for each in environments)
    found = dict(re.findall(r"^(Max [a-z ]+?)  +(\w+)", limits[-1], re.M))
    assert int(found["Max cpu time"]) == 120
    assert 2 * 2**30 < int(found["Max address space"]) < 4 * 2**30


# Through the gateway --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("store", "folder"),
    [
        ("sqlite:////data/racer.db", Path("/data")),
        ("sqlite:///racer.db", Path()),
        ("sqlite://", None),
        ("postgresql://user:secret@host/racer", None),
    ],
)
def test_uploads_are_put_beside_the_store(store: str, folder: Path | None) -> None:
    """Where there is disk: a system's temporary folder may be memory."""
    assert spool_folder(store) == folder


NAMES = ["../../../tmp/escaped.jsonl", "/etc/passwd", "..", "CON", "a\0b.jsonl", "x" * 500]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:12])
def test_a_files_name_is_never_a_path(serve: Serve, tmp_path: Path, name: str) -> None:
    """It determines the format only; no file of that name is written or read."""
    gateway = serve(calibrated=False)
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    answer = gateway.post("/calibrate", ADMIN_KEY, files={"file": (name, lines(20))})
    assert answer.status_code == 200, answer.text
    after = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert [path.suffix for path in after if path not in before] in ([], [".db"])


@pytest.mark.parametrize("form", [False, True], ids=["body", "form"])
def test_nothing_is_left_of_an_upload(serve: Serve, tmp_path: Path, form: bool) -> None:
    """Good or bad: only the store is in its folder, and no file stays open."""
    folder = tmp_path / "kept"
    folder.mkdir()
    gateway = serve(calibrated=False, store=f"sqlite:///{folder}/racer.db")
    padding = b"".join(
        json.dumps({**json.loads(line), "padding": "x" * 5_000}).encode() + b"\n"
        for line in lines(40).splitlines()
    )
    for data in (padding, padding + b"{", padding):
        sent: dict[str, Any] = {"files": {"file": ("rows.jsonl", data)}}
        if not form:
            sent = {"content": data, "headers": {"content-type": "application/x-ndjson"}}
        answer = gateway.post("/calibrate", ADMIN_KEY, **sent)
        assert answer.status_code == (422 if data.endswith(b"{") else 200), answer.text
    assert [path.name for path in folder.iterdir()] == ["racer.db"]
    assert not open_spools(folder)


def open_spools(folder: Path) -> list[str]:
    """Files without a name that this process still holds there."""
    found: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread closed it
            found.append(str(descriptor.readlink()))
    return [each for each in found if each.startswith(str(folder)) and "deleted" in each]


def test_an_upload_that_is_cut_changes_nothing(serve: Serve, tmp_path: Path) -> None:
    """The client leaves in mid-sentence: no record, no file, and the next upload is taken."""
    folder = tmp_path / "kept"
    folder.mkdir()
    gateway = serve(calibrated=False, store=f"sqlite:///{folder}/racer.db")
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        head = (
            f"POST /calibrate HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {ADMIN_KEY}\r\n"
            "content-type: application/x-ndjson\r\ncontent-length: 9000000\r\n\r\n"
        )
        client.sendall(head.encode() + lines(40_000)[:2_500_000])
        wait_until(lambda: bool(open_spools(folder)))  # it is being taken in
    wait_until(lambda: not open_spools(folder))
    assert gateway.get("/calibrations", ADMIN_KEY).json()["data"] == []
    assert gateway.calibrate(40)["active"] is True


@pytest.fixture(scope="module")
def apart(
    tmp_path_factory: pytest.TempPathFactory, artifact: Path, shared_pool: FakePool
) -> Iterator[tuple[httpx2.Client, int]]:
    """A gateway in its own process with a file size limit of 40 MB; a client and its process id."""
    folder, port = tmp_path_factory.mktemp("apart"), free_port()
    config = configure(folder, artifact, shared_pool.url, port=port)
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (40_000_000,) * 2); "
        "from app.cli.main import main; sys.argv = sys.argv[1:]; main()"
    )
    program = (sys.executable, "-c", limited, "racer")
    with serving(config, program, stderr=subprocess.DEVNULL) as (client, running):
        yield client, running.pid


def peak_resident(process: int) -> int:
    """The most memory that a process held since the last ``forget_peak``, in bytes."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    line = next(each for each in status.splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def forget_peak(process: int) -> None:
    """Lower the peak of the resident memory to what the process holds now."""
    Path(f"/proc/{process}/clear_refs").write_text("5", encoding="ascii")


@pytest.mark.parametrize("form", [False, True], ids=["body", "form"])
def test_an_upload_is_never_whole_in_memory(apart: tuple[httpx2.Client, int], form: bool) -> None:
    """32 MB come in and are read; the gateway grows by a quarter of that at most.

    A disk that is full is 507, and the gateway goes on.
    """
    client, process = apart
    padding = '"padding": "' + "x" * 500_000 + '", '
    fat = b"".join(
        line.replace(b"{", b"{" + padding.encode(), 1) + b"\n" for line in lines(64).splitlines()
    )

    def send(data: bytes) -> httpx2.Response:
        sent: dict[str, Any] = {"files": {"file": ("rows.jsonl", data)}}
        if not form:
            sent = {"content": data, "headers": {"content-type": "application/x-ndjson"}}
        return client.post("/calibrate?wait=true", timeout=60, **sent)

    assert send(lines(60, 1_000)).status_code == 200
    forget_peak(process)
    before = peak_resident(process)
    answer = send(fat)
    assert answer.status_code == 200, answer.text
    assert answer.json()["evidence"]["rows"] == 64
    assert peak_resident(process) - before < len(fat) / 4
    answer = send(fat + fat)
    assert answer.status_code == 507, answer.text
    assert answer.json()["error"]["code"] == "insufficient_storage"
    assert answer.headers["x-should-retry"] == "false"
    assert send(lines(60, 2_000)).status_code == 200
