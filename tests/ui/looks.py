"""How a page looks and is used: pictures, overflow, accessibility, sliders."""

from __future__ import annotations

from pathlib import Path

from axe_playwright_python.sync_playwright import Axe

from tests.ui.conftest import Tab

PICTURES = Path(__file__).parents[2] / ".screenshots"


def serious(tab: Tab) -> list[str]:
    """What axe finds serious or critical: the rule, and the first element that breaks it."""
    found = Axe().run(tab.page).response["violations"]
    return [
        f"{each['id']}: {each['nodes'][0]['target']} {each['nodes'][0]['failureSummary']}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def overflow(tab: Tab) -> int:
    """By how many pixels the page is wider than its window."""
    return tab.page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )


CUT = """
() => [...document.querySelectorAll("body *")].filter((each) => {
  const { width, height, right } = each.getBoundingClientRect();
  if (width < 2 || height < 2 || each.closest(".main-svg, dialog:not([open])")) return false;
  const isBox = getComputedStyle(each).display !== "inline";
  const scrolls = isBox && each.scrollWidth > each.clientWidth + 1;
  return right > innerWidth + 0.5 || (scrolls && !each.matches("textarea, input, select"));
}).map((each) => `${each.tagName} ${each.className}: ${each.textContent.slice(0, 60)}`)
"""


def cut_off(tab: Tab) -> list[str]:
    """What reaches over the window's right edge, or has to be moved sideways to be read."""
    return tab.page.evaluate(CUT)


def slide(tab: Tab, steps: int) -> None:
    """Move the slider to a number of half percents, as dragging does."""
    tab.page.locator("#alpha").evaluate(
        "(slider, steps) => { slider.value = steps; slider.dispatchEvent(new Event('input')); }",
        steps,
    )
