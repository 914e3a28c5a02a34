"""Names in the documents: settings, metrics, endpoints, messages and links must exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from app.api.routes import ROUTES
from docs.reference.generate import settings
from tests.docs.links import dead_links

from .blocks import DOCUMENTS, ROOT

SETTINGS = dict(settings())
PAGES = sorted((ROOT / "docs").rglob("*.md"))
LINKED = (
    *DOCUMENTS,
    *(ROOT / name for name in ("SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    ROOT / "benchmarks/README.md",
)
SOURCES = sorted(path for name in ("app", "racer_core") for path in (ROOT / name).rglob("*.py"))
ROUTE = re.compile(r"(?:GET|POST|DELETE) /\S*")
SECTIONS = sorted({re.split(r"\.|\[\]", name)[0] for name in SETTINGS if "." in name})
SETTING = re.compile(rf"\b(?:{'|'.join(SECTIONS)})(?:\[\])?\.[a-z][\w.\[\]<>]*")


def prose(path: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def spans(path: Path) -> list[str]:
    """What a page has between backticks."""
    return sorted(set(re.findall(r"`([^`\n]+)`", prose(path))))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_setting_that_is_named_exists(path: Path) -> None:
    """In whole, also of lists. Red when a setting is renamed."""
    named = {name.rstrip(".") for span in spans(path) for name in SETTING.findall(span)}
    known = {*SETTINGS, *(name.rpartition(".")[0] for name in SETTINGS)}
    files = {name for name in named if name.endswith((".py", ".md", ".json", ".yaml"))}
    assert named - known - files - {name for name in named if f"{name}[]" in known} == set()


def test_every_metric_that_is_named_exists() -> None:
    """As Prometheus shows them: counters end in `_total`. Red when a metric is renamed."""
    named = {
        name
        for path in PAGES
        for span in spans(path)
        if not span.startswith(("app/", "racer_core", "pytest", "tests/", "deploy"))
        for name in re.findall(r"\bracer_(?!gateway\b)[a-z_]+", span)  # that is a module
    }
    assert len(named) > 25
    source = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    made = re.findall(r'\b(Counter|Gauge(?:MetricFamily)?|Histogram)\(\s*"(racer_\w+)"', source)
    shown = {f"{name}_total" if kind == "Counter" else name for kind, name in made}
    shown |= {f"{name}_created" for kind, name in made if kind == "Histogram"}
    assert named - shown == set()
    assert shown - {name for name in shown if name.endswith("_created")} - named == set()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_endpoint_that_is_named_exists(path: Path) -> None:
    """Red when an endpoint is renamed."""
    named = {found[0] for span in spans(path) if (found := ROUTE.match(span))}
    known = {re.sub(r"\{\w+\}", "{}", route.name) for route in ROUTES}
    assert {re.sub(r"\{\w+\}", "{}", name) for name in named} - known == set()


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


def test_a_message_that_the_errors_quote_is_one_that_the_program_says() -> None:
    """Red when the words of the log line change."""
    quoted = [span for span in spans(ROOT / "docs/reference/errors.md") if span.count(" ") > 3]
    assert quoted
    for message in quoted:
        if not message.startswith(("{", "authorization", "racer ")):
            assert any(message in sentence for sentence in sentences()), message


@pytest.mark.parametrize("path", LINKED, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    """Files, and headings in them. Red when either is renamed."""
    assert dead_links(path) == []


@pytest.mark.parametrize("path", LINKED, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_link_that_names_a_page_leads_to_it(path: Path) -> None:
    """`[page.md](other.md)` misleads. Red when a page is renamed and its label stays."""
    links = re.findall(r"\[([\w/.-]+\.md)\]\(([^)#]+)", path.read_text(encoding="utf-8"))
    assert [each for each in links if Path(each[0]).name != Path(each[1]).name] == []


def test_documents_named_in_code_exist() -> None:
    """Messages, comments and manifests name documents that exist. Red when a page is renamed."""
    folders = ("app", "racer_core", "deploy", "benchmarks", "tests")
    files = [path for name in folders for path in (ROOT / name).rglob("*")]
    for path in (*files, ROOT / "pyproject.toml", ROOT / "Makefile"):
        if path.suffix in {".py", ".yml", ".yaml", ".md", ".json", ".toml", ".sh", ".html"}:
            text = path.read_text(encoding="utf-8")
            for page in re.findall(r"\bdocs/([\w/-]+\.md)\b", text):
                assert (ROOT / "docs" / page).is_file(), f"{path}: docs/{page}"


def test_no_class_is_called_by_a_participle() -> None:
    """A class name is a noun: `RouterScores`, not `Scored`. Exceptions may be participles.

    Red when a class `Routed` appears.
    """
    folders = ("app", "racer_core", "benchmarks", "deploy", "tests")
    for path in (path for name in folders for path in (ROOT / name).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not re.search(r"\bclass\s+_?[A-Z][a-z]+ed\b", text):  # parsing all files takes 2 s
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and re.fullmatch(r"_?[A-Z][a-z]+ed", node.name):
                bases = " ".join(map(ast.unparse, node.bases))
                assert re.search("Error|Exception", bases), f"{path}: {node.name} is no noun"
