"""docs/quickstart.md leads to a certified answer, with the demo's candidates scripted."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.settings import load
from racer_core.records.reader import read_rows
from racer_core.records.split import TUNING_SHARES
from tests.kit.first_gateway_page import DEMO, ask_these, walk
from tests.kit.upstream import FakePool

NAMES = ("abacus", "mirror", "tribune")
CALIBRATED = "next 1:"  # of the report of `racer bootstrap`, after which comes the doctor's
TOOLS = ("bash", "openssl")

pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in TOOLS), reason=f"needs {', '.join(TOOLS)}"
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_leads_to_a_certified_answer(tmp_path: Path) -> None:
    """Each candidate answers as in the demo's labels. Fails when a command of the page fails."""
    rows = read_rows(DEMO / "data" / "test.jsonl").rows[:500]
    ask_these(rows, tmp_path)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                FakePool(
                    models=[name],
                    answer=lambda body, answers={r.query: r.answers[name] for r in rows}: (
                        answers.get(body["messages"][-1]["content"], "42") or ""
                    ),
                )
            )
            for name in NAMES
        ]
        before, after = walk(tmp_path, [each.url.removesuffix("/v1") for each in servers])
    assert "answers `auto`" in before
    assert "answerable at alpha 0.1" in after
    assert ", active" in after
    checked = after[after.rindex(CALIBRATED) :]
    assert "warning" not in checked
    assert "failed" not in checked
    assert after.splitlines()[-2:] == ["42 from abacus", "holds: True alpha: 0.1"]
    pool = load(tmp_path / "racer.yaml", {})[0].pool
    assert pool == NAMES
    parts = [tmp_path / "bootstrap" / "parts" / f"{name}.jsonl" for name in TUNING_SHARES]
    assert [len(read_rows(part).rows) for part in parts] == [200, 150, 150]
