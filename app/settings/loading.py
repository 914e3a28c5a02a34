"""Reads a configuration file, with errors that name the field and the cure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import yaml
import yaml.resolver
from pydantic import ValidationError

from app.errors import SettingsError
from app.settings.model import Settings
from app.settings.secrets import Secrets, read_secrets
from app.settings.validation import problems


def load(
    path: Path, environment: Mapping[str, str] | None = None, **overrides: Any
) -> tuple[Settings, Secrets]:
    """Read and check a configuration file; relative paths in it are relative to it.

    Args:
        path: The YAML file.
        environment: Where secrets are; None takes the process's own.
        overrides: Fields that the command line sets.

    Raises:
        SettingsError: One sentence that names the file, the field and what is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        cure = ": `racer init` writes a first one" if isinstance(exc, FileNotFoundError) else ""
        raise SettingsError(f"{path}: cannot be read ({exc.strerror}){cure}") from exc
    except ValueError as exc:
        raise SettingsError(f"{path}: not text in UTF-8") from exc
    return parse(text, path, environment, **overrides)


def parse(
    text: str, path: Path, environment: Mapping[str, str] | None = None, **overrides: Any
) -> tuple[Settings, Secrets]:
    """The same of what the file holds, or is to hold."""
    try:
        values = _parse_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as exc:  # a bad date, endless nesting
        raise SettingsError(f"{path}: not YAML: {' '.join(str(exc).split())}") from exc
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: expected fields such as `schema_version: 1`")
    try:
        settings = Settings.model_validate({**values, **overrides})
    except ValidationError as exc:
        sentences = [sentence for _, sentence in problems(exc, Settings, noun="setting")]
        raise SettingsError(f"{path}: {'; '.join(sentences)}") from exc
    secrets = read_secrets(settings, os.environ if environment is None else environment)
    return _absolute_paths(settings, path.resolve().parent), secrets


def _absolute_paths(settings: Settings, folder: Path) -> Settings:
    store = settings.store
    prefix = "sqlite:///"
    if store.startswith(prefix) and not store.startswith(f"{prefix}/") and store != prefix:
        store = f"{prefix}{quote(str(folder))}/{store.removeprefix(prefix)}"
    artifact = None if settings.artifact is None else folder / settings.artifact
    return settings.model_copy(update={"artifact": artifact, "store": store})


def _parse_yaml(text: str) -> Any:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """YAML without the last word winning silently: a key that stands twice is an error."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    pairs = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
    keys: list[object] = [loader.construct_object(key, deep=True) for key, _ in pairs]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise yaml.YAMLError(f"{twice[0]!r} stands twice (line {node.start_mark.line + 1} on)")
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
