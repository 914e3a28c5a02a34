"""Properties of every `racer` command, found by enumeration."""

from __future__ import annotations

import socket
from pathlib import Path

import click
import pytest

from app.cli.console import JSON
from tests.kit.commands import COMMANDS, WITHOUT_JSON
from tests.kit.gateway import Command

# Commands that read neither a file nor a gateway: nothing of theirs can be missing.
WITHOUT_INPUT = {"schema", "completion", "key new"}
# Of those with a configuration and further files, the one that writes its file and reads none.
WRITES = "backup"
UNREACHABLE = "http://127.0.0.1:1"


def json_option(command: click.Command) -> click.Parameter | None:
    """Its `--json`, if it has one."""
    return next((each for each in command.params if "--json" in each.opts), None)


def test_every_command_prints_json_or_says_why_not() -> None:
    """One mechanism for all. Red when a command is added without it, or a reason is left over."""

    @click.command()
    @JSON
    def usual() -> None:
        """The option as `app.cli.console` makes it."""

    expected = json_option(usual)
    assert expected is not None
    without = {name for name, command in COMMANDS.items() if json_option(command) is None}
    assert without == set(WITHOUT_JSON)
    for name in set(COMMANDS) - without:
        option = json_option(COMMANDS[name])
        assert option is not None
        assert option.to_info_dict() == expected.to_info_dict(), name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_a_sentence(racer: Command, name: str) -> None:
    """`-h` works, and says what each does. Red when a docstring or a `help` is forgotten."""
    command = COMMANDS[name]
    assert (command.help or "").strip()
    assert [
        each.opts for each in command.params if isinstance(each, click.Option) and not each.help
    ] == []
    code, out, stderr = racer(*name.split(), "-h")
    assert (code, stderr) == (0, "")
    assert all(opt in out for each in command.params for opt in each.opts[:1] if opt[0] == "-")


def is_file(parameter: click.Parameter) -> bool:
    """Whether a file is meant."""
    return isinstance(parameter.type, click.Path)


def arguments(command: click.Command, path: Path, config: Path) -> list[str]:
    """The command's required arguments: one file for every path, and unreachable addresses."""
    given: list[str] = []
    for each in command.params:
        if isinstance(each, click.Argument):
            given.append(str(path) if is_file(each) else UNREACHABLE)
        elif "--config" in each.opts:
            given += ["--config", str(config)]
        elif "--url" in each.opts and "--config" not in given:
            given += ["--url", UNREACHABLE]
        elif isinstance(each.type, click.Choice) and each.required:
            given += [each.opts[0], each.type.choices[0]]
        elif each.required:
            given += [each.opts[0], str(path)]
    return given


def broken(kind: str, folder: Path) -> Path:
    """A path that is no file, or a file with unusable contents."""
    path = folder / "given"
    match kind:
        case "a folder":
            path.mkdir()
        case "empty":
            path.touch()
        case "bytes":
            path.write_bytes(bytes(range(256)))
        case "a misspelt field":
            path.write_text('{"schema_version": 1, "candidats": []}\n')
        case _:
            return folder / "nothing" / "there"
    return path


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - WITHOUT_INPUT))
@pytest.mark.parametrize("kind", ["missing", "a folder", "empty", "bytes", "a misspelt field"])
def test_an_unreadable_file_is_a_one_line_error(
    racer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    """Whatever file or configuration is wrong: no traceback, no half a result, no code 0."""
    monkeypatch.chdir(tmp_path)
    path = broken(kind, tmp_path)
    with socket.socket() as taken:  # which the demo would serve at
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        extra = ["--port", str(taken.getsockname()[1])] if name == "demo" else []
        code, out, stderr = racer(*name.split(), *arguments(COMMANDS[name], path, path), *extra)
    if name == "doctor":  # its sentences stand in a table
        assert (code, stderr) == (1, "")
        assert "failed" in out
        return
    is_refused(code, out, stderr)


def is_refused(code: int, out: str, stderr: str) -> None:
    """One sentence, and nothing that looks like a result."""
    assert code in (1, 2, 3), out
    assert "Traceback" not in stderr
    assert out == ""
    sentences = [line for line in stderr.splitlines() if line.startswith("racer: ")]
    assert len(sentences) == 1
    assert stderr.splitlines()[-1] == sentences[0]


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, command in COMMANDS.items()
        if any("--config" in each.opts for each in command.params)
        and any(is_file(each) and "--config" not in each.opts for each in command.params)
        and name != WRITES
    ],
)
@pytest.mark.parametrize("kind", ["missing", "a folder", "empty", "bytes", "a misspelt field"])
def test_an_unreadable_file_beside_a_valid_configuration_is_a_one_line_error(
    racer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    """Rows, questions and backups: the configuration is read first, and hides them above."""
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "racer.yaml"
    config.write_text(
        f"{{schema_version: 1, candidates: [{{name: a, base_url: '{UNREACHABLE}/v1'}}]}}\n"
    )
    path = broken(kind, tmp_path)
    code, out, stderr = racer(*name.split(), *arguments(COMMANDS[name], path, config))
    is_refused(code, out, stderr)
    assert str(config) not in stderr
