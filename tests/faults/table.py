"""The matrix as a table of Markdown: ``python -m tests.faults.table > table.md``.

It says what was seen, not what was expected; cells that differ from the catalogue are named on
standard error, and the exit status is then 1.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.offline.train import train
from tests.kit.gateway import labelled
from tests.kit.hostile.server import MODES

from .bench import AT_ONCE_OF, Bench, look_at_modes, look_at_place, open_bench
from .catalogue import GROUPS, PLACES
from .cells import Cell, Seen, Width
from .judge import complaints

_PLACES: Final[Mapping[str, str]] = {
    "refused": "the port is closed",
    "black_hole": "packets are dropped",
    "no_such_name": "the name does not resolve",
    "frozen": "the process is stopped",
    "tls_to_a_plain_port": "speaks no TLS where https is configured",
    "bad_certificate": "has a self-signed certificate",
}
_HEAD: Final = """\
| mode | the candidate | plain | streaming | certificate |
| --- | --- | --- | --- | --- |
"""


def rows(cells: Mapping[Cell, Seen]) -> Iterator[str]:
    """One line per mode: if all candidates have it, plain and streaming; if only one has it."""
    by_kind = {(cell.mode, cell.width, cell.streaming): seen for cell, seen in cells.items()}
    for mode in dict.fromkeys(cell.mode for cell in cells):
        what = _PLACES.get(mode) or MODES.get(mode, MODES.get(mode.partition(":")[0], ("",)))[0]
        shown = mode if len(mode) < 30 else f"{mode[:27]}..."
        plain = _plain(by_kind[mode, Width.ONE, False])
        streaming = _streaming(by_kind[mode, Width.ONE, True])
        certificate = _certificate(by_kind[mode, Width.TWO, False])
        yield f"| `{shown}` | {what} | {plain} | {streaming} | {certificate} |\n"


def _plain(seen: Seen) -> str:
    body = _json(seen.body)
    return f"{seen.status} `{body['error']['code']}`" if "error" in body else f"{seen.status}"


def _streaming(seen: Seen) -> str:
    if seen.status != 200:
        return _plain(seen)
    last = seen.body.decode().strip().rpartition("\n\n")[2].removeprefix("data: ")
    if last == "[DONE]":
        return "200, `[DONE]`"
    return f"200, error event `{_json(last.encode())['error']['code']}`"


def _certificate(seen: Seen) -> str:
    body = _json(seen.body)
    if "racer" not in body:
        return "none"
    certificate = body["racer"]["certificate"]
    return "holds" if certificate["holds"] else f"void: `{', '.join(certificate['reasons'])}`"


def _json(data: bytes) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(data))


def look_at_everything(bench: Bench) -> dict[Cell, Seen]:
    """The whole matrix."""
    cells: dict[Cell, Seen] = {}
    for place in PLACES:
        cells |= look_at_place(bench, place)
    for name, group in GROUPS.items():
        cells |= look_at_modes(bench, group, at_once=AT_ONCE_OF[name])
    return cells


def main() -> int:
    """Write the table; return the exit status."""
    with tempfile.TemporaryDirectory() as name:
        folder, artifact = Path(name), Path(name) / "artifact"
        artifact.mkdir()
        train(
            labelled(0, 400), labelled(5_000, 200), artifact, encoder=CharNgramEncoder(), kind="knn"
        )
        with open_bench(folder, artifact) as bench:
            cells = look_at_everything(bench)
    sys.stdout.write(_HEAD + "".join(rows(cells)))
    failed = [
        f"{cell.name}: {problem}"
        for cell, seen in cells.items()
        for problem in complaints(cell, seen)
    ]
    sys.stderr.write("".join(f"{each}\n" for each in failed))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
