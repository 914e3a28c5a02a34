"""Reads constraints.txt."""

import re

from .dockerfile import ROOT


def canonical(name: str) -> str:
    """A distribution's name as all spellings of it become (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """Version by canonical name; every line must be a pin or a comment."""
    found: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        name, version = line.split("==")
        found[canonical(name)] = version
    return found
