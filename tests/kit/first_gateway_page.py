"""Runs the commands of docs/quickstart.md, word for word, as a reader would."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2

from racer_core.types import LabelledRow
from tests.kit.network import free_port

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "quickstart.md"
HEADING: Final = "## From three servers to a certificate"
DEMO: Final = ROOT / "deploy" / "demo"
# The two values that the page asks its reader to change.
SERVERS: Final = '"http://10.0.0.1:8000 http://10.0.0.2:8000 http://10.0.0.3:8000"'
PORT: Final = "PORT=8080"
_BLOCK: Final = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_START_S: Final = 120.0
_RACER: Final = """#!{python}
from app.cli.main import main

main()
"""


def blocks() -> list[tuple[str, str]]:
    """Language and text of every block of the section that is to be run."""
    return [(found[1], found[2]) for found in _BLOCK.finditer(section())]


def section() -> str:
    """The part of the page that leads from servers to a certificate."""
    return PAGE.read_text(encoding="utf-8").partition(HEADING)[2]


def ask_these(rows: Iterable[LabelledRow], folder: Path) -> None:
    """The reader's questions."""
    lines = (json.dumps({"query": row.query, "reference": row.reference}) for row in rows)
    (folder / "questions.jsonl").write_text("".join(f"{line}\n" for line in lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """A reader at the end of the page, whose gateway still runs.

    Attributes:
        before: What the first terminal printed before serving.
        after: The same after it.
        seconds: By command, how long it took.
        url: The gateway.
        key: Its data key.
        folder: Where the reader is.
    """

    before: str
    after: str
    seconds: Mapping[str, float]
    url: str
    key: str
    folder: Path

    def types(self, line: str) -> str:
        """What one more line prints in the first terminal."""
        return _run(_SOURCED + line, self.folder)


def walk(folder: Path, servers: Sequence[str]) -> list[str]:
    """Run the page from the top to the bottom.

    Args:
        folder: Where ``questions.jsonl`` is, and where all else goes.
        servers: Addresses of the three servers.

    Returns:
        What each terminal printed: before serving, and after.
    """
    with walked(folder, servers) as found:
        return [found.before, found.after]


@contextmanager
def walked(folder: Path, servers: Sequence[str]) -> Generator[Walked]:
    """The same, with the gateway at the end."""
    port = free_port()
    page_blocks = blocks()
    place = next(i for i, (_, text) in enumerate(page_blocks) if "racer serve" in text)
    seconds: dict[str, float] = {}
    kind, text = page_blocks[0]
    for value, mine in ((SERVERS, f'"{" ".join(servers)}"'), (PORT, f"PORT={port}")):
        assert text.count(value) == 1, value
        text = text.replace(value, mine)
    before = _typed([(kind, text), *page_blocks[1:place]], folder, seconds)
    with _serving(page_blocks[place][1], folder, port, seconds):
        after = _typed(page_blocks[place + 1 :], folder, seconds)
        keys = (folder / "keys.sh").read_text(encoding="utf-8")
        yield Walked(
            before=before,
            after=after,
            seconds=seconds,
            url=f"http://127.0.0.1:{port}",
            key=keys.partition("RACER_DATA_KEY=")[2].split()[0],
            folder=folder,
        )


_SOURCED: Final = "if [ -f keys.sh ]; then . ./fleet.sh && . ./keys.sh; fi\n"


def _typed(page_blocks: Sequence[tuple[str, str]], folder: Path, seconds: dict[str, float]) -> str:
    """One block after the other, and of plain commands one line after the other."""
    printed: list[str] = []
    for kind, text in page_blocks:
        if kind == "python":
            parts = [f"python - <<'PYTHON'\n{text}PYTHON\n"]
        else:
            parts = [text] if "<<" in text else text.splitlines(keepends=True)
        for part in parts:
            started = time.monotonic()
            printed.append(_run(_SOURCED + part, folder))
            name = part.splitlines()[0]
            while name in seconds:
                name += " (again)"
            seconds[name] = time.monotonic() - started
    return "".join(printed)


def _run(script: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


@contextmanager
def _serving(script: str, folder: Path, port: int, seconds: dict[str, float]) -> Generator[None]:
    """The second terminal, until its gateway answers, and Ctrl-C at the end."""
    log, started = folder / "gateway.log", time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=_environment(folder),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + _START_S
        while not _answers(port):
            assert process.poll() is None, log.read_text()[-6000:]
            assert time.monotonic() < deadline, log.read_text()[-6000:]
            time.sleep(0.1)
        seconds[script.splitlines()[-1]] = time.monotonic() - started
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _answers(port: int) -> bool:
    with suppress(httpx2.TransportError):
        url = f"http://127.0.0.1:{port}/healthz"
        return httpx2.get(url, timeout=5, verify=False, trust_env=False).status_code == 200
    return False


def _environment(folder: Path) -> dict[str, str]:
    """The reader's: `racer` on the path, and no hub."""
    racer = folder / "bin" / "racer"
    if not racer.exists():
        racer.parent.mkdir()
        racer.write_text(_RACER.format(python=sys.executable))
        racer.chmod(0o755)
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RACER_", "OPENAI_", "HF_"))
    }
    return variables | {
        "PATH": os.pathsep.join(
            [str(racer.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
        ),
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",  # other tests have the other cores
    }
