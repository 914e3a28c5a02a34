"""Bodies of requests: any bytes are a call that candidates can be sent, or one error."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.settings import load
from tests.fuzz.bodies import BODIES, Door
from tests.kit.gateway import ENVIRONMENT, configure

from .strategies import damaged, json_texts, written

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory, artifact: Path) -> Iterator[Door]:
    """One event loop for all examples."""
    path = configure(tmp_path_factory.mktemp("bodies"), artifact, "http://127.0.0.1:9")
    with asyncio.Runner() as runner:
        yield Door(load(path, ENVIRONMENT)[0], runner)


@pytest.mark.parametrize("name", BODIES)
def test_any_body_is_a_call_or_an_error(door: Door, name: str) -> None:
    """Nothing but errors of the table comes out, and some bodies get through."""
    endpoint, bodies = BODIES[name]
    good = written(bodies).map(lambda text: text.encode())
    reached: list[bool] = []

    @given(data=st.one_of(good, good, damaged(good), json_texts.map(str.encode), st.binary()))
    @example(data=b'{"model":"auto","messages":[{"role":"user","content":[{"type":[]}]}]}')
    @example(data=b'{"model":"auto","input":[{"role":"user","content":[{"type":{}}]}]}')
    def check(data: bytes) -> None:
        arguments = door.ask(endpoint, data)
        reached.append(arguments is not None)
        if arguments is not None:
            door.check(arguments)

    check()
    assert sum(reached) > 0
