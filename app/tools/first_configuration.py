"""First configuration of `racer init`: reads model lists of servers and writes the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from app import settings
from app.errors import ModelListError, SettingsError, UpstreamUnauthorized, UpstreamUnavailable
from app.settings import schema
from app.settings.base import http_url
from app.tools import configuration_template
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
            SettingsError: No server is named, or a URL is invalid.
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
    candidates: tuple[configuration_template.CandidateEntry, ...]

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
    candidates = configuration_template.candidate_entries(listings, missing)
    if not candidates:
        raise SettingsError(f"no model is served at {', '.join(options.urls)}: load one first")
    text = configuration_template.render(candidates, key_env=options.key_env, port=options.port)
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
        url = http_url(text)
    except ValueError as exc:
        raise SettingsError(f"{text!r} {exc}") from exc
    parts = urlsplit(url)
    if "@" in parts.netloc:  # it would be written to the file
        raise SettingsError(
            "a URL must hold no password: name the variable of the key with --key-env"
        )
    return url if parts.path else f"{url}/v1"


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, ValueError):
        return False
