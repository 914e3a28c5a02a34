"""What an answer cost, beside calling every candidate."""

from __future__ import annotations

from pathlib import Path

from tests.ui.conftest import Open
from tests.ui.fleet import FEW, RIVER, served
from tests.upstreams.scripted import FakePool


def test_money_is_shown_where_prices_are_known(
    tmp_path: Path, candidates: FakePool, router: Path, opened: Open
) -> None:
    """What was paid in the currency; what calling all would have cost is called an estimate."""
    prices = [{"output": 1_000.0 * (place + 1)} for place in range(len(FEW))]
    candidates.reset()
    with served(tmp_path, FEW, candidates, artifact=router, prices=prices) as fleet:
        tab = opened(fleet)
        tab.give_keys()
        tab.looked(RIVER)
        chosen = tab.inside()
        assert 0 < len(chosen) < len(FEW)
        tab.ask(RIVER)
        rows = tab.page.locator("table.paid tbody tr")
        shown = {
            row.locator("th").inner_text(): row.locator("td.num").all_inner_texts()
            for row in rows.all()
        }
        # Two tokens each, "42", at 0.001 a place in the pool.
        paid = sum(0.002 * (place + 1) for place, name in enumerate(FEW) if name in chosen)
        everyone = sum(0.002 * (place + 1) for place in range(len(FEW)))
        assert shown["Cost"] == [f"{paid:.3g} USD", f"of about {everyone:.3g} USD"]
