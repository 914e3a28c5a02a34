"""Code blocks: each has a known tag, and its commands, options and files exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from app.cli import main

from .blocks import NEEDS, ROOT, Block, blocks

FOUND = blocks()
SHELL = [block for block in FOUND if block.kind == "sh"]
RACER = re.compile(r"^(?:\S*/)?racer$")
PYTHON = re.compile(r"^(?:\S*/)?python$")


def test_every_block_has_a_kind_and_a_known_tag() -> None:
    """Red for a bare fence, an unknown need, or a test file that does not exist."""
    for block in FOUND:
        assert block.kind in {"sh", "python", "json", "yaml", "toml", "sql", "text"}, block.place
        assert block.needs is None or block.needs in NEEDS, block.place
        assert block.run_by is None or (ROOT / block.run_by).is_file(), block.place


def test_ci_runs_the_blocks_tagged_as_run_by_it() -> None:
    """Red when .ci/run lacks a `make` of a block that it is said to run."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for block in SHELL:
        if block.run_by == ".ci/run":
            for line in block.text.splitlines():
                command = line.partition("#")[0].strip()
                assert re.search(rf"^{re.escape(command)}$", script, re.MULTILINE), block.place


def commands(block: Block) -> list[list[str]]:
    """Return the commands as a shell splits them, without assignments and comments."""
    text = re.sub(
        r"<<-?\s*'?(\w+)'?[^\n]*\n.*?^\s*\1$", "", block.text, flags=re.DOTALL | re.MULTILINE
    )
    lines = text.replace("\\\n", " ").splitlines()
    parts = [part for line in lines for part in re.split(r"&&|\||;", line.partition(" #")[0])]
    split = [shlex.split(part, posix=True) for part in parts if part.count('"') % 2 == 0]
    return [
        [word for word in words if "=" not in word.partition("/")[0] or word.startswith("--")]
        for words in split
    ]


@pytest.mark.parametrize("block", SHELL, ids=lambda block: block.place)
def test_commands_options_and_files_exist(block: Block) -> None:
    """Run or not: red when a command, one of its options, a script or a target is renamed."""
    for words in commands(block):
        match words:
            case [first, *rest] if RACER.match(first):
                check_racer(rest)
            case [first, script, *rest] if PYTHON.match(first) and script.endswith(".py"):
                check_script(ROOT / script, rest)
            case ["make", target, *_]:
                check_target(target)
            case _:
                pass


def check_racer(words: list[str]) -> None:
    """Check that the words after `racer` are a command with known options."""
    command: click.Command = main.cli
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        assert name in command.commands, f"racer {' '.join(words)}"
        command = command.commands[name]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    given = {word.partition("=")[0] for word in rest if re.match(r"--\w", word)}
    assert given <= known, f"racer {' '.join(words)}: {given - known}"


def check_script(path: Path, words: list[str]) -> None:
    """Check that the script, or a module beside it that it imports, declares these options."""
    assert path.is_file(), path
    text = path.read_text(encoding="utf-8")
    beside = (path.parent / f"{name}.py" for name in re.findall(r"^from (\w+) import", text, re.M))
    text += "".join(each.read_text(encoding="utf-8") for each in beside if each.is_file())
    for option in (word.partition("=")[0] for word in words if re.match(r"--\w", word)):
        assert f'"{option}"' in text, f"{path.name} {option}"


def check_target(name: str) -> None:
    """Check that the Makefile has this target."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{re.escape(name)}:", makefile, re.MULTILINE), name
