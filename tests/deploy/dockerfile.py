"""Parser of the subset of Dockerfile and .dockerignore syntax that ours use."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction, its lines joined."""

    keyword: str
    text: str

    @property
    def words(self) -> list[str]:
        """The JSON form's strings, or the words of the other form."""
        return json.loads(self.text) if self.text.startswith("[") else shlex.split(self.text)

    @property
    def assignments(self) -> dict[str, str]:
        """What an ENV, ARG or LABEL sets; an ARG without a default sets the empty string."""
        return dict((*word.split("=", 1), "")[:2] for word in self.words)


@dataclass(frozen=True, slots=True)
class Stage:
    """What stands between one FROM and the next."""

    name: str
    base: str
    steps: tuple[Step, ...]

    def all(self, keyword: str) -> list[Step]:
        """The steps of one kind."""
        return [step for step in self.steps if step.keyword == keyword]

    def one(self, keyword: str) -> Step:
        """The step of a kind that may stand once."""
        [step] = self.all(keyword)
        return step


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """Stages, and the ARGs above them."""

    arguments: dict[str, str]
    stages: tuple[Stage, ...]

    def __getitem__(self, name: str) -> Stage:
        """A stage by name."""
        return next(stage for stage in self.stages if stage.name == name)


def read(path: Path = ROOT / "Dockerfile") -> Dockerfile:
    """Parse a file whose stages all have names."""
    arguments: dict[str, str] = {}
    stages: list[tuple[str, str, list[Step]]] = []
    for step in _steps(path.read_text(encoding="utf-8")):
        if step.keyword == "FROM":
            base, as_, name = step.words
            assert as_ == "AS", step
            stages.append((name, base, []))
        elif stages:
            stages[-1][2].append(step)
        else:
            assert step.keyword == "ARG", step
            arguments |= step.assignments
    return Dockerfile(arguments, tuple(Stage(name, base, tuple(s)) for name, base, s in stages))


def _steps(text: str) -> Iterator[Step]:
    lines = [
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    for instruction in "\n".join(lines).replace("\\\n", "").splitlines():
        keyword, _, rest = instruction.strip().partition(" ")
        yield Step(keyword.upper(), rest.strip())


def health_command(stage: Stage) -> tuple[dict[str, str], list[str]]:
    """Options and words of a HEALTHCHECK in JSON form."""
    options, _, command = stage.one("HEALTHCHECK").text.partition(" CMD ")
    return dict(re.findall(r"--([a-z-]+)=(\S+)", options)), json.loads(command)


def seconds(text: str) -> float:
    """A duration as Docker and Compose write it: 300s, 30m."""
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


class Ignore:
    """A .dockerignore: the last line that fits a path, or a folder above it, decides."""

    def __init__(self, lines: Sequence[str]) -> None:
        written = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        self._rules = [(not each.startswith("!"), _pattern(each.lstrip("!"))) for each in written]

    @classmethod
    def read(cls, path: Path = ROOT / ".dockerignore") -> Ignore:
        """Read a file."""
        return cls(path.read_text(encoding="utf-8").splitlines())

    def __contains__(self, path: str) -> bool:
        """Whether a path below the context does not reach the build."""
        here = PurePosixPath(path)
        names = [str(each) for each in (here, *here.parents) if str(each) != "."]
        ignored = False
        for ignores, pattern in self._rules:
            if any(pattern.fullmatch(name) for name in names):
                ignored = ignores
        return ignored


def _pattern(text: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", text.strip("/"))
    meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(meaning.get(part, re.escape(part)) for part in parts))


def context_files(source: str, folder: Path = ROOT) -> list[str]:
    """What a COPY of ``source`` takes from the checkout, as paths below it."""
    ignore = Ignore.read(folder / ".dockerignore")
    start = folder / source
    found = [start] if start.is_file() else sorted(each for each in start.rglob("*"))
    names = [each.relative_to(folder).as_posix() for each in found if each.is_file()]
    return [name for name in names if name not in ignore]
