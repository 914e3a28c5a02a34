"""Result of a restore."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """What a restore did, by ids of calibrations of either kind."""

    added: list[str] = field(default_factory=list[str])
    there: list[str] = field(default_factory=list[str])
    activated: list[str] = field(default_factory=list[str])
    left: list[str] = field(default_factory=list[str])  # active then; another one is now
