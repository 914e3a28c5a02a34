"""Corked transport: writes of one loop iteration are sent together, in order, before closing."""

from __future__ import annotations

import asyncio

from app.http.corked_transport import CorkedTransport


class Sink:
    """A transport that notes what reaches it."""

    def __init__(self) -> None:
        self.seen: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        """Sent."""
        self.seen.append(data)

    def close(self) -> None:
        """Closed in order."""
        self.seen.append("close")

    def abort(self) -> None:
        """Closed at once."""
        self.seen.append("abort")

    def get_write_buffer_size(self) -> int:
        """Some bytes that the system has not taken."""
        return 7

    def is_closing(self) -> bool:
        """Never."""
        return False


def play(*steps: str) -> list[bytes | str]:
    """``pass`` is the loop's next pass, ``close`` and ``abort`` what they say, the rest is data."""

    async def run() -> list[bytes | str]:
        sink = Sink()
        cork = CorkedTransport(sink, asyncio.get_running_loop())  # type: ignore[arg-type]
        for step in steps:
            match step:
                case "pass":
                    await asyncio.sleep(0)
                case "close" | "abort":
                    getattr(cork, step)()
                case _:
                    cork.write(step.encode())
        await asyncio.sleep(0)
        return sink.seen

    return asyncio.run(run())


def test_one_pass_is_one_write() -> None:
    """All writes of one loop iteration are one write; those of the next are another."""
    assert play("head", "body", "pass", "more") == [b"headbody", b"more"]
    assert play("head", "pass", "pass", "body") == [b"head", b"body"]


def test_buffered_bytes_are_sent_before_closing() -> None:
    """Closing sends it at once; nothing comes after."""
    assert play("head", "body", "close") == [b"headbody", "close"]


def test_a_connection_that_is_cut_sends_nothing_more() -> None:
    """As a transport's own buffer would be lost."""
    assert play("head", "abort") == ["abort"]


def test_buffered_bytes_count_as_unsent() -> None:
    """Or a slow client would look like a fast one for a pass."""

    async def run() -> None:
        cork = CorkedTransport(Sink(), asyncio.get_running_loop())  # type: ignore[arg-type]
        cork.write(b"four")
        assert cork.get_write_buffer_size() == 11
        assert cork.is_closing() is False

    asyncio.run(run())
