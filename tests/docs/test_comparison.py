"""docs/comparison.md: it has a source for what it says of others, and our figures as measured."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.links import dead_links

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "comparison.md"
TEXT = PAGE.read_text(encoding="utf-8")
DEFINED = dict(re.findall(r'^\[([\w-]+)\]: (https://\S+ "[^"]+")$', TEXT, re.MULTILINE))
USED = re.findall(r"\[[^\]]+\]\[([\w-]+)\]", TEXT)


def table(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, a list for each row, the head without."""
    _, _, below = text.partition(f"\n{heading}\n")
    found = re.search(r"^\|.*\n\|[ -|]+\n((?:\|.*\n)+)", below, re.MULTILINE)
    assert found is not None, heading
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in found[1].splitlines()]


def test_every_cell_about_another_gateway_has_a_source() -> None:
    """Or says that nothing was found. The last column is our own."""
    rows = table(TEXT, "## Gateways")
    assert len(rows) > 5
    for feature, *others, _ in rows:
        for cell in others:
            assert cell == "not found" or re.fullmatch(r"\[[^\]]+\]\[[\w-]+\]", cell), feature


def test_every_router_has_a_source() -> None:
    """What it chooses, and what it promises if it promises something."""
    for name, chooses, _, promises in table(TEXT, "## Routers and load balancers"):
        assert "](" in chooses or "][" in chooses, name
        assert promises == "not found" or "](" in promises or "][" in promises, name


def test_every_source_is_used_and_says_its_version_or_date() -> None:
    """Fails for an undefined link and for a definition that is not used."""
    assert len(DEFINED) > 40
    assert set(USED) == set(DEFINED)
    assert len(re.findall(r"^\[[\w-]+\]:", TEXT, re.MULTILINE)) == len(DEFINED)


def test_our_figures_are_those_of_the_measurement() -> None:
    """Row by row. Red when it was made again, and this page was not."""
    measured = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    _, _, plain = measured.partition("| plain answers |")
    for arm, throughput, added in table(TEXT, "## Speed"):
        row = re.search(rf"^\| {re.escape(arm)} \| (.+) \|$", plain, re.MULTILINE)
        assert row is not None, arm
        cells = [cell.strip() for cell in row[1].split("|")]
        assert (throughput, added) == (cells[0], cells[-1]), arm
    version = re.search(r"LiteLLM (\d+\.\d+\.\d+)", TEXT)
    assert version is not None
    assert version[0] in measured


def test_every_link_leads_somewhere() -> None:
    """Files, and headings in them. Red when either is renamed."""
    assert dead_links(PAGE) == []
