"""The exception trees in the docstrings are those of the code, and every error has a status."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import app.errors
import racer_core.errors
from app.errors import STATUS
from racer_core.errors import RacerError

ROOT = Path(app.errors.__file__).parent.parent
_LINE = re.compile(r"([│├└─ ]*)(\w+)(?: \(([\w.]+)\))?(?: {2,}\S.*)?")
Edge = tuple[str, str]  # a class and its base, both with their modules


def drawn(module: str, docstring: str) -> set[Edge]:
    """The edges of the tree in a docstring; a class without a module is of ``module``."""
    _, _, tree = docstring.partition("\n\n")
    edges: set[Edge] = set()
    above: list[str] = []
    for line in tree.strip().splitlines():
        match = _LINE.fullmatch(line)
        assert match, line
        depth, name = len(match[1]) // 4, f"{match[3] or module}.{match[2]}"
        del above[depth:]
        if above:
            edges.add((name, above[-1]))
        above.append(name)
    return edges


def edges(error: type[RacerError], *modules: str) -> Iterator[Edge]:
    """The edges below a class, of classes in these modules."""
    for below in error.__subclasses__():
        if below.__module__ in modules:
            yield (
                f"{below.__module__}.{below.__qualname__}",
                f"{error.__module__}.{error.__qualname__}",
            )
            yield from edges(below, *modules)


def test_the_tree_of_the_core_is_drawn_from_its_classes() -> None:
    """A class that is added, renamed or moved below another base is drawn."""
    docstring = racer_core.errors.__doc__ or ""
    assert drawn("racer_core.errors", docstring) == set(edges(RacerError, "racer_core.errors"))


def test_the_tree_of_the_app_is_drawn_from_its_classes() -> None:
    """The core's classes are drawn with their module."""
    modules = ("app.errors", "racer_core.errors")
    assert drawn("app.errors", app.errors.__doc__ or "") == set(edges(RacerError, *modules))


def test_every_error_class_is_in_one_of_the_two_modules() -> None:
    """Read from the source: a module that is imported late, or never, hides no class."""
    bases: dict[str, set[str]] = {}
    places: dict[str, set[str]] = {}
    for package in ("app", "racer_core"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    names = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                    bases.setdefault(node.name, set()).update(names)
                    places.setdefault(node.name, set()).add(path.relative_to(ROOT).as_posix())
    errors = {"RacerError"}
    while more := {name for name, above in bases.items() if above & errors} - errors:
        errors |= more
    assert {place for name in errors for place in places[name]} == {
        "app/errors.py",
        "racer_core/errors.py",
    }
    assert len(errors) > 40  # the search found them


def test_every_error_has_a_status_of_its_own_or_of_its_base() -> None:
    """Found along the MRO, before the base of all exceptions; the codes of two rows differ."""

    def below(error: type[RacerError]) -> Iterator[type[RacerError]]:
        yield error
        for each in error.__subclasses__():
            yield from below(each)

    for error in below(RacerError):
        if error.__module__ in ("app.errors", "racer_core.errors"):
            status, kind, code = next(STATUS[each] for each in error.__mro__ if each in STATUS)
            assert 400 <= status < 600
            assert kind
            assert code
    codes = [code for _, _, code in STATUS.values()]
    assert len(set(codes)) == len(codes)
