"""DNS names and TLS certificates of upstream servers."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path

import pytest
import uvloop

from app.errors import UpstreamError, UpstreamUnavailable
from app.upstream.connection_pool import CACHE_S, FRESH_S, LOOKUP_S, Address, DnsCache
from tests.kit.fleets import CHAT, asking, opened, soon
from tests.kit.hostile.process import certify
from tests.kit.hostile.replicas import Replica, answers, replicas
from tests.kit.loops import on_loop
from tests.kit.network import connections_to
from tests.kit.waiting import eventually


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate and its key."""
    return certify(tmp_path_factory.mktemp("tls"))


def encrypted(certificate: Path) -> Replica:
    """A replica that speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return Replica(answers, tls=context, scheme="https")


async def attempts(one: Replica, *, verify: bool) -> int:
    """Call the candidate over TLS, also with a large payload; the number of attempts of a call."""
    try:
        await one.start()
        async with opened({"m": [one]}, candidate={"verify_tls": verify}) as fleet:
            payloads = [asking(), asking("?" * 2**20), asking("!")]
            replies = [await fleet.ask("m", CHAT, each, deadline=soon()) for each in payloads]
            assert [each.body for each in one.asked] == payloads
            assert one.connections == 1
            return max(each.attempts for each in replies)
    finally:
        await one.stop()


def test_a_self_signed_certificate_is_refused(certificate: Path) -> None:
    """Nothing is sent, and the call is not repeated without encryption."""
    one = encrypted(certificate)
    with pytest.raises(UpstreamError) as caught:
        uvloop.run(attempts(one, verify=True))
    assert (caught.value.kind, caught.value.lasting) == ("upstream_tls_error", True)
    assert one.asked == []


def test_verification_can_be_switched_off_and_is_then_logged(
    certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For this candidate alone."""
    with caplog.at_level(logging.WARNING):
        assert uvloop.run(attempts(encrypted(certificate), verify=False)) == 1
    assert "the certificate of m is not verified" in caplog.text


@on_loop
async def test_certificates_are_read_only_for_https(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading those of the system would block all queries, at the first call."""

    def read() -> ssl.SSLContext:
        raise AssertionError("the certificates were read")

    monkeypatch.setattr(ssl, "create_default_context", read)
    async with replicas(answers) as [one], opened({"m": [one]}) as fleet:
        await fleet.ask("m", CHAT, asking(), deadline=soon())


@pytest.mark.parametrize("verify", [True, False])
@on_loop
async def test_a_plain_port_is_no_tls(verify: bool) -> None:
    """The TLS handshake fails, and the call is not repeated in plain text."""
    heard: list[bytes] = []

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(2**16))
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    one = Replica(answers, scheme="https", port=port)
    async with opened({"m": [one]}, candidate={"verify_tls": verify}) as fleet:
        with pytest.raises(UpstreamError) as caught:
            await fleet.ask("m", CHAT, asking(), deadline=soon())
    server.close()
    assert caught.value.kind == "upstream_tls_error"
    assert len(heard) == 1
    assert heard[0].startswith(b"\x16\x03")  # a handshake, and no question


@on_loop
async def test_a_handshake_that_never_ends_is_given_up() -> None:
    """After the connect timeout, or when the call is cancelled; its descriptor is closed."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        one = Replica(answers, scheme="https", port=port)
        async with opened({"m": [one]}, connect_timeout_s=0.5, attempts=1) as fleet:
            with pytest.raises(UpstreamUnavailable):
                await fleet.ask("m", CHAT, asking(), deadline=soon())
            await eventually(lambda: connections_to(port) == 0)
        async with opened({"m": [one]}, attempts=1) as fleet:
            call = asyncio.create_task(fleet.ask("m", CHAT, asking(), deadline=soon()))
            await eventually(lambda: connections_to(port) == 1)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await eventually(lambda: connections_to(port) == 0)


class _Names:
    """A name server that can be switched off, or made slow."""

    def __init__(self) -> None:
        self.lookups = 0
        self.broken = False
        self.slow_s = 0.0
        self.known = 1  # addresses of a host

    async def look_up(self, host: str, port: int) -> list[Address]:
        self.lookups += 1
        await asyncio.sleep(self.slow_s)
        if self.broken:
            raise OSError(f"no answer for {host}")
        ends = [f"10.0.{each}.{self.lookups}" for each in range(self.known)]
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (end, port)) for end in ends]


@on_loop
async def test_the_last_good_address_outlives_its_name_server() -> None:
    """For five minutes, and for the names that it knows."""
    now = 0.0
    names = _Names()
    cache = DnsCache(names.look_up, lambda: now)

    async def address(host: str = "gpu-1") -> str:
        return (await cache.addresses(host, 80))[0][4][0]

    assert await address() == "10.0.0.1"
    now = FRESH_S
    assert await address() == "10.0.0.2"  # it is asked again
    names.broken = True
    now = FRESH_S + CACHE_S - 1
    assert await address() == "10.0.0.2"
    with pytest.raises(OSError, match="gpu-2"):
        await address("gpu-2")
    now = FRESH_S + CACHE_S
    with pytest.raises(OSError, match="gpu-1"):
        await address()
    names.broken = False
    assert await address() == f"10.0.0.{names.lookups}"
    names.slow_s = 10 * LOOKUP_S
    now += FRESH_S
    assert await address() == f"10.0.0.{names.lookups - 1}"


@on_loop
async def test_connections_are_spread_over_the_addresses_of_a_host() -> None:
    """At once, too: then one look-up serves all of them."""
    names = _Names()
    names.known, names.slow_s = 3, 0.05
    cache = DnsCache(names.look_up)
    found = await asyncio.gather(*(cache.addresses("gpu-1", 80) for _ in range(6)))
    assert names.lookups == 1
    assert [each[0][4][0] for each in found] == ["10.0.0.1", "10.0.1.1", "10.0.2.1"] * 2
    assert all(len(each) == 3 for each in found)
