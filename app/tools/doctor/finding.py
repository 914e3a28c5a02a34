"""Finding of a check: its state and the next step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Severity of a finding."""

    OK = "OK"
    WARNING = "warning"  # the gateway works, but something needs attention
    FAILED = "failed"  # the gateway does not start, or does not route


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the table."""

    check: str
    state: State
    found: str
    cure: str = ""  # what to do next; empty if the state is OK


def ok(check: str, found: str) -> Finding:
    """A finding without a problem."""
    return Finding(check, State.OK, found)


def warning(check: str, found: str, cure: str) -> Finding:
    """It works, but something needs attention."""
    return Finding(check, State.WARNING, found, cure)


def failed(check: str, found: str, cure: str) -> Finding:
    """A failure: the gateway does not start, or does not route."""
    return Finding(check, State.FAILED, found, cure)
