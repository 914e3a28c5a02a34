"""The text that the router reads, of requests and rows of each application alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.settings import key_format
from tests.kit.gateway import (
    ADMIN_KEY,
    ENVIRONMENT,
    ONE,
    TWO,
    Gateway,
    Serve,
    as_json,
    configure,
    error_message,
    labelled,
    running,
    user,
)
from tests.kit.upstream import FakePool

TEXTS: dict[str, str | None] = {
    "spoken": "conversation",
    "prompted": "with_system",
    "whole": "conversation_with_system",
    "plain": None,
}
KEYS = {name: key_format.new_key() for name in TEXTS}
ACCESS = {
    "keys": [
        {"name": name, "hash": key_format.format_hash(key, key_format.new_salt())}
        for name, key in KEYS.items()
    ]
}


def applications(texts: dict[str, str | None], premise: str) -> dict[str, Any]:
    """Each with its key, its text and this premise."""
    return {
        name: {"keys": [name], "premise": premise} | ({"text": text} if text else {})
        for name, text in texts.items()
    }


def body(query: str, system: str, *, later: bool = False) -> dict[str, Any]:
    """A request, as a first or a later turn."""
    turns = [*user(ONE), {"role": "assistant", "content": "7"}] if later else []
    return {"messages": [{"role": "system", "content": system}, *turns, *user(query)]}


def rows_of(name: str, start: int = 20_000) -> list[dict[str, Any]]:
    """First and later turns under one system prompt."""
    rows = as_json(labelled(start, 80))
    return [
        {"request": body(row["query"], "A.", later=place % 2 == 1), "correct": row["correct"]}
        | {"application": name}
        for place, row in enumerate(rows)
    ]


def upload(gateway: Gateway, rows: list[dict[str, Any]]) -> None:
    """Calibrate on them."""
    response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": rows, "confirm": True})
    assert response.status_code == 200, response.text


def route(gateway: Gateway, key: str, request: dict[str, Any]) -> dict[str, Any]:
    """The certificate of a request."""
    response = gateway.post("/route", key, json=request)
    assert response.status_code == 200, response.text
    return response.json()["certificate"]


@pytest.mark.parametrize("premise", ["drawn", "alike"])
def test_rows_and_requests_are_read_alike(serve: Serve, premise: str) -> None:
    """A request that is a row has the row's text, and so its fingerprint; see the remark.

    What the text leaves out changes nothing: the system prompt, or the turns before the last.
    """
    gateway = serve(calibrated=False, access=ACCESS, applications=applications(TEXTS, premise))
    rows = {name: rows_of(name) for name in TEXTS}
    upload(gateway, [row for each in rows.values() for row in each])
    for name, key in KEYS.items():
        first, later = (row["request"] for row in rows[name][:2])
        found = route(gateway, key, first)
        assert (found["holds"], "calibration_query" in found["remarks"]) == (True, True), name
        found = route(gateway, key, later)
        # A last turn alone says too little of a conversation for a remark.
        is_named = "calibration_query" in found["remarks"]
        assert (found["holds"], is_named) == (True, name in ("spoken", "whole")), name
        if premise == "drawn":
            query = first["messages"][-1]["content"]
            found = route(gateway, key, body(query, "Another."))
            is_named = "calibration_query" in found["remarks"]
            assert (found["holds"], is_named) == (True, name not in ("prompted", "whole")), name


def test_a_change_of_text_voids_until_rows_are_uploaded_again(
    tmp_path: Path, artifact: Path, pool: FakePool
) -> None:
    """Scores of another text are no scores of the rows."""

    def holds(text: str | None) -> tuple[bool, list[str]]:
        changed = applications({**TEXTS, "plain": text}, "drawn")
        path = configure(tmp_path, artifact, pool.url, access=ACCESS, applications=changed)
        with running(path, ENVIRONMENT) as gateway:
            if gateway.ready()["calibration"] is None:
                upload(gateway, rows_of("plain"))
            found = route(gateway, KEYS["plain"], body(TWO, "A."))
            return found["holds"], found["reasons"]

    assert holds(None) == (True, [])
    for text in ("with_system", "conversation"):
        assert holds(text) == (False, ["grouping_changed"])
    assert holds(None) == (True, [])


def test_a_changed_usual_text_voids_later_turns_of_applications_without_their_own(
    tmp_path: Path, artifact: Path, pool: FakePool
) -> None:
    """Each application's text is its own, or that of `routing.text`."""

    def holds(text: str) -> dict[str, bool]:
        path = configure(
            tmp_path,
            artifact,
            pool.url,
            access=ACCESS,
            applications=applications(TEXTS, "drawn"),
            routing={"text": text},
        )
        with running(path, ENVIRONMENT) as gateway:
            if gateway.ready()["calibration"] is None:
                upload(gateway, [row for name in TEXTS for row in rows_of(name)])
            request = body(TWO, "A.", later=True)
            return {name: route(gateway, key, request)["holds"] for name, key in KEYS.items()}

    assert holds("last_user") == dict.fromkeys(TEXTS, True)
    assert holds("conversation") == dict.fromkeys(TEXTS, True) | {"plain": False}


def test_training_queries_are_found_under_a_system_prompt(serve: Serve) -> None:
    """Training read the query alone, calibration reads the prompt before it."""
    gateway = serve(calibrated=False, access=ACCESS, applications=applications(TEXTS, "drawn"))
    rows = rows_of("prompted", start=0)  # the training rows
    response = gateway.post("/calibrate", ADMIN_KEY, json={"rows": rows})
    assert "rows were training rows" in error_message(response, 422)
