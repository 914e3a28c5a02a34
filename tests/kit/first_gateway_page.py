"""Runs the commands of docs/quickstart.md, word for word, as a reader would."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
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


def walk(folder: Path, servers: Sequence[str]) -> list[str]:
    """Run the page from the top to the bottom.

    Args:
        folder: Where ``questions.jsonl`` is, and where all else goes.
        servers: Addresses of the three servers.

    Returns:
        What each terminal printed: before serving, and after.
    """
    port = free_port()
    page_blocks = blocks()
    place = next(i for i, (_, text) in enumerate(page_blocks) if "racer serve" in text)
    first = _typed(page_blocks[:place])
    for value, mine in ((SERVERS, f'"{" ".join(servers)}"'), (PORT, f"PORT={port}")):
        assert first.count(value) == 1, value
        first = first.replace(value, mine)
    before = _run(first, folder)
    with _serving(page_blocks[place][1], folder, port):
        after = _run(". ./fleet.sh && . ./keys.sh\n" + _typed(page_blocks[place + 1 :]), folder)
    return [before, after]


def _typed(page_blocks: Sequence[tuple[str, str]]) -> str:
    """Blocks one after the other in one shell."""
    return "".join(
        text if kind == "sh" else f"python - <<'PYTHON'\n{text}PYTHON\n"
        for kind, text in page_blocks
    )


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
def _serving(script: str, folder: Path, port: int) -> Generator[None]:
    """The second terminal, until its gateway answers, and Ctrl-C at the end."""
    log = folder / "gateway.log"
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
        "HF_HUB_OFFLINE": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",  # other tests have the other cores
    }
