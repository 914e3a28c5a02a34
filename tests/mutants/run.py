"""Do the tests kill the faults of ``mutants.toml``? The answers are in ``results.json``.

``make mutants`` collects which tests execute which lines (``contexts.py``) and runs this script. It
applies one mutant after the other to a copy of the tree and runs the tests that execute the mutated
lines, then the others of their files. The first one that fails kills the mutant, if the same tests
pass without it. The column ``before`` is of the suite that the list was made with, ``after`` of the
present one: a mutant that lives now is an error, and so is one without an answer after a run of
all.
"""

import json
import math
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, Self

import click
from coverage import CoverageData

from tests.mutants.contexts import MEASURED, OUTCOMES, ROOT

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
BATCHES = (20, 60, 200)  # tests at a time; then all others
TEST_S = 60.0  # more than a test takes without the mutant counts as a hang
SLOWER = 3.0  # times the measured seconds: machines differ, and are shared
MUTANT_S = 240.0  # of all tests of one mutant
COMMON = {"app", "core", "racer", "test"}  # words of all names
COMPLETE = (0, 5)  # exit codes of pytest: all passed; no test was there
DEATHS = {"failed": "killed", "timeout": "timeout"}  # by the outcome of the test

Column = Literal["before", "after"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A fault: ``old`` occurs once in the product and becomes ``new``."""

    id: str
    file: str
    old: str
    new: str
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A line of the plugin."""

    test: str
    outcome: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of a mutant.

    Attributes:
        outcome: ``killed``; ``timeout`` of a test that passes without the mutant; ``survived``;
            ``lost``: the code is not there any more, or several times.
        test: The test that killed it; None: the tests could not be collected, or hung together.
    """

    outcome: str
    test: str | None = None

    @property
    def is_dead(self) -> bool:
        """Whether a test noticed the fault."""
        return self.outcome in ("killed", "timeout")


@dataclass(frozen=True, slots=True)
class Contexts:
    """Which tests execute a line, and how long the passing tests take."""

    folder: Path
    seconds: Mapping[str, float]
    _by_file: dict[str, dict[int, set[str]]] = field(default_factory=dict[str, dict[int, set[str]]])

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the outcomes; lines are read when a mutant needs them."""
        if not (folder / OUTCOMES).is_file():
            raise click.UsageError(f"{folder}: no contexts; `make mutants` collects them")
        found = outcomes_of(folder / OUTCOMES)
        return cls(folder, {each.test: each.seconds for each in found if each.outcome == "passed"})

    def durations(self, tests: Sequence[str]) -> dict[str, float]:
        """Seconds of tests together, and of the slowest."""
        each = [self.seconds[test] for test in tests]
        return {"seconds": sum(each), "most": max(each)}

    def tests(self, file: str, lines: Sequence[int], subject: str) -> list[str]:
        """Tests that execute one of the lines, then others of their files.

        Tests whose names have words of the code's and of the subject are first, then the fastest.
        """
        if file not in self._by_file:
            self._by_file[file] = self._read_lines(file)
        by_line = self._by_file[file]
        found = {test for line in lines for test in by_line.get(line, ()) if test in self.seconds}
        files = {file_of(test) for test in found}
        beside = {test for test in self.seconds if file_of(test) in files} - found
        names = words_of(file) | words_of(subject)

        def rank(test: str) -> tuple[int, float]:
            return -len(names & words_of(test)), self.seconds[test]

        return sorted(found, key=rank) + sorted(beside, key=rank)

    def _read_lines(self, file: str) -> dict[int, set[str]]:
        by_line: dict[int, set[str]] = {}
        for path in self.folder.glob("lines.*"):
            data = CoverageData(str(path))
            data.read()
            for line, tests in data.contexts_by_lineno(file).items():
                by_line.setdefault(line, set()).update(tests)
        return by_line


class Tree:
    """A copy of the tree, in which mutants are applied and tests run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        (folder / ".venv").symlink_to((ROOT / ".venv").resolve())

    def run(
        self, tests: Sequence[str], limit_s: float, *, seconds: float, most: float
    ) -> tuple[Result, Sequence[str]]:
        """Run tests up to the first failure; also return which were run.

        Args:
            tests: Their names.
            limit_s: What is left of the mutant's time.
            seconds: What the tests take together.
            most: What the slowest of them takes.
        """
        only, outcomes = self.folder / ".only", self.folder / ".outcomes"
        only.write_text("\n".join(tests), encoding="utf-8")
        outcomes.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "tests.mutants.contexts", f"--only={only}", f"--outcomes={outcomes}"]
        command += ["-m", "not slow", f"--timeout={TEST_S + SLOWER * most:.0f}"]
        process = subprocess.Popen(
            [*command, *sorted(set(map(file_of, tests)))],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": ""},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        usual_s, code = 2.0 * TEST_S + SLOWER * seconds, None
        try:
            code = process.wait(min(limit_s, usual_s))
        except subprocess.TimeoutExpired:
            pass
        finally:  # a test that was killed may leave gateways
            kill(process)
        ran: list[str] = []
        for each in outcomes_of(outcomes):
            ran.append(each.test)
            if each.outcome in DEATHS:
                return Result(outcome=DEATHS[each.outcome], test=each.test), ran
        if code is None:
            return Result(outcome="timeout" if usual_s < limit_s else "survived"), tests
        return Result(outcome="survived" if code in COMPLETE else "killed"), tests


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def outcomes_of(file: Path) -> Iterator[Outcome]:
    """The outcomes that the plugin wrote; the last line of a killed run may be cut."""
    if file.is_file():
        for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                yield Outcome(**json.loads(line))


def file_of(test: str) -> str:
    """The file of a test."""
    return test.partition("::")[0]


@cache
def words_of(name: str) -> frozenset[str]:
    """The words of a path, a test or an id, without a plural's end."""
    return frozenset(each.removesuffix("s") for each in re.findall("[a-z]{3,}", name)) - COMMON


@cache
def sources() -> dict[str, str]:
    """The product's files and their texts."""
    files = (path for name in MEASURED for path in (ROOT / name).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}


def place_of(mutant: Mutant) -> str | None:
    """The file that has the old text once; None: none has it, or several do."""
    found = [file for file, text in sources().items() if mutant.old in text]
    return found[0] if len(found) == 1 and sources()[found[0]].count(mutant.old) == 1 else None


def lines_of(mutant: Mutant, file: str) -> range:
    """Numbers of the lines that the old text covers."""
    before, _, _ = sources()[file].partition(mutant.old)
    first = before.count("\n") + 1
    return range(first, first + mutant.old.strip("\n").count("\n") + 1)


def batches(tests: Sequence[str]) -> Iterator[Sequence[str]]:
    """Parts of the tests, small ones first."""
    start = 0
    for size in (*BATCHES, len(tests)):
        if tests[start : start + size]:
            yield tests[start : start + size]
        start += size


def verdict(mutant: Mutant, tree: Tree, contexts: Contexts, known: str | None) -> Result:
    """Run tests on a mutant until one kills it; ``known`` did so before."""
    file = place_of(mutant)
    if file is None:
        return Result(outcome="lost")
    tests = contexts.tests(file, lines_of(mutant, file), mutant.id)
    if known is not None and known in contexts.seconds:
        tests = [known, *(each for each in tests if each != known)]
    path, whole = tree.folder / file, sources()[file]
    ends_at = time.monotonic() + MUTANT_S
    for batch in batches(tests):
        left: list[str] = [*batch]
        while left and (limit_s := ends_at - time.monotonic()) > 0.0:
            path.write_text(whole.replace(mutant.old, mutant.new), encoding="utf-8")
            try:
                found, ran = tree.run(left, limit_s, **contexts.durations(left))
            finally:
                path.write_text(whole, encoding="utf-8")
            if not found.is_dead:
                break
            plain, _ = tree.run(ran, math.inf, **contexts.durations(ran))
            if not plain.is_dead:
                return found
            left = [each for each in left if plain.test not in (None, each)]
    return Result(outcome="survived")


def load_results() -> dict[str, dict[str, Result | None]]:
    """The table, or an empty one."""
    if not RESULTS.is_file():
        return {}
    stored = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {
        name: {column: each and Result(**each) for column, each in row.items()}
        for name, row in stored.items()
    }


def save_results(table: Mapping[str, Mapping[str, Result | None]]) -> None:
    """Write the table."""
    stored = {
        name: {column: each and asdict(each) for column, each in row.items()}
        for name, row in table.items()
    }
    RESULTS.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


@click.command()
@click.option("--contexts", "folder", type=click.Path(path_type=Path), required=True)
@click.option("--column", type=click.Choice(["before", "after"]), default="after")
@click.option("--only", multiple=True, help="Ids of mutants; without it all.")
@click.option("--jobs", default=2, help="Mutants at a time.")
def main(folder: Path, column: Column, only: tuple[str, ...], jobs: int) -> None:
    """Fill a column of the results; fail where a mutant lives now or has no answer."""
    listed = tomllib.loads((HERE / "mutants.toml").read_text(encoding="utf-8"))["mutant"]
    mutants = [Mutant(**each) for each in listed]
    contexts, stored = Contexts.read(folder), load_results()
    empty: dict[str, Result | None] = {"before": None, "after": None}
    table = {each.id: dict(stored.get(each.id, empty)) for each in mutants}
    trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    saving = threading.Lock()  # an older table must not replace a newer one

    def fill(mutant: Mutant) -> None:
        row, tree, started = table[mutant.id], trees.get(), time.monotonic()
        last = row["after"] or row["before"]
        try:
            found = verdict(mutant, tree, contexts, last and last.test)
        finally:
            trees.put(tree)
        seconds = time.monotonic() - started
        click.echo(f"{found.outcome:8} {seconds:4.0f} s  {mutant.id}: {found.test or mutant.fault}")
        with saving:
            row[column] = found
            save_results(table)

    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        for number in range(jobs):
            trees.put(Tree(Path(scratch, str(number))))
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(fill, [each for each in mutants if not only or each.id in only]))
    if column == "after" and (problems := [*problems_of(table, is_whole=not only)]):
        raise click.ClickException("; ".join(problems))


def problems_of(
    table: Mapping[str, Mapping[str, Result | None]], *, is_whole: bool
) -> Iterator[str]:
    """What is wrong with the column of the present suite; ``is_whole``: all mutants were run."""
    now = {name: row["after"] for name, row in table.items()}
    alive = [name for name, result in now.items() if result is not None and not result.is_dead]
    missing = [name for name, result in now.items() if result is None]
    if alive:
        yield f"no test notices: {', '.join(alive)}"
    if missing and is_whole:
        yield f"without an answer: {', '.join(missing)}"


if __name__ == "__main__":
    main()
