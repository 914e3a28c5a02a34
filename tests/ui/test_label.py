"""Label: what waits for a verdict is shown as text, and one click says whether it is right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.gateway import user
from tests.kit.monitored import KEY, sampled
from tests.kit.upstream import FakePool
from tests.kit.waiting import until, wait_until
from tests.ui.looks import PICTURES, overflow, serious

from . import scripted
from .conftest import NARROW, WIDE, Open, Tab
from .fleet import POOL, Fleet, demo_rows, served, some_rows

MARKUP = "<img src=x onerror=alert(1)><b>bold</b>"
SYSTEM = {"role": "system", "content": "Answer in one word."}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
SAMPLING: dict[str, Any] = {
    "watching": {"shadow_rate": 1.0, "store_requests": True},
    "environment": {"RACER_SAMPLES_KEY": KEY},
}


@pytest.fixture
def sampling(tmp_path: Path, pool_url: str, router: Path) -> Iterator[Fleet]:
    """A gateway before the demo's models that samples everything and stores requests."""
    rows = some_rows(0, 100)
    with served(tmp_path, pool_url, artifact=router, calibration=rows, **SAMPLING) as fleet:
        yield fleet


def questions(count: int) -> list[str]:
    """Questions on which the demo's models gave two answers when their rows were labelled."""
    given = [(row.query, (row.answers or {}).values()) for row in demo_rows("test").rows]
    return [query for query, texts in given if all(texts) and len(set(texts)) == 2][:count]


def asked(fleet: Fleet, *messages: Any, **fields: Any) -> str:
    """The id of a decision whose candidates have all answered."""
    body = {"model": "auto", "messages": list(messages), **fields}
    before = sum(_ended(fleet))
    answer = fleet.gateway.post("/v1/chat/completions", json=body).json()
    assert until(lambda: sum(_ended(fleet)) == before + 1, 60)
    return answer["id"]


def _ended(fleet: Fleet) -> list[int]:
    return list(sampled(fleet.gateway, 0).values())


def verdicts(fleet: Fleet, decision: str) -> dict[str, bool]:
    """The verdicts of a decision."""
    found = fleet.gateway.get(f"/decisions/{decision}", fleet.admin_key).json()
    return found["feedback"]["correct"]


def waiting(fleet: Fleet) -> int:
    """How many samples wait for a label."""
    found = fleet.gateway.get("/shadow/waiting", fleet.admin_key).json()
    return found["waiting"]


def at_label(opened: Open, fleet: Fleet, **options: Any) -> Tab:
    """The tab, with keys given, and a request."""
    tab = opened(fleet, "#label", **options)
    tab.give_keys()
    tab.page.wait_for_selector("#label .answer")
    return tab


def cards(tab: Tab) -> list[set[str]]:
    """The candidates of each answer that is shown: who gave the same stands on one card."""
    names = tab.page.locator("#label .answer footer > .muted").all_inner_texts()
    return [set(each.split(", ")) for each in names]


def press(tab: Tab, key: str) -> None:
    """Press a key once for each answer that is shown."""
    before = tab.page.inner_text("#label .turns")
    for _ in cards(tab):
        tab.page.keyboard.press(key)
    gone = "document.querySelector('#label .turns')?.innerText"
    tab.until(f"{gone} !== {json.dumps(before)}")


def test_one_click_labels_equal_answers(sampling: Fleet, opened: Open) -> None:
    """The next request follows, also one that came meanwhile; after the last the page says so."""
    texts = questions(2)
    first = asked(sampling, *user(texts[0]))
    tab = at_label(opened, sampling)
    assert "1 request waits for a label" in tab.page.inner_text("#label")
    assert texts[0] in tab.page.inner_text("#label .turns")
    wrong, *right = cards(tab)
    assert right
    second = asked(sampling, *user(texts[1]))
    other = tab.page.locator("#label .answer").first
    other.get_by_role("button", name="wrong").click()
    assert other.get_by_role("button", name="wrong").get_attribute("aria-pressed") == "true"
    for number in range(1, 1 + len(right)):
        card = tab.page.locator("#label .answer").nth(number)
        card.get_by_role("button", name="right").click()
    tab.page.locator("#label .turns", has_text=texts[1]).wait_for()
    for number in range(1, 1 + len(cards(tab))):
        tab.page.get_by_role("button", name=f"Answer {number} is right").click()
    tab.page.wait_for_selector("#label .notice.good")
    verdict = {name: name not in wrong for name in POOL}
    assert until(lambda: verdicts(sampling, first) == verdict, 60)
    assert verdicts(sampling, second) == {}
    tab.page.click("#tab-watch")
    assert until(lambda: verdicts(sampling, second) == dict.fromkeys(POOL, True), 60)


def test_the_last_label_can_be_changed_until_the_next(sampling: Fleet, opened: Open) -> None:
    """By a button or a key; the request comes back without verdicts, and nothing was stored."""
    for text in questions(2):
        asked(sampling, *user(text))
    tab = at_label(opened, sampling)
    first = json.dumps(tab.page.inner_text("#label .turns"))
    tab.page.locator("#label .verdict button").first.focus()
    press(tab, "w")
    assert "1 request waits" in tab.page.inner_text("#label")
    tab.page.keyboard.press("u")
    tab.until(f"document.querySelector('#label .turns').innerText === {first}")
    assert "2 requests wait" in tab.page.inner_text("#label")
    assert tab.page.locator('#label [aria-pressed="true"]').count() == 0
    press(tab, "r")
    assert "The last label" in tab.page.inner_text("#label")
    tab.page.get_by_role("button", name="Change").click()
    tab.until(f"document.querySelector('#label .turns').innerText === {first}")
    press(tab, "w")
    press(tab, "r")
    tab.page.wait_for_selector("#label .notice.good")
    tab.page.click("#tab-watch")
    assert until(lambda: waiting(sampling) == 0, 60)


