"""A browser on the page. Whatever it complains of is a failure of the test that made it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from tests.kit.demo import SharedDemo, folder_of_run, started_demo
from tests.kit.upstream import FakePool
from tests.kit.waiting import until

from . import scripted
from .fleet import Fleet, demo_fleet, served, some_rows, trained
from .scripted import ScriptedFleet

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
WIDE = (1280, 900)
NARROW = (390, 844)
LIMIT_S = 600  # of a test
REFUSED = "Failed to load resource: the server responded with a status of "
# Kept by the page itself, before anything of it runs.
VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs a browser, and may wait for the demo on a busy machine."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(LIMIT_S))
            if CHROMIUM is None:
                item.add_marker(pytest.mark.skip(reason="Chromium is not installed"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    with sync_playwright() as playwright:
        # Root has no sandbox; Debian's Chromium is taken instead of one that is downloaded.
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="session", autouse=True)
def _starting_demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedDemo]:
    """The demo, which starts while the first tests run that do not need it."""
    with started_demo(folder_of_run(tmp_path_factory)) as demo:
        yield demo


@pytest.fixture(scope="session")
def pool_url(_starting_demo: SharedDemo) -> str:
    """The server of the demo's models."""
    return _starting_demo.address().pool_url


@pytest.fixture(scope="session")
def demo(_starting_demo: SharedDemo) -> Iterator[Fleet]:
    """The demo. Tests share it: each asks, and none activates another calibration."""
    fleet = demo_fleet(_starting_demo.address())
    yield fleet
    fleet.gateway.close()


@pytest.fixture(scope="session")
def router(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A router of the demo's candidates for other gateways, trained once."""
    return trained(tmp_path_factory.mktemp("router"))


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory, pool_url: str, router: Path) -> Iterator[Fleet]:
    """A calibrated gateway with keys before the demo's models."""
    folder = tmp_path_factory.mktemp("keyed")
    with served(folder, pool_url, artifact=router, calibration=some_rows(0, 400)) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def candidates() -> Iterator[FakePool]:
    """Scripted candidates, of any name."""
    with FakePool() as pool:
        yield pool


@pytest.fixture(scope="module")
def _few(tmp_path_factory: pytest.TempPathFactory, candidates: FakePool) -> Iterator[ScriptedFleet]:
    folder = tmp_path_factory.mktemp("few")
    with scripted.served(folder, scripted.FEW, candidates, prices=scripted.FEW_PRICES) as fleet:
        yield fleet


@pytest.fixture
def few(_few: ScriptedFleet) -> ScriptedFleet:
    """Five priced scripted candidates behind a calibrated gateway with keys; each answers 42."""
    _few.pool.reset()
    return _few


class Tab:
    """The page in a window of its own.

    Attributes:
        page: Playwright's.
        fleet: The gateway that serves it.
        refused: Statuses of answers that the test means to get; the browser notes each.
    """

    def __init__(self, page: Page, fleet: Fleet) -> None:
        self.page = page
        self.fleet = fleet
        self.refused: set[int] = set()
        self.noted: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.noted.append(f"error: {error}"))
        page.on("request", lambda request: self._request(request.url))

    def _console(self, message: ConsoleMessage) -> None:
        # Without a key the page asks for these all the same.
        asked = ("/route/levels", "/examples", "/same-answer/progress")
        is_expected = message.location["url"].endswith(asked) and "401" in message.text
        if message.type in ("error", "warning") and not is_expected:
            self.noted.append(message.text)

    def _request(self, url: str) -> None:
        if not url.startswith(self.fleet.gateway.url + "/"):
            self.noted.append(f"asked elsewhere: {url}")

    def complaints(self) -> list[str]:
        """All but the refusals that are meant."""
        meant = tuple(f"{REFUSED}{status}" for status in self.refused)
        return [text for text in self.noted if not (meant and text.startswith(meant))]

    def open(self, part: str = "") -> None:
        """Load the page, and wait until it knows how the gateway is."""
        self.page.goto(f"{self.fleet.gateway.url}/ui{part}")
        self.page.wait_for_selector('#status:not([data-state="unknown"])')

    def give_keys(self, *, data: str | None = None, admin: str | None = None) -> None:
        """Through the dialog; the fleet's own keys unless told otherwise."""
        self.page.click("#keys-open")
        self.page.fill("#data-key", self.fleet.data_key if data is None else data)
        self.page.fill("#admin-key", self.fleet.admin_key if admin is None else admin)
        self.page.click("#keys-use")

    def ask(self, question: str) -> None:
        """Write a question, ask it, and wait for what comes of it."""
        self.page.fill("#question", question)
        self.page.click("#ask-button")
        self.page.wait_for_selector("#answer .answers")

    def looked(self, question: str) -> None:
        """Write a question, and wait for its bars."""
        self.page.fill("#question", question)
        self.page.wait_for_selector("#set table.bars")

    def until(self, expression: str) -> None:
        """Wait until it is true; Playwright's own way would evaluate, which the policy forbids."""
        assert until(lambda: bool(self.page.evaluate(expression)), 60), expression

    def inside(self) -> set[str]:
        """Who is in the set, as the bars say."""
        return set(self.page.locator('tr[data-in="true"] .name').all_inner_texts())


Open = Callable[..., Tab]


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """Open windows: ``opened(fleet, scheme="dark", size=NARROW)``; none of them may complain.

    ``clock=True``: the page's time can be put forward.
    """
    tabs: list[Tab] = []
    with ExitStack() as stack:

        def start(fleet: Fleet, part: str = "", **options: Any) -> Tab:
            tab = stack.enter_context(_window(browser, fleet, **options))
            tabs.append(tab)
            tab.open(part)
            return tab

        yield start
        complaints = [text for tab in tabs for text in tab.complaints()]
    assert complaints == []


@contextmanager
def _window(
    browser: Browser,
    fleet: Fleet,
    *,
    scheme: Any = "light",
    size: tuple[int, int] = WIDE,
    clock: bool = False,
) -> Generator[Tab]:
    context = browser.new_context(
        color_scheme=scheme,
        viewport={"width": size[0], "height": size[1]},
        reduced_motion="reduce",
        locale="en-GB",
    )
    context.set_default_timeout(60_000)
    context.add_init_script(VIOLATIONS)
    if clock:
        context.clock.install()
    yield Tab(context.new_page(), fleet)
    context.close()
