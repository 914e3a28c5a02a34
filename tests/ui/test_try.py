"""Try: what is drawn is what the gateway decides, and what is said is what was called."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Route

from tests.support.waiting import until

from .conftest import Open, Tab
from .fleet import FEW, POEM, RIVER, ROW, SUM, Fleet

QUESTIONS = (SUM, RIVER)


def slide(tab: Tab, steps: int) -> None:
    """Move the slider to a number of half percents, as dragging does."""
    tab.page.locator("#alpha").evaluate(
        "(slider, steps) => { slider.value = steps; slider.dispatchEvent(new Event('input')); }",
        steps,
    )


def decided(fleet: Fleet, question: str, alpha: float) -> set[str]:
    """Whom /route selects."""
    body = {"query": question, "alpha": alpha}
    return set(fleet.gateway.post("/route", fleet.admin_key, json=body).json()["selected"])


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_set_moves_with_the_slider_as_the_gateway_decides(
    fleet: Fleet, opened: Open, question: str
) -> None:
    """At many levels the marked candidates are those of /route, and no candidate is called."""
    tab = opened(fleet)
    tab.give_keys()
    tab.looked(question)
    sizes = set()
    for steps in (1, 6, 14, 16, 18, 20, 24, 30, 40, 70, 100):
        slide(tab, steps)
        assert tab.inside() == decided(fleet, question, steps / 200), steps
        shown = tab.page.inner_text("#alpha-value")
        assert shown.startswith(f"{steps / 2:g} %")
        sizes.add(len(tab.inside()))
    assert len(sizes) > 1
    assert fleet.pool.models_called() == []


@pytest.mark.parametrize("score", ["cover", "gap", "prob"])
def test_candidates_whose_bar_reaches_the_line_are_in_the_set(
    fleet: Fleet, opened: Open, score: str
) -> None:
    """Bars and line are drawn to one scale, whatever kind of score decides."""
    tab = opened(fleet)
    tab.give_keys()

    def scored(route: Route) -> None:
        route.continue_(post_data=route.request.post_data_json | {"score": score})

    tab.page.route(re.compile(r"/route/levels$"), scored)
    tab.looked(RIVER)
    compared = 0
    for steps in range(14, 60, 3):
        slide(tab, steps)
        drawn = tab.page.eval_on_selector_all(
            "table.bars tbody tr",
            """rows => rows.map(row => [
                row.dataset.in === "true",
                parseFloat(row.querySelector(".bar-fill").style.width),
                row.querySelector(".limit").hidden ? null
                  : parseFloat(row.querySelector(".limit").style.left),
                row.querySelector(".chip").textContent])""",
        )
        abstains = not any(inside for inside, *_ in drawn)
        for inside, bar, line, chip in drawn:
            if line is not None and abs(bar - line) > 0.02:
                assert (chip == "left out") == (bar < line), (steps, drawn)
                assert abstains or inside == (bar > line), (steps, drawn)
                compared += 1
    assert compared > 10


def test_a_question_is_asked_of_the_set_and_everything_is_shown(fleet: Fleet, opened: Open) -> None:
    """Who was called, each answer, the vote, what it took, and what is promised, in words."""
    for name in FEW:
        fleet.pool.say(name, f"so says {name}")
    tab = opened(fleet)
    tab.give_keys()
    tab.looked(RIVER)
    chosen = tab.inside()
    tab.ask(RIVER)
    assert set(fleet.pool.models_called()) == chosen
    assert len(chosen) > 1
    cards = tab.page.locator("article.answer")
    assert set(cards.locator("h3").all_inner_texts()) == chosen
    assert {f"so says {name}" for name in chosen} == set(cards.locator(".text").all_inner_texts())
    assert tab.page.locator(".votes li").count() == len(chosen)
    facts = tab.page.inner_text("#answer .facts")
    assert f"{len(chosen)} of {len(FEW)}" in facts
    paid = tab.page.inner_text("table.paid")
    assert f"Paid, beside calling all {len(FEW)}" in paid
    assert f"{len(chosen)}\tof {len(FEW)}" in paid
    assert "of at least" in paid  # the others have not been timed on this page
    promised = tab.page.inner_text("#answer .notice.good")
    assert "at most 10 % get a set without any candidate that answers right" in promised
    assert "says nothing about this one question" in promised
    assert "not that the vote is right" in promised
    assert "you chose the risk level" not in promised


def test_a_chosen_level_is_sent_and_shown(fleet: Fleet, opened: Open) -> None:
    """Chosen before there is a question, too; and one way back to the gateway's own."""
    tab = opened(fleet)
    tab.give_keys()
    slide(tab, 50)
    tab.ask(SUM)
    promised = tab.page.inner_text("#answer .notice")
    assert "at most 25 %" in promised
    assert "you chose the risk level" in promised
    tab.page.click("#alpha-usual")
    assert tab.page.inner_text("#alpha-value") == "10 % · as calibrated"
    tab.page.click("#ask-button")
    tab.until("document.body.innerText.includes('at most 10 %')")


