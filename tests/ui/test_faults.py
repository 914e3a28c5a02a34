"""Candidates that fail or answer with markup: scripted, for real models do neither on demand."""

from __future__ import annotations

from pathlib import Path

from tests.kit.gateway import ENVIRONMENT, configure, running
from tests.kit.same_answer import NAMES, activate, configured
from tests.kit.upstream import FakePool

from .conftest import Open
from .fleet import Fleet
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
