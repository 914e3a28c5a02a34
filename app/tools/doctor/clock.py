"""Check of the clock against the servers' (clock skew): ids, ages and leases depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.tools.doctor.finding import Finding, ok, warning
from app.upstream.model_list import ModelList

CHECK = "clock"
SKEW_S: Final = 5.0  # Date headers have whole seconds, and an answer takes time


def check(listings: Sequence[ModelList]) -> Finding:
    """Compare this machine's clock with the servers' Date headers."""
    offsets = {each.base_url: each.ahead_s for each in listings if each.ahead_s is not None}
    off = {url: ahead for url, ahead in offsets.items() if abs(ahead) > SKEW_S}
    if not offsets:
        return ok(CHECK, "no server sends a Date header to compare with")
    if not off:
        return ok(CHECK, f"within {SKEW_S:.0f} s of {_servers(len(offsets))}")
    url, ahead = max(off.items(), key=lambda each: abs(each[1]))
    if len(off) == len(offsets) > 1:
        found = (
            f"{abs(ahead):.0f} s {'behind' if ahead > 0 else 'ahead of'} {_servers(len(offsets))}"
        )
        return warning(CHECK, found, "set this machine's clock, with NTP")
    found = f"{url} is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this machine"
    return warning(CHECK, found, "set the clock that is wrong, with NTP")


def _servers(count: int) -> str:
    return "the server" if count == 1 else f"all {count} servers"
