"""Editing of the configuration file; everything else keeps its comments, order and quotes."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from app.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Change:
    """Text of the configuration before and after a change."""

    path: Path
    before: str
    after: str

    @property
    def diff(self) -> str:
        """Unified diff; empty if nothing changes."""
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            fromfile=str(self.path),
            tofile=str(self.path),
        )
        return "".join(lines)

    def write(self) -> None:
        """Replace the file. Raises :class:`SettingsError` when it cannot be written."""
        try:
            self.path.write_text(self.after, encoding="utf-8")
        except OSError as exc:
            raise SettingsError(f"{self.path}: cannot be written ({exc.strerror})") from exc


def parse(text: str) -> tuple[YAML, Any]:
    """Parse a document; return it with an editor that keeps its indentation."""
    # ruamel.yaml and not PyYAML: it keeps comments, quotes and order through a round trip.
    # Its round-trip loader builds no Python objects.
    editor = YAML(typ="rt")
    editor.preserve_quotes = True
    editor.width = 4096
    editor.explicit_start = re.search(r"^---", text, re.MULTILINE) is not None
    nested = re.search(r"^\w+:[^\n]*\n(?: *#[^\n]*\n)*( +)[^\s#-]", text, re.MULTILINE)
    listed = re.search(r"^( *)- ", text, re.MULTILINE)
    offset = len(listed[1]) if listed else 0
    mapping = len(nested[1]) if nested else 2
    editor.indent(mapping=mapping, sequence=offset + 2, offset=offset)
    representer: Any = editor.representer
    representer.add_representer(type(None), _null)
    document: Any = editor.load(text)  # pyright: ignore[reportUnknownMemberType]
    return editor, document


def _null(representer: Any, _: None) -> Any:
    """Write null as `null`, not as an empty value."""
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


def update_section(document: Any, section: str, values: dict[str, Any]) -> None:
    """Set values in a section.

    Equal values stay as written. New names are inserted first, away from the comment of the next
    section.
    """
    if document.get(section) is None:
        document[section] = values
        return
    for name, value in values.items():
        if name not in document[section]:
            document[section].insert(0, name, value)
        elif document[section][name] != value:  # else 0.10 would become 0.1
            document[section][name] = value
