"""Keys of the configuration file: one is revoked, those of a backup are added; all else stays."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml.error import YAMLError

from app import settings
from app.errors import Conflict, SettingsError
from app.settings import editing
from app.settings.access import Key
from app.settings.loading import yaml_problem


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
        raise SettingsError(f"{path}: cannot be edited{yaml_problem(exc)}") from None
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


def lacking_keys(saved: Sequence[Key], configured: Sequence[Key]) -> list[Key]:
    """The saved keys that the configuration does not know, by name and hash."""
    known = {(key.name, key.hash) for key in configured}
    return [key for key in saved if (key.name, key.hash) not in known]


def adding_keys(path: Path, keys: Sequence[Key], configured: Sequence[Key]) -> editing.Change:
    """Put keys in front of those of the file; comments and order stay.

    Args:
        path: The configuration.
        keys: What it lacks.
        configured: What it has.

    Raises:
        Conflict: One of the names stands for another hash.
        SettingsError: The file cannot be read, or a start with the change would be refused.
    """
    taken = {key.name for key in configured}
    if twice := [key.name for key in keys if key.name in taken]:
        raise Conflict(
            f"{path}: the key {twice[0]!r} has another hash in the backup; nothing was changed"
        )
    try:
        before = path.read_text(encoding="utf-8")
        after = _with(before, [key.model_dump(mode="json", exclude_defaults=True) for key in keys])
    except OSError as exc:
        raise SettingsError(f"{path}: cannot be read ({exc.strerror})") from exc
    except YAMLError as exc:
        raise SettingsError(f"{path}: cannot be read{yaml_problem(exc)}") from None
    settings.parse(after, path)
    return editing.Change(path, before, after)


def _with(text: str, keys: list[dict[str, Any]]) -> str:
    editor, document = editing.parse(text)
    known: Any = document.get("access", {}).get("keys")
    if known and not known.fa.flow_style():
        # ruamel.yaml hangs the comment above the first item on what is before the list, and what
        # follows the list on its last item: new lines of text come between neither.
        lines = text.splitlines(keepends=True)
        line = document["access"].lc.key("keys")[0] + 1
        listed = (f"{' ' * known.lc.col}- {json.dumps(key, ensure_ascii=False)}\n" for key in keys)
        return "".join([*lines[:line], *listed, *lines[line:]])
    if known is None:
        editing.update_section(document, "access", {"keys": keys})
    else:
        known.extend(keys)
    after = io.StringIO()
    editor.dump(document, after)  # pyright: ignore[reportUnknownMemberType]
    return after.getvalue()
