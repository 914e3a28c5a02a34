"""What a check found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How bad it is."""

    OK = "OK"
    WARNING = "warning"  # it works, and something should be looked at
    FAILED = "failed"  # the gateway does not start, or does not route


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table."""

    check: str
    state: State
    found: str
    cure: str = ""  # what to do next; empty where it is well


def ok(check: str, found: str) -> Finding:
    """It is as it should be."""
    return Finding(check, State.OK, found)


def warning(check: str, found: str, cure: str) -> Finding:
    """It works, and something should be looked at."""
    return Finding(check, State.WARNING, found, cure)


def failed(check: str, found: str, cure: str) -> Finding:
    """It does not work."""
    return Finding(check, State.FAILED, found, cure)
