"""The Calibrate tab: from a dropped file to an active calibration and back, with conflicts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Route

from racer_core.calibration.realised_risk import RealisedRisk
from tests.kit.gateway import as_json

from .conftest import Open, Tab
from .fleet import Fleet, served, some_rows

COUNT = 300  # rows of a good file
PLOTS = "#calibrate-work figure .js-plotly-plot"


@pytest.fixture(scope="module")
def _gateway(tmp_path_factory: pytest.TempPathFactory, router: Path) -> Iterator[Fleet]:
    """No candidate is called here."""
    with served(tmp_path_factory.mktemp("calibrate"), artifact=router) as fleet:
        yield fleet


@pytest.fixture
def own(_gateway: Fleet) -> Fleet:
    """A gateway of these tests, for what they activate; a new calibration decides."""
    _gateway.gateway.calibrate(rows=some_rows(0, 400))
    return _gateway


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """A good file."""
    path = tmp_path / "calibration.jsonl"
    lines = (json.dumps(row) for row in as_json(some_rows(400, COUNT)))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def at_calibrate(opened: Open, fleet: Fleet) -> Tab:
    """The tab, with both keys given."""
    tab = opened(fleet, "#calibrate")
    tab.give_keys()
    tab.page.wait_for_selector("#history table")
    return tab


def test_the_history_states_the_level_that_is_served(own: Fleet, opened: Open) -> None:
    """With the bound that holds for it; the table has the level of each calibration's evidence."""
    told = at_calibrate(opened, own).page.inner_text("#history")
    assert (
        "A risk level of 10 % is served: at most 10 % holds, on average over calibrations." in told
    )


def stored(fleet: Fleet) -> int:
    """How many calibrations there are."""
    return len(fleet.gateway.get("/calibrations", fleet.admin_key).json()["data"])


def look(tab: Tab, path: Path, **options: str) -> None:
    """A dry run of a file."""
    tab.page.set_input_files("#rows", str(path))
    for name, value in options.items():
        tab.page.fill(f"#cal-{name}", value)
    tab.page.click("#upload .primary")


def test_wrong_rows_are_listed_by_line(own: Fleet, opened: Open, labelled: Path) -> None:
    """Each with its place; the calibration that decides stays."""
    lines = labelled.read_text(encoding="utf-8").splitlines()
    lines[2] = lines[2].replace("true", '"yes"').replace("false", '"no"')
    lines[6] = "{"
    labelled.write_text("\n".join(lines), encoding="utf-8")
    before = own.active()
    tab = at_calibrate(opened, own)
    look(tab, labelled)
    tab.page.wait_for_selector(".problems")
    places = tab.page.locator(".problems .place").all_inner_texts()
    assert places == ["line 3", "line 7"]
    assert own.active() == before


def test_rows_are_looked_at_activated_and_rolled_back(
    own: Fleet, opened: Open, labelled: Path
) -> None:
    """A dry run shows evidence and changes nothing; the button does; the history leads back."""
    first, before = own.active(), stored(own)
    tab = at_calibrate(opened, own)
    with tab.page.expect_response("**/calibrate?*") as answered:
        look(tab, labelled, alpha="15")
    tab.page.wait_for_selector("#look-title")
    assert own.active() == first
    assert stored(own) == before
    tab.page.wait_for_selector("figure .main-svg >> nth=0")
    job = answered.value.json()["job"]["id"]
    result = own.gateway.get(f"/calibrations/jobs/{job}", own.admin_key).json()["job"]["result"]
    ties = result["evidence"]["tied"] > 1
    has_law = result["evidence"]["alpha_basis"] == "fixed" and not ties  # else none is drawn
    tab.until(f"document.querySelectorAll('{PLOTS}').length == {1 + has_law}")
    assert ("rows tie at the threshold" in tab.page.inner_text("#calibrate-work")) is ties
    tab.page.click("text=Activate this calibration")
    tab.page.click("#confirm-yes")
    tab.page.wait_for_selector("#done-title")
    second = own.active()
    assert second != first
    tab.page.wait_for_selector(f"#history tr:has(code[title='{second}'])")
    assert "active" in tab.page.inner_text(f"#history tr:has(code[title='{second}'])")
    kept = own.gateway.get(f"/calibrations/{second}", own.admin_key).json()
    assert kept["evidence"]["alpha"] == 0.15
    tab.page.click(f"#history tr:has(code[title='{first}']) button")
    tab.page.click("#confirm-yes")
    tab.page.wait_for_selector(f"text=Calibration {first[:12]} decides from now on")
    tab.page.wait_for_selector(f"text=Certificates of calibration {first[:12]} are void")
    assert own.active() == first


