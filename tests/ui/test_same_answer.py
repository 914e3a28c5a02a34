"""The promise `same_answer` on the page: rounds of a request, frontier, progress, history."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Route

from app.same_answer import calibration as answer_calibration
from tests.kit.gateway import ENVIRONMENT, running
from tests.kit.monitored import sampled
from tests.kit.waiting import until
from tests.kit.zero_setup import configure, questions
from tests.ui.looks import PICTURES, overflow, serious, slide

from .conftest import NARROW, WIDE, Open, Tab
from .fleet import POOL, Fleet
from .rounding import plain

PRICES: dict[str, float] = dict(zip(POOL, (4.0, 2.0, 1.0, 0.5, 0.5), strict=True))
ALPHA = 0.1
FEW = 6  # sampled before the first test; a calibration needs more
ASKED = questions(7, 80)


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory, pool_url: str) -> Iterator[Fleet]:
    """A gateway before the demo's models that samples every request, and has sampled a few."""
    path = configure(
        tmp_path_factory.mktemp("rounds"),
        dict.fromkeys(POOL, pool_url),
        prefix="pool/",
        prices=PRICES,
        same_answer={"alpha": ALPHA},
        watching={"shadow_rate": 1.0, "false_alarm": 0.01},
    )
    with pytest.MonkeyPatch.context() as patch, running(path, ENVIRONMENT) as gateway:
        patch.setattr(answer_calibration, "MIN_FITTING", 20)  # fewer questions in these tests
        fleet = Fleet(gateway, POOL, *ENVIRONMENT.values())
        sample(fleet, ASKED[:FEW])
        yield fleet


def sample(fleet: Fleet, asked: Sequence[str]) -> None:
    """Ask, and wait until all candidates have answered."""
    before = sum(sampled(fleet.gateway, 0).values())
    for question in asked:
        fleet.gateway.chat(question)
    wanted = before + len(asked)
    assert until(lambda: sum(sampled(fleet.gateway, 0).values()) >= wanted, 120)


def report(fleet: Fleet) -> dict[str, Any]:
    """GET /same-answer."""
    return fleet.gateway.get("/same-answer", fleet.admin_key).json()


@pytest.fixture
def certified(rounds: Fleet) -> Fleet:
    """The same with two calibrations, made once; the newer one decides."""
    if not report(rounds)["data"]:
        sample(rounds, ASKED[FEW : report(rounds)["applications"][""]["needed"] + 10])
        for _ in range(2):
            made = rounds.gateway.post("/same-answer/calibrate", rounds.admin_key, json={})
            assert made.status_code == 200, made.text
    newest = report(rounds)["data"][0]["id"]
    assert rounds.gateway.post(f"/same-answer/{newest}/activate", rounds.admin_key).is_success
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
    needed = report(rounds)["applications"][""]["needed"]
    tab = at_calibrate(opened, rounds)
    text = card(tab).inner_text()
    words = f"{FEW} of {needed} sampled requests that a risk level of {100 * ALPHA:g} % needs"
    assert words in text
    assert "racer calibrate --same-answer" in text
    bar = card(tab).locator("progress")
    assert (bar.get_attribute("value"), bar.get_attribute("max")) == (str(FEW), str(needed))
    assert "How far it is stands under “Calibrate”" in tab.page.inner_text("#advice")
    assert "upload" not in tab.page.inner_text("#advice")


def test_where_nothing_asks_for_it_the_card_says_how_to_begin(demo: Fleet, opened: Open) -> None:
    """Without the admin key."""
    tab = opened(demo, "#calibrate")
    tab.page.wait_for_selector("#same-answer >> text=Not in use")
    assert "racer serve --calibrate-from-traffic" in card(tab).inner_text()


def test_without_the_admin_key_progress_is_shown(rounds: Fleet, opened: Open) -> None:
    """With the key of a client; without any it is asked for."""
    tab = opened(rounds, "#calibrate")
    assert "needs an API key" in card(tab).inner_text()
    tab.give_keys(admin="")
    tab.page.wait_for_selector("#same-answer .so-far")
    assert f"{FEW} of {report(rounds)['applications']['']['needed']}" in card(tab).inner_text()


def planned(fleet: Fleet, question: str, alpha: float | None = None) -> str:
    """The plan of a question in the page's words."""
    body = {"query": question, "alpha": alpha}
    found = fleet.gateway.post("/route/levels", fleet.data_key, json=body).json()["certificate"]
    at, plan = f"At {100 * found['guarantee']['alpha']:g} %", found["rounds"]
    first = plan["first_round"]
    if len(first) == len(POOL):
        return f"{at} all {len(POOL)} are asked at once."
    named = first[0] if len(first) == 1 else f"{', '.join(first[:-1])} and {first[-1]}"
    expected = plain(plan["expected_calls"])
    return (
        f"{at} {named} {'is' if len(first) == 1 else 'are'} asked first, and the others as long as "
        f"these answers leave too much doubt: {expected} of {len(POOL)} calls on average."
    )


def test_the_plan_of_a_question_is_shown_at_every_level(certified: Fleet, opened: Open) -> None:
    """Before any candidate is called."""
    question = ASKED[-1]
    tab = opened(certified)
    tab.give_keys()
    tab.page.fill("#question", question)
    tab.page.locator("#set .notice", has_text=planned(certified, question)).wait_for()
    slide(tab, 100)
    tab.page.locator("#set .notice", has_text=planned(certified, question, 0.5)).wait_for()
    tab.page.click("#alpha-usual")
    tab.page.locator("#set .notice", has_text=planned(certified, question)).wait_for()
    assert not tab.page.locator("#tradeoff").is_visible()  # alpha chooses no set here


