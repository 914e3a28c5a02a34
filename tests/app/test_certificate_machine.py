"""Model-based test: no history of a gateway holds a certificate that an independent judge denies.

``RACER_MACHINE_SECONDS=3600 pytest -s tests/app/test_certificate_machine.py`` searches for an hour
with fresh seeds.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, Final

import httpx2
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from app.routing import groups
from tests.kit import histories
from tests.kit.gateway import POOL
from tests.kit.histories import Part, some_requests
from tests.kit.judged_gateway import JudgedGateway
from tests.kit.upstream import FakePool, Script

pytestmark = pytest.mark.slow

SECONDS: Final = int(os.environ.get("RACER_MACHINE_SECONDS", "0"))
TOTALS: Counter[str] = Counter()
HELD: Final = 0.15  # of all certificates, at least: else the judge had too little to read


class CertificateMachine(RuleBasedStateMachine):
    """Random histories of a gateway, a judge beside it."""

    artifact: ClassVar[Path]
    pool: ClassVar[FakePool]

    def __init__(self) -> None:
        super().__init__()
        self.world = JudgedGateway(self.artifact, self.pool, TOTALS)
        TOTALS["histories"] += 1

    @initialize(
        changes=st.lists(st.sampled_from(histories.CHANGES), max_size=4),
        parts=st.just([Part()]) | histories.uploads,
    )
    def begin(self, changes: list[dict[str, Any]], parts: list[Part]) -> None:
        """A gateway with a calibration."""
        for change in changes:
            self.world.settings |= change
        self.world.start()
        self.world.upload(parts, alpha=0.1, wrong_every=4)
        self.world.calibrate_if_none()

    def teardown(self) -> None:
        """Stop the gateway."""
        self.world.close()

    @invariant()
    def count_step(self) -> None:
        """Count the steps of all histories."""
        TOTALS["steps"] += 1

    def ask_all(self, some: list[dict[str, Any]]) -> None:
        """Ask, and let the judge read the certificates."""
        for request in some:
            self.world.ask(request)

    @rule(changes=histories.changes, then=some_requests)
    def restart(self, changes: list[dict[str, Any]], then: list[dict[str, Any]]) -> None:
        """Restart with other settings."""
        self.world.restart(changes)
        self.world.ask_like_rows()
        self.ask_all(then)

    @precondition(lambda self: self.world.active)
    @rule(changes=histories.renamings, activates=st.booleans(), then=some_requests)
    def restore(
        self, changes: list[dict[str, Any]], activates: bool, then: list[dict[str, Any]]
    ) -> None:
        """Restore a backup into another store, under other settings."""
        self.world.restore(changes, activates=activates)
        self.world.ask_like_rows()
        self.ask_all(then)

    @precondition(lambda self: self.world.active)
    @rule(
        request=histories.requests_like_rows,
        changes=st.just([]) | histories.renamings,
        then=some_requests,
    )
    def calibrate_on_the_sample(
        self,
        request: dict[str, Any],
        changes: list[dict[str, Any]],
        then: list[dict[str, Any]],
    ) -> None:
        """Judge shadow decisions, and upload them as labelled rows, perhaps after a restart."""
        self.world.judge_sample(request, 12)
        if changes:
            self.world.restart(changes)
        self.world.upload_sample()
        self.world.ask_like_rows()
        self.ask_all(then)

    @rule(
        parts=histories.uploads,
        alpha=st.sampled_from([0.1, 0.1, 0.2, 0.02]),
        wrong_every=st.sampled_from([0, 4, 10]),
        activate=st.sampled_from([True, True, True, False]),
        then=some_requests,
    )
    def calibrate(
        self,
        parts: list[Part],
        alpha: float,
        wrong_every: int,
        activate: bool,
        then: list[dict[str, Any]],
    ) -> None:
        """Upload rows that were labelled now, or before a restart."""
        self.world.upload(parts, alpha=alpha, wrong_every=wrong_every, activate=activate)
        self.world.ask_like_rows()
        self.ask_all(then)

    @precondition(lambda self: self.world.calibrations)
    @rule(place=st.integers(0, 5), then=some_requests)
    def roll_back(self, place: int, then: list[dict[str, Any]]) -> None:
        """Make a stored calibration the active one."""
        self.world.activate(place)
        self.world.ask_like_rows()
        self.ask_all(then)

    @precondition(lambda self: self.world.active and self.world.settings["false_alarm"])
    @rule(stream=st.integers(0, 5), then=some_requests)
    def raise_alarm(self, stream: int, then: list[dict[str, Any]]) -> None:
        """Raise a drift alarm of the active calibration."""
        self.world.raise_alarm(stream)
        self.ask_all(then)

    @precondition(
        lambda self: self.world.active in self.world.alarmed and self.world.settings["false_alarm"]
    )
    @rule()
    def reset_alarms(self) -> None:
        """Begin the alarms of the active calibration again."""
        self.world.reset_alarms()

    @rule(
        names=st.sampled_from([[name] for name in POOL] + [[*POOL]]),
        script=st.sampled_from(histories.SCRIPTS),
        then=some_requests,
    )
    def script(self, names: list[str], script: Script, then: list[dict[str, Any]]) -> None:
        """Let candidates answer otherwise, or fail, for some requests."""
        self.world.say(script, *names)
        self.ask_all(then)
        self.pool.scripts.clear()

    @rule(some=some_requests)
    def ask(self, some: list[dict[str, Any]]) -> None:
        """Ask again."""
        self.ask_all(some)

    @precondition(lambda self: self.world.calibrations)
    @rule(request=histories.requests, place=st.integers(0, 5))
    def ask_while_activating(self, request: dict[str, Any], place: int) -> None:
        """Ask while another calibration becomes active."""
        before = self.world.active
        self.world.say(Script(delay_s=0.05), *POOL)
        thread = threading.Thread(target=self.world.activate, args=(place,))
        thread.start()
        exchange = self.world.exchange(request)
        thread.join()
        self.pool.scripts.clear()
        self.world.judge(exchange, before=before)

    @rule(request=histories.requests, after_s=st.sampled_from([0.005, 0.02]))
    def leave(self, request: dict[str, Any], after_s: float) -> None:
        """Ask, and disconnect before the answer."""
        self.world.say(Script(delay_s=0.04, pause_s=0.02), *POOL)
        with contextlib.suppress(httpx2.TimeoutException):
            self.world.exchange(request, timeout=after_s)
        self.pool.scripts.clear()
        TOTALS["clients left"] += 1


@pytest.mark.timeout(300 + 2 * SECONDS)
def test_no_history_holds_a_certificate_that_is_denied(
    noisy_artifact: Path, shared_pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calibrations, restarts, settings, outages, alarms, fields, surfaces, streams, departures."""
    # Loading the detector takes 0.7 s; the grouping by what it returns is what is tested here.
    monkeypatch.setattr(groups, "language_detector", lambda: histories.language_of)
    CertificateMachine.artifact, CertificateMachine.pool = noisy_artifact, shared_pool
    usual = settings(
        deadline=None,
        suppress_health_check=[*HealthCheck],
        database=None,
        phases=[Phase.generate],  # shorter histories take minutes to find
        report_multiple_bugs=False,
    )
    if not SECONDS:
        few = settings(usual, max_examples=7, stateful_step_count=7, derandomize=True)
        run_state_machine_as_test(CertificateMachine, settings=few)
    started = time.monotonic()
    while (spent := time.monotonic() - started) < SECONDS:
        many = settings(usual, max_examples=5, stateful_step_count=30, derandomize=False)
        run_state_machine_as_test(CertificateMachine, settings=many)
        sys.stdout.write(f"{spent:.0f} s {dict(sorted(TOTALS.items()))}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{dict(sorted(TOTALS.items()))}\n")
    assert TOTALS["held"] > HELD * TOTALS["requests"], TOTALS
