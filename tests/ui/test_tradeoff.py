"""What a risk level trades, on the demo: shown without a question, an upload or a key."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.kit.waiting import until
from tests.ui.looks import slide

from .conftest import Open, Tab
from .fleet import POOL, Fleet, some_rows
from .rounding import plain

PATHS = """figures => figures.map(figure =>
    [...figure.querySelectorAll("path")].map(path => path.getAttribute("d")))"""
Corners = list[tuple[float, float]]


def levels(fleet: Fleet) -> dict[str, Any]:
    """What the gateway says."""
    return fleet.gateway.get("/route/levels", fleet.admin_key).json()


def drawn(tab: Tab) -> list[list[Corners]]:
    """The corners of each line of each figure, in percent of its width and height."""
    tab.page.wait_for_selector("#tradeoff figure >> nth=1")
    return [
        [corners(path) for path in paths]
        for paths in tab.page.eval_on_selector_all("#tradeoff figure", PATHS)
    ]


def corners(path: str) -> Corners:
    """Where a path of steps stands at each level: `M x y`, then `H x` and `V y`."""
    (_, start), *steps = re.findall("([MHV])([^MHV]+)", path)
    x, y = start.split()
    found = [(float(x), float(y))]
    for (across, x), (up, y) in zip(steps[::2], steps[1::2], strict=True):
        assert across + up == "HV"
        found.append((float(x), float(y)))
    return found


def test_calls_and_bound_are_drawn_as_the_gateway_says(demo: Fleet, opened: Open) -> None:
    """At every level, beside one fixed order."""
    report = levels(demo)
    tab = opened(demo)
    (router, fixed), (bound,) = drawn(tab)
    known = report["levels"]
    most = max(each["risk_band"] for each in known)
    for line, field, end in (
        (router, "mean_size", len(POOL)),
        (fixed, "fixed_order_size", len(POOL)),
        (bound, "risk_band", most),
    ):
        assert [x for x, _ in line] == pytest.approx(
            [100 * each["alpha"] / known[-1]["alpha"] for each in known]
        )
        assert [y for _, y in line] == pytest.approx(
            [100 - 100 * each[field] / end for each in known], abs=1e-6
        )


def test_the_mark_follows_the_slider(demo: Fleet, opened: Open) -> None:
    """It stands at the level in force until one is chosen, with its figures as a sentence."""
    report = levels(demo)
    tab = opened(demo)
    tab.page.wait_for_selector("#tradeoff figure >> nth=1")
    by_steps = {round(200 * each["alpha"]): each for each in report["levels"]}
    for steps in (None, 2, 40):
        if steps is not None:
            slide(tab, steps)
        level = by_steps[steps or round(200 * report["alpha"])]
        marks = tab.page.eval_on_selector_all(
            "#tradeoff .now", "marks => marks.map(mark => Number(mark.getAttribute('x1')))"
        )
        assert marks == pytest.approx([100 * level["alpha"] / report["levels"][-1]["alpha"]] * 2)
        said = tab.page.inner_text("#tradeoff-sentence")
        assert said.startswith(f"At {100 * level['alpha']:g} %")
        if level["feasible"]:
            for value in (level["mean_size"], level["fixed_order_size"]):
                assert plain(value) in said
            assert f"at most {plain(100 * level['risk_band'], 1)} % miss" in said


def test_another_calibration_is_drawn_once_it_decides(keyed: Fleet, opened: Open) -> None:
    """Where a key is needed, the card is hidden until there is one."""
    tab = opened(keyed)
    assert not tab.page.locator("#tradeoff").is_visible()
    tab.give_keys()
    before = drawn(tab)
    first = keyed.active()
    with tab.page.expect_response("**/route/levels") as answered:
        keyed.gateway.calibrate(rows=some_rows(400, 200))
    assert answered.value.json()["calibration_id"] == keyed.active() != first
    assert until(lambda: drawn(tab) != before, 60)
    keyed.gateway.activate(first)
    assert until(lambda: drawn(tab) == before, 60)
