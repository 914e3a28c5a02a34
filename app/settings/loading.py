"""Loader of the configuration file; errors name the setting and what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

import yaml
import yaml.resolver
from pydantic import ValidationError

from app.errors import SettingsError
from app.settings.model import Settings
from app.settings.secrets import Secrets, read_secrets
from app.settings.validation import problems

_QUOTATION: Final = re.compile(r"['\"].*['\"]")  # in a message of PyYAML: a part of the file
_SETTINGS: Final = frozenset(Settings.model_fields)


def load(
    path: Path,
    environment: Mapping[str, str] | None = None,
    *,
    serves: bool = True,
    **overrides: Any,
) -> tuple[Settings, Secrets]:
    """Read and validate a configuration file; its relative paths are relative to the file.

    Args:
        path: The YAML file.
        environment: Environment variables with the secrets; None: those of the process.
        serves: Whether the caller listens and stores: else keys of clients and of stored requests
            need not be set.
        overrides: Settings of the command line.

    Raises:
        SettingsError: One sentence with the file, the setting and the problem.
    """
    return parse(_text(path), path, environment, serves=serves, **overrides)


def read(path: Path) -> Settings:
    """Read and validate a configuration file without the secrets that it names.

    Raises:
        SettingsError: As :func:`load`.
    """
    return _absolute_paths(_validated(_text(path), path, {}), path.absolute().parent)


def parse(
    text: str,
    path: Path,
    environment: Mapping[str, str] | None = None,
    *,
    serves: bool = True,
    **overrides: Any,
) -> tuple[Settings, Secrets]:
    """Validate the text of a configuration file, as :func:`load` does."""
    settings = _validated(text, path, overrides)
    variables = os.environ if environment is None else environment
    secrets = read_secrets(settings, variables, serves=serves)
    return _absolute_paths(settings, path.absolute().parent), secrets


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as exc:
        hint = ""
        if isinstance(exc, FileNotFoundError):
            hint = ": `racer init` writes a first one, --config or $RACER_CONFIG names another"
        raise SettingsError(f"{path}: cannot be read ({exc.strerror}){hint}") from exc
    except ValueError as exc:
        raise SettingsError(f"{path}: not text in UTF-8") from exc


def _validated(text: str, path: Path, overrides: Mapping[str, Any]) -> Settings:
    try:
        values = _parse_yaml(text)
    except (yaml.YAMLError, RecursionError) as exc:
        raise SettingsError(f"{path}: not YAML{yaml_problem(exc)}") from None
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: expected fields such as `schema_version: 1`")
    try:
        return Settings.model_validate(_overridden(cast("dict[str, Any]", values), overrides))
    except ValidationError as exc:
        sentences = [sentence for _, sentence in problems(exc, Settings, noun="setting")]
        raise SettingsError(f"{path}: {'; '.join(sentences)}") from exc


def yaml_problem(exc: Exception) -> str:
    """Where a file is no YAML, and why, as the end of a sentence.

    The messages of PyYAML and of ruamel repeat lines of the file, which may hold a secret, and so
    do tracebacks of their exceptions: raise ``from None``.
    """
    if isinstance(exc, RecursionError):
        return ": nested too deep"
    mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
    place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    words: str = getattr(exc, "problem", None) or getattr(exc, "context", None) or ""
    return f"{place}: {_QUOTATION.sub('...', ' '.join(words.split()))}" if words else place


def _overridden(values: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The file's values under those of the command line; of a section only its given fields."""
    merged = dict(values)
    for name, value in overrides.items():
        is_section = isinstance(value, dict) and isinstance(values.get(name), dict)
        merged[name] = {**values[name], **value} if is_section else value
    return merged


def _absolute_paths(settings: Settings, folder: Path) -> Settings:
    store = settings.store
    prefix = "sqlite:///"
    if store.startswith(prefix) and not store.startswith(f"{prefix}/") and store != prefix:
        store = f"{prefix}{quote(str(folder))}/{store.removeprefix(prefix)}"
    artifact = None if settings.artifact is None else folder / settings.artifact
    encoder = settings.encoder
    if encoder.socket is not None:
        encoder = encoder.model_copy(update={"socket": folder / encoder.socket})
    changes = {"artifact": artifact, "cache": folder / settings.cache}
    return settings.model_copy(update=changes | {"encoder": encoder, "store": store})


def _parse_yaml(text: str) -> Any:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """A YAML loader for which a duplicate key is an error; PyYAML would take the last silently."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """A value; one that cannot be made, such as the 99th of May, is an error with its place."""
        try:
            return cast("Any", super().construct_object(node, deep=deep))
        except (ValueError, OverflowError) as exc:
            problem = "a value that its type does not allow"
            raise yaml.MarkedYAMLError(None, None, problem, node.start_mark) from exc


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    pairs = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
    keys: list[object] = [loader.construct_object(key, deep=True) for key, _ in pairs]
    if duplicates := [key for key in keys if keys.count(key) > 1]:
        first = duplicates[0]
        shown = f"`{first}`" if isinstance(first, str) and first in _SETTINGS else "a name"
        second = [node for (node, _), key in zip(pairs, keys, strict=True) if key == first][1]
        raise yaml.MarkedYAMLError(None, None, f"{shown} is duplicated", second.start_mark)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
