"""Repeated log messages: the first is written, the others are counted.

A candidate that is away fails every request with the same words. Who reads the log wants them once,
and how often.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Generator, Hashable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

EVERY_S: Final = 60.0  # then a repeated message is written again, with its count
MOST: Final = 1_000  # messages that are told apart; further ones are written each time

KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(slots=True)
class _Seen:
    since: float
    repeats: int = 0


class Repeats(Generic[KeyT]):
    """Which messages were written lately, and how often they came again."""

    def __init__(self) -> None:
        self._seen: dict[KeyT, _Seen] = {}

    def is_new(self, message: KeyT, now: float) -> bool:
        """Whether to write a message; one that was written lately is counted instead."""
        if (seen := self._seen.get(message)) is not None:
            seen.repeats += 1
            return False
        if len(self._seen) < MOST:
            self._seen[message] = _Seen(now)
        return True

    def due(self, now: float, every_s: float = EVERY_S) -> list[tuple[KeyT, int]]:
        """The messages that came again since they were written ``every_s`` ago, with counts.

        They are taken as written now; the others of that age are forgotten.
        """
        over = [each for each, seen in self._seen.items() if now - seen.since >= every_s]
        found = [(each, self._seen[each].repeats) for each in over if self._seen[each].repeats]
        for each in over:
            del self._seen[each]
        for each, _ in found:
            self._seen[each] = _Seen(now)
        return found


@contextmanager
def counted_at_end() -> Generator[None]:
    """Let warnings of a command without a log be written once, and counted at its end."""
    before = logging.lastResort
    counting = logging.lastResort = _CountingHandler(logging.WARNING)
    try:
        yield
    finally:
        logging.lastResort = before
        counting.tell()


class _CountingHandler(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._counts = Counter[str]()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message to what is stderr now, above a progress bar, unless it was written."""
        text = self.format(record)
        self._counts[text] += 1
        if self._counts[text] == 1:
            sys.stderr.write(f"{text}\n")

    def tell(self) -> None:
        """Write how often the repeated messages came."""
        for text, count in self._counts.items():
            if count > 1:
                sys.stderr.write(f"{count} times: {text.splitlines()[0]}\n")
