"""Sandbox for code that reads untrusted input: a child process with resource limits.

:class:`SandboxedProcess` is the parent's side: it starts ``python -m module``, exchanges messages
with it and kills it. The functions at the end are the child's side: limits of memory and processor
time, a deadline, and the other end of the messages. A message is one JSON object on a line of its
own. A module that runs in the sandbox defines only what its messages mean.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TextIO

Message = dict[str, Any]

ROOT: Final = Path(__file__).resolve().parents[1]
_INHERITED: Final = ("PATH", "LD_LIBRARY_PATH", "TMPDIR")
_THREADS: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class SandboxedProcess:
    """A child process that runs one module of this repository. Blocks: never on the loop.

    The child inherits no secret from the environment, no terminal signal (Ctrl-C ends the parent,
    which then ends the child) and no stderr, where a traceback could repeat untrusted input.

    Args:
        module: The module that the child runs as ``__main__``.
        arguments: Its command line.
        message_bytes: Maximum length of a message from the child.
        pass_fds: File descriptors that stay open in the child.
        environment: Environment variables beside the standard ones.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str] = (),
        *,
        message_bytes: int,
        pass_fds: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        self._message_bytes = message_bytes
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=pass_fds,
            env={"PYTHONPATH": str(ROOT), **_THREADS, **inherited, **(environment or {})},
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, message: Message) -> None:
        """Send one message. If the child has ended, :meth:`receive` returns None afterwards."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self) -> Message | None:
        """Wait for the next message; None if the child ended without a whole one.

        Raises:
            ValueError: The message is too long or is no JSON. Close the process then: the next
                message would begin in the middle of this one.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline(self._message_bytes + 1)
        if len(line) > self._message_bytes:
            raise ValueError(f"a message of the child is longer than {self._message_bytes} bytes")
        return json.loads(line) if line.endswith(b"\n") else None

    def request(self, message: Message) -> Message | None:
        """Send a message and return its reply; closes the process unless a whole reply comes.

        Returns:
            None if the child ended or its reply was too long.
        """
        reply = None
        try:
            self.send(message)
            with contextlib.suppress(ValueError):
                reply = self.receive()
        finally:
            if reply is None:
                self.close()
        return reply

    def wait(self) -> int:
        """Wait for the child to end by itself; returns its exit code."""
        return self._process.wait()

    def kill(self) -> None:
        """Kill the child and its own, from any thread; a thread in :meth:`receive` gets None."""
        if self._process.poll() is None:  # otherwise its number may be another group's
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the child if it still runs, wait for its end and close the pipes."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # an unsent rest of a message
                    pipe.close()
        self._process.wait()


# The child's side: limits of its resources, and its messages.


def enter_sandbox(*, memory_bytes: int, cpu_s: int | None = None) -> None:
    """Limit the resources of this process for good; import large libraries before.

    Args:
        memory_bytes: Maximum address space. Enforced on Linux only.
        cpu_s: Processor time in seconds, after which SIGXCPU ends the process; None: no limit.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when the child ends
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if cpu_s is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def address_space() -> int:
    """Bytes of address space that this process has reserved; 0 where Linux's /proc is missing."""
    with contextlib.suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        return pages * resource.getpagesize()
    return 0


@contextlib.contextmanager
def deadline(seconds: float) -> Generator[None]:
    """End this process unless the block finishes in time.

    The alarm's default action ends the process in the middle of a computation. A Python signal
    handler would not: it waits for the running C function, such as a power with a billion digits.
    """
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def received_messages() -> Iterator[Message]:
    """The parent's messages, until it closes the pipe."""
    for line in sys.stdin.buffer:
        yield json.loads(line)


def send_message(message: Message, file: TextIO | None = None) -> None:
    """Send one message to the parent, by another file than the standard output if one is given."""
    output = sys.stdout if file is None else file
    output.write(json.dumps(message) + "\n")
    output.flush()
