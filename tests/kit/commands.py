"""Commands of ``racer``: as click reads them, the bars they show, the packages they find."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest

from app.cli import main
from app.cli.main import cli
from app.tools.gateway_client import Progress


def group() -> click.Context:
    """The `racer` that a command is parsed below.

    click keeps a command's help option from its first parse: one that is parsed without the
    settings of the group would lose `-h` for the whole process.
    """
    return click.Context(main.cli, **main.cli.context_settings)


def command(name: str) -> Any:
    """One of the commands, or of groups of commands."""
    return main.cli.commands[name]


def parsed(name: str, words: Sequence[str]) -> dict[str, Any]:
    """The parameters of a command behind its name."""
    return command(name).make_context(name, list(words), parent=group()).params


def recorded_bars(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What the bars will show: stage, done, total."""
    shown: list[tuple[str, int, int]] = []

    @contextmanager
    def record(_silent: bool) -> Generator[Progress]:
        yield lambda stage, done, total: shown.append((stage, done, total))

    monkeypatch.setattr("app.cli.label.progress_bars", record)
    return shown


def install(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    *,
    module: str,
    entry_points: dict[str, str],
    name: str = "test-router",
    version: str = "1.0",
) -> None:
    """Write a package into a folder of its own on the path, for as long as a test runs."""
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (folder / f"{module}.py").write_text(source, encoding="utf-8")
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"{key} = {value}" for key, value in entry_points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[racer.routers]", *lines, ""]))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, module, raising=False)
    importlib.invalidate_caches()


# Commands whose stdout is not a result for people, and why.
WITHOUT_JSON = {
    "serve": "runs until it is stopped; its log is JSON by `telemetry.log`",
    "encoder": "runs until it is stopped; its log is JSON by `telemetry.log`",
    "schema": "prints JSON anyway",
    "completion": "prints a script for a shell",
}


def leaves(group: click.Group = cli, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command as it is typed."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, (*before, name))
        else:
            yield (*before, name)


def found(words: tuple[str, ...]) -> click.Command:
    """The command behind its words."""
    command: click.Command = cli
    for word in words:
        assert isinstance(command, click.Group)
        command = command.commands[word]
    return command


COMMANDS = {" ".join(words): found(words) for words in leaves()}
