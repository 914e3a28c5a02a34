"""Try, on the demo: drawn is what the gateway decides, and said is what was called."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Route

from tests.kit.waiting import until
from tests.ui.looks import slide

from .conftest import Open, Tab
from .fleet import POOL, Fleet, demo_rows, level_of_several, several
from .rounding import fixed


def steps_of(level: dict[str, Any]) -> int:
    """Where the slider stands at a level."""
    return round(200 * level["alpha"])


@pytest.fixture(scope="module")
def question(demo: Fleet) -> str:
    """A question of which some level calls a single candidate, and another several."""
    return demo.find(several)


@pytest.fixture(scope="module")
def other(demo: Fleet) -> str:
    """Another one."""
    return demo.find(several, reversed(demo_rows("test").rows))


@pytest.fixture(scope="module")
def hopeless(demo: Fleet) -> str:
    """A question of which no candidate is called, for none is likely to be right."""
    unanswerable = (row for row in demo_rows("test").rows if not row.correct)
    return demo.find(lambda found: not found["selected"], unanswerable)


def test_the_set_moves_with_the_slider_as_the_gateway_decides(
    demo: Fleet, opened: Open, question: str
) -> None:
    """At many levels the marked candidates are those of /route, and no candidate is called."""
    tab = opened(demo)
    urls: list[str] = []
    tab.page.on("request", lambda request: urls.append(request.url))
    tab.looked(question)
    sizes = set[int]()
    for steps in (1, 2, 3, 4, 6, 10, 16, 20, 24, 40, 70, 100):
        slide(tab, steps)
        there = demo.route(question, execute=False, alpha=steps / 200)
        assert tab.inside() == set(there["selected"]), steps
        assert tab.page.inner_text("#alpha-value").startswith(f"{steps / 2:g} %")
        sizes.add(len(tab.inside()))
    assert len(sizes) > 1
    assert not any(url.endswith("/route") for url in urls)


@pytest.mark.parametrize("score", ["cover", "gap", "prob"])
def test_a_candidate_is_left_out_exactly_where_its_bar_stays_short_of_the_line(
    demo: Fleet, opened: Open, question: str, hopeless: str, score: str
) -> None:
    """Bars and line are drawn to one scale, whatever kind of score decides."""
    tab = opened(demo)

    def scored(route: Route) -> None:
        body: dict[str, Any] = route.request.post_data_json or {}
        route.continue_(post_data={**body, "score": score})

    tab.page.route(re.compile(r"/route/levels$"), scored)
    chips = set[str]()
    for text in (question, hopeless):
        with tab.page.expect_response(re.compile(r"/route/levels$")):
            tab.page.fill("#question", text)
        found = demo.levels(text, score=score)
        tab.page.wait_for_selector("#set table.bars")
        for level in found["levels"]:
            slide(tab, steps_of(level))
            for name, bar, line, chip in bars(tab):
                fit, lambda_hat = found["nonconformity"][name], level["lambda_hat"]
                reaches = lambda_hat is not None and fit <= lambda_hat
                if name in level["selected"]:
                    assert chip == "called", (level, name)
                else:
                    assert chip == ("not called" if reaches else "left out"), (level, name)
                chips.add(chip)
                assert (line is None) == (lambda_hat is None)
                if line is not None:  # both are rounded to a hundredth of a percent
                    assert bar >= line - 0.011 if reaches else bar <= line + 0.011, (level, name)
    assert {"called", "left out"} <= chips
    assert score != "cover" or "not called" in chips


def bars(tab: Tab) -> list[tuple[str, float, float | None, str]]:
    """Each candidate, how far its bar reaches, where the line stands, and what is said of it."""
    found = tab.page.eval_on_selector_all(
        "table.bars tbody tr",
        """rows => rows.map(row => [
            row.querySelector(".name").textContent,
            parseFloat(row.querySelector(".bar-fill").style.width),
            row.querySelector(".limit").hidden ? null
              : parseFloat(row.querySelector(".limit").style.left),
            row.querySelector(".chip").textContent])""",
    )
    assert {name for name, *_ in found} == set(POOL)
    return found


def test_a_question_is_asked_of_the_set_and_everything_is_shown(
    demo: Fleet, opened: Open, question: str
) -> None:
    """Who was called, each answer, the vote, what it took, and what is promised, in words."""
    tab = opened(demo)
    tab.looked(question)
    level = level_of_several(demo.levels(question))
    slide(tab, steps_of(level))
    chosen = tab.inside()
    assert chosen == set(level["selected"])
    with tab.page.expect_response(re.compile(r"/route$")) as answered:
        tab.page.click("#ask-button")
    response = answered.value.json()
    tab.page.wait_for_selector("#answer .answers")
    assert {each["candidate"] for each in response["calls"]} == chosen
    cards = tab.page.locator("article.answer")
    shown = dict(zip(cards.locator("h3").all_inner_texts(), cards.all_inner_texts(), strict=True))
    assert shown.keys() == chosen
    for name, text in response["answers"].items():
        assert text in shown[name]
    assert tab.page.inner_text("#answer .text.big") == response["answer"]
    kinds = len(response["votes"])
    assert tab.page.locator(".votes li").count() == (kinds if kinds > 1 else 0)
    shown_first = tab.page.locator("table.bars tbody tr").evaluate_all(
        "rows => rows.map(row => row.dataset.in)"
    )
    assert shown_first == sorted(shown_first, reverse=True), "called ones stand above the others"
    called = [each for each in response["calls"] if not each.get("skipped")]
    assert f"{len(called)} of {len(POOL)}" in tab.page.inner_text("#answer .facts")
    promised = tab.page.inner_text("#answer .notice.good")
    assert "get a set without any candidate that answers right" in promised
    assert "says nothing about this one question" in promised
    assert "not that the vote is right" in promised


def test_what_was_paid_stands_beside_calling_everyone(demo: Fleet, opened: Open) -> None:
    """The calls, and the time: that of the slowest call beside that of the slowest candidate."""
    tab = opened(demo)
    latest: dict[str, float] = {}
    rounds: list[tuple[str, bool]] = []
    for row in demo_rows("test").rows:
        with tab.page.expect_response(re.compile(r"/route$")) as answered:
            tab.ask(row.query)
        response = answered.value.json()
        tab.page.wait_for_selector("#ask-button:not([disabled])")
        calls = [each for each in response["calls"] if not each.get("skipped")]
        latest |= {each["candidate"]: each["ms"] for each in calls if not each.get("cancelled")}
        if not 0 < len(calls) < len(POOL):  # nothing to compare
            assert tab.page.locator(".paid").count() == 0
            continue
        paid = tab.page.inner_text(".paid")
        assert f"Paid, beside calling all {len(POOL)}" in paid
        assert cells(tab, "Calls") == [f"{len(calls)}", f"of {len(POOL)}"]
        slowest, own = max(latest.values()), max(each["ms"] for each in calls)
        is_known = len(latest) == len(POOL)
        untimed = "" if is_known else f" (models without a call: {len(POOL) - len(latest)})"
        assert f"latest call on this page, for whatever question{untimed}." in paid
        everyone = duration(slowest) if is_known else f"at least {duration(slowest)}"
        assert cells(tab, "Time") == [duration(own), f"of {everyone}"]
        assert width(tab, "Calls") == pytest.approx(100 * len(calls) / len(POOL), abs=0.01)
        assert width(tab, "Time") == pytest.approx(100 * own / slowest, abs=0.01)
        rounds.append((row.query, is_known))
        if is_known:
            break
    assert {is_known for _, is_known in rounds} == {False, True}


def cells(tab: Tab, name: str) -> list[str]:
    """What was paid and what calling everyone takes, of one line."""
    line = tab.page.locator(".paid tbody tr", has=tab.page.get_by_role("rowheader", name=name))
    return line.locator("td.num").all_inner_texts()


def width(tab: Tab, name: str) -> float:
    """The length of its bar, in percent."""
    line = tab.page.locator(".paid tbody tr", has=tab.page.get_by_role("rowheader", name=name))
    return float(line.locator(".bar-fill").evaluate("bar => parseFloat(bar.style.width)"))


def duration(ms: float) -> str:
    """A duration as the page writes it; a browser rounds 0.5 up."""
    if ms < 1_000:
        return f"{fixed(ms, 1 if ms < 10 else 0)} ms"
    return f"{fixed(ms / 1_000, 2 if ms < 10_000 else 0)} s"


def test_a_chosen_level_is_sent_and_shown(demo: Fleet, opened: Open, question: str) -> None:
    """Chosen before there is a question, too; and one way back to the gateway's own."""
    tab = opened(demo)
    slide(tab, 50)
    tab.ask(question)
    promised = tab.page.inner_text("#answer .notice")
    assert "at most 25 %" in promised
    assert "you chose the risk level" in promised
    tab.page.click("#alpha-usual")
    assert tab.page.inner_text("#alpha-value") == "2 % · as configured"
    tab.page.click("#ask-button")
    tab.until("document.body.innerText.includes('at most 2 %')")


