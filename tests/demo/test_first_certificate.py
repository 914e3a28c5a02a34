"""From nothing but candidates to certified answers, before models that generate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.same_answer import calibrator
from tests.kit.gateway import ENVIRONMENT, Gateway, running
from tests.kit.zero_setup import (
    ask,
    compared,
    configure,
    demo_pool,
    most_differing,
    questions,
    until_certified,
)

pytestmark = pytest.mark.slow

ALPHA = 0.02  # takes 149 rows: 100 fit the order, 49 calibrate
FURTHER = 60
FALSE_ALARM = 1e-6


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    """A gateway with the demo's five candidates; it draws every request."""
    monkeypatch.setattr(calibrator, "EVERY_S", 0.5)
    given = {
        "same_answer": {"alpha": ALPHA, "calibrate": "from_traffic"},
        "watching": {"shadow_rate": 1.0},
    }
    with (
        demo_pool(tmp_path) as urls,
        running(configure(tmp_path, urls, prefix="pool/", **given), ENVIRONMENT) as gateway,
    ):
        yield gateway


def test_the_gateway_certifies_by_itself_and_keeps_its_promise(gateway: Gateway) -> None:
    """After its first rows: fewer calls and tokens, and differences within their law."""
    asked = iter(questions(7, 1_000))
    before = until_certified(gateway, asked)
    further = [ask(gateway, next(asked)) for _ in range(FURTHER)]
    assert len(before) >= 149
    served = [each for each in compared(gateway, further) if each.calibration]
    assert len(served) == FURTHER
    assert len({each.calibration for each in served}) == 1
    (record,) = gateway.get("/same-answer", ENVIRONMENT["RACER_ADMIN_KEY"]).json()["data"]
    n = record["evidence"]["n"]
    assert sum(bool(each.differs) for each in served) <= most_differing(
        FURTHER, n, ALPHA, FALSE_ALARM
    )
    assert sum(each.calls for each in served) < 0.85 * 5 * FURTHER
    assert sum(each.tokens for each in served) < 0.85 * sum(each.pool_tokens for each in served)
