"""Warnings that repeat are written once, and counted."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest

from app.telemetry import logs, repeats
from app.telemetry.repeats import Repeats, counted_at_end

log = logging.getLogger("app.tests.repeats")
AWAY = "a replica of %s is out (%s)"


def written(stream: io.StringIO) -> list[dict[str, Any]]:
    """The lines of a log."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_log_has_a_repeated_warning_once_and_its_count_at_the_end() -> None:
    """Of each candidate and cause; other lines, information among them, are never counted."""
    stream = io.StringIO()
    with logs.logging_to(stream, "json"):
        for _ in range(5):
            log.warning(AWAY, "adder", "timeout")
            log.warning(AWAY, "poet", "timeout")
            log.info("the same")
        log.warning(AWAY, "adder", "refused")
    lines = [(each["message"], each.get("repeated")) for each in written(stream)]
    assert lines.count(("the same", None)) == 5
    assert [each for each in lines if each[0] != "the same"] == [
        ("a replica of adder is out (timeout)", None),
        ("a replica of poet is out (timeout)", None),
        ("a replica of adder is out (refused)", None),
        ("a replica of adder is out (timeout)", 4),
        ("a replica of poet is out (timeout)", 4),
    ]


def test_failures_of_another_kind_are_another_warning() -> None:
    """Its frames are written, too."""
    stream = io.StringIO()

    def fail(error: Exception) -> None:
        try:
            raise error
        except Exception:
            log.exception("the router failed")

    with logs.logging_to(stream, "json"):
        for error in (ValueError(), KeyError(), ValueError()):
            fail(error)
    found = [(each.get("exception"), each.get("repeated")) for each in written(stream)]
    assert found == [("ValueError", None), ("KeyError", None), (None, 1)]


def test_a_count_is_due_after_a_while_and_what_stopped_is_forgotten() -> None:
    """And the next one is then written at once."""
    seen = Repeats[str]()
    assert [seen.is_new("a", at) for at in (0.0, 1.0, 2.0)] == [True, False, False]
    assert seen.is_new("b", 1.0)
    assert seen.due(59.0) == []
    assert seen.due(61.0) == [("a", 2)]
    assert not seen.is_new("a", 62.0)
    assert seen.is_new("b", 62.0)
    assert seen.due(121.0) == [("a", 1)]
    assert seen.due(300.0) == []
    assert seen.is_new("a", 301.0)


def test_messages_that_all_differ_take_no_memory_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beyond the limit each is written."""
    monkeypatch.setattr(repeats, "MOST", 3)
    seen = Repeats[int]()
    assert all(seen.is_new(number, 0.0) for number in range(10))
    assert [seen.is_new(number, 0.0) for number in (2, 3)] == [False, True]


def test_a_command_says_a_warning_once_and_how_often_it_came(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`racer label` and `racer bootstrap`, which have no log."""
    monkeypatch.setattr(log, "propagate", False)  # to the handlers of the test run
    with counted_at_end():
        for name in ("adder", "adder", "poet", "adder"):
            log.warning(AWAY, name, "timeout")
    assert capsys.readouterr().err.splitlines() == [
        "a replica of adder is out (timeout)",
        "a replica of poet is out (timeout)",
        "3 times: a replica of adder is out (timeout)",
    ]
