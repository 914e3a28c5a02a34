"""From nothing but candidates to certified answers, before real vLLM servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.same_answer import calibrator as answer_calibrator
from tests.kit.gateway import ADMIN_KEY, ENVIRONMENT, Gateway, running
from tests.kit.zero_setup import (
    ask,
    compared,
    configure,
    most_differing,
    questions,
    until_certified,
)

from .conftest import LIMIT_S, POOL, Servers

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1200)]

ALPHA = 0.05  # the default takes 39 rows: 10 fit the order, 29 calibrate
FURTHER = 20
FALSE_ALARM = 1e-6


@pytest.fixture
def candidates_alone(
    tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Gateway]:
    """A gateway with no artifact and no labels; it draws every request."""
    monkeypatch.setattr(answer_calibrator, "EVERY_S", 0.5)
    given = {
        "same_answer": {"alpha": ALPHA, "calibrate": "from_traffic"},
        "watching": {"shadow_rate": 1.0},
        "limits": {"deadline_s": LIMIT_S},
    }
    urls = {name: f"{server.url}/v1" for name, server in servers.items()}
    with running(configure(tmp_path, urls, **given), ENVIRONMENT) as gateway:
        yield gateway


def test_a_gateway_before_vllm_certifies_by_itself(candidates_alone: Gateway) -> None:
    """After its first rows certificates hold, and differences are within their law.

    The official client asks; the whole pool is then asked by name. False alarm 1e-6: at most 12 of
    20 may differ.
    """
    gateway, asked = candidates_alone, iter(questions(7, 300))
    before = until_certified(gateway, asked)
    assert len(before) >= 40
    further = [ask(gateway, next(asked)) for _ in range(FURTHER)]
    served = [each for each in compared(gateway, further) if each.calibration]
    assert len(served) == FURTHER
    assert {each.calibration for each in served} == {before[-1].calibration}
    (record,) = gateway.get("/same-answer", ADMIN_KEY).json()["data"]
    evidence = record["evidence"]
    assert evidence["reliabilities"].keys() == set(POOL)
    most = most_differing(FURTHER, evidence["n"], ALPHA, FALSE_ALARM)
    assert most < FURTHER
    assert sum(bool(each.differs) for each in served) <= most
    assert all(1 <= each.calls <= len(POOL) for each in served)
