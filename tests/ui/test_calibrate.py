"""The Calibrate tab: from a dropped file to an active calibration and back, with conflicts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Route

from racer_core.calibration.realised_risk import RealisedRisk
from tests.support.gateway import as_json
from tests.upstreams.scripted import FakePool

from .conftest import Open, Tab
from .fleet import FEW, Fleet, rows, served


@pytest.fixture
def own(tmp_path: Path, candidates: FakePool, router: Path) -> Iterator[Fleet]:
    """A calibrated gateway of the test's own, for what it activates."""
    with served(tmp_path, FEW, candidates, artifact=router) as fleet:
        yield fleet


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """A good file."""
    path = tmp_path / "calibration.jsonl"
    lines = (json.dumps(row) for row in as_json(rows(FEW, 20_000, 500)))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def at_calibrate(opened: Open, fleet: Fleet) -> Tab:
    """The tab, with both keys given."""
    tab = opened(fleet, "#calibrate")
    tab.give_keys()
    tab.page.wait_for_selector("#history table")
    return tab


def look(tab: Tab, path: Path, **options: str) -> None:
    """A dry run of a file."""
    tab.page.set_input_files("#rows", str(path))
    for name, value in options.items():
        tab.page.fill(f"#cal-{name}", value)
    tab.page.click("#upload .primary")


def active(fleet: Fleet) -> str:
    """The calibration that decides."""
    return fleet.gateway.ready()["calibration"]


def test_wrong_rows_are_listed_by_line(fleet: Fleet, opened: Open, labelled: Path) -> None:
    """Each with its place; the calibration that decides stays."""
    lines = labelled.read_text(encoding="utf-8").splitlines()
    lines[2] = lines[2].replace("true", '"yes"').replace("false", '"no"')
    lines[6] = "{"
    labelled.write_text("\n".join(lines), encoding="utf-8")
    before = active(fleet)
    tab = at_calibrate(opened, fleet)
    look(tab, labelled)
    tab.page.wait_for_selector(".problems")
    places = tab.page.locator(".problems .place").all_inner_texts()
    assert places == ["line 3", "line 7"]
    assert active(fleet) == before


def test_rows_are_looked_at_activated_and_rolled_back(
    own: Fleet, opened: Open, labelled: Path
) -> None:
    """A dry run shows evidence and changes nothing; the button does; the history leads back."""
    first = active(own)
    tab = at_calibrate(opened, own)
    look(tab, labelled, alpha="15")
    tab.page.wait_for_selector("#look-title")
    assert active(own) == first
    assert len(own.gateway.get("/calibrations", own.admin_key).json()["data"]) == 1
    tab.page.wait_for_selector("figure .main-svg >> nth=0")
    assert tab.page.locator("figure .js-plotly-plot").count() == 1  # no law where rows tie
    assert "rows tie at the threshold" in tab.page.inner_text("#calibrate-work")
    tab.page.click("text=Activate this calibration")
    tab.page.click("#confirm-yes")
    tab.page.wait_for_selector("#done-title")
    second = active(own)
    assert second != first
    tab.page.wait_for_selector("#history tbody tr >> nth=1")
    assert "active" in tab.page.inner_text(f"#history tr:has(code[title='{second}'])")
    stored = own.gateway.get(f"/calibrations/{second}", own.admin_key).json()
    assert stored["evidence"]["alpha"] == 0.15
    tab.page.click(f"#history tr:has(code[title='{first}']) button")
    tab.page.click("#confirm-yes")
    tab.page.wait_for_selector(f"text=Calibration {first[:12]} decides from now on")
    assert active(own) == first


def test_the_activated_calibration_is_the_one_of_the_dry_run(
    own: Fleet, opened: Open, labelled: Path, tmp_path: Path
) -> None:
    """Whatever was put into the form since then."""
    tab = at_calibrate(opened, own)
    look(tab, labelled, alpha="15")
    tab.page.wait_for_selector("#look-title")
    other = tmp_path / "other.jsonl"
    other.write_text("{}", encoding="utf-8")
    tab.page.set_input_files("#rows", str(other))
    tab.page.fill("#cal-alpha", "40")
    tab.page.click("text=Activate this calibration")
    tab.page.click("#confirm-yes")
    tab.page.wait_for_selector("#done-title")
    stored = own.gateway.get(f"/calibrations/{active(own)}", own.admin_key).json()["evidence"]
    assert (stored["alpha"], stored["rows"]) == (0.15, 500)


def test_an_activation_without_a_response_is_not_reported_as_failed(
    own: Fleet, opened: Open, labelled: Path
) -> None:
    """The connection is cut once the rows are there: the history tells what became of them."""
    tab = at_calibrate(opened, own)
    first = active(own)
    look(tab, labelled, alpha="15")
    tab.page.wait_for_selector("#look-title")
    tab.page.route("**/calibrations/jobs/**", lambda route: route.abort())
    tab.page.click("text=Activate this calibration")
    tab.page.click("#confirm-yes")
    tab.page.wait_for_selector("text=It is not known whether it was activated")
    assert "Nothing was changed" not in tab.page.inner_text("#calibrate-work")
    assert active(own) != first
    assert "active" in tab.page.inner_text(f"#history tr:has(code[title='{active(own)}'])")
    tab.noted = [text for text in tab.noted if "net::ERR_FAILED" not in text]


