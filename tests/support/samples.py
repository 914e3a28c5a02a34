"""Samples of live traffic in tests: waits until the background calls are over."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from app.monitoring.samples.record import SampledDecision
from app.monitoring.samples.rows import labelled_rows
from tests.support.gateway import ADMIN_KEY, Gateway
from tests.support.monitored import POOL
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
    assert until(lambda: sum(samples(gateway).values()) >= count, 30)
    return samples(gateway)


def shadow_rows(gateway: Gateway, query: str = "") -> list[dict[str, Any]]:
    """The rows of the shadow sample."""
    response = gateway.get(f"/shadow/rows{query}", ADMIN_KEY)
    assert response.status_code == 200, response.text
    return [json.loads(row) for row in response.text.splitlines()]


def exported(sampled: Sequence[SampledDecision], **options: Any) -> list[dict[str, Any]]:
    """The rows of decisions that calibrations of the loaded artifact made.

    Args:
        sampled: The decisions.
        options: As those of :func:`labelled_rows`, but for the usual values.
    """
    own = {each.decision.calibration_id for each in sampled} - {None}
    usual: dict[str, Any] = {
        "group_by": "request",
        "drawn": (),
        "conditions_of": lambda _: POOL,
        "stores_requests": True,
        "own": own,
        "sent_now": lambda _: {},
    }
    found, _ = labelled_rows(lambda: sampled, POOL, **usual | options)
    return [json.loads(row) for row in found]