def test_an_answer_is_text_and_never_markup(
    tmp_path: Path, candidates: FakePool, opened: Open
) -> None:
    """Of a scripted candidate: no real one can be made to answer so."""
    candidates.reset()
    candidates.say(scripted.FEW[0], MARKUP)
    with scripted.served(tmp_path, scripted.FEW, candidates, **SAMPLING) as fleet:
        asked(fleet, *user(scripted.SUM))
        tab = at_label(opened, fleet)
        wait_until(lambda: tab.page.locator("#label .answer").count() == 2)
        assert MARKUP in tab.page.inner_text("#label")
        assert tab.page.locator("#label .answer img").count() == 0


def test_a_label_that_cannot_be_stored_stays(sampling: Fleet, opened: Open) -> None:
    """The page says why and sends it again; an error that passes loses no label."""
    decision = asked(sampling, *user(questions(1)[0]))
    tab = at_label(opened, sampling)
    tab.refused = {507}
    full = {"error": {"code": "store_full", "message": "the disk is full"}}
    tab.page.route("**/feedback", lambda route: route.fulfill(status=507, json=full))
    for number in range(1, 1 + len(cards(tab))):
        tab.page.get_by_role("button", name=f"Answer {number} is right").click()
    tab.page.click("#tab-watch")
    tab.page.click("#tab-label")
    tab.page.wait_for_selector("#label [role=alert] >> text=the disk is full")
    assert verdicts(sampling, decision) == {}
    tab.page.unroute("**/feedback")
    tab.page.get_by_role("button", name="Send again").click()
    assert until(lambda: verdicts(sampling, decision) == dict.fromkeys(POOL, True), 60)


def test_requests_of_one_application_are_shown_alone(
    tmp_path: Path, pool_url: str, router: Path, opened: Open
) -> None:
    """With what waits, what is labelled and what alpha needs, of each."""
    applications = {"bot": {"keys": ["data"], "alpha": 0.05}, "agent": {"keys": ["admin"]}}
    options: dict[str, Any] = SAMPLING | {"applications": applications}
    with served(tmp_path, pool_url, artifact=router, **options) as fleet:
        asked(fleet, *user(questions(1)[0]))
        tab = at_label(opened, fleet)
        table = tab.page.locator("#label table")
        assert table.locator("tr", has_text="bot").inner_text().split()[:3] == ["bot", "1", "0"]
        assert "19 with a right answer" in table.locator("tr", has_text="bot").inner_text()
        assert "9 with a right answer" in table.locator("tr", has_text="agent").inner_text()
        tab.page.select_option("#label-application", "agent")
        tab.page.wait_for_selector("#label .notice.good")
        assert "0 requests wait" in tab.page.inner_text("#label")
        tab.page.select_option("#label-application", "bot")
        tab.page.wait_for_selector("#label .answer")
        assert "this one is of bot" in tab.page.inner_text("#label")
        assert serious(tab) == []


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_whole_requests_are_shown_and_accessible(
    sampling: Fleet, opened: Open, size: tuple[int, int]
) -> None:
    """System prompt, tools and turns; a picture is kept."""
    later = [*user("And 3 plus 4?"), {"role": "assistant", "content": "7"}, *user("Sure?")]
    asked(sampling, SYSTEM, *later, tools=[TOOL])
    tab = at_label(opened, sampling, size=size)
    shown = tab.page.inner_text("#label .turns")
    for text in ("system", SYSTEM["content"], "And 3 plus 4?", "assistant", "Sure?", "1 tool"):
        assert text in shown
    PICTURES.mkdir(exist_ok=True)
    tab.page.screenshot(path=PICTURES / f"label-{size[0]}.png", full_page=True)
    assert serious(tab) == []
    assert overflow(tab) <= 0


def test_a_verdict_of_another_admin_is_said_and_left(sampling: Fleet, opened: Open) -> None:
    """The verdict of the other admin stays."""
    decision = asked(sampling, *user(questions(1)[0]))
    tab = at_label(opened, sampling)
    tab.refused = {409}
    body = {"decision_id": decision, "correct": dict.fromkeys(POOL, True)}
    assert sampling.gateway.post("/feedback", sampling.admin_key, json=body).status_code == 200
    for number in range(1, 1 + len(cards(tab))):
        tab.page.get_by_role("button", name=f"Answer {number} is wrong").click()
    tab.page.wait_for_selector("#label .notice.good")
    tab.page.click("#tab-watch")
    tab.page.click("#tab-label")
    tab.page.wait_for_selector("#label [role=alert] >> text=another verdict")
    assert verdicts(sampling, decision) == dict.fromkeys(POOL, True)


def test_the_tab_says_what_it_needs(demo: Fleet, opened: Open) -> None:
    """The admin key, then stored requests."""
    tab = opened(demo, "#label")
    tab.refused = {409}
    tab.page.wait_for_selector("#label >> text=shown to admins only")
    tab.give_keys()
    tab.page.wait_for_selector("#label >> text=store_requests")
