"""In which order and how fast requests come in, when the process has more to do than it can.

Requests wait for candidates for seconds and cost nothing meanwhile, so how many are running says
little. What all of them wait for is their turn on the event loop: every pass of it does one step of
each. So newcomers are counted by the pass. As long as the loop keeps up, passes are short and many,
and nobody waits. When it does not, passes grow until as many leave in each as came in: so many
steps as a request has, times ``A_PASS``, are under way, however many more stand in line. Nothing is
measured and no speed is assumed, so there is nothing that could lag behind or be set wrongly.

The line is as long as the limit on requests in flight allows. Short passes are what lets the gate
refuse whoever is beyond it at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

A_PASS: Final = 2
SAVED: Final = 32  # who come in at once, after a time in which fewer came

Soon = Callable[[Callable[[], None]], object]


class AdmissionQueue:
    """Lets in ``A_PASS`` a pass, first come first served; unused turns are saved, up to ``SAVED``.

    Args:
        soon: Calls back in the next pass; None: the running loop does.
    """

    def __init__(self, soon: Soon | None = None) -> None:
        self._soon = soon or _next_pass
        self._room = SAVED
        self._line: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Wait for one's turn."""
        if self._room == SAVED:  # else the passes are being counted already
            self._soon(self._passed)
        if self._room > 0:
            self._room -= 1
            return
        place = asyncio.get_running_loop().create_future()
        self._line.append(place)
        await place

    def _passed(self) -> None:
        self._room = min(SAVED, self._room + A_PASS)
        while self._line and self._room > 0:
            place = self._line.popleft()
            if not place.done():  # else it went away
                place.set_result(None)
                self._room -= 1
        if self._room < SAVED:
            self._soon(self._passed)


def _next_pass(call: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_soon(call)
