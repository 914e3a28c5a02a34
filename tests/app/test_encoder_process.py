"""One encoder process for all gateways of a machine: equal scores, shared batches, and its loss."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.errors import Overloaded, SettingsError, TooLarge
from app.routing import encoder_process
from app.routing.encoder_process import (
    EncoderClient,
    EncoderServer,
    Frame,
    listening,
    packed,
    receive,
)
from app.routing.encoder_worker import EncoderWorker
from app.telemetry.metrics import Metrics
from racer_core.encoder.base import EncoderOutput
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.errors import ArtifactError, RacerError
from racer_core.racer import Racer
from tests.kit.gateway import ENVIRONMENT, ONE, POOL, Serve, configure, labelled
from tests.kit.upstream import FakePool
from tests.kit.waiting import eventually, wait_until

pytestmark = pytest.mark.anyio
TEXTS = labelled(700, 300).queries


class HeldEncoder(CharNgramEncoder):
    """Computes only while it is let go."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()

    def encode(self, texts: Any) -> EncoderOutput:
        """On the worker's thread."""
        assert self.free.wait(60)
        return super().encode(texts)


@pytest.fixture(scope="module")
def opened(artifact: Path) -> Racer:
    """The artifact, with an encoder that a test can hold."""
    return replace(Racer.load(artifact), encoder=HeldEncoder())


class Process:
    """What ``racer encoder`` runs, on this event loop."""

    def __init__(self, racer: Racer, path: Path, **options: Any) -> None:
        assert isinstance(racer.encoder, HeldEncoder)
        self.free, self.path, self.metrics = racer.encoder.free, path, Metrics()
        options = {"queue": 100, "queue_s": 60.0, "batch": 32, **options}
        self.worker = EncoderWorker(racer, metrics=self.metrics, **options)
        self.digest = racer.artifact.digest
        self.server = EncoderServer(self.worker, self.digest)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Serve, and stop."""
        with listening(self.path) as listener:
            async with self.worker:
                task = asyncio.create_task(self.server.serve(listener))
                try:
                    yield
                finally:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

    def waiting(self) -> float | None:
        """How many queries wait."""
        return self.metrics.registry.get_sample_value("racer_router_queue")

    def batches(self) -> tuple[float, float]:
        """How many were scored, and how many queries they held."""
        registry = self.metrics.registry
        count, held = (
            registry.get_sample_value(f"racer_router_batch_size_{each}")
            for each in ("count", "sum")
        )
        assert count is not None
        assert held is not None
        return count, held


@asynccontextmanager
async def shared(process: Process, *, gateways: int = 2) -> AsyncGenerator[list[EncoderClient]]:
    """A process and its gateways."""
    async with asyncio.timeout(10), AsyncExitStack() as stack:
        await stack.enter_async_context(process.running())
        yield [
            await stack.enter_async_context(EncoderClient(process.path, process.digest))
            for _ in range(gateways)
        ]


async def test_scores_and_embeddings_have_the_bits_of_the_process(
    opened: Racer, tmp_path: Path
) -> None:
    """Single queries, rows and embeddings; so a calibration made one way serves the other."""
    process = Process(opened, tmp_path / "encoder")
    async with shared(process) as (one, other):
        assert stat.S_IMODE(process.path.stat().st_mode) == 0o600
        whole = process.worker.score_rows
        here, there = await asyncio.gather(
            asyncio.to_thread(whole, TEXTS), asyncio.to_thread(one.score_rows, TEXTS)
        )
        for name in type(here).__slots__:
            mine, theirs = getattr(here, name), getattr(there, name)
            assert (mine is None) == (theirs is None), name
            assert mine is None or (mine.dtype == theirs.dtype and np.array_equal(mine, theirs))
        embedded = await other.embed(TEXTS)
        assert np.array_equal(embedded, CharNgramEncoder().encode(TEXTS).embeddings)
        for text in TEXTS[:4]:
            mine, theirs = await process.worker.score(text), await other.score(text)
            assert (mine.scores, mine.truncated) == (theirs.scores, theirs.truncated)
            assert mine.projection == theirs.projection
            assert (mine.neighbours is None) == (theirs.neighbours is None)
            assert mine.neighbours is None or np.array_equal(mine.neighbours, theirs.neighbours)


async def test_two_gateways_share_batches_and_the_queue(opened: Racer, tmp_path: Path) -> None:
    """One counter sees both; the bound holds for both; a cancelled query frees its place."""
    process = Process(opened, tmp_path / "encoder", queue=6)
    async with shared(process) as (one, other):
        process.free.clear()
        first = asyncio.create_task(one.score(TEXTS[0]))
        await eventually(lambda: process.batches()[0] == 1)
        asked = [
            asyncio.create_task(gateway.score(text))
            for gateway, text in zip((one, other) * 3, TEXTS[1:7], strict=True)
        ]
        await eventually(lambda: process.waiting() == 6)
        with pytest.raises(Overloaded, match="6 queries already wait"):
            await other.score("one more")
        asked.pop().cancel()
        await eventually(lambda: process.waiting() == 5)
        process.free.set()
        answers = await asyncio.gather(first, *asked)
        assert process.batches() == (2, 6)
        assert [each.scores for each in answers] == opened.score(TEXTS[:6]).scores.tolist()


async def test_an_error_of_the_encoder_reaches_the_gateway(
    opened: Racer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stays; another artifact, and a second process, are refused with the cure."""

    def broken(*_: object) -> EncoderOutput:
        raise RuntimeError("the device is gone")

    process = Process(opened, tmp_path / "encoder")
    async with shared(process, gateways=1) as (gateway,):
        with monkeypatch.context() as patch:
            patch.setattr(HeldEncoder, "encode", broken)
            with pytest.raises(RacerError, match="the device is gone"):
                await gateway.score(ONE)
        assert (await gateway.score(ONE)).usable
        with pytest.raises(ArtifactError, match="start `racer encoder` and the gateways"):
            await EncoderClient(process.path, "0" * 64).__aenter__()
        with pytest.raises(SettingsError, match="another process already answers"):
            listening(process.path).__enter__()


