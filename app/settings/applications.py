"""Settings of applications: populations with their own rows and terms (section `applications`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Annotated, Final, Literal

from pydantic import Field

from app.settings.base import Frozen
from app.settings.candidates import Name
from app.settings.routing import Alpha

Premise = Literal["alike", "drawn"]
DEFAULT: Final = "default"  # the application of requests and rows that belong to no other


class Application(Frozen):
    """A population of requests, such as those of a support bot, with its own rows."""

    keys: tuple[Name, ...] = ()
    """Its API keys: names in `access.keys`, `data` or `admin`."""
    prompts: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")], ...] = ()
    """Digests of the system prompt and tools of its requests; `GET /decisions/{id}` shows an
    unknown one as `prompt_digest`."""
    alpha: Alpha | None = None
    """Risk level of its requests; null: that of the calibration."""
    on_uncovered: Name | None = None
    """As `routing.on_uncovered`, for its requests; null: that."""
    premise: Premise = "alike"
    """Its rows cover requests sent `alike`, or all, if they are `drawn` from its traffic."""


def membership_digest(applications: Mapping[str, Application]) -> str:
    """A text that changes with the requests that belong to each application, and its premise."""
    members = {
        name: [sorted(each.keys), sorted(each.prompts), each.premise]
        for name, each in sorted(applications.items())
    }
    return blake2b(json.dumps(members).encode(), digest_size=8).hexdigest()


def problems(applications: Mapping[str, Application], keys: tuple[str, ...]) -> Iterator[str]:
    """What is wrong with the applications, given the names of all API keys."""
    owners: dict[str, str] = {}
    for name, each in applications.items():
        place = f"applications.{name}"
        if name == DEFAULT:
            yield f"{place}: the name `{DEFAULT}` is reserved for requests of no application"
        for key in each.keys:
            if key not in keys:
                yield f"{place}.keys: no API key is called {key!r}"
        for member in (*each.keys, *each.prompts):
            if owners.setdefault(member, name) != name:
                yield f"{place}: {member!r} belongs to the application {owners[member]!r} already"
