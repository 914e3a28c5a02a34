"""An evaluator of answers beside candidates that disagree."""

from __future__ import annotations

from typing import Any

from tests.kit.gateway import POOL
from tests.kit.upstream import FakePool

WHOLE_POOL = {"alpha": 0.001}  # too small for 60 rows: the whole pool is called


def judged(url: str, weight: str = "p_true", **changes: Any) -> dict[str, Any]:
    """An aggregation block with a judge at a server of its own; T is small, so that it decides."""
    evaluator = {"base_url": url, "model": "judge", "timeout_s": 5}
    values = {"method": "weighted", "weight": weight, "temperature": 0.1, "evaluator": evaluator}
    return values | changes


def disagree(pool: FakePool) -> None:
    """Three answers, of which the router likes 7 most and the judge 'eight'."""
    for name, text in zip(POOL, ("7", "seven", "eight"), strict=True):
        pool.say(name, text)
    pool.rate("judge", {"7": 0.125, "seven": 0.25, "eight": 0.875})