def test_the_rounds_of_a_request_are_shown(certified: Fleet, opened: Open) -> None:
    """As the decision has them: the answers beside their candidates, calls and price."""
    tab = opened(certified)
    tab.give_keys()
    with tab.page.expect_response("**/route") as answered:
        tab.ask(ASKED[-2])
    response = answered.value.json()
    tab.page.wait_for_selector(".rounds")
    place = f"/decisions/{response['decision_id']}"
    made = certified.gateway.get(place, certified.admin_key).json()["sequence"]["made"]
    shown = tab.page.locator(".rounds > li")
    assert shown.count() == len(made["rounds"])
    for number, each in enumerate(made["rounds"]):
        said = shown.nth(number).locator(".opinions").inner_text()
        assert all(name in said for name in each["called"])
        assert all(response["answers"][name] in said for name in each["called"])
        kinds = {made["classes"][name] for name in each["called"]}
        assert shown.nth(number).locator(".opinions li").count() == len(kinds)
    text = tab.page.inner_text("section[aria-labelledby=rounds-title]")
    called = [name for each in made["rounds"] for name in each["called"]]
    assert f"made; calling all takes {len(POOL)}" in text
    paid = sum(PRICES[name] for name in called) / sum(PRICES.values())
    assert f"{int(100 * paid + 0.5)} %\nof the price of calling the whole pool" in text
    assert "differs from that of the whole pool's vote" in tab.page.inner_text("#answer .notice")


def test_the_frontier_is_drawn_and_a_calibration_made_active(
    certified: Fleet, opened: Open
) -> None:
    """What the evidence says, with the level in force; the history leads back."""
    newest, older = report(certified)["data"][:2]
    tab = at_calibrate(opened, certified)
    tab.page.wait_for_selector("#same-answer .main-svg >> nth=0")
    chart = card(tab).locator(".chart")
    lines = chart.evaluate("chart => chart.data.map(({ name, y }) => [name, [...y]])")
    frontier = newest["evidence"]["frontier"]
    drawn = ("expected_calls", "expected_rounds", "price_share")
    assert [y for _, y in lines] == [[each[name] for each in frontier] for name in drawn]
    shapes = chart.evaluate("chart => chart.layout.shapes.map(({ x1 }) => x1)")
    assert shapes == [newest["evidence"]["least_alpha"], ALPHA]
    assert "calibration rows themselves" in card(tab).inner_text()
    for each in newest["evidence"]["consequences"]:
        assert each[0].upper() + each[1:] in card(tab).inner_text()
    assert newest["evidence"]["n"] < 200
    assert "one calibration in twenty of so few rows is above that" in card(tab).inner_text()
    assert "made, " in card(tab).inner_text()
    tab.page.click("#same-answer table button >> nth=0")
    tab.page.click("#confirm-yes")
    tab.page.wait_for_selector("#same-answer tbody tr:nth-child(2) .chip.on")
    assert report(certified)["applications"][""]["active"] == older["id"]


def test_an_alarm_and_a_refusal_are_said_in_words(certified: Fleet, opened: Open) -> None:
    """With what follows from them; the rows since the alarm are counted anew."""
    found = report(certified)
    progress = found["applications"][""]
    needed = progress["needed"]
    progress |= {"rows": 7, "refusal": "not worth it: a request would cost 1.20 of what all cost"}
    progress["watch"] |= {"sampled": 40, "differing": 12, "alarm_at": "2026-01-02T03:04:05+00:00"}

    def altered(route: Route) -> None:
        route.fulfill(body=json.dumps(found), content_type="application/json")

    tab = opened(certified)
    tab.page.route("**/same-answer", altered)
    tab.give_keys()
    tab.page.click("#tab-calibrate")
    tab.page.wait_for_selector("#same-answer .notice.bad")
    text = card(tab).inner_text()
    assert "Alarm of 2 Jan 2026" in text
    assert "12 of 40 sampled requests would have got a different answer" in text
    assert "Not worth it: a request would cost 1.20" in text
    assert f"7 of {needed} sampled requests" in text
    progress["watch"]["alarm_at"] = None
    progress["stale"] = "age"
    progress["decides"]["reference"] = "answerable"
    tab.page.evaluate("document.dispatchEvent(new CustomEvent('readiness', { detail: {} }))")
    tab.page.wait_for_selector("#same-answer >> text=no calibration succeeded since")
    text = card(tab).inner_text()
    assert "Certificates are void" in text
    assert "The last attempt: Not worth it" in text
    assert "Of 40 requests sampled since, 12 would have missed every right answer" in text


def test_every_tab_says_what_readyz_says(certified: Fleet, opened: Open) -> None:
    """Which calibration decides, and why its certificates hold or are void."""
    ready = certified.gateway.ready()
    metric = f'racer_certificates_hold{{application=""}} {float(ready["holds"])}'
    assert metric in certified.gateway.get("/metrics", certified.data_key).text
    tab = opened(certified)
    tab.give_keys()
    said = ready["standing"][0].upper() + ready["standing"][1:] + "."
    for name in ("try", "calibrate", "watch"):
        tab.page.click(f"#tab-{name}")
        assert tab.page.inner_text("#standing") == said
    tab.page.wait_for_selector("#watch >> text=of calibrations on labelled rows, and there is none")


@pytest.mark.parametrize(("scheme", "size"), [("light", NARROW), ("dark", WIDE)])
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

    tab = at_calibrate(opened, certified, scheme=scheme, size=size)
    tab.page.wait_for_selector("#same-answer .main-svg >> nth=0")
    seen(tab, "same-answer")
    tab.page.click("#tab-try")
    tab.ask(ASKED[-3])
    tab.page.wait_for_selector(".rounds")
    seen(tab, "rounds")
