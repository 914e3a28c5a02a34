"""State of a bootstrap on disk: which steps are done, by digests of what they read and wrote."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from racer_core import strict_json
from racer_core.errors import InputError, RacerError

_FORMAT: Final = 1


def _as_it_is(result: Any) -> Any:
    return result


def _stands(_: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command, and what its result depends on.

    Attributes:
        name: Its name.
        command: The words after ``racer``.
        reads: Files that it reads.
        facts: Whatever else its result depends on, as JSON values.
        writes: Files that it writes.
        keep: What the report needs of the command's result, as JSON values.
        prepare: Called before the command; returns further words of it. Raises RacerError.
        recover: Called where the command wrote its files and ended before that was noted; returns
            what would have been kept, or None to run the command again. None: it always is.
        stands: Whether a kept result still holds, beyond its files.
        tolerates: Errors of the command after which the next steps go on.
    """

    name: str
    command: tuple[str, ...]
    reads: tuple[Path, ...]
    facts: Any = None
    writes: tuple[Path, ...] = ()
    keep: Callable[[Any], Any] = _as_it_is
    prepare: Callable[[], Sequence[str]] = tuple
    recover: Callable[[], Any] | None = None
    stands: Callable[[Any], bool] = _stands
    tolerates: tuple[type[RacerError], ...] = ()

    @property
    def inputs(self) -> str:
        """Digest of everything that its result depends on. Raises InputError."""
        read = {str(path): _digest(path) for path in self.reads}
        document = json.dumps([self.command, read, self.facts], sort_keys=True, default=str)
        return hashlib.sha256(document.encode()).hexdigest()

    @property
    def outputs(self) -> dict[str, str | None]:
        """Digests of its files; None for one that is not there."""
        return {str(path): _digest(path) if path.is_file() else None for path in self.writes}


class BootstrapState:
    """Finished steps with their results, in a file that is replaced whole.

    Args:
        path: The file; its folder is made with the first step.

    Raises:
        InputError: The file is not of `racer bootstrap`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._steps: dict[str, dict[str, Any]] = {}
        if path.exists():
            try:
                value = strict_json.load_object(path.read_bytes())
                is_known = value["format"] == _FORMAT
                self._steps = dict(value["steps"])
            except (OSError, InputError, KeyError, TypeError, ValueError) as exc:
                raise InputError(
                    f"{path}: not of `racer bootstrap`, or damaged; name another folder by --out"
                ) from exc
            if not is_known:
                raise InputError(f"{path}: of another version; name another folder by --out")

    def has_begun(self, name: str) -> bool:
        """Whether a step was begun once, finished or not."""
        return name in self._steps

    def is_done(self, step: Step) -> bool:
        """Whether a step's result stands: same inputs, and its files as it left them."""
        found = self._steps.get(step.name, {})
        return (
            found.get("inputs") == step.inputs
            and found["outputs"] == step.outputs
            and step.stands(found["result"])
        )

    def begin(self, step: Step, *, inputs: str) -> None:
        """Note that a step may have written some of its files from now on."""
        self._steps[step.name] = {"begun_with": inputs, "before": step.outputs}
        self._write()

    def recover(self, step: Step) -> bool:
        """Finish a step whose command ended before that was noted, if it says what it did."""
        found = self._steps.get(step.name, {})
        if step.recover is None or found.get("begun_with") != step.inputs:
            return False
        if any(digest in (None, found["before"][name]) for name, digest in step.outputs.items()):
            return False
        result = step.recover()
        if result is None:
            return False
        self.finish(step, result, inputs=found["begun_with"])
        return True

    def finish(self, step: Step, result: Any, *, inputs: str) -> None:
        """Note a finished step; ``inputs`` is the digest from before the command ran."""
        self._steps[step.name] = {"inputs": inputs, "outputs": step.outputs, "result": result}
        self._write()

    def kept(self, name: str) -> Mapping[str, Any]:
        """The same of a step that may not have finished; empty then."""
        return self._steps.get(name, {}).get("result", {})

    def result(self, name: str) -> Mapping[str, Any]:
        """What was kept of a finished step's result."""
        return self._steps[name]["result"]

    def _write(self) -> None:
        new = self._path.with_name(self._path.name + ".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(
                json.dumps({"format": _FORMAT, "steps": self._steps}, indent=1), encoding="utf-8"
            )
            new.replace(self._path)
        except OSError as exc:
            raise InputError(f"{self._path}: cannot be written ({exc.strerror})") from exc


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as exc:
        raise InputError(f"{path}: cannot be read ({exc.strerror})") from exc
