"""Two applications of one gateway: their keys, rows and requests."""

from __future__ import annotations

from typing import Any

from app.settings import key_format
from tests.kit.gateway import ADMIN_KEY, ONE, Gateway, as_json, labelled, user

BOT_KEY = key_format.new_key()
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "pay"}}]
ACCESS = {"keys": [{"name": "bot", "hash": key_format.format_hash(BOT_KEY, key_format.new_salt())}]}


def upload(gateway: Gateway, rows: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """POST /calibrate, with the status checked."""
    body = {"rows": rows, "alpha": 0.2, **options}
    response = gateway.post("/calibrate", ADMIN_KEY, json=body)
    assert response.status_code == 200, response.text
    return response.json()


KINDS: list[dict[str, Any]] = [  # of requests, beside their query
    {},
    {"system": "You are a bank."},
    {"system": "Answer in rhymes.", "temperature": 0.7},
    {"tools": TOOLS, "tool_choice": "auto"},
    {"max_tokens": 9, "response_format": {"type": "json_object"}},
]


def whole(query: str, system: str | None = None, **fields: Any) -> dict[str, Any]:
    """A request as a client sends it."""
    prompt = [] if system is None else [{"role": "system", "content": system}]
    return {"messages": [*prompt, *user(query)], **fields}


def drawn_rows(count: int, start: int = 20_000) -> list[dict[str, Any]]:
    """Whole requests of every kind."""
    return [
        {"request": whole(row["query"], **KINDS[number % len(KINDS)]), "correct": row["correct"]}
        | {"application": "bot"}
        for number, row in enumerate(as_json(labelled(start, count)))
    ]


def later(body: dict[str, Any]) -> dict[str, Any]:
    """The same as the third turn of a conversation."""
    turns = [*user(ONE), {"role": "assistant", "content": "7"}]
    return body | {"messages": [*turns, *body["messages"]]}


def answered(gateway: Gateway, key: str, body: dict[str, Any]) -> dict[str, Any]:
    """The certificate of a chat answer."""
    response = gateway.post("/v1/chat/completions", key, json={"model": "auto", **body})
    assert response.status_code == 200, response.text
    return response.json()["racer"]["certificate"]
