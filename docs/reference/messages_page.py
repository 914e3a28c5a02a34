"""The page of the Messages API: the tables by which the gateway translates it."""

from collections.abc import Iterable
from typing import Final

from app.errors import STATUS
from app.wire.messages.answer import ANSWER_PARTS, STOP_REASONS, USAGE
from app.wire.messages.blocks import BLOCKS
from app.wire.messages.errors import ERROR_TYPES
from app.wire.messages.request import REQUEST_FIELDS
from docs.reference.page import page

_SERVER: Final = (405, 408, 414, 431)  # statuses that the HTTP server and the router make


def messages() -> str:
    """Every field, block, answer part, stop reason, count and error type, as the code has it."""
    blocks = ((f"`{each.type}` ({' or '.join(each.roles)})", each.becomes) for each in BLOCKS)
    fields = ((f"`{each.name}`", each.becomes) for each in REQUEST_FIELDS)
    reasons = ((f"`{chat}`", f"`{reason}`") for chat, reason in STOP_REASONS.items())
    sections = {
        "## Fields of a request": _table("field", "candidates are sent", fields),
        "## Content blocks of a request": _table("block (role)", "candidates are sent", blocks),
        "## Blocks of an answer": _table(
            "member of the chat message",
            "block",
            ((f"`{each.name}`", each.becomes) for each in ANSWER_PARTS),
        ),
        "## Stop reasons": _table("`finish_reason` of chat", "`stop_reason`", reasons),
        "## Token counts": _table(
            "`usage` of chat", "`usage`", ((f"`{name}`", text) for name, text in USAGE.items())
        ),
        "## Errors": _table("status", "`error.type`", _types()),
    }
    return page("Messages API, field by field", "messages", sections)


def _types() -> Iterable[tuple[str, str]]:
    for status in sorted({*ERROR_TYPES, *_SERVER, *(status for status, _, _ in STATUS.values())}):
        usual = "api_error" if status >= 500 else "invalid_request_error"
        yield str(status), f"`{ERROR_TYPES.get(status, usual)}`"


def _table(left: str, right: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    lines = [f"| {left} | {right} |", "| --- | --- |", *(f"| {a} | {b} |" for a, b in rows)]
    return ["\n".join(lines) + "\n"]