def test_a_question_of_the_rows_or_asked_again_is_remarked(fleet: Fleet, opened: Open) -> None:
    """Under the guarantee, which holds; the sets that are shown while one writes count nothing."""
    tab = opened(fleet)
    tab.give_keys()
    tab.ask(ROW)
    noted = tab.page.inner_text("#answer .notice.good")
    assert "This question is one of the labelled rows that decide such questions." in noted
    assert "sent this question before" not in noted
    tab.page.click("#ask-button")
    tab.until("document.body.innerText.includes('This key has sent this question before.')")


def test_a_failed_candidate_voids_the_certificate_in_words(fleet: Fleet, opened: Open) -> None:
    """Its card says so, beside who did answer."""
    tab = opened(fleet)
    tab.give_keys()
    tab.looked(RIVER)
    chosen = sorted(tab.inside())
    fleet.pool.fail(chosen[0], "400")
    for number, name in enumerate(chosen[1:]):
        fleet.pool.say(name, str(number))
    tab.ask(RIVER)
    notice = tab.page.inner_text("#answer .notice.warn")
    assert "No guarantee for this answer" in notice
    assert f"{chosen[0]} was in the set and gave no usable answer" in notice
    assert "refused the request" in tab.page.inner_text("#answer .said")


def test_no_candidate_is_called_where_none_is_likely_to_be_right(
    fleet: Fleet, opened: Open
) -> None:
    """The page says so before the request, and shows the gateway's sentence afterwards."""
    tab = opened(fleet)
    tab.give_keys()
    tab.looked(POEM)
    assert tab.inside() == set()
    assert "no candidate is called" in tab.page.inner_text("#set .sentence")
    tab.ask(POEM)
    assert tab.page.inner_text("#answer-title") == "No candidate was called"
    assert fleet.pool.models_called() == []


def test_an_answer_is_text_and_never_markup(fleet: Fleet, opened: Open) -> None:
    """Nor does it run, nor is anything fetched for it."""
    hostile = "<img src=x onerror=\"document.title='owned'\"><script>1</script> **bold**"
    for name in FEW:
        fleet.pool.say(name, hostile)
    tab = opened(fleet)
    tab.give_keys()
    tab.ask(SUM)
    assert tab.page.inner_text("#answer .text.big") == hostile
    assert tab.page.locator("#answer img, #answer script").count() == 0
    assert tab.page.title() == "RACER gateway"


def test_control_enter_held_down_asks_once(fleet: Fleet, opened: Open) -> None:
    """Each asking is paid for."""
    tab = opened(fleet)
    tab.give_keys()
    tab.looked(SUM)
    held: list[Route] = []
    tab.page.route(re.compile(r"/route$"), lambda route: held.append(route))
    tab.page.focus("#question")
    for _ in range(5):
        tab.page.keyboard.press("Control+Enter")
    tab.page.wait_for_selector("#ask-button[disabled]")
    assert until(lambda: tab.page.evaluate("1") == 1 and len(held) > 0, 60)
    assert len(held) == 1
    held[0].continue_()
    tab.page.wait_for_selector("#answer .answers")


def test_results_of_one_question_are_not_shown_for_another(fleet: Fleet, opened: Open) -> None:
    """Neither its bars nor its answer, where the next one is refused."""
    tab = opened(fleet)
    tab.refused = {429}
    tab.give_keys()
    tab.looked(SUM)
    tab.ask(SUM)
    assert tab.page.inner_text("#answer .asked") == SUM
    error = {"message": "too many requests", "type": "x", "param": None, "code": "rate_limited"}
    tab.page.route(
        re.compile(r"/route(/levels)?$"),
        lambda route: route.fulfill(status=429, json={"error": error}),
    )
    tab.page.fill("#question", RIVER)
    tab.page.wait_for_selector("#ask-error .notice")
    assert "Too many requests." in tab.page.inner_text("#ask-error")
    assert tab.page.locator("#set table.bars").count() == 0
    with tab.page.expect_response(re.compile(r"/route$")):
        tab.page.click("#ask-button")
    tab.page.wait_for_selector("#ask-button:not([disabled])")
    assert tab.page.inner_text("#answer") == ""


