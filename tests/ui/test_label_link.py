"""The link of ``racer label --page``: the tab alone, its keys R, W and U, and the rows."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from racer_core.records.reader import read_rows
from tests.kit.gateway import POOL, Command, candidates, configure
from tests.kit.upstream import FakePool
from tests.kit.waiting import until, wait_until
from tests.ui.looks import overflow, serious

from .conftest import NARROW, VIOLATIONS

QUESTIONS = ["What is 3 plus 4?", "What is 5 plus 6?"]


def running(racer: Command, words: Any) -> tuple[threading.Thread, list[Any]]:
    """The command, beside the browser, which belongs to this thread."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(racer(*words)), daemon=True)
    thread.start()
    return thread, result


def shown(page: Page) -> list[str]:
    """The answers on the page."""
    return page.locator("#label .answer .text").all_inner_texts()


def press(page: Page, keys: str) -> None:
    """Press keys while the focus is at an answer."""
    page.locator("#label .verdict button").first.focus()
    for key in keys:
        page.keyboard.press(key)


def test_a_link_is_all_that_somebody_needs(
    browser: Browser, racer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No tab, no key, no request elsewhere; U takes the last label back."""
    links: list[str] = []
    monkeypatch.setattr("app.cli.label.say_link", links.append)
    # Signals belong to the main thread, which is the browser's here.
    monkeypatch.setattr("asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler", _nothing)
    monkeypatch.setattr(
        "asyncio.unix_events._UnixSelectorEventLoop.remove_signal_handler", _nothing
    )
    with FakePool() as pool:
        for name, text in zip(POOL, ("seven", "seven", "eleven"), strict=True):
            pool.say(name, text)
        config = configure(tmp_path, tmp_path / "none", "", candidates=candidates(pool.url))
        source = tmp_path / "questions.jsonl"
        source.write_text("".join(json.dumps({"query": each}) + "\n" for each in QUESTIONS))
        words = ("label", "--page", source, "--config", config, "--out", tmp_path / "rows.jsonl")
        thread, result = running(racer, words)
        wait_until(lambda: links)
        context = browser.new_context(viewport={"width": NARROW[0], "height": NARROW[1]})
        context.add_init_script(VIOLATIONS)
        page = context.new_page()
        noted: list[str] = []
        page.on("console", lambda said: noted.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: noted.append(str(error)))
        page.goto(links[0])
        page.wait_for_selector("#label .answer")
        assert page.inner_text("#status") == "labelling"
        assert not page.locator("#tabs").is_visible()
        assert not page.locator("#keys-open").is_visible()
        assert sorted(shown(page)) == ["eleven", "seven"]
        assert not any(name in page.inner_text("main") for name in POOL)
        tab: Any = SimpleNamespace(page=page)
        assert overflow(tab) == 0
        assert serious(tab) == []
        first = page.inner_text("#label .turns")
        press(page, "ww")
        wait_until(lambda: page.inner_text("#label .turns") != first)
        page.keyboard.press("u")
        wait_until(lambda: page.inner_text("#label .turns") == first)
        for _ in QUESTIONS:
            question = page.inner_text("#label .turns")
            press(page, "rw" if shown(page)[0] == "seven" else "wr")
            until(lambda question=question: page.locator("#label .turns").count() == 0
                  or page.inner_text("#label .turns") != question, 10)  # fmt: skip
        page.wait_for_selector("text=Everything is labelled")
        thread.join(30)
        context.close()
    assert noted == []
    assert result[0][0] == 0, result
    assert re.match(r"http://127\.0\.0\.1:\d+/ui#label&key=", links[0])
    rows = read_rows(tmp_path / "rows.jsonl", POOL).rows
    assert [row.correct for row in rows] == [{"adder", "speller"}] * len(QUESTIONS)


def _nothing(*_: object) -> bool:
    return True