async def test_what_is_no_greeting_closes_the_connection(opened: Racer, tmp_path: Path) -> None:
    """Before the bytes of an oversize frame are read; other gateways go on."""
    process = Process(opened, tmp_path / "encoder")
    oversize, no_arrays, no_json = b"\xff" * 4, b"\0\0\0\2{}", b"\0\0\0\1x"
    async with shared(process, gateways=1) as (gateway,):
        for sent in (oversize, no_arrays, no_json, packed({}), packed({"artifact": 1}, {})):
            reader, writer = await asyncio.open_unix_connection(str(process.path))
            writer.write(sent)
            assert b"scores" not in await reader.read()
            writer.close()
            assert (await gateway.score(ONE)).usable


async def test_frames_are_bounded_and_hold_numbers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NaN arrives; objects, which would be unpickled, and oversize frames do not."""

    async def received(sent: bytes) -> Frame:
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        return await receive(reader)

    numbers = {
        "a": np.array([[np.nan, 0.1]]),
        "b": np.zeros((0, 3), np.uint8),
        "c": np.array([True]),
    }
    got = await received(packed({"call": 7}, numbers))
    assert got.head == {"call": 7}
    for name, each in numbers.items():
        assert got.arrays[name].dtype == each.dtype
        np.testing.assert_array_equal(got.arrays[name], each)
    with pytest.raises(ValueError, match="is not sent"):
        await received(packed({}, {"a": np.array([None])}))
    monkeypatch.setattr(encoder_process, "LARGEST", 64)
    with pytest.raises(TooLarge):
        packed({"texts": ["x" * 64]})
    with pytest.raises(TooLarge):
        await received(b"\0\0\0\x41" + b"x" * 65)


# Through the gateway --------------------------------------------------------------------------


@contextmanager
def serving(config: Path, path: Path) -> Generator[subprocess.Popen[str]]:
    """``racer encoder``, once it listens."""
    command = [sys.executable, "-m", "app", "encoder", "--config", str(config)]
    environment = os.environ | ENVIRONMENT
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert str(path) in line, line
            yield process
        finally:
            process.kill()


def test_gateways_outlive_the_process(
    serve: Serve, artifact: Path, pool: FakePool, tmp_path: Path
) -> None:
    """Without it the whole pool is called, as whenever the router fails; then routing goes on."""
    path = tmp_path / "encoder.sock"
    config = configure(tmp_path / "process", artifact, pool.url, encoder={"socket": str(path)})
    options = {"encoder": {"socket": str(path)}, "limits": {"decisions_kept": 0}}
    alone = serve()
    with serving(config, path) as process:
        gateways = [serve(**options) for _ in range(2)]
        for gateway in (alone, gateways[0]):
            gateway.calibrate(80)
        assert {gateway.route(ONE)["selected"][0] for gateway in gateways} == {"adder"}
        mine, theirs = (each.decided(ONE) for each in (alone, gateways[0]))
        assert mine.pop("certificate")["lambda_hat"] == theirs.pop("certificate")["lambda_hat"]
        assert mine == theirs
        process.kill()
        process.wait(60)
        failed = gateways[0].route(ONE)
        assert sorted(failed["selected"]) == sorted(POOL)
        assert failed["certificate"]["reasons"] == ["router_failed_whole_pool"]
        assert path.is_socket()  # left behind
    with serving(config, path) as process:
        for gateway in gateways:
            wait_until(lambda at=gateway: at.route(ONE)["selected"] == ["adder"], 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not path.exists()
