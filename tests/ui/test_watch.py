"""Watch: what is drawn is what was counted, whichever gateway a poll meets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Route

from tests.kit.gateway import as_json
from tests.kit.waiting import until, wait_until
from tests.ui.looks import overflow

from .conftest import NARROW, Open, Tab
from .fleet import POOL, Fleet, demo_rows, served, some_rows
from .rounding import plain

POLL_MS = 2_000  # of the page


def at_watch(opened: Open, fleet: Fleet, *, clock: bool = False, **keys: str) -> Tab:
    """The tab, with keys given."""
    tab = opened(fleet, "#watch", clock=clock)
    tab.refused = {401}  # before there are keys
    tab.give_keys(**keys)
    tab.page.wait_for_selector("#watch .tile")
    return tab


def drawn(tab: Tab) -> list[list[float]]:
    """The heights of every line of the first chart."""
    return tab.page.eval_on_selector(
        "#watch .chart", "chart => (chart.data ?? []).map(line => [...line.y])"
    )


def questions(start: int, count: int) -> list[str]:
    """Questions like the rows."""
    return [row.query for row in demo_rows("test").rows[start : start + count]]


def test_the_page_shows_the_counted_figures(keyed: Fleet, opened: Open) -> None:
    """Decisions, mean set size, and calls of each candidate."""
    tab = at_watch(opened, keyed)
    for question in questions(0, 8):
        keyed.route(question, alpha=0.02)
    lines = keyed.gateway.get("/metrics", keyed.admin_key).text.splitlines()
    counted = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    routed = int(float(counted["racer_set_size_count"]))
    mean = plain(float(counted["racer_set_size_sum"]) / routed)
    assert routed >= 8
    tab.until(
        "[...document.querySelectorAll('.tile .fact')].map(e => e.textContent)"
        f".includes('{routed:,}')"
    )
    tiles = tab.page.inner_text("#watch .tiles")
    assert mean in tiles
    made = 0
    for name in POOL:
        calls = sum(
            int(float(value))
            for key, value in counted.items()
            if key.startswith(f'racer_candidate_calls_total{{candidate="{name}"')
        )
        row = tab.page.locator("#watch tbody tr", has_text=name)
        cell = row.locator("td").nth(1)
        # A call that another test left ended after what the page shows now.
        wait_until(lambda cell=cell, calls=calls: cell.inner_text() == str(calls))
        assert row.locator("td").nth(0).inner_text() == "up"
        made += calls
    assert made > 0


def test_a_rate_is_never_negative_and_gateways_are_told_apart(
    keyed: Fleet, opened: Open, tmp_path: Path, router: Path
) -> None:
    """Polls meet two gateways in turn, one of which has counted far more than the other."""
    for question in questions(0, 30):
        keyed.route(question, execute=False)
    with served(tmp_path, artifact=router, calibration=some_rows(0, 100)) as other:
        gateways = [keyed.gateway, other.gateway]
        polls = 0

        def either(route: Route) -> None:
            nonlocal polls
            polls += 1
            other.route(questions(0, 1)[0], execute=False)
            route.fulfill(body=gateways[polls % 2].get("/metrics", keyed.admin_key).text)

        tab = opened(keyed)
        tab.page.route("**/metrics", either)
        tab.give_keys()
        tab.page.click("#tab-watch")
        tab.until("(document.querySelector('#watch .chart')?.data?.[0]?.y.length ?? 0) >= 3")
        heights = [height for line in drawn(tab) for height in line]
        assert all(0 <= height < 5 for height in heights), heights
        assert "2 gateways answered here" in tab.page.inner_text("#watch")


@pytest.mark.parametrize("restarted", [True, False], ids=["restarted", "unknown"])
def test_a_counter_that_begins_again_is_no_rate(demo: Fleet, opened: Open, restarted: bool) -> None:
    """A process that began anew, or one that does not say when it began, gives no point."""
    tab = opened(demo)
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


def test_feedback_narrows_the_realised_risk(keyed: Fleet, opened: Open) -> None:
    """From nothing known to an interval, with alpha beside it."""
    answer = keyed.route(questions(40, 1)[0], execute=False)
    tab = at_watch(opened, keyed)
    tab.page.wait_for_selector("#watch .interval")
    assert "Asked for: at most 10 %" in tab.page.inner_text("#watch")
    before = tab.page.inner_text("#watch .interval")
    judged = dict.fromkeys(POOL, True)
    body = {"decision_id": answer["decision_id"], "correct": judged}
    assert keyed.gateway.post("/feedback", keyed.admin_key, json=body).status_code == 200
    tab.page.click("#tab-try")
    tab.page.click("#tab-watch")
    assert until(lambda: tab.page.inner_text("#watch .interval") != before, 60)


def test_each_application_has_its_risk_and_its_alarms(
    opened: Open, tmp_path: Path, router: Path
) -> None:
    """Under its name; the chart has a line for each. An alarm of one is said of it alone."""
    applications: dict[str, Any] = {"bot": {}}
    with served(tmp_path, artifact=router, applications=applications) as fleet:
        labelled = as_json(some_rows(0, 600))
        for row in labelled[::2]:
            row["application"] = "bot"
        body = {"rows": labelled, "alpha": 0.2}
        gateway, key = fleet.gateway, fleet.admin_key
        assert gateway.post("/calibrate", key, json=body).status_code == 200
        poems = [f"Write a poem about {number} and {number + 8}" for number in range(200)]
        bodies = [{"query": poem, "application": "bot"} for poem in poems]  # unlike every row
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


def test_the_admins_part_asks_for_its_key(keyed: Fleet, opened: Open) -> None:
    """The rest is there with a data key alone."""
    tab = at_watch(opened, keyed, admin="")
    tab.page.wait_for_selector("#watch >> text=It needs the admin key")
    wait_until(lambda: tab.page.locator("#who-title + div tbody tr").count() == len(POOL))
    tab.give_keys()
    tab.page.wait_for_selector("#watch .interval")


def test_a_slow_gateway_is_asked_again_only_once_it_answered(demo: Fleet, opened: Open) -> None:
    """Answers that overtake each other would count backwards."""
    tab = opened(demo, clock=True)
    tab.give_keys()
    held: list[Route] = []
    tab.page.route("**/metrics", lambda route: held.append(route))
    tab.page.click("#tab-watch")
    tab.page.clock.run_for(4 * POLL_MS)
    assert until(lambda: tab.page.evaluate("1") == 1 and len(held) > 0, 60)
    assert len(held) == 1
    held[0].continue_()
    tab.page.wait_for_selector("#watch tbody tr")
    tab.page.clock.run_for(POLL_MS)
    assert until(lambda: tab.page.evaluate("1") == 1 and len(held) > 1, 60)
    assert len(held) == 2
    tab.page.unroute_all()


def test_focus_survives_a_poll(demo: Fleet, opened: Open) -> None:
    """And what is wrong is said once: a reader who listens would hear it with every poll."""
    tab = at_watch(opened, demo, clock=True)
    tab.page.focus("#who-title + div .scroll")
    polled(tab)
    polled(tab)
    assert tab.page.evaluate("document.activeElement.className") == "scroll"
    tab.page.route("**/metrics", lambda route: route.abort())
    tab.page.wait_for_selector("#watch [role=alert] .notice")
    tab.page.eval_on_selector("#watch [role=alert] .notice", "said => { said.id = 'first'; }")
    for _ in range(2):
        with tab.page.expect_event("requestfailed"):
            tab.page.clock.run_for(POLL_MS)
    assert tab.page.locator("#first").count() == 1
    tab.noted = [text for text in tab.noted if "net::ERR_FAILED" not in text]


def polled(tab: Tab) -> None:
    """Put the time forward to the next poll, and wait until it is shown."""
    with tab.page.expect_response("**/metrics") as answered:
        tab.page.clock.run_for(POLL_MS)
    answered.value.finished()


def test_a_tab_in_the_background_asks_nothing(demo: Fleet, opened: Open) -> None:
    """No poll is made while another tab is in front."""
    tab = at_watch(opened, demo, clock=True)
    asked_for: list[str] = []
    tab.page.click("#tab-try")
    tab.page.wait_for_load_state("networkidle")
    tab.page.on("request", lambda request: asked_for.append(request.url))
    with tab.page.expect_response("**/readyz"):  # that of the status, every five seconds
        tab.page.clock.run_for(3 * POLL_MS)
    assert [url for url in asked_for if not url.endswith("/readyz")] == []


def test_it_shows_which_requests_are_certified(keyed: Fleet, opened: Open) -> None:
    """The share, what the others send, and the command that certifies them."""
    body = {"model": "auto", "messages": [{"role": "user", "content": questions(60, 1)[0]}]}
    for fields in ({}, {"temperature": 0.7}):
        answer = keyed.gateway.post("/v1/chat/completions", keyed.admin_key, json=body | fields)
        assert answer.status_code == 200, answer.text
    tab = at_watch(opened, keyed)
    card = tab.page.locator("section[aria-labelledby=coverage-title]")
    card.locator("summary", has_text="with temperature=0.7").click()
    text = card.inner_text()
    assert "requests are certified" in text
    assert "racer label questions.jsonl --like " in text
    tab.page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    assert overflow(tab) == 0
    shown = card.locator("details")
    tab.page.wait_for_timeout(2 * POLL_MS)
    assert shown.first.get_attribute("open") is not None, "a poll closed what was opened"


def test_the_last_hour_day_and_week_stand_beside_one_model_and_all(
    keyed: Fleet, opened: Open
) -> None:
    """The figures of GET /history, of the window that is chosen."""
    for question in questions(60, 6):
        body = {"model": "auto", "messages": [{"role": "user", "content": question}]}
        assert keyed.gateway.post("/v1/chat/completions", keyed.data_key, json=body).is_success
    found: list[dict[str, Any]] = []

    def are_written() -> bool:
        found[:] = keyed.gateway.get("/history", keyed.data_key).json()["windows"]
        return found[0]["requests"] >= 6

    wait_until(are_written)
    tab = at_watch(opened, keyed)
    card = "#history-card"
    tab.page.wait_for_selector(f"{card} tbody tr")
    for window, title in zip(found, ("Last hour", "Last day", "Last week"), strict=True):
        tab.page.click(f"{card} button:text-is('{title}')")
        assert tab.page.get_attribute(f"{card} button[aria-pressed='true']", "aria-pressed")
        assert tab.page.inner_text(f"{card} .sentence").startswith(
            f"{window['requests']:,} request"
        )
        rows = tab.page.locator(f"{card} tbody tr")
        asked = [rows.nth(place).locator("td").first.inner_text() for place in range(3)]
        single, everyone = window["best_single"]["calls"], window["everyone"]["calls"]
        assert asked == [
            plain(window["calls"]),
            "–" if single is None else plain(single),
            plain(everyone),
        ]
        assert tab.page.locator(f"{card} rect").count() > 0
