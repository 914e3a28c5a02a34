"""Inputs of a plug-in router: the files, the code and the libraries that decide its scores.

A calibration certifies sets of the scores that its rows had. So each input has a name and a digest,
which are stored with the rows and compared when serving:

- ``option.NAME``: the content of the file or folder that an option names by a path,
- ``code.NAME``: the content of a package or module, but for its tests,
- ``library.NAME``: the version of a distribution that this code imports.

What a service behind a URL does, and which files the code opens by itself, is not known here.
"""

from __future__ import annotations

import ast
import hashlib
import os
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

MAX_FILES: Final = 1_000  # and folders, below one folder: a look at them takes 12 ms
LIBRARY: Final = "library."  # begin of the name of an input
_OURS: Final = frozenset({"app", "racer_core"})
_COMPILED: Final = frozenset({"__pycache__"})
_NOT_CODE: Final = _COMPILED | {"tests"}

Inputs = Mapping[str, str]  # digest or version by name


@dataclass(frozen=True, slots=True)
class RouterInputs:
    """Where the inputs are; none for a router of this package.

    Attributes:
        options: The options that are paths, by name. Some name nothing, or nothing yet.
        code: The packages and modules.
    """

    options: Mapping[str, Path]
    code: tuple[str, ...]

    @classmethod
    def of(cls, options: Mapping[str, Any], modules: Iterable[str]) -> Self:
        """Those of a router with these options whose class comes from these modules."""
        code = {_package(each) for each in modules} - _OURS
        return cls(dict(_paths(options)), tuple(sorted(code)))

    def digests(self) -> Inputs:
        """What they are now, by name. Blocks.

        Raises:
            ArtifactError: A folder has more than ``MAX_FILES`` files and folders.
            OSError: One cannot be read.
        """
        found = {f"option.{name}": _digest(_below(path)) for name, path in self.options.items()}
        imported = set[str]()
        for name in self.code:
            files = _code(name)
            found[f"code.{name}"] = _digest(files)
            imported |= _imported(file for _, file in files)
        libraries = _distributions(imported - _OURS.union(self.code))
        return {**{name: each for name, each in found.items() if each}, **versions(libraries)}

    def files(self) -> Iterator[Path]:
        """All files that are there now. Raises as :meth:`digests`."""
        for found in (*map(_below, self.options.values()), *map(_code, self.code)):
            yield from (file for _, file in found)


NO_INPUTS: Final = RouterInputs({}, ())

_Files = list[tuple[str, Path]]  # by the name within their folder, ascending


def code_digest(module: str) -> str:
    """Digest of the package of a module; empty where there is none. The module is not imported.

    Raises:
        ArtifactError, OSError: As :meth:`RouterInputs.digests`.
    """
    return _digest(_code(_package(module)))


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
    """Every text of an option with a separator or a suffix, by the names that lead to it.

    Other texts, such as a mode, name a folder in some working directories by chance.
    """
    if isinstance(value, str):
        if os.sep in value or Path(value).suffix:
            yield name, Path(value).absolute()
    elif isinstance(value, Mapping):
        for key, each in cast("Mapping[str, object]", value).items():
            yield from _paths(each, f"{name}.{key}" if name else key)
    elif isinstance(value, list | tuple):
        for place, each in enumerate(cast("Sequence[object]", value)):
            yield from _paths(each, f"{name}.{place}")


def _package(module: str) -> str:
    """The outermost package that has a file: ``google.mine`` of ``google.mine.router``."""
    parts = module.split(".")
    names = [".".join(parts[: size + 1]) for size in range(len(parts))]
    return next((each for each in names if not _is_namespace(each)), module)


def _is_namespace(name: str) -> bool:
    spec = find_spec(name)
    return spec is not None and spec.origin is None


def _code(package: str) -> _Files:
    spec = find_spec(package)
    if spec is None or not spec.has_location:
        return []
    places = spec.submodule_search_locations or [spec.origin]
    return [file for place in places if place for file in _below(Path(place), _NOT_CODE)]


def _below(path: Path, left_out: frozenset[str] = _COMPILED) -> _Files:
    """A file, or those of a folder and of folders that it links; none where there is nothing.

    Names that begin with ``..`` are how Kubernetes mounts what other names link.

    Raises:
        ArtifactError: More than ``MAX_FILES`` files and folders.
        OSError: A folder cannot be read.
    """
    if os.path.isfile(path):  # unlike `Path.is_file`, false of a text that is no path at all
        return [(path.name, path)]
    found, count = list[tuple[str, Path]](), 0
    folders = os.walk(path, onerror=_fail, followlinks=True) if os.path.isdir(path) else ()
    for folder, within, names in folders:
        within[:] = [each for each in within if each not in left_out and each[:2] != ".."]
        files = [Path(folder, each) for each in names if each[:2] != ".."]
        found += [(each.relative_to(path).as_posix(), each) for each in files if each.is_file()]
        count += len(within) + len(files)
        if count > MAX_FILES:
            raise ArtifactError(
                f"{path} has more than {MAX_FILES:,} files and folders: name a smaller folder, "
                "or put the code into a package of its own, so that each change can be noticed"
            )
    return sorted(found)


def _fail(error: OSError) -> None:
    raise error


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
