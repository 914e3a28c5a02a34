"""Editing of the configuration file; everything else keeps its comments, order and quotes."""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

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

    def settings(self, in_force: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """The settings that change, by section; None: the setting is removed.

        Args:
            in_force: All settings from before the change, with their defaults, as JSON values.
        """
        before, after = _sections(self.before), _sections(self.after)
        found: dict[str, dict[str, Any]] = {}
        for section in {**before, **after}:
            old, new = before.get(section, {}), after.get(section, {})
            changed = {
                name: new.get(name)
                for name in {**old, **new}
                if old.get(name) != new.get(name) != in_force[section].get(name)
            }
            found |= {section: changed} if changed else {}
        return found

    def write(self) -> None:
        """Replace the file. Raises :class:`SettingsError` when it cannot be written."""
        try:
            self.path.write_text(self.after, encoding="utf-8")
        except OSError as exc:
            raise SettingsError(f"{self.path}: cannot be written ({exc.strerror})") from exc


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written later. Raises :class:`SettingsError`."""
    try:
        with path.open("r+b"):
            pass
    except OSError as exc:
        raise SettingsError(
            f"{path}: cannot be written ({exc.strerror}). In a container it is mounted, often read-"
            "only: leave out --write, and put the settings that are shown into the file, ConfigMap "
            "or values that it comes from; or name a copy by --config"
        ) from exc


def has_settings(path: Path, settings: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a configuration has these settings, as :meth:`Change.settings` names them."""
    sections = _sections(path.read_text(encoding="utf-8"))
    return all(
        sections.get(section, {}).get(name) == value
        for section, values in settings.items()
        for name, value in values.items()
    )


def as_yaml(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Lines for a configuration; comments name settings to remove."""
    lines: list[str] = []
    for section, values in settings.items():
        lines.append(f"{section}:")
        for name, value in values.items():
            text = yaml.safe_dump({name: value}, sort_keys=False).splitlines()
            lines += [f"  {each}" for each in text] if value is not None else [f"  # remove {name}"]
    return "\n".join(lines)


def _sections(text: str) -> dict[str, dict[str, Any]]:
    """The sections of a configuration, without settings that stand alone."""
    document: dict[str, Any] = yaml.safe_load(text) or {}
    return {name: each for name, each in document.items() if isinstance(each, dict)}


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


def changed(path: Path, section: str, values: dict[str, Any]) -> Change:
    """Other values in a section of a configuration. Raises :class:`SettingsError`."""
    try:
        before = path.read_text(encoding="utf-8")
        editor, document = parse(before)
    except (OSError, YAMLError) as exc:
        reason = getattr(exc, "strerror", None) or "it is no YAML"
        raise SettingsError(f"{path}: cannot be read ({reason})") from exc
    update_section(document, section, values)
    after = io.StringIO()
    editor.dump(document, after)  # pyright: ignore[reportUnknownMemberType]
    return Change(path, before, after.getvalue())


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
