"""Inputs of a plug-in router: the files, the code and the libraries that decide its scores.

A calibration certifies sets of the scores that its rows had. So each input has a name and a digest,
which are stored with the rows and compared when serving:

- ``option.NAME``: the content of the file or folder that an option names,
- ``code.NAME``: the content of a package or module, but for what Python compiles,
- ``library.NAME``: the version of a distribution that this code imports.

What a service behind a URL does, and which files the code opens by itself, is not known here.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self, cast

from racer_core.encoder.base import file_digest
from racer_core.errors import ArtifactError

MAX_FILES: Final = 10_000  # of a folder that an option names, and of a package
LIBRARY: Final = "library."  # begin of the name of an input
_OURS: Final = frozenset({"app", "racer_core"})
_COMPILED: Final = "__pycache__"

Inputs = Mapping[str, str]  # digest or version by name


@dataclass(frozen=True, slots=True)
class RouterInputs:
    """Where the inputs are; none for a router of this package.

    Attributes:
        options: The texts of the options as paths, by name. Most name no file, or none yet.
        code: Top-level packages and modules.
    """

    options: Mapping[str, Path]
    code: tuple[str, ...]

    @classmethod
    def of(cls, options: Mapping[str, Any], modules: Iterable[str]) -> Self:
        """Those of a router with these options whose class comes from these modules."""
        code = {each.partition(".")[0] for each in modules} - _OURS
        return cls(dict(_paths(options)), tuple(sorted(code)))

    def digests(self) -> Inputs:
        """What they are now, by name. Blocks.

        Raises:
            ArtifactError: A folder has more than ``MAX_FILES`` files.
        """
        found = {f"option.{name}": _digest(_below(path)) for name, path in self.options.items()}
        imported = set[str]()
        for name in self.code:
            found[f"code.{name}"] = code_digest(name)
            imported |= _imported(file for _, file in _code(name))
        libraries = _distributions(imported - _OURS.union(self.code))
        return {**{name: each for name, each in found.items() if each}, **versions(libraries)}

    def files(self) -> Iterator[Path]:
        """All files that are there now."""
        for path in self.options.values():
            yield from (file for _, file in _below(path))
        for name in self.code:
            yield from (file for _, file in _code(name))


NO_INPUTS: Final = RouterInputs({}, ())

_Files = list[tuple[str, Path]]  # by the name within their folder, ascending


def code_digest(module: str) -> str:
    """Digest of the code of a module; empty where there is none. Nothing is imported.

    Args:
        module: A top-level package or module; or a module, with all that is in its package.
    """
    return _digest(_code(module))


def differing(before: Inputs, now: Inputs) -> tuple[str, ...]:
    """The names of the inputs that differ, ascending."""
    return tuple(sorted(name for name in {*before, *now} if before.get(name) != now.get(name)))


def versions(distributions: Iterable[str]) -> Inputs:
    """The versions of those that are installed, as inputs."""
    found = dict[str, str]()
    for name in distributions:
        with suppress(PackageNotFoundError):
            found[f"{LIBRARY}{name}"] = version(name)
    return found


def _paths(value: object, name: str = "") -> Iterator[tuple[str, Path]]:
    """Every text of an option as a path, by the names that lead to it."""
    if isinstance(value, str):
        yield name, Path(value)
    elif isinstance(value, Mapping):
        for key, each in cast("Mapping[str, object]", value).items():
            yield from _paths(each, f"{name}.{key}" if name else key)
    elif isinstance(value, list | tuple):
        for place, each in enumerate(cast("Sequence[object]", value)):
            yield from _paths(each, f"{name}.{place}")


def _code(module: str) -> _Files:
    top, *within = module.split(".")
    spec = find_spec(top)
    if spec is None:
        return []
    places = list(spec.submodule_search_locations or ())
    if not places and spec.has_location and spec.origin is not None:
        places = [spec.origin]
    return [file for place in places for file in _below(Path(place, *within[:-1]))]


def _below(path: Path) -> _Files:
    """A file, or those of a folder; none where there is nothing.

    Raises:
        ArtifactError: More than ``MAX_FILES``.
    """
    found: _Files = []
    with suppress(OSError, ValueError):  # no path at all, such as a long text
        if path.is_file():
            return [(path.name, path)]
        for each in path.rglob("*") if path.is_dir() else ():
            if _COMPILED not in each.parts and each.is_file():
                found.append((each.relative_to(path).as_posix(), each))
            if len(found) > MAX_FILES:
                raise ArtifactError(
                    f"{path} has more than {MAX_FILES} files: let the options of the router name "
                    "those that it reads, and its package hold no others"
                )
    return sorted(found)


def _digest(files: _Files) -> str:
    """Digest of the names and contents of files; empty of none."""
    digest = hashlib.sha256()
    for name, file in files:
        digest.update(f"{name}\n{file_digest(file)}\n".encode())
    return digest.hexdigest() if files else ""


def _imported(files: Iterable[Path]) -> set[str]:
    """The top-level modules that Python files import, also within functions."""
    found = set[str]()
    for file in files:
        if file.suffix != ".py":
            continue
        with suppress(SyntaxError, ValueError):  # a template of a package, say
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.Import):
                    found |= {each.name.partition(".")[0] for each in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    found.add(node.module.partition(".")[0])
    return found


def _distributions(modules: set[str]) -> list[str]:
    """The distributions that offer these modules; the standard library has none."""
    return sorted({name for module in modules for name in _offered().get(module, ())})


@cache
def _offered() -> Mapping[str, Sequence[str]]:
    """The distributions by the modules that they offer: reading all takes a fifth of a second."""
    return packages_distributions()
