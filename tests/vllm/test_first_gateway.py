"""docs/quickstart.md, word for word, with real vLLM servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.first_gateway_page import ask_these, walk

from .conftest import POOL, Servers, rows_of

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_the_page_leads_to_a_certified_answer(servers: Servers, tmp_path: Path) -> None:
    """From `racer init` to the openai client. Red when any command of the page fails."""
    ask_these(rows_of("test", 500).rows, tmp_path)
    before, after = walk(tmp_path, [servers[name].url for name in POOL])
    assert "answers `auto`" in before
    assert "risk target: answerable" in after
    checked = after[after.rindex("a request on average") :]
    assert "failed" not in checked
    assert "warning" not in checked
    assert after.splitlines()[-2:] == ["42 from abacus", "holds: True alpha: 0.1"]
