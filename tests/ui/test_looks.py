"""How it looks: pictures of every tab, and nothing serious for who cannot see them as most do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.gateway import as_json
from tests.kit.upstream import FakePool
from tests.ui.looks import PICTURES, cut_off, overflow, serious

from .conftest import NARROW, WIDE, Open
from .fleet import Fleet
from .scripted import MANY, POEM, RIVER, SUM, ScriptedFleet, rows, served

SIZES = {"wide": WIDE, "narrow": NARROW}
LONG = "The river is the Vils. " + "It runs through several towns before it reaches the sea. " * 12


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, candidates: FakePool) -> Iterator[ScriptedFleet]:
    """Twelve candidates with prices, one of them with a long name and answers: scripted."""
    prices = [0.5 + number for number in range(len(MANY))]
    folder = tmp_path_factory.mktemp("many")
    with served(folder, MANY, candidates, prices=prices) as fleet:
        for number, name in enumerate(MANY):
            candidates.say(name, [LONG, "The Vils", "the Vils"][number % 3])
        for number in range(20):
            for question in (SUM, RIVER, POEM):
                answer = fleet.route(f"{question} {number}", execute=number % 4 == 0)
                decision = answer["decision_id"]
                judge(fleet, decision, right=number % 10 > 0)
        yield fleet


def judge(fleet: Fleet, decision: str, *, right: bool) -> None:
    """Post an admin's verdict on all candidates."""
    body = {"decision_id": decision, "correct": dict.fromkeys(fleet.names, right)}
    assert fleet.gateway.post("/feedback", fleet.admin_key, json=body).status_code == 200


@pytest.mark.parametrize("size", [*SIZES.values(), (640, 450)], ids=[*SIZES, "zoomed"])
def test_an_address_leads_to_a_heading_that_is_seen(
    demo: Fleet, opened: Open, size: tuple[int, int]
) -> None:
    """Below the tabs, which stay in place; a window that is zoomed is a small one."""
    tab = opened(demo, size=size)
    for part in ("try", "calibrate", "label", "watch"):
        tab.page.goto("about:blank")
        tab.open(f"#{part}")
        below = f"document.querySelector('#{part} h1').getBoundingClientRect().top"
        tab.until(f"{below} >= document.querySelector('.top').getBoundingClientRect().bottom")
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= size[0]


@pytest.mark.parametrize(("scheme", "size"), [("light", "narrow"), ("dark", "wide")])
def test_every_tab_is_accessible_and_pictured(
    many: ScriptedFleet, opened: Open, tmp_path: Path, scheme: str, size: str
) -> None:
    """In both colours, wide and narrow, empty and full; a picture of each is kept."""
    PICTURES.mkdir(exist_ok=True)
    tab = opened(many, scheme=scheme, size=SIZES[size])

    def seen(name: str) -> None:
        tab.page.screenshot(path=PICTURES / f"{name}-{size}-{scheme}.png", full_page=True)
        assert serious(tab) == [], name
        assert overflow(tab) <= 0, f"{name} is wider than the window"
        assert size == "wide" or cut_off(tab) == [], name

    seen("try-empty")
    tab.page.click("#keys-open")
    seen("keys")
    tab.page.keyboard.press("Escape")
    tab.give_keys()
    tab.ask(RIVER)
    seen("try")
    tab.page.click("#tab-calibrate")
    tab.page.wait_for_selector("#history table")
    seen("calibrate-empty")
    path = tmp_path / "calibration.jsonl"
    lines = [json.dumps(row) for row in as_json(rows(MANY, 20_000, 500))]
    path.write_text("\n".join([*lines[:5], "{", *lines[5:]]), encoding="utf-8")
    tab.refused = {422}
    tab.page.set_input_files("#rows", str(path))
    tab.page.click("#upload .primary")
    tab.page.wait_for_selector(".problems")
    seen("calibrate-wrong")
    path.write_text("\n".join(lines), encoding="utf-8")
    tab.page.set_input_files("#rows", [])
    tab.page.set_input_files("#rows", str(path))
    tab.page.fill("#cal-alpha", "15")
    tab.page.click("#upload .primary")
    tab.page.wait_for_selector("#look-title")
    tab.page.wait_for_selector("#calibrate .main-svg >> nth=2")
    seen("calibrate")
    tab.page.click("#tab-watch")
    for number in range(3):
        many.route(f"{SUM} {number}")
        tab.until(f"(document.querySelector('#watch .chart')?.data?.[0]?.y.length ?? 0) > {number}")
    tab.page.wait_for_selector("#watch .interval")
    seen("watch")


def test_on_a_phone_nothing_has_to_be_moved_sideways(demo: Fleet, opened: Open) -> None:
    """On every tab, with an answer and with every table filled."""
    tab = opened(demo, size=NARROW)
    tab.refused = {409}  # of samples that wait: the demo stores no requests
    tab.give_keys()
    tab.page.click("#examples button >> nth=0")
    tab.page.wait_for_selector("#answer .votes")
    tab.page.wait_for_selector("#set table.bars")
    assert cut_off(tab) == []
    for name, ready in (
        ("calibrate", "#history table"),
        ("label", "#label-body .notice"),
        ("watch", "#watch .interval"),
    ):
        tab.page.click(f"#tab-{name}")
        tab.page.wait_for_selector(ready)
        assert cut_off(tab) == [], name
        assert overflow(tab) <= 0, name
