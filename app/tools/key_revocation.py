"""Revocation of an API key: its entry leaves the configuration file, and everything else stays."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from ruamel.yaml.error import YAMLError

from app import settings
from app.errors import SettingsError
from app.settings import editing


def revocation(path: Path, name: str, *, is_forced: bool = False) -> editing.Change:
    """The change that removes a key; comments and order stay.

    Args:
        path: The configuration.
        name: The key.
        is_forced: Also the last data key of the file.

    Raises:
        SettingsError: The file is wrong, or has no such key, or no other data key.
    """
    configured = settings.read(path)
    names = [key.name for key in configured.access.keys]
    if name not in names:
        variables = f"${configured.access.data_key_env} and ${configured.access.admin_key_env}"
        known = f"it has {', '.join(names)}" if names else "it has none"
        raise SettingsError(
            f"{path}: no key {name!r} in access.keys, {known}; keys in {variables} end where these "
            "variables are set"
        )
    data_keys = [key.name for key in configured.access.keys if key.role == "data"]
    if data_keys == [name] and not is_forced:
        raise SettingsError(
            f"{path}: {name!r} is the last data key. Without one, and without "
            f"${configured.access.data_key_env}, a gateway on 127.0.0.1 accepts every request, "
            "also those that a proxy on the same machine passes on: add another key first "
            "(`racer key new NAME`), or use --force and restart the gateways"
        )
    before = path.read_text(encoding="utf-8")
    try:
        after = _without(before, names.index(name))
    except YAMLError as exc:
        raise SettingsError(f"{path}: cannot be edited: {exc}") from exc
    return editing.Change(path, before, after)


def _without(text: str, place: int) -> str:
    """The text without one entry of `access.keys`."""
    editor, document = editing.parse(text)
    keys: Any = document["access"]["keys"]
    if len(keys) > 1 and not keys.fa.flow_style():
        return _without_lines(text, keys, place)
    del keys[place]
    after = io.StringIO()
    editor.dump(document, after)  # pyright: ignore[reportUnknownMemberType]
    return after.getvalue()


def _without_lines(text: str, keys: Any, place: int) -> str:
    """The text without the lines of an entry of a block list.

    ruamel.yaml hangs the comments behind an entry on the entry, and would remove them with it.
    """
    lines = text.splitlines(keepends=True)
    start, dash = keys.lc.item(place)[0], keys.lc.col
    while not lines[start].lstrip().startswith("- ") and lines[start].strip() != "-":
        start -= 1
    end = start + 1
    for number in range(start + 1, len(lines)):
        content = lines[number].lstrip()
        if content and not content.startswith("#"):
            if len(lines[number]) - len(content) <= dash:
                break
            end = number + 1
    return "".join([*lines[:start], *lines[end:]])
