"""Template of a first configuration, with comments. Writes no file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from app.settings import AUTO
from app.settings.schema import FILE_NAME, modeline
from app.upstream.model_list import ModelList

_LONGEST: Final = 128
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._:/@+-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateEntry:
    """One candidate: a model, and every server that serves it."""

    name: str
    model: str
    base_urls: tuple[str, ...]
    error: str | None = None  # why no model list was read; the name is then a guess


def candidate_entries(
    listings: Iterable[ModelList], missing: Iterable[tuple[str, str]] = ()
) -> list[CandidateEntry]:
    """List candidates in the order of their servers; a model of several servers has replicas.

    Args:
        listings: The model lists of the servers.
        missing: URLs of servers without a list, and why.
    """
    places: dict[str, list[str]] = {}
    for listing in listings:
        for model in listing.models:
            places.setdefault(model, []).append(listing.base_url)
    names: set[str] = set()
    candidates = [
        CandidateEntry(
            name=_unique_name(_valid_name(model), names), model=model, base_urls=tuple(urls)
        )
        for model, urls in places.items()
    ]
    for url, why in missing:
        name = _unique_name(
            _valid_name(urlsplit(url).netloc.rpartition("@")[2].replace(":", "-")), names
        )
        candidates.append(CandidateEntry(name=name, model=name, base_urls=(url,), error=why))
    return candidates


def _valid_name(model: str) -> str:
    """A valid candidate name, as close to the model's as possible."""
    last = model.rstrip("/").rpartition("/")[2] if model.startswith(("/", ".")) else model
    name = _NOT_IN_NAMES.sub("-", last).lstrip("._:/@+-") or "model"
    is_reserved = name == AUTO or name.startswith(f"{AUTO}/")  # reserved for the router
    return (f"model-{name}" if is_reserved else name)[:_LONGEST]


def _unique_name(name: str, taken: set[str]) -> str:
    free, number = name, 2
    while free in taken:
        free, number = f"{name[: _LONGEST - 4]}-{number}", number + 1
    taken.add(free)
    return free


def render(candidates: Sequence[CandidateEntry], *, key_env: str | None, port: int) -> str:
    """Render the configuration file.

    Args:
        candidates: At least one.
        key_env: The variable with the servers' API key; the key itself is not written.
        port: Port of the gateway.
    """
    return _FILE.format(
        modeline=modeline(FILE_NAME),
        port=port,
        candidates="".join(_candidate(each, key_env) for each in candidates),
    )


def _candidate(each: CandidateEntry, key_env: str | None) -> str:
    comment = f"  # {each.error}: set `name` and `model` to what it serves\n" if each.error else ""
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
    """A YAML scalar, quoted where plain text would be read as another type."""
    return _dumped(value, None).removesuffix("...\n").strip()


def _quoted(value: str) -> str:
    return _dumped(value, '"').strip()


def _dumped(value: str, style: Any) -> str:
    return yaml.safe_dump(value, default_style=style, width=10**6, allow_unicode=True)


_FILE: Final = """\
{modeline}
# Configuration of the gateway, written by `racer init`. All settings with their defaults:
# docs/reference/configuration.md. An unknown setting stops the start.
# Next: `racer doctor --config` with this file.
schema_version: 1

# Address to listen on. Any address other than loopback needs a data key in $RACER_DATA_KEY;
# calibration needs an admin key in $RACER_ADMIN_KEY. `openssl rand -hex 24` generates a key.
host: 127.0.0.1
port: {port}

# The router that chooses among the candidates: a folder, relative to this file. The gateway loads
# it once `racer train --out artifact` has made it; until then the first candidate answers `auto`.
artifact: artifact

# Database of calibrations and decisions: a SQLite file, relative to this one, or a PostgreSQL URL
# that several gateways share. A URL with a password goes into $RACER_STORE_URL instead.
store: sqlite:///racer.db

# The pool of candidates. `name` is what clients see, `model` the name at the server if it differs;
# several `base_urls` are replicas of one model. Delete entries that are no chat models.
# `parameters` are the decoding parameters of requests that set none. The guarantee holds for
# answers that are generated like the labelled ones: change `parameters` before `racer label`.
candidates:
{candidates}
routing:
  alpha: 0.1              # risk level: share of answerable queries that a set may miss
  risk_target: answerable
  on_abstain: refuse      # when no candidate is likely right: refuse, strongest or error

# Labelled rows from live traffic: a random part of the requests goes to every candidate, and is
# stored encrypted by the key in $RACER_SAMPLES_KEY, see docs/live-traffic.md. To turn it on:
# applications:
#   bot: {{keys: [data], premise: drawn}}  # `data`: the requests with $RACER_DATA_KEY
# watching:
#   shadow_rate: 0.05       # one request in twenty
#   shadow_calls_per_day: 20000
#   store_requests: true

aggregation:
  method: majority
  equality: exact         # when two answers are equal: choice, number, exact, json, math, auto
"""
