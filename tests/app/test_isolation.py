"""Test isolation: the pool that all tests of a process share starts anew for each of them."""

from __future__ import annotations

import pytest

from tests.kit.gateway import ONE
from tests.kit.upstream import FakePool


@pytest.fixture(scope="module")
def left_behind(shared_pool: FakePool) -> FakePool:
    """A pool as another test leaves it; made, like gateways of a module, before each test's own."""
    shared_pool.fail("adder", "hang")
    shared_pool.requests.append({"model": "adder", "messages": [{"content": ONE}]})
    return shared_pool


def test_a_gateway_of_a_module_has_a_reset_pool(left_behind: FakePool) -> None:
    """Without asking for the fixture `pool`, which most such tests do not."""
    assert left_behind.scripts == {}
    assert left_behind.requests == []
