"""Rules of all tests of the gateway."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.routing import service


@pytest.fixture(scope="session", autouse=True)
def _thresholds_are_waited_for() -> Iterator[None]:
    """No decision depends on the load of the machine: a threshold is waited for, however long.

    A gateway waits a quarter of a second and then calls the whole of a smaller pool.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "SUB_POOL_WAIT_S", 30.0)
        yield


@pytest.fixture(autouse=True)
def _pool_of_this_test(request: pytest.FixtureRequest) -> None:
    """Reset the pool also for tests that call it only through a gateway of their module."""
    if "shared_pool" in request.fixturenames:
        request.getfixturevalue("pool")