def test_the_law_of_the_realised_risk_is_drawn(own: Fleet, opened: Open, labelled: Path) -> None:
    """For the level in force, which did not depend on these rows; beside the trade-off."""
    tab = at_calibrate(opened, own)
    look(tab, labelled, alpha=f"{100 * own.gateway.settings.routing.alpha:g}")
    tab.page.wait_for_selector("#look-title")
    tab.until(f"document.querySelectorAll('{PLOTS}').length == 2")


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
    kept = own.gateway.get(f"/calibrations/{own.active()}", own.admin_key).json()["evidence"]
    assert (kept["alpha"], kept["rows"]) == (0.15, COUNT)


def test_an_activation_without_a_response_is_not_reported_as_failed(
    own: Fleet, opened: Open, labelled: Path
) -> None:
    """The connection is cut once the rows are there: the history tells what became of them."""
    tab = at_calibrate(opened, own)
    first = own.active()
    look(tab, labelled, alpha="15")
    tab.page.wait_for_selector("#look-title")
    tab.page.route("**/calibrations/jobs/**", lambda route: route.abort())
    tab.page.click("text=Activate this calibration")
    tab.page.click("#confirm-yes")
    tab.page.wait_for_selector("text=It is not known whether it was activated")
    assert "Nothing was changed" not in tab.page.inner_text("#calibrate-work")
    assert own.active() != first
    assert "active" in tab.page.inner_text(f"#history tr:has(code[title='{own.active()}'])")
    tab.noted = [text for text in tab.noted if "net::ERR_FAILED" not in text]


def test_an_activation_by_another_admin_is_not_overruled(
    own: Fleet, opened: Open, labelled: Path
) -> None:
    """A calibration activated since the dry run, or since the history was shown, stays active."""
    first = own.active()
    tab = at_calibrate(opened, own)
    tab.refused = {409}
    look(tab, labelled, alpha="15")
    tab.page.wait_for_selector("#look-title")
    theirs = own.gateway.calibrate(rows=some_rows(800, 300))["id"]
    tab.page.click("text=Activate this calibration")
    tab.page.click("#confirm-yes")
    tab.page.wait_for_selector("text=Another change came first")
    assert own.active() == theirs
    seen = own.gateway.ready()
    tab.page.route("**/readyz", lambda route: route.fulfill(json=seen))  # nothing newer is seen
    tab.page.reload()
    tab.give_keys()
    tab.page.wait_for_selector("#history table")
    again = own.gateway.calibrate(rows=some_rows(0, 390))["id"]  # sets about as large as the first
    tab.page.click(f"#history tr:has(code[title='{first}']) button")
    tab.page.click("#confirm-yes")
    tab.page.wait_for_selector("text=Another change came first")
    assert own.active() == again


def test_too_few_rows_are_not_activated(own: Fleet, opened: Open) -> None:
    """It says why, and what is active stays."""
    first = own.active()
    two = own.gateway.calibrate(rows=some_rows(1_400, 2), activate=False)["id"]
    tab = at_calibrate(opened, own)
    tab.refused = {409}
    tab.page.click(f"#history tr:has(code[title='{two}']) button")
    tab.page.click("#confirm-yes")
    tab.page.wait_for_selector("#calibrate-work:has-text('No finite threshold keeps alpha')")
    assert own.active() == first


def test_a_file_can_be_dropped(own: Fleet, opened: Open) -> None:
    """It is named with its size."""
    tab = opened(own, "#calibrate")
    tab.page.evaluate(
        """() => {
            const held = new DataTransfer();
            held.items.add(new File(["{}"], "rows.jsonl"));
            document.querySelector(".drop").dispatchEvent(
              new DragEvent("drop", { dataTransfer: held, bubbles: true, cancelable: true }));
        }"""
    )
    assert tab.page.inner_text(".drop-name") == "rows.jsonl · 2 B"


def test_the_page_asks_for_a_missing_admin_key(own: Fleet, opened: Open, labelled: Path) -> None:
    """A data key in its place is refused, with what to do."""
    tab = opened(own, "#calibrate")
    tab.refused = {403}
    tab.page.wait_for_selector("#history >> text=needs the admin key")
    tab.page.click("#history button")
    assert tab.page.locator("#keys").is_visible()
    tab.page.keyboard.press("Escape")
    tab.give_keys(admin=own.data_key)
    look(tab, labelled)
    tab.page.wait_for_selector("#calibrate-work .notice.bad")
    assert "Another key is needed" in tab.page.inner_text("#calibrate-work")


def test_the_law_that_is_drawn_has_the_quantiles_of_the_evidence(demo: Fleet, opened: Open) -> None:
    """Nine tenths of it lie between the 5 % and the 95 % point: the same law, computed twice."""
    risk = RealisedRisk(n=300, misses=29, missed=29, tied=1)  # the evidence of distinct scores
    tab = opened(demo)
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
    own: Fleet, opened: Open, labelled: Path
) -> None:
    """Behind a balancer the events may be asked of a gateway that knows no such job."""
    tab = at_calibrate(opened, own)
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
