"""What is installed: pinned by constraints.txt, from a checkout or a wheel; CI skips none of it."""

import ast
import importlib.metadata as metadata
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from racer_core.errors import install_hint
from tests.kit.required import PROGRAMS

from .constraints import canonical, pins
from .dockerfile import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
DIRECT = [Requirement(each) for each in PROJECT["dependencies"]]
ALL = [
    each
    for each in DIRECT + [Requirement(line) for lines in EXTRAS.values() for line in lines]
    if each.name != PROJECT["name"]
]
# Declared and never imported by name, and why all the same.
UNSEEN = {
    "plotly": "its script is served, and draws in the browser",
    "protobuf": "transformers reads mDeBERTa's vocabulary with it",
    "sentencepiece": "so too",
    "python-multipart": "starlette's parser of uploads",
    "wordllama": "the encoder of its name reads its files",
}


def installed(name: str) -> str | None:
    """The version here without its build's suffix, or None."""
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        return None


def imported(paths: Iterable[Path]) -> set[str]:
    """Distributions that modules import."""
    names: set[str] = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    names -= {"app", "racer_core", *sys.stdlib_module_names}
    return {canonical(owners()[name][0]) for name in names}


@cache
def owners() -> Mapping[str, list[str]]:
    """Distributions by the module that they install; reads the files of all of them."""
    return metadata.packages_distributions()


@pytest.mark.parametrize("wanted", ALL, ids=lambda each: each.name)
def test_every_direct_dependency_has_a_pin_in_its_range(wanted):
    """Red when one is added without a pin, or its range moves past the pin."""
    pinned = pins()
    assert canonical(wanted.name) in pinned
    assert pinned[canonical(wanted.name)] in wanted.specifier


def test_installed_versions_are_the_pinned_ones():
    """Red when this environment is not the one that `make setup` makes."""
    here = {name: installed(name) for name in pins()}
    assert here == pins()


def test_the_pins_are_closed_under_what_packages_require():
    """Red when something that a pinned package needs here is left to the package index."""
    pinned = pins()
    required = {(name, "") for name in pinned}
    required |= {(canonical(each.name), extra) for each in ALL for extra in each.extras}
    missing = {
        f"{name} requires {requirement}"
        for name, extra in required
        for requirement in map(Requirement, metadata.requires(name) or ())
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if canonical(requirement.name) not in pinned
    }
    assert missing == set()


def test_imports_and_declared_dependencies_agree():
    """Red when a module leans on another package's dependency, or one is declared for nothing."""
    modules = {*(ROOT / "app").rglob("*.py"), *(ROOT / "racer_core").rglob("*.py")}
    declared = {canonical(each.name) for each in DIRECT}
    # What these import comes with an extra, and nothing else imports them at start.
    optional = {
        "demo": ["app/tools/demo/*.py"],
        "otel": ["app/telemetry/otlp_tracer.py", "app/telemetry/otlp_tracer.py"],
        "postgres": ["app/store/notifications.py"],
        "ray": ["app/ray_serve/*.py"],
    }
    plain = set(modules)
    for extra, patterns in optional.items():
        own = {path for path in modules if any(map(path.match, patterns))}
        named = {canonical(Requirement(line).name) for line in EXTRAS[extra]}
        # Many distributions share one namespace, and any of them may be named as its owner.
        seen = {name for name in imported(own) if not name.startswith("opentelemetry-")}
        assert seen - declared - named == set()
        plain -= own
    assert imported(plain) - declared == set()
    assert declared - imported(modules) == set(UNSEEN)


def test_the_pins_name_no_place_and_are_sorted():
    """Red when a line is a path, an address or an editable install, or is out of order."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line) for line in found)
    assert found == sorted(found, key=lambda line: canonical(line.partition("==")[0]))
    assert len(pins()) == len(found)


def test_torch_has_one_version_everywhere():
    """It is installed on its own, so its pin stands in three files. Red when one moves alone."""
    for name in ("constraints.txt", "Makefile", "Dockerfile"):
        found = re.findall(r"\btorch==([\w.]+)", (ROOT / name).read_text(encoding="utf-8"))
        assert set(found) == {"2.13.0"}, name


def test_make_setup_takes_everything_from_the_pins():
    """Red when a `pip install` in the Makefile leaves the pins out (torch names its own)."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    installs = [line for line in text.splitlines() if "$(BIN)/python -m pip install" in line]
    assert len(installs) == 3
    unpinned = [line for line in installs if "--constraint constraints.txt" not in line]
    assert all("torch==" in line for line in unpinned)


def test_every_other_environment_of_the_makefile_is_pinned_whole():
    """Each has a file of its own. Red when a `pip install` there takes whatever is newest."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    others = [line for line in text.splitlines() if "pip install" in line and "$(BIN)" not in line]
    assert {line.split("--quiet ")[1] for line in others} == {"--requirement $<"}
    files = re.findall(r"^\$\(\w+_READY\): (\S+requirements.txt)$", text, re.M)
    assert len(files) == len(others)
    for name in files:
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        pins = [line for line in lines if line and not line.startswith("#")]
        assert pins
        assert all(re.fullmatch(r"[\w.-]+(\[\w,]+)?==[\w.+!]+", line) for line in pins)


SUFFIXES = {".py", ".md", ".yaml", ".yml", ".sh", ".txt", ".html", ".js", ".ipynb"}


def texts() -> dict[Path, str]:
    """The product, its documents and its deployments."""
    files = [ROOT / "README.md", ROOT / "Makefile", ROOT / "Dockerfile"]
    for folder in ("app", "racer_core", "docs", "deploy"):
        files += [each for each in (ROOT / folder).rglob("*") if each.suffix in SUFFIXES]
    return {each: each.read_text(encoding="utf-8") for each in files}


def test_messages_name_extras_that_exist() -> None:
    """Red when an extra is renamed in `pyproject.toml` alone."""
    named = {
        extra
        for text in texts().values()
        for extra in re.findall(r"install_hint\([\"'](\w+)", text)
    }
    assert len(named) > 6
    assert named <= EXTRAS.keys()
    assert install_hint("onnx") == "`pip install '.[onnx]'` in RACER's checkout"


def test_no_text_installs_the_project_by_its_name() -> None:
    """The name is not the project's in any index: a package there would be an impostor's."""
    by_name = re.compile(r"""pip install[^\n]*["'\s]racer[-_](?:gateway|core)\b(?!\S*\.whl)""")
    assert by_name.search("pip install 'racer-gateway[ray]'")
    assert [path for path, text in texts().items() if by_name.search(text)] == []


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_a_reason_for_skipping_names_the_program(program: str) -> None:
    """Red when a reason is written otherwise, and its tests are skipped for ever."""
    texts = (path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py"))
    reason = re.compile(
        rf'(?:skip\(f?|reason=|WHY_NOT: Final = |NO_POOLER: Final = )"[^"]*{program}', re.IGNORECASE
    )
    own = Path(__file__).read_text("utf-8")
    assert any(reason.search(text) for text in texts if text != own)


def test_ci_requires_what_it_installed() -> None:
    """Red when the script names a program that the tests do not know."""
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    named = re.findall(r"^require ([\w-]+) ", script, re.MULTILINE)
    assert {"docker-compose", "postgresql", "pgbouncer", "promtool", "chromium"} <= set(named)
    assert set(named) <= PROGRAMS