def test_an_activation_by_another_admin_is_not_overruled(
    own: Fleet, opened: Open, labelled: Path
) -> None:
    """A calibration activated since the dry run, or since the history was shown, stays active."""
    tab = at_calibrate(opened, own)
    tab.refused = {409}
    look(tab, labelled, alpha="15")
    tab.page.wait_for_selector("#look-title")
    theirs = own.gateway.calibrate(rows=rows(FEW, 30_000, 300))["id"]
    tab.page.click("text=Activate this calibration")
    tab.page.click("#confirm-yes")
    tab.page.wait_for_selector("text=Another change came first")
    assert active(own) == theirs
    # The history is as it was when it was asked for last.
    again = own.gateway.calibrate(rows=rows(FEW, 40_000, 300))["id"]
    tab.page.wait_for_selector("#history button >> nth=0")
    tab.page.click("#history button >> nth=-1")
    tab.page.click("#confirm-yes")
    tab.page.wait_for_selector("text=Another change came first")
    assert active(own) == again


def test_what_is_refused_is_confirmed_once_more(own: Fleet, opened: Open) -> None:
    """The second dialog says why; an infeasible calibration decides only after it."""
    first = active(own)
    two = own.gateway.calibrate(rows=rows(FEW, 50_000, 2), activate=False)["id"]
    tab = at_calibrate(opened, own)
    tab.refused = {409}
    tab.page.click(f"#history tr:has(code[title='{two}']) button")
    tab.page.click("#confirm-yes")
    tab.page.wait_for_selector("#confirm-text:has-text('No finite threshold keeps alpha')")
    assert active(own) == first
    tab.page.click("#confirm-yes")
    tab.page.wait_for_selector(f"text=Calibration {two[:12]} decides from now on")
    assert active(own) == two


def test_a_file_can_be_dropped(fleet: Fleet, opened: Open) -> None:
    """It is named with its size."""
    tab = opened(fleet, "#calibrate")
    tab.page.evaluate(
        """() => {
            const held = new DataTransfer();
            held.items.add(new File(["{}"], "rows.jsonl"));
            document.querySelector(".drop").dispatchEvent(
              new DragEvent("drop", { dataTransfer: held, bubbles: true, cancelable: true }));
        }"""
    )
    assert tab.page.inner_text(".drop-name") == "rows.jsonl · 2 B"


def test_the_page_asks_for_a_missing_admin_key(fleet: Fleet, opened: Open, labelled: Path) -> None:
    """A data key in its place is refused, with what to do."""
    tab = opened(fleet, "#calibrate")
    tab.refused = {403}
    tab.page.wait_for_selector("#history >> text=needs the admin key")
    tab.page.click("#history button")
    assert tab.page.locator("#keys").is_visible()
    tab.page.keyboard.press("Escape")
    tab.give_keys(admin=fleet.data_key)
    look(tab, labelled)
    tab.page.wait_for_selector("#calibrate-work .notice.bad")
    assert "Another key is needed" in tab.page.inner_text("#calibrate-work")


def test_the_law_that_is_drawn_has_the_quantiles_of_the_evidence(
    fleet: Fleet, opened: Open
) -> None:
    """Nine tenths of it lie between the 5 % and the 95 % point: the same law, computed twice."""
    risk = RealisedRisk(n=300, misses=29, missed=29, tied=1)  # the evidence of distinct scores
    tab = opened(fleet)
    inside, everything = tab.page.evaluate(
        """async ([n, alpha, low, high]) => {
            const { riskLaw } = await import(new URL("ui/law.js", document.baseURI).href);
            const { x, y } = riskLaw(n, alpha, 20001);
            const step = x[1] - x[0];
            const mass = (from, to) =>
              x.reduce((sum, at, i) => sum + (at >= from && at <= to ? y[i] * step : 0), 0);
            return [mass(low, high), mass(0, 1)];
        }""",
        [risk.n, 0.1, risk.lower(), risk.upper()],
    )
    assert everything == pytest.approx(1.0, abs=1e-3)
    assert inside == pytest.approx(0.9, abs=1e-3)


def test_a_job_of_another_gateway_is_found_in_the_end(
    fleet: Fleet, opened: Open, labelled: Path
) -> None:
    """Behind a balancer the events may be asked of a gateway that knows no such job."""
    tab = at_calibrate(opened, fleet)
    tab.refused = {404}
    missed = 0

    def miss(route: Route) -> None:
        nonlocal missed
        missed += 1
        if missed > 3:
            route.continue_()
            return
        error = {"message": "no job", "type": "x", "param": None, "code": "job_not_found"}
        route.fulfill(status=404, json={"error": error})

    tab.page.route("**/calibrations/jobs/*/events", miss)
    look(tab, labelled)
    tab.page.wait_for_selector("#look-title")
    assert missed == 4