def test_a_question_of_the_rows_or_asked_again_is_remarked(demo: Fleet, opened: Open) -> None:
    """Under the guarantee, which holds; the sets that are shown while one writes count nothing."""
    rows = reversed(demo_rows("calibration").rows)
    row = demo.find(lambda found: bool(found["selected"]), rows)
    tab = opened(demo)
    tab.ask(row)
    noted = tab.page.inner_text("#answer .notice.good")
    assert "This question is one of the labelled rows that decide such questions." in noted
    assert "sent this question before" not in noted
    tab.page.click("#ask-button")
    tab.until("document.body.innerText.includes('This key has sent this question before.')")


def test_no_candidate_is_called_where_none_is_likely_to_be_right(
    demo: Fleet, opened: Open, hopeless: str
) -> None:
    """The page says so before the request, and shows the gateway's sentence afterwards."""
    tab = opened(demo)
    tab.looked(hopeless)
    assert tab.inside() == set()
    assert "no model is called" in tab.page.inner_text("#set .sentence")
    with tab.page.expect_response(re.compile(r"/route$")) as answered:
        tab.ask(hopeless)
    assert tab.page.inner_text("#answer-title") == "No model was called"
    assert answered.value.json()["calls"] == []
    assert tab.page.locator(".paid").count() == 0


