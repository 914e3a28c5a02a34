"""Replay of a Dockerfile in a folder of this machine, without a container engine.

Every stage has the same folder as its root, as every stage of an image has ``/``: a finished stage
is moved aside, so nothing that a later one does not copy can be found by it, and the paths inside
a copied environment stay true. What is replaced is said here, and nowhere else:

- the image's own folders (:data:`OWN`) lie below the root; any other absolute path in a RUN that
  is carried out is refused;
- the base image is a PATH with this Python, called ``python``, and the machine's ``/usr/bin``;
- accounts are not made (:data:`SKIPPED`); USER is carried out where this process is root;
- the port is a free one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .dockerfile import ROOT, Dockerfile, Stage, Step, context_files, health_command

OWN = ("/opt/venv", "/src", "/etc/racer", "/var/lib/racer")
SKIPPED = {
    "apt-get": "would change this machine's packages",
    "groupadd": "would change this machine's accounts",
    "useradd": "would change this machine's accounts",
}
if os.geteuid() != 0:
    SKIPPED["chown"] = "needs root"
_SAYS_NOTHING = {"ARG", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD", "LABEL"}


@dataclass(frozen=True, slots=True)
class Done:
    """One line of the record."""

    stage: str
    step: str
    outcome: str
    seconds: float = 0.0

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.stage:8} {self.seconds:6.1f} s  {self.outcome:9}  {self.step[:110]}"


@dataclass
class Replay:
    """The state of a build: where it is, and what it has set.

    Args:
        file: The parsed Dockerfile.
        folder: An empty folder; open to others, since USER is carried out.
        arguments: Build arguments, instead of the file's defaults.
        port: What the image's port becomes here.
    """

    file: Dockerfile
    folder: Path
    arguments: Mapping[str, str]
    port: int
    record: list[Done] = field(default_factory=list[Done])
    environment: dict[str, str] = field(default_factory=dict[str, str])
    cwd: str = "/"
    user: str = ""

    @property
    def root(self) -> Path:
        """What ``/`` is for the stage under way."""
        return self.folder / "root"

    def here(self, text: str) -> str:
        """A text with the image's folders where they lie on this machine."""
        return re.sub(rf"(?<![\w.])(?:{'|'.join(OWN)})\b", lambda m: f"{self.root}{m[0]}", text)

    def build(self) -> None:
        """Carry out every stage; the last one's root stays."""
        base = self.folder / "base"
        base.mkdir()
        (base / "python").symlink_to(
            Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
        )
        for stage in self.file.stages:
            if self.root.exists():
                self.root.rename(self.folder / self.record[-1].stage)
            for own in OWN:
                (self.root / own[1:]).parent.mkdir(parents=True, exist_ok=True)
            self.environment = {"PATH": f"{base}:/usr/bin:/bin", "HOME": str(self.root / "home")}
            self.cwd, self.user = "/", ""
            for step in stage.steps:
                self._carry_out(stage, step)

    def _carry_out(self, stage: Stage, step: Step) -> None:
        begun = time.monotonic()
        outcome = "done"
        match step.keyword:
            case "RUN":
                outcome = self._run(step.text)
            case "COPY":
                self._copy(step.words)
            case "ENV":
                for name, value in step.assignments.items():
                    self.environment[name] = self.here(self._expanded(value))
            case "WORKDIR":
                self.cwd = step.text
                Path(self.here(self.cwd)).mkdir(parents=True, exist_ok=True)
            case "USER":
                self.user = step.text
            case keyword:
                assert keyword in _SAYS_NOTHING, step
        if step.keyword == "ARG":
            self.environment |= {k: self.arguments.get(k, v) for k, v in step.assignments.items()}
        took = time.monotonic() - begun
        self.record.append(Done(stage.name, f"{step.keyword} {step.text}", outcome, took))

    def _expanded(self, value: str) -> str:
        return re.sub(r"\$\{?(\w+)\}?", lambda m: self.environment.get(m[1], ""), value)

    def _run(self, text: str) -> str:
        commands = [each.strip() for each in text.split("&&")]
        skipped = {
            each: SKIPPED[each.split()[0]] for each in commands if each.split()[0] in SKIPPED
        }
        if remaining := [each for each in commands if each not in skipped]:
            command = self.here(" && ".join(remaining))
            foreign = re.findall(r"(?<![\w.:/])/\w[\w./-]*", command.replace(str(self.root), ""))
            assert all(path.startswith(OWN) for path in foreign), foreign
            # How this machine reaches its package index is all that its environment adds.
            names = [n for n in os.environ if n.startswith("PIP_") or n.lower().endswith("_proxy")]
            environment = {name: os.environ[name] for name in names} | self.environment
            done = subprocess.run(
                ["/bin/sh", "-c", command],
                cwd=self.here(self.cwd),
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        why = "; ".join(f"{each.split()[0]}: {reason}" for each, reason in skipped.items())
        return "done" if not skipped else f"done, without {why}" if remaining else f"skipped, {why}"

    def _copy(self, words: list[str]) -> None:
        flags = [word for word in words if word.startswith("--")]
        *sources, target = [word for word in words if not word.startswith("--")]
        goal = Path(self.here(str(Path(self.cwd) / target)))
        if flags:
            [flag] = flags
            [source] = sources
            stage = self.folder / flag.removeprefix("--from=")
            shutil.copytree(
                stage / source[1:], goal, symlinks=True, copy_function=os.link, dirs_exist_ok=True
            )
            return
        for source in sources:
            names = context_files(source)
            assert names, f"COPY {source}: nothing of that name reaches the build"
            for name in names:
                below = Path(name).relative_to(source) if name != source else Path()
                into = name == source and (len(sources) > 1 or target.endswith("/"))
                place = goal / Path(name).name if into else goal / below
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, place)

    def command(self, words: list[str]) -> list[str]:
        """A command of the finished image, as USER, on this machine."""
        words = [self.here(word).replace("8080", str(self.port)) for word in words]
        return [*self.as_user(), *words]

    def as_user(self) -> list[str]:
        """How to become USER; nothing where this process is not root.

        One right of root's is kept, to read what is closed to others: this machine's Python may
        lie in such a folder, which an image's does not. None to write is kept.
        """
        if os.geteuid() != 0:
            return []
        user, group = self.user.split(":")
        reads = "-all,+dac_read_search"
        return [
            "/usr/bin/setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups",
            f"--inh-caps={reads}", f"--ambient-caps={reads}", f"--bounding-set={reads}",
            "--no-new-privs",
        ]  # fmt: skip

    def start(
        self, words: list[str], keys: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        """ENTRYPOINT with these words: CMD's or others."""
        entry = self.file.stages[-1].one("ENTRYPOINT").words
        with log.open("wb") as output:
            return subprocess.Popen(
                self.command([*entry, *words]),
                cwd=self.here(self.cwd),
                env={**self.environment, **keys},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def healthy(self) -> bool:
        """HEALTHCHECK once, under its own timeout."""
        options, words = health_command(self.file.stages[-1])
        done = subprocess.run(
            self.command(words),
            cwd=self.here(self.cwd),
            env=self.environment,
            stderr=subprocess.DEVNULL,
            timeout=float(options["timeout"].removesuffix("s")),
            check=False,
        )
        return done.returncode == 0
