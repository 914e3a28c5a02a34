"""Hook before each SQL statement: what another gateway does in the middle of a transaction."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event, make_url


@contextmanager
def before_statements(database: str, callback: Callable[[str], None]) -> Generator[None]:
    """Call ``callback`` with each statement that is about to run on a database.

    Statements of the callback itself are left out, and those that set limits of a transaction.
    """
    name = make_url(database).database
    is_running = False

    def listener(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
        nonlocal is_running
        is_limit = statement.startswith("SELECT set_config")
        if is_running or is_limit or connection.engine.url.database != name:
            return
        is_running = True
        try:
            callback(statement)
        finally:
            is_running = False

    event.listen(Engine, "before_cursor_execute", listener)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", listener)
