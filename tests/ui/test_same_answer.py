"""The promise `same_answer` on the page: rounds of a request, frontier, progress, history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Route

from tests.support.gateway import ENVIRONMENT, configure, running
from tests.support.same_answer import NAMES, configured, talk
from tests.support.samples import sampled
from tests.upstreams.scripted import FakePool

from .conftest import NARROW, WIDE, Open, Tab
from .fleet import Fleet
from .test_looks import PICTURES, overflow, serious
from .test_try import slide

PRICES = {"ada": 4.0, "bob": 2.0, "cyd": 1.0, "dan": 0.5, "eve": 0.5}
QUESTION = "how many?"


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory, candidates: FakePool) -> Iterator[Fleet]:
    """A gateway that every request samples; 20 were sampled so far, of the 69 that it takes."""
    candidates.reset()
    talk(candidates)
    watching = {"shadow_rate": 1.0, "false_alarm": 0.01}
    given = configured(candidates, same_answer={"alpha": 0.02}, watching=watching)
    given.pop("calibrated")
    for each in given["candidates"]:
        each["price"] = PRICES[each["name"]]
    folder = tmp_path_factory.mktemp("rounds")
    path = configure(folder / "gateway", given.pop("artifact"), candidates.url, **given)
    with running(path, ENVIRONMENT) as gateway:
        for number in range(20):
            gateway.chat(f"question {number}")
        sampled(gateway, 20)
        yield Fleet(gateway, candidates, NAMES, *ENVIRONMENT.values())
    candidates.answer = lambda _: "42"


@pytest.fixture
def certified(rounds: Fleet) -> Fleet:
    """The same with two calibrations, made once."""
    report = rounds.gateway.get("/same-answer", rounds.admin_key).json()
    if not report["data"]:
        rounds.pool.reset()
        for number in range(20, 200):
            rounds.gateway.chat(f"question {number}")
        sampled(rounds.gateway, 200)
        for _ in range(2):
            made = rounds.gateway.post("/same-answer/calibrate", rounds.admin_key, json={})
            assert made.json()["active"], made.text
    rounds.pool.reset()
    return rounds


def card(tab: Tab) -> Locator:
    """The card of the promise, once it is filled."""
    tab.page.wait_for_selector("#same-answer h2 + *")
    return tab.page.locator("#same-answer")


def at_calibrate(opened: Open, fleet: Fleet, **options: Any) -> Tab:
    """The tab, with both keys given, and what is known of the promise."""
    tab = opened(fleet, "#calibrate", **options)
    tab.give_keys()
    tab.page.wait_for_selector("#same-answer .so-far, #same-answer .facts")
    return tab


def test_before_a_calibration_the_rows_are_counted(rounds: Fleet, opened: Open) -> None:
    """How many of how many, and what to do next."""
    tab = at_calibrate(opened, rounds)
    text = card(tab).inner_text()
    assert "20 of 69 sampled requests that a risk level of 2 % needs" in text
    assert "racer calibrate --same-answer" in text
    bar = card(tab).locator("progress")
    assert (bar.get_attribute("value"), bar.get_attribute("max")) == ("20", "69")
    assert "How far it is stands under “Calibrate”" in tab.page.inner_text("#advice")
    assert "upload" not in tab.page.inner_text("#advice")


def test_where_nothing_asks_for_it_the_card_says_how_to_begin(fleet: Fleet, opened: Open) -> None:
    """And without an admin key which one is missing."""
    tab = opened(fleet, "#calibrate")
    assert "needs the admin key" in card(tab).inner_text()
    tab.give_keys()
    tab.page.wait_for_selector("#same-answer >> text=Not in use")
    assert "racer serve --calibrate-from-traffic" in card(tab).inner_text()


def test_the_rounds_of_a_request_are_shown(certified: Fleet, opened: Open) -> None:
    """Planned and made; each answer beside its candidates, the estimate, calls and price."""
    gateway, pool = certified.gateway, certified.pool
    record = gateway.get("/same-answer", certified.admin_key).json()["data"][0]["evidence"]
    order, first = record["order"], record["first_round"]
    tab = opened(certified)
    tab.give_keys()
    tab.page.fill("#question", QUESTION)
    tab.page.wait_for_selector("#set .notice")
    assert f"{first[-1]} are asked first" in tab.page.inner_text("#set")
    plan = {"query": QUESTION, "alpha": 0.5}
    planned = gateway.post("/route/levels", certified.data_key, json=plan).json()["certificate"]
    slide(tab, 100)
    tab.page.wait_for_selector("#set .notice >> text=At 50 %")
    expected = f"{planned['rounds']['expected_calls']:.2f}".rstrip("0").rstrip(".")
    assert f": {expected} of 5 calls on average" in tab.page.inner_text("#set")
    tab.page.click("#alpha-usual")
    tab.page.wait_for_selector("#set .notice >> text=At 2 %")
    for name in NAMES:
        pool.say(name, "7")
    tab.ask(QUESTION)
    tab.page.wait_for_selector(".rounds")
    assert tab.page.locator(".rounds > li").count() == 1
    (opinion,) = tab.page.locator(".opinions li").all_inner_texts()
    assert opinion.splitlines()[-1] == "7"
    assert all(name in opinion for name in first)
    text = tab.page.inner_text("section[aria-labelledby=rounds-title]")
    assert "no further candidate was asked" in text
    paid = sum(PRICES[name] for name in first) / sum(PRICES.values())
    assert f"{100 * paid:.0f} %\nof the price of calling the whole pool" in text
    assert "calls made; calling all takes 5" in text
    assert "differs from that of the whole pool's vote" in tab.page.inner_text("#answer .notice")
    assert tab.page.locator(".rounds .limit").count() == 1
    pool.fail(first[0], "500")  # then all that are left are called, at every threshold
    tab.ask(QUESTION + " again")
    tab.until("document.querySelectorAll('.rounds > li').length === 2")
    asked = tab.page.locator(".rounds > li")
    assert f"{first[0]}\nfailed" in asked.nth(0).locator(".opinions li").all_inner_texts()
    (opinion,) = asked.nth(1).locator(".opinions li").all_inner_texts()
    assert opinion.splitlines()[-1] == "7"
    assert all(name in opinion for name in order[len(first) :])
    tab.noted = [text for text in tab.noted if "502" not in text]


def test_the_frontier_is_drawn_and_a_calibration_made_active(
    certified: Fleet, opened: Open
) -> None:
    """What the evidence says, with the level in force; the history leads back."""
    gateway, key = certified.gateway, certified.admin_key
    newest, older = gateway.get("/same-answer", key).json()["data"][:2]
    tab = at_calibrate(opened, certified)
    tab.page.wait_for_selector("#same-answer .main-svg >> nth=0")
    chart = card(tab).locator(".chart")
    lines = chart.evaluate("chart => chart.data.map(({ name, y }) => [name, [...y]])")
    frontier = newest["evidence"]["frontier"]
    drawn = ("expected_calls", "expected_rounds", "price_share")
    assert [y for _, y in lines] == [[each[name] for each in frontier] for name in drawn]
    shapes = chart.evaluate("chart => chart.layout.shapes.map(({ x1 }) => x1)")
    assert shapes == [newest["evidence"]["least_alpha"], 0.02]
    assert "calibration rows themselves" in card(tab).inner_text()
    assert "made, " in card(tab).inner_text()
    tab.page.click("#same-answer table button >> nth=0")
    tab.page.click("#confirm-yes")
    tab.page.wait_for_selector("#same-answer tbody tr:nth-child(2) .chip.on")
    active = gateway.get("/same-answer", key).json()["applications"][""]["active"]
    assert active == older["id"]
    gateway.post(f"/same-answer/{newest['id']}/activate", key)


def test_an_alarm_and_a_refusal_are_said_in_words(certified: Fleet, opened: Open) -> None:
    """With what follows from them; the rows since the alarm are counted anew."""
    report = certified.gateway.get("/same-answer", certified.admin_key).json()
    progress = report["applications"][""]
    progress |= {"rows": 7, "refusal": "not worth it: a request would cost 1.20 of what all cost"}
    progress["watch"] |= {"sampled": 40, "differing": 12, "alarm_at": "2026-01-02T03:04:05+00:00"}

    def altered(route: Route) -> None:
        route.fulfill(body=json.dumps(report), content_type="application/json")

    tab = opened(certified)
    tab.page.route("**/same-answer", altered)
    tab.give_keys()
    tab.page.click("#tab-calibrate")
    tab.page.wait_for_selector("#same-answer .notice.bad")
    text = card(tab).inner_text()
    assert "Alarm of 2 Jan 2026" in text
    assert "12 of 40 sampled requests would have got a different answer" in text
    assert "Not worth it: a request would cost 1.20" in text
    assert "7 of 69 sampled requests" in text
    progress["watch"]["alarm_at"] = None
    progress["stale"] = "age"
    for each in report["data"]:
        each["evidence"]["reference"] = "answerable"
    tab.page.evaluate("document.dispatchEvent(new Event('readiness'))")
    tab.page.wait_for_selector("#same-answer >> text=Certificates are void")
    text = card(tab).inner_text()
    assert "no calibration succeeded since" in text
    assert "The last attempt: Not worth it" in text
    assert "Of 40 requests sampled since, 12 would have missed every right answer" in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_it_is_accessible_and_pictured(
    certified: Fleet, opened: Open, size: tuple[int, int], scheme: str
) -> None:
    """Rounds and frontier, in both colours; a picture of each is kept."""
    PICTURES.mkdir(exist_ok=True)

    def seen(tab: Tab, name: str) -> None:
        path: Path = PICTURES / f"{name}-{size[0]}-{scheme}.png"
        tab.page.screenshot(path=path, full_page=True)
        assert serious(tab) == [], name
        assert overflow(tab) <= 0, f"{name} is wider than the window"

    for name, text in zip(NAMES, "12345", strict=True):
        certified.pool.say(name, f"The answer is {text}, as far as can be told. " * 3)
    tab = at_calibrate(opened, certified, scheme=scheme, size=size)
    tab.page.wait_for_selector("#same-answer .main-svg >> nth=0")
    seen(tab, "same-answer")
    tab.page.click("#tab-try")
    tab.ask(QUESTION)
    tab.page.wait_for_selector(".rounds")
    seen(tab, "rounds")
