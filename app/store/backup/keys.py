"""Keys of a backup that the configuration lacks, and how they come into its file."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml.error import YAMLError

from app import settings
from app.errors import Conflict, SettingsError
from app.settings.access import Key
from app.settings.editing import Change, parse, update_section


def lacking(saved: Sequence[Key], configured: Sequence[Key]) -> list[Key]:
    """The saved keys that the configuration does not know, by name and hash."""
    known = {(key.name, key.hash) for key in configured}
    return [key for key in saved if (key.name, key.hash) not in known]


def adding(path: Path, keys: Sequence[Key], configured: Sequence[Key]) -> Change:
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
    except (OSError, YAMLError) as exc:
        raise SettingsError(f"{path}: cannot be read: {exc}") from exc
    settings.parse(after, path)
    return Change(path, before, after)


def _with(text: str, keys: list[dict[str, Any]]) -> str:
    editor, document = parse(text)
    known: Any = document.get("access", {}).get("keys")
    if known and not known.fa.flow_style():
        # ruamel.yaml hangs the comment above the first item on what is before the list, and what
        # follows the list on its last item: new lines of text come between neither.
        lines = text.splitlines(keepends=True)
        line = document["access"].lc.key("keys")[0] + 1
        listed = (f"{' ' * known.lc.col}- {json.dumps(key, ensure_ascii=False)}\n" for key in keys)
        return "".join([*lines[:line], *listed, *lines[line:]])
    if known is None:
        update_section(document, "access", {"keys": keys})
    else:
        known.extend(keys)
    after = io.StringIO()
    editor.dump(document, after)  # pyright: ignore[reportUnknownMemberType]
    return after.getvalue()
