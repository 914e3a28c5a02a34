"""Figure of the comparison: throughput and added latency of each arm."""

from collections.abc import Mapping
from typing import Any

from canvas import LAW, Canvas
from verdict import OURS, Arm, added, typical

_OTHERS = "#0072b2"


def png(document: Mapping[str, Any]) -> bytes:
    """Two panels, both logarithmic: requests a second; p50 to p99 added at 60 a second."""
    arms = [arm for arm in reversed(Arm) if arm in document["arms"]]
    canvas = Canvas.of(1, 2)
    throughput, delay = canvas.panels
    for arm in arms:
        colour = LAW if arm in OURS else _OTHERS
        throughput.barh(arm, typical(document, arm, "closed", "rate"), color=colour)
        if arm is not Arm.DIRECT:
            ends = [added(document, arm, "open", each) for each in ("p50_ms", "p99_ms")]
            delay.plot(ends, [arm, arm], color=colour, marker="|")
    throughput.set(xscale="log", xlabel="requests/s, 16 connections")
    delay.set(xlabel="added at 60/s, p50 to p99, ms")
    delay.set_xscale("symlog", linthresh=1)  # noise may be below nothing
    return canvas.png()
