"""Keys: each is asked for where it is needed, and never stored."""

from __future__ import annotations

import pytest

from .conftest import Open
from .fleet import Fleet


@pytest.fixture(scope="module")
def question(keyed: Fleet) -> str:
    """A question of which some candidate is called."""
    return keyed.find(lambda found: bool(found["selected"]))


def test_one_key_is_added_to_the_other(keyed: Fleet, opened: Open) -> None:
    """An empty field leaves what is held; both are forgotten on request."""
    tab = opened(keyed)
    tab.refused = {401}
    tab.give_keys(admin="")
    tab.give_keys(data="")
    assert tab.page.get_attribute("#keys-open", "aria-label") == "Keys: data and admin"
    tab.page.click("#keys-open")
    tab.page.click("#keys-forget")
    assert tab.page.get_attribute("#keys-open", "aria-label") == "Keys"


def test_a_verdict_reaches_the_decision(keyed: Fleet, opened: Open, question: str) -> None:
    """Feedback has the role of the key in use; a data key's waits for an admin."""
    tab = opened(keyed)
    tab.give_keys(admin="")
    with tab.page.expect_response("**/route") as answered:
        tab.ask(question)
    decision = answered.value.json()["decision_id"]
    name = tab.page.inner_text("article.answer h3 >> nth=0")
    tab.page.click("article.answer >> nth=0 >> text=Right")
    tab.page.wait_for_selector("text=it counts once an admin accepts it")
    stored = keyed.gateway.get(f"/decisions/{decision}", keyed.admin_key).json()
    assert stored["feedback"]["waiting"] == [name]


def test_a_missing_key_is_reported_and_an_entered_one_is_not_stored(
    keyed: Fleet, opened: Open, question: str
) -> None:
    """Not in the address, a cookie, a storage, or the fields it was typed into."""
    tab = opened(keyed)
    tab.refused = {401}
    tab.page.fill("#question", question)
    tab.page.wait_for_selector("#ask-error .notice")
    assert "Keys" in tab.page.inner_text("#ask-error")
    tab.give_keys()
    tab.page.wait_for_selector("#set table.bars")
    tab.ask(question)
    held = tab.page.evaluate(
        """async () => JSON.stringify([location.href, document.cookie, {...localStorage},
            {...sessionStorage}, await indexedDB.databases(), await caches.keys(),
            document.documentElement.outerHTML,
            [...document.querySelectorAll("input")].map(each => each.value)])"""
    )
    assert keyed.data_key not in held
    assert keyed.admin_key not in held
    assert tab.page.context.cookies() == []
    tab.page.reload()
    tab.page.fill("#question", question)
    tab.page.wait_for_selector("#ask-error .notice")
