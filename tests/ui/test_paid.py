"""What an answer cost, beside calling every candidate."""

from __future__ import annotations

from .conftest import Open, Tab
from .scripted import FEW, FEW_PRICES, RIVER, ScriptedFleet


def figures(tab: Tab) -> dict[str, list[str]]:
    """What was paid and what calling all takes, by the name of the bar."""
    return {
        row.locator("th").inner_text(): row.locator("td.num").all_inner_texts()
        for row in tab.page.locator(".paid tbody tr").all()
    }


def test_money_is_shown_where_prices_are_known(few: ScriptedFleet, opened: Open) -> None:
    """What was paid in the currency; what calling all would have cost is called an estimate."""
    tab = opened(few)
    tab.give_keys()
    tab.looked(RIVER)
    chosen = tab.inside()
    assert 0 < len(chosen) < len(FEW)
    tab.ask(RIVER)
    shown = figures(tab)
    each = {name: 2 * price["output"] / 1e6 for name, price in zip(FEW, FEW_PRICES, strict=True)}
    paid, everyone = sum(each[name] for name in chosen), sum(each.values())  # two tokens each, "42"
    assert shown["Cost"] == [f"{paid:.3g} USD", f"of about {everyone:.3g} USD"]
    assert "would read the same input" in tab.page.inner_text(".paid .hint")
