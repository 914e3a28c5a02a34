"""Settings of applications: populations with their own rows and terms (section `applications`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from app.settings.answer_cache import AnswerCacheSettings
from app.settings.base import Alpha, Frozen
from app.settings.budgets import Budget
from app.settings.candidates import Name, Url
from app.settings.same_answer import SameAnswer
from racer_core.records.conversation import RoutedText

Premise = Literal["alike", "drawn"]
Turns = Literal["separate", "together"]
DEFAULT: Final = "default"  # the application of requests and rows that belong to no other


class Checker(Frozen):
    """Labels the answers to an application's sampled requests: tests, a validator, a reference."""

    url: Url | None = None
    """URL that is sent each sampled request with its answers and returns which are right; the
    bearer token is `$RACER_CHECKER_KEY`."""
    function: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = None
    """Installed Python function instead of `url`, such as `package.module:function`."""
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 10.0
    """Timeout of one check in seconds."""

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if (self.url is None) == (self.function is None):
            raise ValueError("needs either `url` or `function`")
        return self


class LeftOutPassage(Frozen):
    """A passage of turns that the router does not read, such as an agent's reminders."""

    begin: Annotated[str, Field(min_length=1, max_length=256)]
    """Text with which the passage begins, such as `<system-reminder>`."""
    end: Annotated[str, Field(max_length=256)] = ""
    """Text with which it ends, such as `</system-reminder>`; empty: it ends with the turn."""


class Application(Frozen):
    """A population of requests, such as those of a support bot, with its own rows."""

    keys: tuple[Name, ...] = ()
    """Its API keys: names in `access.keys`, `data` or `admin`."""
    prompts: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")], ...] = ()
    """Digests of the system prompt and tools of its requests; the `racer` object of a request with
    unknown ones shows theirs as `prompt_digest`."""
    alpha: Alpha | None = None
    """Risk level of its requests; null: `routing.alpha`."""
    on_uncovered: Name | None = None
    """As `routing.on_uncovered`, for its requests; null: that."""
    shadow_rate: Annotated[float, Field(ge=0, le=1)] | None = None
    """As `watching.shadow_rate`, for its requests; null: that."""
    text: RoutedText | None = None
    """What the router reads of its requests and rows: as `routing.text`, or after system prompts:
    `with_system`, the last user turn, or `conversation_with_system`; null: that of
    `routing.text`."""
    leave_out: Annotated[tuple[LeftOutPassage, ...], Field(max_length=64)] = ()
    """Passages that the router does not read in its requests and rows: what an agent wraps around
    the words of its user. A turn of the user that holds nothing else is skipped."""
    premise: Premise = "alike"
    """Its rows cover requests sent `alike`, or all, if they are `drawn` from its traffic."""
    turns: Turns = "separate"
    """Later turns have rows of their own (`separate`), or all turns of its conversations are one
    population with one threshold (`together`; needs `premise: drawn`, and of clients a session id
    of each conversation, `x-session-id`)."""
    checker: Checker | None = None
    """Labels the answers to its sampled requests."""
    same_answer: SameAnswer | None = None
    """As the section `same_answer`, for its requests; null: that."""
    answer_cache: AnswerCacheSettings | None = None
    """As the section `answer_cache`, for its requests; null: none of its answers are cached."""
    budget: Budget | None = None
    """As the section `budget`, for its requests to `auto`."""

    @model_validator(mode="after")
    def _turns_are_drawn(self) -> Self:
        if self.turns == "together" and self.premise != "drawn":
            raise ValueError(
                "`turns: together` needs `premise: drawn`: only rows drawn from the traffic have "
                "first and later turns in its own shares"
            )
        return self


def membership_digest(applications: Mapping[str, Application], text: RoutedText) -> str:
    """A text that changes with the requests of each application, and with how they are read.

    They are read alike under the same premise, turns, own text and passages that are left out.

    Args:
        applications: The applications.
        text: What the router reads of those without a text of their own.
    """
    members = {
        name: [
            sorted(each.keys),
            sorted(each.prompts),
            each.premise,
            *([each.text] * bool(each.text)),
            *([leave_out_digest({name: each})] * bool(each.leave_out)),
            *([each.turns, text] * (each.turns == "together")),
        ]
        for name, each in sorted(applications.items())
    }
    return blake2b(json.dumps(members).encode(), digest_size=8).hexdigest()


def leave_out_digest(applications: Mapping[str, Application]) -> str:
    """A text that changes with what the router does not read; empty where it reads everything."""
    rules = {
        name: [[passage.begin, passage.end] for passage in each.leave_out]
        for name, each in sorted(applications.items())
        if each.leave_out
    }
    return blake2b(json.dumps(rules).encode(), digest_size=8).hexdigest() if rules else ""


def members_digest(applications: Mapping[str, Application]) -> str:
    """A text that changes with the requests of each application, and with how these are drawn."""
    members = {
        name: [sorted(each.keys), sorted(each.prompts), each.turns]
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
