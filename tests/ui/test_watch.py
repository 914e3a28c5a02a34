"""Watch: what is drawn is what was counted, whichever gateway a poll meets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Route

from tests.support.gateway import as_json
from tests.support.waiting import until
from tests.upstreams.scripted import FakePool

from .conftest import Open, Tab
from .fleet import FEW, POEM, RIVER, SUM, Fleet, rows, served


def at_watch(opened: Open, fleet: Fleet, **keys: str) -> Tab:
    """The tab, with keys given."""
    tab = opened(fleet, "#watch")
    tab.refused = {401}  # before there are keys
    tab.give_keys(**keys)
    tab.page.wait_for_selector("#watch .tile")
    return tab


def drawn(tab: Tab) -> list[list[float]]:
    """The heights of every line of the first chart."""
    return tab.page.eval_on_selector(
        "#watch .chart", "chart => (chart.data ?? []).map(line => [...line.y])"
    )


def test_the_page_shows_the_counted_figures(fleet: Fleet, opened: Open) -> None:
    """Decisions, mean set size, calls of each candidate, and failures."""
    fleet.pool.fail("qwen3-8b", "400")
    tab = at_watch(opened, fleet)
    for number in range(4):
        fleet.route(f"{SUM} {number}")
    lines = fleet.gateway.get("/metrics", fleet.admin_key).text.splitlines()
    counted = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    routed = int(float(counted["racer_set_size_count"]))
    mean = float(counted["racer_set_size_sum"]) / routed
    tab.until(
        "[...document.querySelectorAll('.tile .fact')].map(e => e.textContent)"
        f".includes('{routed:,}')"
    )
    tiles = tab.page.inner_text("#watch .tiles")
    assert f"{mean:.2f}".rstrip("0").rstrip(".") in tiles
    for name in FEW:
        calls = sum(
            int(float(value))
            for key, value in counted.items()
            if key.startswith(f'racer_candidate_calls_total{{candidate="{name}"')
        )
        row = tab.page.locator("#watch tbody tr", has_text=name)
        assert row.locator("td").nth(1).inner_text() == str(calls)
        assert row.locator("td").nth(0).inner_text() == "up"


def test_a_rate_is_never_negative_and_gateways_are_told_apart(
    fleet: Fleet, opened: Open, tmp_path: Path, candidates: FakePool, router: Path
) -> None:
    """Polls meet two gateways in turn, one of which has counted far more than the other."""
    for number in range(30):
        fleet.route(f"{RIVER} {number}")
    with served(tmp_path, FEW, candidates, artifact=router) as other:
        gateways = [fleet.gateway, other.gateway]
        polls = 0

        def either(route: Route) -> None:
            nonlocal polls
            polls += 1
            other.route(SUM)
            route.fulfill(body=gateways[polls % 2].get("/metrics", fleet.admin_key).text)

        tab = opened(fleet)
        tab.page.route("**/metrics", either)
        tab.give_keys()
        tab.page.click("#tab-watch")
        tab.until("(document.querySelector('#watch .chart')?.data?.[0]?.y.length ?? 0) >= 3")
        heights = [height for line in drawn(tab) for height in line]
        assert all(0 <= height < 5 for height in heights), heights
        assert "2 gateways answered here" in tab.page.inner_text("#watch")


@pytest.mark.parametrize("restarted", [True, False], ids=["restarted", "unknown"])
def test_a_counter_that_begins_again_is_no_rate(
    fleet: Fleet, opened: Open, restarted: bool
) -> None:
    """A process that began anew, or one that does not say when it began, gives no point."""
    tab = opened(fleet)
    began = ["racer_set_size_created 5", "racer_set_size_created 9"] if restarted else ["", ""]
    rates = tab.page.evaluate(
        """async (began) => {
            const where = new URL("ui/metrics.js", document.baseURI).href;
            const { Gateways, parse } = await import(where);
            const known = new Gateways();
            return began.map((line, i) => known.add(parse(`a_total ${9 - i}\\n${line}`), i * 1000));
        }""",
        began,
    )
    assert rates == [None, None]


def test_feedback_narrows_the_realised_risk(fleet: Fleet, opened: Open) -> None:
    """From nothing known to an interval, with alpha beside it."""
    answer = fleet.route(RIVER)
    tab = at_watch(opened, fleet)
    tab.page.wait_for_selector("#watch .interval")
    assert "Asked for: at most 10 %" in tab.page.inner_text("#watch")
    before = tab.page.inner_text("#watch .interval")
    judged = dict.fromkeys(FEW, True)
    body = {"decision_id": answer["decision_id"], "correct": judged}
    assert fleet.gateway.post("/feedback", fleet.admin_key, json=body).status_code == 200
    tab.page.click("#tab-try")
    tab.page.click("#tab-watch")
    assert until(lambda: tab.page.inner_text("#watch .interval") != before, 60)


def test_each_application_has_its_risk_and_its_alarms(
    opened: Open, tmp_path: Path, candidates: FakePool, router: Path
) -> None:
    """Under its name; the chart has a line for each. An alarm of one is said of it alone."""
    applications: dict[str, Any] = {"bot": {}}
    changes: dict[str, Any] = {"artifact": router, "applications": applications}
    with served(tmp_path, FEW, candidates, calibrated=False, **changes) as fleet:
        labelled = as_json(rows(FEW, 10_000, 600))
        for row in labelled[::2]:
            row["application"] = "bot"
        body = {"rows": labelled, "alpha": 0.2, "confirm": True}
        gateway, key = fleet.gateway, fleet.admin_key
        assert gateway.post("/calibrate", key, json=body).status_code == 200
        bodies = [{"query": f"{POEM} {number}", "application": "bot"} for number in range(200)]
        decisions = [gateway.post("/route", key, json=each).json() for each in bodies]
        gateway.get(f"/decisions/{decisions[-1]['decision_id']}", key)  # all were added then
        tab = at_watch(opened, fleet)
        tab.page.wait_for_selector("#watch .interval")
        assert tab.page.locator("#watch h3").all_inner_texts() == ["bot", "default"] * 2
        assert tab.page.locator("#watch .interval").count() == 2
        card = tab.page.locator("section[aria-labelledby=drift-title]")
        alarms = card.locator("h3 + *").all_inner_texts()
        assert alarms[0].startswith("Alarm: ")
        assert alarms[1].startswith("no alarm")
        chart = "document.querySelector('section[aria-labelledby=drift-title] .chart')"
        tab.until(f"{chart}.data?.length === 2")
        names = card.locator(".chart").evaluate("chart => chart.data.map(({ name }) => name)")
        assert names == ["bot", "default"]


def test_the_admins_part_asks_for_its_key(fleet: Fleet, opened: Open) -> None:
    """The rest is there with a data key alone."""
    tab = at_watch(opened, fleet, admin="")
    tab.page.wait_for_selector("#watch >> text=It needs the admin key")
    assert tab.page.locator("#watch tbody tr").count() == len(FEW)
    tab.give_keys()
    tab.page.wait_for_selector("#watch .interval")


def test_a_slow_gateway_is_asked_again_only_once_it_answered(fleet: Fleet, opened: Open) -> None:
    """Answers that overtake each other would count backwards."""
    tab = opened(fleet)
    tab.give_keys()
    held: list[Route] = []
    tab.page.route("**/metrics", lambda route: held.append(route))
    tab.page.click("#tab-watch")
    tab.page.wait_for_timeout(7000)
    assert len(held) == 1
    held[0].continue_()
    tab.page.wait_for_selector("#watch tbody tr")
    tab.page.unroute_all()


def test_focus_survives_a_poll(fleet: Fleet, opened: Open) -> None:
    """And what is wrong is said once: a reader who listens would hear it with every poll."""
    tab = at_watch(opened, fleet)
    tab.page.focus("#who-title + div .scroll")
    with tab.page.expect_response("**/metrics"):
        pass
    with tab.page.expect_response("**/metrics"):
        pass
    assert tab.page.evaluate("document.activeElement.className") == "scroll"
    tab.page.route("**/metrics", lambda route: route.abort())
    tab.page.wait_for_selector("#watch [role=alert] .notice")
    tab.page.eval_on_selector("#watch [role=alert] .notice", "said => { said.id = 'first'; }")
    tab.page.wait_for_timeout(5000)
    assert tab.page.locator("#first").count() == 1
    tab.noted = [text for text in tab.noted if "net::ERR_FAILED" not in text]


def test_a_tab_in_the_background_asks_nothing(fleet: Fleet, opened: Open) -> None:
    """No poll is made while another tab is in front."""
    tab = at_watch(opened, fleet)
    asked_for: list[str] = []
    tab.page.click("#tab-try")
    tab.page.wait_for_load_state("networkidle")
    tab.page.on("request", lambda request: asked_for.append(request.url))
    tab.page.wait_for_timeout(5000)
    assert [url for url in asked_for if not url.endswith("/readyz")] == []
