"""``racer init``: asks servers, and writes the configuration around them, or nothing at all."""

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
from app.upstream.model_list import Listing, list_models

_OPENAI: Final = "https://api.openai.com/v1"
_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class InitOptions:
    """Who is asked, with which key, and what is written."""

    urls: tuple[str, ...]
    key_env: str | None
    path: Path
    port: int

    @classmethod
    def of(
        cls,
        urls: Sequence[str],
        path: Path,
        port: int,
        key_env: str | None,
        environment: Mapping[str, str],
    ) -> Self:
        """From what was given, or the variables that the ``openai`` client reads.

        Raises:
            SettingsError: Nobody is named, or no URL is one.
        """
        if not urls:
            key_env = key_env or ("OPENAI_API_KEY" if environment.get("OPENAI_API_KEY") else None)
            named = environment.get("OPENAI_BASE_URL") or (_OPENAI if key_env else None)
            if named is None:
                raise SettingsError(
                    "no server is named: give base URLs such as http://host:8000/v1, or set "
                    "$OPENAI_BASE_URL"
                )
            urls = (named,)
        unique = tuple(dict.fromkeys(map(_base_url, urls)))
        return cls(urls=unique, key_env=key_env, path=path, port=port)

    @property
    def schema_path(self) -> Path:
        """Beside the configuration, where its first line looks for it."""
        return self.path.with_name(schema.FILE_NAME)

    def check(self, *, force: bool) -> None:
        """Refuse to replace what is there. Raises :class:`SettingsError`."""
        if self.path.is_dir():
            raise SettingsError(f"{self.path} is a folder: name a file in it with --out")
        if force:
            return
        if self.path.exists():
            raise SettingsError(
                f"{self.path} is there already: name another file with --out, or replace it with "
                "--force"
            )
        if self.schema_path.exists() and not _holds(self.schema_path, schema.text()):
            raise SettingsError(
                f"{self.schema_path} is there already, of another version: replace it with --force"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class InitResult:
    """What was written, and about whom."""

    plan: InitOptions
    candidates: tuple[configuration_template.CandidateEntry, ...]

    def as_json(self) -> dict[str, Any]:
        """The fields that are printed."""
        return {
            "config": str(self.plan.path),
            "schema": str(self.plan.schema_path),
            "candidates": [each.name for each in self.candidates],
            "unreachable": [each.base_urls[0] for each in self.candidates if each.why_not],
        }


def write(
    plan: InitOptions, environment: Mapping[str, str], *, keep_unreachable: bool
) -> InitResult:
    """Ask everybody, check what came of it as the gateway will, and write it.

    Raises:
        SettingsError: The key is refused or not set, nobody serves a model, or a file cannot be
            written.
        UpstreamUnavailable: Somebody does not answer, and is not to be written all the same.
    """
    headers: dict[str, str] = {}
    if plan.key_env is not None:
        if not (key := environment.get(plan.key_env)):
            raise SettingsError(f"${plan.key_env} is not set: it is to hold the servers' key")
        headers["authorization"] = f"Bearer {key}"
    listings: list[Listing] = []
    missing: list[tuple[str, str]] = []
    for url, answer in _asked(plan.urls, headers):
        if isinstance(answer, Listing):
            listings.append(answer)
        elif isinstance(answer, UpstreamUnauthorized):
            raise SettingsError(f"{answer}: name the variable that holds it with --key-env")
        else:
            missing.append((url, str(answer)))
    if missing and not keep_unreachable:
        raise UpstreamUnavailable(
            f"{'; '.join(why for _, why in missing)}: start it or leave it out, or have it written "
            "all the same with --keep-unreachable"
        )
    candidates = configuration_template.candidate_entries(listings, missing)
    if not candidates:
        raise SettingsError(f"no model is served at {', '.join(plan.urls)}: load one first")
    text = configuration_template.render(candidates, key_env=plan.key_env, port=plan.port)
    settings.parse(text, plan.path, environment)
    try:
        plan.path.parent.mkdir(parents=True, exist_ok=True)
        plan.schema_path.write_text(schema.text(), encoding="utf-8")
        plan.path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise SettingsError(f"{plan.path}: cannot be written ({exc.strerror})") from exc
    return InitResult(plan=plan, candidates=tuple(candidates))


def _asked(
    urls: Sequence[str], headers: Mapping[str, str]
) -> Iterator[tuple[str, Listing | UpstreamUnauthorized | ModelListError]]:
    def ask(url: str) -> Listing | UpstreamUnauthorized | ModelListError:
        try:
            return list_models(url, headers)
        except (UpstreamUnauthorized, ModelListError) as exc:
            return exc

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="racer-init") as threads:
        yield from zip(urls, threads.map(ask, urls), strict=True)


def _base_url(given: str) -> str:
    """With the path that OpenAI's clients expect, where none is given."""
    try:
        url = http_url(given)
    except ValueError as exc:
        raise SettingsError(f"{given!r} {exc}") from exc
    parts = urlsplit(url)
    if "@" in parts.netloc:  # it would stand in the file
        raise SettingsError("a URL holds no password: name the variable of the key with --key-env")
    return url if parts.path else f"{url}/v1"


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, ValueError):
        return False
