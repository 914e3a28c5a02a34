"""docs/configuration.md: every setting with its default, and none that does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from app.settings import Settings

ROOT = Path(__file__).parents[2]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
ROW = re.compile(
    r"^\| `(?P<name>[^`]+)` \| (?P<default>[^|]+?) \| (?P<what>[^|]+) \|$", re.MULTILINE
)
# As other documents name them: a section and a field of it.
NAMED = re.compile(
    r"`((?:encoder|routing|aggregation|fleet|access|limits|watching|telemetry)\.[a-z_]+)"
)


def fields(
    model: type[BaseModel], prefix: str = "", seen: frozenset[type] = frozenset()
) -> Iterator[tuple[str, FieldInfo]]:
    """Every setting by its place. A section that stood before is not told again."""
    for name, field in model.model_fields.items():
        section, mark = section_of(field.annotation)
        if section is None or section in seen:
            yield f"{prefix}{name}", field
        else:
            yield from fields(section, f"{prefix}{name}{mark}.", seen)
            seen |= {section}


def section_of(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The model that a field holds, and how its place is written: many in a list, or by name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    marks: dict[Any, str] = {tuple: "[]", dict: ".<name>"}
    for inner in get_args(annotation):
        model, _ = section_of(inner)
        if model is not None:
            return model, marks.get(get_origin(annotation), "")
    return None, ""


SETTINGS = dict(fields(Settings))
ROWS = list(ROW.finditer((ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")))
TOLD = {found["name"]: found["default"] for found in ROWS}
WHAT = {found["name"]: found["what"] for found in ROWS}
LINK = re.compile(r" \(\[[^\]]*\]\([^)]*\)\)|\[(?P<text>[^\]]*)\]\([^)]*\)")


def test_every_setting_is_named_and_no_other() -> None:
    """Red when a setting is added, renamed or removed and the document is not."""
    assert "candidates[].capabilities.tools" in SETTINGS, "the walk finds what lies deep"
    assert set(TOLD) == set(SETTINGS)


@pytest.mark.parametrize("name", sorted(set(TOLD) & set(SETTINGS)))
def test_a_default_is_the_code_s(name: str) -> None:
    """Red when a default changes and the document does not."""
    field = SETTINGS[name]
    if field.is_required():
        assert TOLD[name] == "required"
    else:
        default = to_jsonable_python(field.get_default(call_default_factory=True))
        assert yaml.safe_load(TOLD[name].strip("`")) == default


@pytest.mark.parametrize("name", sorted(set(WHAT) & set(SETTINGS)))
def test_a_sentence_is_the_code_s(name: str) -> None:
    """The document and what an editor shows, but for links. Red when one is changed alone."""
    told = LINK.sub(lambda link: link["text"] or "", WHAT[name])
    sentence = " ".join((SETTINGS[name].description or "").split())
    assert sentence.lower() == f"{told}.".lower()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_a_setting_that_a_document_names_exists(path: Path) -> None:
    """Red when a setting is renamed and its old name stays somewhere."""
    known = {".".join(re.split(r"\.|\[\]", name)[:2]) for name in SETTINGS}
    assert set(NAMED.findall(path.read_text(encoding="utf-8"))) <= known
