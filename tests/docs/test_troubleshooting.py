"""docs/troubleshooting.md: every error and every reason is there, and what it names exists."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from app.api.routes import ROUTES
from app.cli.console import DEFAULT_URL
from app.cli.main import cli
from app.errors import STATUS
from app.routing.reasons import Reason, breaks
from tests.app.test_configuration_doc import SETTINGS
from tests.docs.links import dead_links

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
PROSE = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
SPANS = sorted(set(re.findall(r"`([^`\n]+)`", PROSE)))
FIRST_CELLS = re.findall(r"^\| (.+?) \|", PROSE, re.MULTILINE)
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
SOURCES = sorted(path for name in ("app", "racer_core") for path in (ROOT / name).rglob("*.py"))

ERROR = re.compile(r"^\| (\d{3}) \| `(\w+)` \| [^|]+ \| [^|]+ \|$", re.MULTILINE)
API_ERROR = re.compile(r"^\| (\d{3}) \| `\w+` \| `(\w+)` \|", re.MULTILINE)
REASON = re.compile(r"^\| `(\w+)((?::<name>)?)` \| [^|]+ \| [^|]+ \|$", re.MULTILINE)
DOOR = re.compile(r"(?:GET|POST|DELETE) /")
COMMANDS = {"racer", "curl", "pip", "make", "hf", "nvidia-smi"}
SECTIONS = {name.split(".")[0].removesuffix("[]") for name in SETTINGS if "." in name}
SETTING = re.compile(rf"\b(?:{'|'.join(sorted(SECTIONS))})(?:\[\])?\.[a-z][\w.\[\]]*")


def section(heading: str) -> str:
    """What stands under a heading, up to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert found is not None, heading
    return found[1]


def commands() -> Iterator[str]:
    """Those of the blocks, a line each, and those within sentences."""
    for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            yield line.partition("   #")[0]
    yield from (span for span in SPANS if span.split()[0] in COMMANDS and " " in span)


@cache
def sentences() -> tuple[str, ...]:
    """Every string of the program, with `...` for what is filled in."""
    return tuple(each for path in SOURCES for each in strings(path.read_text(encoding="utf-8")))


def strings(source: str) -> Iterator[str]:
    """Plain ones, with those of logging's placeholders, and f-strings whole."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = (
                str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values
            )
            yield "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%[sd]", "...", node.value)


def says(sentence: str, quoted: str) -> bool:
    """Whether a quotation's pieces, between its `...`, stand in a sentence in this order."""
    pieces = (re.escape(piece) for piece in re.split(r"\.{3,}", quoted))
    return re.search(".*".join(pieces), sentence, re.DOTALL) is not None


def test_every_error_has_its_row() -> None:
    """With its status, once each, and none that nobody says. Red when an error is added."""
    rows = [(int(status), code) for status, code in ERROR.findall(TEXT)]
    assert len(set(rows)) == len(rows)
    assert {(status, code) for status, _, code in STATUS.values()} <= set(rows)
    # The table of the interface has those beside the classes, too; its own test keeps it whole.
    assert set(rows) == {(int(status), code) for status, code in API_ERROR.findall(API)}


@pytest.mark.parametrize(
    ("heading", "void"), [("Answers without a guarantee", True), ("Reasons that hold", False)]
)
def test_every_reason_has_its_row_where_it_belongs(heading: str, void: bool) -> None:
    """Red when a reason is added, or voids from now on, and the tables stay."""
    rows = REASON.findall(section(heading))
    assert sorted(name for name, _ in rows) == sorted(
        reason.value for reason in Reason if breaks(reason) == void
    )


def test_a_reason_that_names_somebody_says_so() -> None:
    """The same as in the table of docs/design.md."""
    design = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(\w+):<name>`", design, re.MULTILINE))
    rows = REASON.findall(section("Answers without a guarantee") + section("Reasons that hold"))
    assert {name for name, who in rows if who} == named


def test_every_setting_that_is_named_exists() -> None:
    """In whole, also of lists. Red when a setting is renamed."""
    named = {name for span in SPANS for name in SETTING.findall(span)}
    assert len(named) > 50
    known = {*SETTINGS, *(name.rpartition(".")[0] for name in SETTINGS)}
    assert named - known == set()


def test_every_metric_that_is_named_exists() -> None:
    """As Prometheus shows them: counters end in `_total`. Red when a metric is renamed."""
    named = {name for span in SPANS for name in re.findall(r"\bracer_[a-z_]+", span)}
    assert len(named) > 10
    source = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    made = re.findall(r'\b(Counter|Gauge|Histogram)\(\s*"(racer_\w+)"', source)
    shown = {f"{name}_total" if kind == "Counter" else name for kind, name in made}
    assert named - shown == set()


def test_every_door_that_is_named_exists() -> None:
    """Red when an endpoint is renamed."""
    named = {span for span in SPANS if DOOR.match(span)}
    assert len(named) > 5
    assert named - {route.name for route in ROUTES} == set()


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_a_command_exists_with_its_options(line: str) -> None:
    """Commands of `racer`, endpoints of curl, targets of make, extras of pip."""
    words = shlex.split(line)
    match words[0]:
        case "racer":
            check_racer(words[1:])
        case "curl":
            assert door(words) in {re.sub(r"\{\w+\}", "{}", each.name) for each in ROUTES}
        case "make":
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE)
        case "pip":
            project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
            (extra,) = re.findall(r"^racer-gateway\[(\w+)\]$", words[-1])
            assert extra in project["project"]["optional-dependencies"]
        case other:
            assert other in COMMANDS


def check_racer(words: list[str]) -> None:
    """Every subcommand and every option is known."""
    command: click.Command = cli
    for word in words:
        if isinstance(command, click.Group):
            assert word in command.commands
            command = command.commands[word]
        elif word.startswith("--"):
            assert any(word in (*each.opts, *each.secondary_opts) for each in command.params)


def door(words: list[str]) -> str:
    """What a line of curl asks for, as the table of doors has it."""
    (url,) = [word for word in words if word.startswith(DEFAULT_URL)]
    method = words[words.index("-X") + 1] if "-X" in words else "POST" if "-d" in words else "GET"
    return f"{method} {url.removeprefix(DEFAULT_URL).replace('chatcmpl-...', '{}')}"


@pytest.mark.parametrize(
    "quoted",
    sorted(
        {
            span
            for cell in FIRST_CELLS
            for span in re.findall(r"`([^`]+)`", cell)
            if " " in span and not DOOR.match(span)
        }
        | {span for span in SPANS if span.count(" ") > 2 and span.split()[0] not in COMMANDS}
    ),
)
def test_a_sentence_is_one_that_the_program_says(quoted: str) -> None:
    """Letter by letter but for `...`. Red when an error's words change."""
    assert any(says(sentence, quoted) for sentence in sentences())


def test_every_link_leads_somewhere() -> None:
    """Files, and headings in them. Red when either is renamed."""
    assert dead_links(ROOT / "docs" / "troubleshooting.md") == []
