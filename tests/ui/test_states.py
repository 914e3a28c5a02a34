"""States of the page: no router, no calibration, no gateway; colours and tabs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import zero_setup
from tests.kit.gateway import ENVIRONMENT, running

from .conftest import Open
from .fleet import POOL, Fleet, served, some_rows


@pytest.fixture
def bare(tmp_path: Path, pool_url: str) -> Iterator[Fleet]:
    """A gateway without an artifact."""
    path = zero_setup.configure(tmp_path, dict.fromkeys(POOL, pool_url), prefix="pool/")
    with running(path, ENVIRONMENT) as gateway:
        yield Fleet(gateway, POOL, *ENVIRONMENT.values())


@pytest.fixture
def fresh(tmp_path: Path, pool_url: str, router: Path) -> Iterator[Fleet]:
    """A gateway with an uncalibrated router, open to this machine."""
    with served(tmp_path, pool_url, artifact=router, keys=False) as fleet:
        yield fleet


def test_without_a_router_every_tab_says_what_to_do(bare: Fleet, opened: Open) -> None:
    """In the order in which it is done, with commands."""
    tab = opened(bare)
    tab.refused = {503}
    assert tab.page.inner_text("#status") == "not calibrated"
    for command in ("racer label", "racer train", "`artifact`", "racer calibrate"):
        assert command in tab.page.inner_text("#advice")
    tab.give_keys()
    tab.page.fill("#question", "Who?")
    tab.page.wait_for_selector("#set .notice")
    assert "fallback" in tab.page.inner_text("#set")
    tab.page.click("#tab-calibrate")
    tab.page.wait_for_selector("#history .notice")
    tab.page.click("#tab-watch")
    tab.page.wait_for_selector("#who-title + div tbody tr")
    assert tab.page.locator("#who-title + div tbody tr").count() == len(POOL)
    tab.page.wait_for_selector("#watch .notice.info")


def test_without_a_calibration_the_way_to_one_is_shown_and_works(
    fresh: Fleet, opened: Open
) -> None:
    """From the advice to the tab; and once there is one the page knows by itself."""
    tab = opened(fresh)
    tab.refused = {503}
    assert tab.page.inner_text("#status") == "not calibrated"
    tab.page.click("#advice a")
    assert tab.page.locator("#calibrate").is_visible()
    fresh.gateway.calibrate(rows=some_rows(0, 300))
    tab.page.wait_for_selector('#status[data-state="good"]')
    assert tab.page.inner_text("#advice") == ""
    tab.page.click("#tab-try")
    tab.ask("What is 17 plus 25?")  # no key is needed here


def test_the_page_reports_an_unreachable_gateway(demo: Fleet, opened: Open) -> None:
    """And asked again by itself."""
    tab = opened(demo)
    tab.page.route("**/readyz", lambda route: route.abort())
    tab.page.wait_for_selector('#status[data-state="bad"]')
    assert "cannot be reached" in tab.page.inner_text("#advice")
    tab.page.unroute("**/readyz")
    tab.page.wait_for_selector('#status[data-state="good"]')
    tab.noted = [text for text in tab.noted if "net::ERR_FAILED" not in text]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_until_they_are_switched(
    demo: Fleet, opened: Open, scheme: str
) -> None:
    """The switch says what it would do."""
    tab = opened(demo, scheme=scheme)

    def paper() -> str:
        return tab.page.evaluate("getComputedStyle(document.body).backgroundColor")

    first, other = paper(), {"light": "dark", "dark": "light"}[scheme]
    assert tab.page.get_attribute("#theme", "aria-label") == f"Switch to {other} colours"
    tab.page.click("#theme")
    assert paper() != first
    tab.page.click("#theme")
    assert paper() == first


def test_the_address_names_the_tab(demo: Fleet, opened: Open) -> None:
    """Links to a tab can be shared, and the browser's back button works."""
    tab = opened(demo, "#calibrate")
    assert tab.page.locator("#calibrate").is_visible()
    tab.page.click("#tab-try")
    assert tab.page.url.endswith("#try")
    tab.page.go_back()
    assert tab.page.locator("#calibrate").is_visible()
    assert tab.page.locator("#try").is_hidden()
