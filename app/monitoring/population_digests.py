"""Digests of a sampled population: which requests there are, how they are sent and read."""

from __future__ import annotations

from hashlib import blake2b

from app.json_output import dump_json
from app.routing.conditions import ConditionReader
from app.settings import Settings
from app.settings.applications import leave_out_digest, members_digest


def population_digests(settings: Settings, conditions: ConditionReader) -> str:
    """Digests of the requests that are sampled, as decisions store them, between spaces.

    The first, of which requests each application has and how their turns are drawn; the second, of
    what the gateway adds to any request; the third, of what the router does not read of them, where
    it does not read everything.
    """
    added = dump_json([conditions.added[name] for name in settings.pool])
    members = members_digest(settings.applications)
    digests = [members, blake2b(added, digest_size=8).hexdigest()]
    return " ".join([*digests, leave_out_digest(settings.applications)]).rstrip()


def are_read_alike(before: str | None, now: str) -> bool:
    """Whether the router read requests of earlier digests as it reads those of present ones.

    Args:
        before: Earlier digests; None: the request was not sampled.
        now: What :func:`population_digests` gives now.
    """
    return (before or "").split(" ")[2:] == now.split(" ")[2:]
