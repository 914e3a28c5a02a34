"""Candidates that fail or answer with markup: scripted, for real models do neither on demand."""

from __future__ import annotations

from pathlib import Path

from tests.kit.gateway import ENVIRONMENT, configure, running, user
from tests.kit.same_answer import NAMES, activate, configured
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_until

from .conftest import Open
from .fleet import Fleet
from .rounding import plain
from .scripted import FEW, RIVER, SUM, ScriptedFleet


def test_a_failed_candidate_voids_the_certificate_in_words(
    few: ScriptedFleet, opened: Open
) -> None:
    """Its card says so, beside who did answer."""
    tab = opened(few)
    tab.give_keys()
    tab.looked(RIVER)
    chosen = sorted(tab.inside())
    few.pool.fail(chosen[0], "400")
    for number, name in enumerate(chosen[1:]):
        few.pool.say(name, str(number))
    tab.ask(RIVER)
    notice = tab.page.inner_text("#answer .notice.warn")
    assert "No guarantee for this answer" in notice
    assert f"{chosen[0]} was in the set and gave no usable answer" in notice
    assert "refused the request" in tab.page.inner_text("#answer .said")


def test_an_answer_is_text_and_never_markup(few: ScriptedFleet, opened: Open) -> None:
    """Nor does it run, nor is anything fetched for it."""
    hostile = "<img src=x onerror=\"document.title='owned'\"><script>1</script> **bold**"
    for name in FEW:
        few.pool.say(name, hostile)
    tab = opened(few)
    tab.give_keys()
    tab.ask(SUM)
    assert tab.page.inner_text("#answer .text.big") == hostile
    assert tab.page.locator("#answer img, #answer script").count() == 0
    assert tab.page.title() == "RACER gateway"


def test_a_failure_is_counted_on_watch(few: ScriptedFleet, opened: Open) -> None:
    """As a share of its candidate's calls, as /metrics counts them."""
    few.pool.fail(FEW[0], "400")
    for number in range(4):
        few.gateway.post("/v1/chat/completions", json={"model": FEW[0], "messages": user(SUM)})
        few.route(f"{RIVER} {number}")
    tab = opened(few, "#watch")
    tab.refused = {401}  # before there are keys
    tab.give_keys()
    tab.page.wait_for_selector("#watch tbody tr")
    lines = few.gateway.get("/metrics", few.admin_key).text.splitlines()
    for name in FEW:
        counted = {
            line.split('outcome="')[1].partition('"')[0]: float(line.split()[-1])
            for line in lines
            if line.startswith(f'racer_candidate_calls_total{{candidate="{name}"')
        }
        calls = sum(counted.values())
        failed = calls - counted.get("ok", 0.0) - counted.get("cancelled", 0.0)
        assert (failed > 0) or name != FEW[0]
        expected = f"{plain(100 * failed / calls, 1)} %" if calls else "–"
        row = tab.page.locator("#watch tbody tr", has_text=name)
        cell = row.locator("td").nth(2)
        wait_until(lambda cell=cell, expected=expected: cell.inner_text() == expected)


def test_a_round_with_a_failure_is_followed_by_all_others(
    tmp_path: Path, candidates: FakePool, opened: Open
) -> None:
    """Under `same_answer`; the card names who failed, beside who answered."""
    candidates.reset()
    given = configured(candidates)
    assert not given.pop("calibrated")
    path = configure(tmp_path, given.pop("artifact"), candidates.url, **given)
    with running(path, ENVIRONMENT) as gateway:
        activate(gateway)
        plan = gateway.route("how many?")["certificate"]["rounds"]
        first: list[str] = plan["first_round"]
        candidates.fail(first[0], "500")
        tab = opened(Fleet(gateway, NAMES, *ENVIRONMENT.values()))
        tab.give_keys()
        tab.ask("how many?")
        tab.until("document.querySelectorAll('.rounds > li').length === 2")
        failed, rest = tab.page.locator(".rounds > li").all()
        assert f"{first[0]}\nfailed" in failed.locator(".opinions li").all_inner_texts()
        (opinion,) = rest.locator(".opinions li").all_inner_texts()
        assert opinion.splitlines()[-1] == "42"
        assert all(name in opinion for name in NAMES if name not in first)