def test_control_enter_held_down_asks_once(demo: Fleet, opened: Open, question: str) -> None:
    """Each asking is paid for."""
    tab = opened(demo)
    tab.looked(question)
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


def test_results_of_one_question_are_not_shown_for_another(
    demo: Fleet, opened: Open, question: str, other: str
) -> None:
    """Neither its bars nor its answer, where the next one is refused."""
    tab = opened(demo)
    tab.refused = {429}
    tab.looked(question)
    tab.ask(question)
    assert tab.page.inner_text("#answer .asked") == question
    error = {"message": "too many requests", "type": "x", "param": None, "code": "rate_limited"}
    tab.page.route(
        re.compile(r"/route(/levels)?$"),
        lambda route: route.fulfill(status=429, json={"error": error}),
    )
    tab.page.fill("#question", other)
    tab.page.wait_for_selector("#ask-error .notice")
    assert "Too many requests." in tab.page.inner_text("#ask-error")
    assert tab.page.locator("#set table.bars").count() == 0
    with tab.page.expect_response(re.compile(r"/route$")):
        tab.page.click("#ask-button")
    tab.page.wait_for_selector("#ask-button:not([disabled])")
    assert tab.page.inner_text("#answer") == ""


def test_the_page_works_with_the_keyboard_alone(demo: Fleet, opened: Open, question: str) -> None:
    """Tabs by arrow, the slider by arrow, and Control-Enter."""
    tab = opened(demo)
    tab.page.focus("#tab-try")
    tab.page.keyboard.press("ArrowRight")
    assert tab.page.locator("#calibrate").is_visible()
    tab.page.keyboard.press("Home")
    assert tab.page.locator("#try").is_visible()
    tab.page.focus("#question")
    tab.page.keyboard.type(question)
    tab.page.wait_for_selector("#set table.bars")  # the level in force is known
    for _ in range(4):  # three examples, then the slider
        tab.page.keyboard.press("Tab")
    tab.page.keyboard.press("ArrowRight")
    tab.page.wait_for_selector("#alpha[aria-valuetext='2.5 %']")
    tab.page.focus("#question")
    tab.page.keyboard.press("Control+Enter")
    tab.page.wait_for_selector("#answer .answers")


def test_an_example_shows_several_models_and_their_vote(demo: Fleet, opened: Open) -> None:
    """One click asks the first: who said what, chosen is the heaviest, beside calling all."""
    tab = opened(demo)
    tab.until("document.querySelectorAll('#examples button').length === 3")
    first = tab.page.locator("#examples button").first
    assert first.inner_text() == "It is Thursday. Name the weekday in 3 days."
    with tab.page.expect_response(re.compile(r"/route$")) as answered:
        first.click()
    response = answered.value.json()
    tab.page.wait_for_selector("#answer .votes")
    said = {form: set[str]() for form in response["votes"]}
    for name, form in response["forms"].items():
        said[form].add(name)
    assert len(said) > 1, "the example shows a vote"
    assert len(response["calls"]) > 1
    lines = tab.page.locator("#answer .votes li").all()
    best = max(response["votes"], key=lambda form: response["votes"][form])
    assert lines[0].locator(".vote-form").inner_text().lower() == best
    for line in lines:
        names = re.split(", | and ", line.locator(".vote-names").inner_text())
        assert set(names) == said[line.locator(".vote-form").inner_text().lower()]
    assert f"{len(response['calls'])} of 5 models were asked" in tab.page.inner_text("#answer")
    assert {"Calls", "Tokens", "Cost", "Time"} == set(
        tab.page.locator(".paid tbody th").all_inner_texts()
    )


def test_a_question_outside_what_was_calibrated_is_never_said_to_hold(
    demo: Fleet, opened: Open
) -> None:
    """It is answered, and the page says that nothing was measured on such questions."""
    tab = opened(demo)
    tab.until("document.querySelectorAll('#examples button').length === 3")
    tab.page.click("#examples button >> nth=2")
    tab.page.wait_for_selector("#answer .answers")
    noted = tab.page.inner_text("#answer .notice")
    assert noted.startswith("Outside what was calibrated")
    assert "hold" not in tab.page.inner_text("#answer")
