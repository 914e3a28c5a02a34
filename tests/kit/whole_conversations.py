"""Calibrations and requests whose unit is a whole conversation."""

from __future__ import annotations

from typing import Any

from racer_core.types import LabelledRow
from tests.kit.gateway import ADMIN_KEY, POOL, Gateway, noisy

ALPHA = 0.3
ANSWERS = ("7", "It is seven, as I said before.")  # of unlike lengths, in turn


def after(queries: list[str]) -> list[dict[str, str]]:
    """The turns of a conversation up to the last of these queries."""
    turns: list[dict[str, str]] = []
    for number, query in enumerate(queries):
        turns.append({"role": "user", "content": query})
        if number < len(queries) - 1:
            turns.append({"role": "assistant", "content": ANSWERS[number % 2]})
    return turns


def talks(start: int, count: int) -> list[list[LabelledRow]]:
    """Labelled conversations of three turns, whose later turns are harder."""
    first, later = noisy(start, count, flipped=0.1), noisy(start + 5_000, 2 * count, flipped=0.3)
    pairs = [later.rows[2 * number : 2 * number + 2] for number in range(count)]
    return [[one, *two] for one, two in zip(first.rows, pairs, strict=True)]


def rows_of(conversations: list[list[LabelledRow]], **fields: Any) -> list[dict[str, Any]]:
    """The rows of an upload, all turns of each conversation."""
    return [
        {
            "messages": after([each.query for each in talk[: number + 1]]),
            "correct": {name: name in row.correct for name in POOL},
            "conversation": f"talk {place}",
            **fields,
        }
        for place, talk in enumerate(conversations)
        for number, row in enumerate(talk)
    ]


def upload(gateway: Gateway, rows: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """POST /calibrate, with the status checked."""
    body = {"rows": rows, "alpha": ALPHA, **options}
    response = gateway.post("/calibrate", ADMIN_KEY, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def chat(
    gateway: Gateway,
    queries: list[str],
    session: str | None,
    options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The `racer` object of the answer to the last of these queries."""
    body = {
        "model": "auto",
        "messages": after(queries),
        "racer": {"explain": True, **(options or {})},
    }
    headers = {} if session is None else {"x-session-id": session}
    response = gateway.post("/v1/chat/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()["racer"]


def stated(answer: dict[str, Any]) -> tuple[bool, str, list[str]]:
    """Whether the certificate holds, its unit and its reasons."""
    certificate = answer["certificate"]
    return certificate["holds"], certificate["guarantee"]["unit"], certificate["reasons"]


ROWS = talks(40_000, 120)
