"""End to end: real models that generate, a real gateway, the official client."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from app.tools.gateway_client import GatewayClient
from racer_core.aggregation.answers import Equality, normalise
from racer_core.types import LabelledRow, LabelledRows
from tests.kit.demo import DemoAddress
from tests.kit.lazy import LazyModule

if TYPE_CHECKING:
    from openai import OpenAI

openai = LazyModule("openai")
run = LazyModule("app.tools.demo.run")
measure = LazyModule("app.tools.demo.measure")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # a busy machine starts it late


@pytest.fixture
def client(running_demo: DemoAddress) -> Iterator[OpenAI]:
    """The official client, pointed at the demo."""
    url = f"{running_demo.url}/v1"
    with openai.OpenAI(base_url=url, api_key="unused", max_retries=0) as client:
        yield client


def test_served_candidates_agree_with_their_labels(client: OpenAI, test_rows: LabelledRows) -> None:
    """200 rows relabelled through the server: at least 99 % of the labels are found again."""
    pairs = [(row, name) for row in test_rows.rows[:200] for name in test_rows.pool]

    def agrees(pair: tuple[LabelledRow, str]) -> bool:
        row, name = pair
        completion = client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": row.query}]
        )
        text = completion.choices[0].message.content or ""
        right = normalise(Equality.EXACT, text) == normalise(Equality.EXACT, row.reference or "")
        return right == (name in row.correct)

    with ThreadPoolExecutor(4) as threads:
        agreed = list(threads.map(agrees, pairs))
    assert sum(agreed) >= 0.99 * len(agreed)


def test_a_routed_answer_carries_its_certificate(client: OpenAI, test_rows: LabelledRows) -> None:
    """The answer is some selected candidate's, and the guarantee holds for a plain question."""
    row = next(row for row in test_rows.rows if row.correct)
    completion = client.chat.completions.create(
        model="auto",
        messages=[{"role": "user", "content": row.query}],
        extra_body={"racer": {"alpha": 0.05}},
    )
    racer = (completion.model_extra or {})["racer"]
    assert completion.model in racer["selected"]
    assert racer["certificate"]["holds"] is True
    assert racer["certificate"]["guarantee"]["alpha"] == 0.05


def test_the_demos_table_has_every_column(
    running_demo: DemoAddress, test_rows: LabelledRows
) -> None:
    """Twenty queries measured as `racer demo` does: both risks with ranges, and the controls."""
    with GatewayClient(running_demo.url, running_demo.admin_key) as admin:
        result = measure.measure(
            admin,
            running_demo.url,
            run.CALIBRATION,
            test_rows,
            queries=20,
            merge=run.gateway_merge(),
            progress=lambda _stage, _done, _total: None,
        )
    assert [row["alpha"] for row in result["alphas"]] == list(measure.ALPHAS)
    for row in result["alphas"]:
        for target in ("answerable", "paper"):
            low, high = row[target]["expected_range"]
            assert 0 <= low < high <= 1
            assert 0 <= row[target]["risk"] <= high
        assert row["calls_saved"] == pytest.approx(1 - row["mean_size"] / 5)
    controls = result["controls"]
    assert controls["best_single"]["accuracy"] == max(controls["singles"].values())
    assert controls["router_top1"] >= controls["best_single"]["accuracy"]
    assert 0 < controls["full_vote"] <= 1
