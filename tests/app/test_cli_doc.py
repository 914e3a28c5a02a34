"""The command reference: its commands run, and it names every command, exit code and check."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli import main
from app.cli.doctor import EXIT_UNHEALTHY
from app.cli.verify import EXIT_DIFFERS
from racer_core.offline.assertions import NAMES
from tests.kit.commands import COMMANDS, WITHOUT_JSON
from tests.kit.upstream import FakePool

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")


def test_every_command_is_named_and_no_other() -> None:
    """Red when a command is added, renamed or removed and the document is not."""
    headings = re.findall(r"^## `racer ([^`]+)`$", DOCUMENT, re.MULTILINE)
    names = [re.sub(r" (?:[A-Z_]+|[\[{]).*", "", heading) for heading in headings]
    assert sorted(names) == sorted(COMMANDS)
    found = re.search(r"on every command but four: ([^.]*)\.", DOCUMENT)
    assert found is not None
    assert set(re.findall(r"`(\w+)`", found[1])) == set(WITHOUT_JSON)


def test_every_exit_code_is_documented() -> None:
    """Red when one is added or means something else."""
    found = {int(code) for code in re.findall(r"^\| (\d+) \|", DOCUMENT, re.MULTILINE)}
    known = {main.EXIT_REFUSED, main.EXIT_CONFIGURATION, main.EXIT_UNREACHABLE}
    assert found == known | {0, 130, EXIT_UNHEALTHY, EXIT_DIFFERS}


def test_every_check_of_the_doctor_is_in_its_table() -> None:
    """One line for each module of checks. Red when one is added in silence."""
    section = DOCUMENT.partition("## `racer doctor`")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([a-zA-Z]+)[ ,]", section, re.MULTILINE)
    modules = {path.stem for path in (ROOT / "app" / "tools" / "doctor").glob("*.py")}
    checks = modules - {"__init__", "finding", "run"}
    assert {row.lower() for row in rows} - {"check"} == {
        *({each.rstrip("s") for each in checks}),
        "disk",  # the store's
    }


def test_every_measure_of_assertions_is_documented() -> None:
    """Red when a measure gets another name."""
    section = DOCUMENT.partition("## `racer evaluate`")[2].partition("\n## ")[0]
    assert set(NAMES) <= set(re.findall(r"`(\w+)`", section))


def test_the_readme_names_the_commands() -> None:
    """Those that have one word; `racer --help` has the rest."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "docs/reference/cli.md" in text
    for name in ("init", "doctor", "label", "train", "tune", "evaluate", "serve", "calibrate"):
        assert f"`racer {name}`" in text


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_its_commands_run(tmp_path: Path) -> None:
    """Word for word, but for addresses. Red when one fails or leaves something else behind."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"HOME": str(tmp_path), "PATH": path}

    def run(block: str) -> str:
        command = ["bash", "-euc", block]
        return subprocess.check_output(command, cwd=tmp_path, env=environment, text=True)

    *completions, doctor, first = re.findall(r"```sh\n(.*?)```", DOCUMENT, re.DOTALL)
    with FakePool(models=["qwen"]) as one, FakePool(models=["llama"]) as two:
        for place, server in enumerate((one, two), 1):
            assert f"http://10.0.0.{place}:8000" in first
            first = first.replace(f"http://10.0.0.{place}:8000", server.url)
        run(first)
        config = tmp_path / "racer.yaml"
        text = config.read_text()
        config.write_text(text.replace("port: 8080", "port: 0"))  # 8080 may be in use
        assert json.loads(run(doctor))["healthy"] is True
    (modeline,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    assert text.startswith(modeline)
    assert len(completions) == 3
    for block in completions:
        run(block)
        written = tmp_path / block.partition("> ~/")[2].split()[0]
        assert "_RACER_COMPLETE" in written.read_text()