def test_one_key_is_added_to_the_other(fleet: Fleet, opened: Open) -> None:
    """An empty field leaves what is held; both are forgotten on request."""
    tab = opened(fleet)
    tab.refused = {401}
    tab.give_keys(admin="")
    tab.give_keys(data="")
    assert tab.page.get_attribute("#keys-open", "aria-label") == "Keys: data and admin"
    tab.page.click("#keys-open")
    tab.page.click("#keys-forget")
    assert tab.page.get_attribute("#keys-open", "aria-label") == "Keys"


def test_a_verdict_reaches_the_decision(fleet: Fleet, opened: Open) -> None:
    """Feedback has the role of the key in use; a data key's waits for an admin."""
    tab = opened(fleet)
    tab.give_keys(admin="")
    with tab.page.expect_response("**/route") as answered:
        tab.ask(SUM)
    decision = answered.value.json()["decision_id"]
    name = tab.page.inner_text("article.answer h3 >> nth=0")
    tab.page.click("article.answer >> nth=0 >> text=Right")
    tab.page.wait_for_selector("text=it counts once an admin accepts it")
    stored = fleet.gateway.get(f"/decisions/{decision}", fleet.admin_key).json()
    assert stored["feedback"]["waiting"] == [name]


def test_a_missing_key_is_reported_and_an_entered_one_is_not_stored(
    fleet: Fleet, opened: Open
) -> None:
    """Not in the address, a cookie, a storage, or the fields it was typed into."""
    tab = opened(fleet)
    tab.refused = {401}
    tab.page.fill("#question", SUM)
    tab.page.wait_for_selector("#ask-error .notice")
    assert "Keys" in tab.page.inner_text("#ask-error")
    tab.give_keys()
    tab.page.wait_for_selector("#set table.bars")
    tab.ask(SUM)
    held = tab.page.evaluate(
        """async () => JSON.stringify([location.href, document.cookie, {...localStorage},
            {...sessionStorage}, await indexedDB.databases(), await caches.keys(),
            document.documentElement.outerHTML,
            [...document.querySelectorAll("input")].map(each => each.value)])"""
    )
    assert fleet.data_key not in held
    assert fleet.admin_key not in held
    assert tab.page.context.cookies() == []
    tab.page.reload()
    tab.page.fill("#question", SUM)
    tab.page.wait_for_selector("#ask-error .notice")


def test_the_page_works_with_the_keyboard_alone(fleet: Fleet, opened: Open) -> None:
    """Tabs by arrow, the slider by arrow, and Control-Enter."""
    tab = opened(fleet)
    tab.give_keys()
    tab.page.focus("#tab-try")
    tab.page.keyboard.press("ArrowRight")
    assert tab.page.locator("#calibrate").is_visible()
    tab.page.keyboard.press("Home")
    assert tab.page.locator("#try").is_visible()
    tab.page.focus("#question")
    tab.page.keyboard.type(SUM)
    tab.page.keyboard.press("Tab")
    tab.page.keyboard.press("ArrowRight")
    assert until(lambda: tab.page.get_attribute("#alpha", "aria-valuetext") == "10.5 %", 5)
    tab.page.focus("#question")
    tab.page.keyboard.press("Control+Enter")
    tab.page.wait_for_selector("#answer .answers")


def test_the_promise_of_a_conversation_is_an_average_over_its_turns(
    fleet: Fleet, opened: Open
) -> None:
    """Of conversations, and not of requests; n counts conversations."""
    tab = opened(fleet)
    guarantee = {
        "risk_target": "answerable",
        "alpha": 0.1,
        "delta": None,
        "r": 1,
        "unit": "conversation",
        "law": "expectation",
        "group": None,
        "pool": list(FEW),
        "trivial": False,
        "alpha_basis": "fixed",
    }
    words = tab.page.evaluate(
        """async certificate => {
            const script = document.querySelector("script[type=module]").src;
            const words = await import(new URL("words.js", script).href);
            return words.guaranteeInWords(certificate);
        }""",
        {"guarantee": guarantee, "n": 300},
    )
    assert words.startswith("Of the turns of a conversation like those calibrated on")
    assert "That is an average over conversations" in words
    assert "(300 count here)" in words
