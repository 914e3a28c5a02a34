"""First configuration of `racer init`: reads model lists of servers and writes the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import yaml

from app import settings
from app.errors import ModelListError, SettingsError, UpstreamUnauthorized, UpstreamUnavailable
from app.settings import AUTO, schema
from app.settings.base import http_url, variable_name
from app.settings.schema import FILE_NAME, modeline
from app.upstream.model_list import ModelList, list_models

_OPENAI: Final = "https://api.openai.com/v1"
_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class InitOptions:
    """Servers to query, their API key, and the file to write."""

    urls: tuple[str, ...]
    key_env: str | None
    path: Path
    port: int

    @classmethod
    def of(
        cls,
        urls: Sequence[str],
        *,
        path: Path,
        port: int,
        key_env: str | None,
        environment: Mapping[str, str],
    ) -> Self:
        """Take the arguments, or else the variables that the ``openai`` client reads.

        Raises:
            SettingsError: No server is named, or a URL or the name of the variable is invalid.
        """
        if not urls:
            key_env = key_env or ("OPENAI_API_KEY" if environment.get("OPENAI_API_KEY") else None)
            default_url = environment.get("OPENAI_BASE_URL") or (_OPENAI if key_env else None)
            if default_url is None:
                raise SettingsError(
                    "no server is named: give base URLs such as http://host:8000/v1, or set "
                    "$OPENAI_BASE_URL"
                )
            urls = (default_url,)
        try:
            key_env = key_env and variable_name(key_env)
        except ValueError as exc:
            raise SettingsError(f"--key-env {exc}") from exc
        unique = tuple(dict.fromkeys(map(_base_url, urls)))
        return cls(urls=unique, key_env=key_env, path=path, port=port)

    @property
    def schema_path(self) -> Path:
        """The schema file beside the configuration, to which its first line points."""
        return self.path.with_name(schema.FILE_NAME)

    def check(self, *, force: bool) -> None:
        """Refuse to replace existing files. Raises :class:`SettingsError`."""
        if self.path.is_dir():
            raise SettingsError(f"{self.path} is a folder: name a file in it with --out")
        if force:
            return
        if self.path.exists():
            raise SettingsError(
                f"{self.path} exists already: name another file with --out, or replace it with "
                "--force"
            )
        if self.schema_path.exists() and not _holds(self.schema_path, schema.text()):
            raise SettingsError(
                f"{self.schema_path} exists already, of another version: replace it with --force"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class InitResult:
    """The files that were written, and their candidates."""

    options: InitOptions
    candidates: tuple[CandidateEntry, ...]

    def as_json(self) -> dict[str, Any]:
        """The fields that are printed."""
        return {
            "config": str(self.options.path),
            "schema": str(self.options.schema_path),
            "candidates": [each.name for each in self.candidates],
            "unreachable": [each.base_urls[0] for each in self.candidates if each.error],
        }


def write(
    options: InitOptions, environment: Mapping[str, str], *, keep_unreachable: bool
) -> InitResult:
    """Read the model lists, validate the configuration as the gateway does, and write it.

    Raises:
        SettingsError: The key is refused or not set, no server has a model, or a file cannot be
            written.
        UpstreamUnavailable: A server does not answer, and ``keep_unreachable`` is false.
    """
    headers: dict[str, str] = {}
    if options.key_env is not None:
        if not (key := environment.get(options.key_env)):
            raise SettingsError(
                f"${options.key_env} is not set: set it to the API key of the servers"
            )
        headers["authorization"] = f"Bearer {key}"
    listings: list[ModelList] = []
    missing: list[tuple[str, str]] = []
    for url, answer in _list_all(options.urls, headers):
        if isinstance(answer, ModelList):
            listings.append(answer)
        elif isinstance(answer, UpstreamUnauthorized):
            raise SettingsError(f"{answer}: name the variable with the right key with --key-env")
        else:
            missing.append((url, str(answer)))
    if missing and not keep_unreachable:
        raise UpstreamUnavailable(
            f"{'; '.join(why for _, why in missing)}: start it, leave it out, or include it with "
            "--keep-unreachable"
        )
    candidates = candidate_entries(listings, missing)
    if not candidates:
        raise SettingsError(f"no model is served at {', '.join(options.urls)}: load one first")
    text = render(candidates, key_env=options.key_env, port=options.port)
    settings.parse(text, options.path, environment)
    try:
        options.path.parent.mkdir(parents=True, exist_ok=True)
        options.schema_path.write_text(schema.text(), encoding="utf-8")
        options.path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise SettingsError(f"{options.path}: cannot be written ({exc.strerror})") from exc
    return InitResult(options=options, candidates=tuple(candidates))


def _list_all(
    urls: Sequence[str], headers: Mapping[str, str]
) -> Iterator[tuple[str, ModelList | UpstreamUnauthorized | ModelListError]]:
    def ask(url: str) -> ModelList | UpstreamUnauthorized | ModelListError:
        try:
            return list_models(url, headers)
        except (UpstreamUnauthorized, ModelListError) as exc:
            return exc

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="racer-init") as threads:
        yield from zip(urls, threads.map(ask, urls), strict=True)


def _base_url(text: str) -> str:
    """A base URL; `/v1`, which OpenAI's clients expect, is added if it has no path."""
    try:
        url = http_url(text, cure="name the variable of the key with --key-env")
    except ValueError as exc:
        raise SettingsError(f"{'a URL' if '@' in text else repr(text)} {exc}") from exc
    return url if urlsplit(url).path else f"{url}/v1"


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, ValueError):
        return False


# Template of a first configuration, with comments. Writes no file.

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
  equality: auto          # when two answers are equal: choice, number, json, math, text, exact
"""
