"""A canary on the Calibrate tab: its share, what both calibrations realise, promotion, rollback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Route

from tests.kit.waiting import until, wait_until
from tests.ui.looks import PICTURES, overflow, serious

from .conftest import NARROW, WIDE, Open, Tab
from .fleet import Fleet, demo_rows, served, some_rows
from .rounding import plain

SHARE = 0.4


@dataclass(frozen=True)
class Rollout:
    """A gateway with an active calibration and a canary, both of which have decided requests."""

    fleet: Fleet
    active: str
    canary: str

    def listed(self) -> dict[str, Any]:
        """The canary as the gateway lists it."""
        found = self.fleet.gateway.get("/calibrations", self.fleet.admin_key).json()["canary"]
        assert found is not None
        return found


@pytest.fixture(scope="module")
def _gateway(
    tmp_path_factory: pytest.TempPathFactory, pool_url: str, router: Path
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("canary")
    watching = {"shadow_rate": 1.0, "false_alarm": 0.01}
    rows = some_rows(0, 300)
    with served(folder, pool_url, artifact=router, calibration=rows, watching=watching) as fleet:
        yield fleet


@pytest.fixture
def rollout(_gateway: Fleet) -> Rollout:
    """A canary that has just begun; 30 requests were answered and judged."""
    gateway, active = _gateway.gateway, _gateway.active()
    canary = gateway.calibrate(rows=some_rows(300, 300), activate=False)["id"]
    assert gateway.activate(canary, share=SHARE).status_code == 200
    for row in demo_rows("test").rows[:30]:
        decision = _gateway.route(row.query)
        correct = {name: name in row.correct for name in _gateway.names}
        body = {"decision_id": decision["decision_id"], "correct": correct}
        assert gateway.post("/feedback", _gateway.admin_key, json=body).status_code == 200
    return Rollout(_gateway, active, canary)


def at_canary(opened: Open, fleet: Fleet, **options: Any) -> Tab:
    """The tab, with keys given, once it shows the canary."""
    tab = opened(fleet, "#calibrate", **options)
    tab.give_keys()
    tab.page.wait_for_selector("#canary table")
    return tab


def history(tab: Tab, calibration: str) -> str:
    """The line of a calibration in the history."""
    return tab.page.inner_text(f"#history tr:has(code[title='{calibration}'])")


def test_share_and_figures_of_both_are_shown(rollout: Rollout, opened: Open) -> None:
    """As GET /calibrations has them; the history marks both."""
    tab = at_canary(opened, rollout.fleet)
    found = rollout.listed()
    assert tab.page.inner_text("#canary-title") == f"Canary of {100 * SHARE:g} %"
    realised = {
        rollout.canary: found["realised"],
        rollout.active: found["active"]["realised"],
    }
    assert sum(each["decisions"] for each in realised.values()) == 30
    for calibration, figures in realised.items():
        assert figures["decisions"] > 0
        cells = tab.page.locator(f"#canary tr:has(code[title='{calibration}']) td")
        decisions, size, refused, judged, risk = cells.all_inner_texts()
        assert (decisions, judged) == (str(figures["decisions"]), str(figures["judged"]))
        assert figures["judged"] > 0
        assert size == plain(figures["mean_set"])
        assert refused == f"{plain(100 * figures['abstained'], 1)} %"
        assert risk.startswith(f"{plain(100 * figures['risk'], 1)} % (")
    assert f"canary, {100 * SHARE:g} %" in history(tab, rollout.canary)
    assert "active" in history(tab, rollout.active)


def test_a_canary_is_promoted_once_it_is_confirmed(rollout: Rollout, opened: Open) -> None:
    """Cancelled, nothing changes; confirmed, it decides all requests, and the card goes."""
    tab = at_canary(opened, rollout.fleet)
    tab.page.get_by_role("button", name="Promote").click()
    tab.page.click("#confirm button[value=no]")
    assert rollout.listed()["calibration_id"] == rollout.canary
    tab.refused = {409}  # where the mean set changes by more than a quarter, it asks once more
    tab.page.get_by_role("button", name="Promote").click()
    assert rollout.active[:12] in tab.page.inner_text("#confirm-text")
    confirm(tab, f"Calibration {rollout.canary[:12]} decides from now on")
    assert rollout.fleet.active() == rollout.canary
    wait_until(lambda: tab.page.locator("#canary section").count() == 0)
    assert "active" in history(tab, rollout.canary)


def test_a_canary_is_rolled_back_once_it_is_confirmed(rollout: Rollout, opened: Open) -> None:
    """The active calibration decides all requests again; the canary stays in the history."""
    tab = at_canary(opened, rollout.fleet)
    tab.page.get_by_role("button", name="Roll back").click()
    confirm(tab, f"Calibration {rollout.active[:12]} decides from now on")
    assert rollout.fleet.active() == rollout.active
    gateway, key = rollout.fleet.gateway, rollout.fleet.admin_key
    assert gateway.get("/calibrations", key).json()["canary"] is None
    wait_until(lambda: tab.page.locator("#canary section").count() == 0)
    assert "Make active" in history(tab, rollout.canary)


def confirm(tab: Tab, sentence: str) -> None:
    """Confirm as often as the page asks, until it says what decides."""
    said = f"#calibrate-work .notice.good:has-text('{sentence}')"
    while True:
        tab.page.click("#confirm-yes")
        tab.page.wait_for_selector(f"{said}, #confirm[open]")
        if tab.page.locator(said).count():
            return


def test_figures_are_renewed_and_an_end_is_noticed(rollout: Rollout, opened: Open) -> None:
    """By itself while the tab is in front; the focus stays on its button."""
    tab = at_canary(opened, rollout.fleet, clock=True)
    tab.page.get_by_role("button", name="Roll back").focus()
    decisions = tab.page.locator(f"#canary tr:has(code[title='{rollout.active}']) td >> nth=1")
    before = decisions.inner_text()
    for row in demo_rows("test").rows[30:50]:
        rollout.fleet.route(row.query, execute=False)
    tab.page.clock.run_for(10_000)
    assert until(lambda: decisions.inner_text() != before, 60)
    assert tab.page.evaluate("document.activeElement.textContent") == "Roll back"
    rollout.fleet.gateway.activate(rollout.active)
    tab.page.clock.run_for(10_000)
    tab.page.wait_for_selector("#canary table", state="detached")


@pytest.mark.parametrize(("scheme", "size"), [("light", NARROW), ("dark", WIDE)])
def test_one_that_an_alarm_ended_says_why(
    rollout: Rollout, opened: Open, scheme: str, size: tuple[int, int]
) -> None:
    """By application, where there are any. The alarm of a real one takes hundreds of requests."""
    PICTURES.mkdir(exist_ok=True)
    tab = at_canary(opened, rollout.fleet, scheme=scheme, size=size)
    tab.page.screenshot(path=PICTURES / f"canary-{size[0]}-{scheme}.png", full_page=True)
    assert serious(tab) == []
    assert overflow(tab) <= 0
    response = rollout.fleet.gateway.get("/calibrations", rollout.fleet.admin_key).json()
    canary = response["canary"]
    canary |= {"ended": "risk of bot", "realised": {"bot": canary["realised"], "default": None}}

    def ended(route: Route) -> None:
        route.fulfill(body=json.dumps(response), content_type="application/json")

    tab.page.route("**/calibrations", ended)
    tab.page.click("#tab-try")
    tab.page.click("#tab-calibrate")
    tab.page.wait_for_selector("#canary .notice.bad")
    text = tab.page.inner_text("#canary")
    assert "Its drift alarm has ended it: risk of bot." in text
    assert f"{rollout.active[:12]} decides all requests" in text
    assert tab.page.locator("#canary tbody tr").count() == 3
    assert tab.page.locator("#canary button").count() == 0
    assert serious(tab) == []
