"""Samples of live traffic in tests: waits until the background calls are over."""

from __future__ import annotations

import json
from typing import Any

from tests.support.gateway import ADMIN_KEY, Gateway
from tests.support.waiting import until

KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="  # of stored requests: the bytes 0 to 31


def samples(gateway: Gateway) -> dict[str, int]:
    """How many sampled decisions came to which end."""
    text = gateway.get("/metrics", ADMIN_KEY).text
    counted = [line.split('outcome="')[1] for line in text.splitlines() if _COUNTER in line]
    return {line.split('"')[0]: int(float(line.split()[-1])) for line in counted}


_COUNTER = "racer_shadow_samples_total{"


def sampled(gateway: Gateway, count: int) -> dict[str, int]:
    """The samples, once this number of them is complete."""
    assert until(lambda: sum(samples(gateway).values()) >= count, 10)
    return samples(gateway)


def shadow_rows(gateway: Gateway, query: str = "") -> list[dict[str, Any]]:
    """The rows of the shadow sample."""
    response = gateway.get(f"/shadow/rows{query}", ADMIN_KEY)
    assert response.status_code == 200, response.text
    return [json.loads(row) for row in response.text.splitlines()]
