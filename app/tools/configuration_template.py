"""A first configuration, with comments, around the servers that were found. Writes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from app.settings import AUTO
from app.settings.schema import FILE_NAME, modeline
from app.upstream.model_list import Listing

_LONGEST: Final = 128
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._:/@+-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateEntry:
    """One candidate: a model, and every server that has it."""

    name: str
    model: str
    base_urls: tuple[str, ...]
    why_not: str | None = None  # nobody answered there, so the name is a guess


def candidate_entries(
    listings: Iterable[Listing], missing: Iterable[tuple[str, str]] = ()
) -> list[CandidateEntry]:
    """Candidates in the order of their servers; a model that several serve is one with replicas.

    Args:
        listings: What servers said.
        missing: URLs of those that said nothing, and why.
    """
    places: dict[str, list[str]] = {}
    for listing in listings:
        for model in listing.models:
            places.setdefault(model, []).append(listing.base_url)
    names: set[str] = set()
    candidates = [
        CandidateEntry(name=_free(_fitting(model), names), model=model, base_urls=tuple(urls))
        for model, urls in places.items()
    ]
    for url, why in missing:
        name = _free(_fitting(urlsplit(url).netloc.rpartition("@")[2].replace(":", "-")), names)
        candidates.append(CandidateEntry(name=name, model=name, base_urls=(url,), why_not=why))
    return candidates


def _fitting(model: str) -> str:
    """A name that fits into headers and paths, as near to the model's as can be."""
    last = model.rstrip("/").rpartition("/")[2] if model.startswith(("/", ".")) else model
    name = _NOT_IN_NAMES.sub("-", last).lstrip("._:/@+-") or "model"
    taken = name == AUTO or name.startswith(f"{AUTO}/")  # the router's own
    return (f"model-{name}" if taken else name)[:_LONGEST]


def _free(name: str, taken: set[str]) -> str:
    free, number = name, 2
    while free in taken:
        free, number = f"{name[: _LONGEST - 4]}-{number}", number + 1
    taken.add(free)
    return free


def render(candidates: Sequence[CandidateEntry], *, key_env: str | None, port: int) -> str:
    """The file.

    Args:
        candidates: At least one.
        key_env: The variable that holds the servers' key; the key itself is nowhere in here.
        port: The gateway's.
    """
    return _FILE.format(
        modeline=modeline(FILE_NAME),
        port=port,
        candidates="".join(_candidate(each, key_env) for each in candidates),
    )


def _candidate(each: CandidateEntry, key_env: str | None) -> str:
    comment = f"  # {each.why_not}: put in what it serves\n" if each.why_not else ""
    lines = [f"name: {_scalar(each.name)}"]
    if each.model != each.name:
        lines.append(f"model: {_scalar(each.model)}")
    if len(each.base_urls) == 1:
        lines.append(f"base_url: {_scalar(each.base_urls[0])}")
    else:
        lines.append(f"base_urls: [{', '.join(map(_quoted, each.base_urls))}]")
    if key_env is not None:
        lines.append(f"api_key_env: {_scalar(key_env)}")
    lines.append("parameters: {temperature: 0, max_tokens: 512}")
    return comment + "  - " + "\n    ".join(lines) + "\n"


def _scalar(value: str) -> str:
    """As YAML has it: quoted where it would be read as something else."""
    return _dumped(value, None).removesuffix("...\n").strip()


def _quoted(value: str) -> str:
    return _dumped(value, '"').strip()


def _dumped(value: str, style: Any) -> str:
    return yaml.safe_dump(value, default_style=style, width=10**6, allow_unicode=True)


_FILE: Final = """\
{modeline}
# The gateway's configuration, as `racer init` found the servers. Everything that can stand here,
# with its default: docs/reference/configuration.md. A field that nobody knows stops the start.
# Next: `racer doctor --config` with this file.
schema_version: 1

# Where the gateway listens. An address that others can reach needs a key in $RACER_DATA_KEY, and
# whoever calibrates needs one in $RACER_ADMIN_KEY: `openssl rand -hex 24` makes them.
host: 127.0.0.1
port: {port}

# The router that chooses among the candidates, a folder beside this file. Without one they answer
# by name. Once `racer train --config` with this file and `--out artifact` has made it:
# artifact: artifact

# Calibrations and decisions: a file beside this one, or a PostgreSQL that several gateways share. A
# URL with a password goes into $RACER_STORE_URL instead.
store: sqlite:///racer.db

# The pool. `name` is what clients see, `model` what the server calls it where that differs; of one
# model at several servers every URL is a replica. Delete what is no chat model. `parameters` are
# what a candidate is sent where a request says nothing: the guarantee holds for answers that are
# made as the labelled ones were, so change them before `racer label` and not after it.
candidates:
{candidates}
routing:
  alpha: 0.1              # of the queries that somebody can answer, how many a set may miss
  risk_target: answerable
  on_abstain: refuse      # when nobody is likely to know: refuse, strongest or error

aggregation:
  method: majority
  equality: exact         # when two answers are the same: choice, number, exact, json, math, auto
"""
