"""deploy/beside: LiteLLM behind the gateway, and Envoy with a guardrail in front, as they stand.

`make setup-litellm` and `make setup-envoy` install them. The providers behind LiteLLM are fakes in
their own wire formats; ports are the only thing that the tests change in the files.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from aiohttp import web

from app.routing.applications import HEADER
from app.wire.parsing import CHAT_USAGE
from tests.kit.gateway import DATA_KEY, ENVIRONMENT, Gateway, configure, running, user
from tests.kit.network import free_port
from tests.kit.upstream import FakePool
from tests.kit.waiting import wait_while_running

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "beside"
PAGE = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
LITELLM = Path(os.environ.get("RACER_LITELLM", ROOT / ".venv-litellm/bin/litellm"))
ENVOY = Path(os.environ.get("RACER_ENVOY", ROOT / ".venv-envoy/bin/envoy"))
CARD = "my card is 4111 1111 1111 1111"
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("name", ["litellm.yaml", "racer.yaml"])
def test_the_document_prints_the_files(name: str) -> None:
    """Letter by letter, but for the schema that editors read: the tests run these."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    text = re.sub(r"\A# yaml-language-server:.*\n", "", text)
    assert f"```yaml\n{text}```" in PAGE


@contextmanager
def listening(
    command: list[str], port: int, environment: dict[str, str] | None = None, path: str = "/"
) -> Generator[None]:
    """A process, from its first answer on."""
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:

            def answers() -> bool:
                try:
                    httpx2.get(f"http://127.0.0.1:{port}{path}", verify=False, trust_env=False)
                except httpx2.TransportError:
                    return False
                return True

            wait_while_running(answers, process, 240)
            yield
        finally:
            process.terminate()
            process.wait(30)


def with_ports(name: str, folder: Path, **ports: int) -> Path:
    """A file of the folder with other ports: ``p4000=1234`` puts 1234 in the place of 4000."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    for old, new in ports.items():
        text, count = re.subn(rf"\b{old.removeprefix('p')}\b", str(new), text)
        assert count, f"{name} has no port {old}"
    written = folder / name
    written.write_text(text, encoding="utf-8")
    return written


# LiteLLM behind ---------------------------------------------------------------------------------


class Providers:
    """Anthropic's and OpenAI's APIs on one port, each in its own wire format."""

    def __init__(self) -> None:
        self.port = free_port()
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.status = 200  # of Anthropic's

    async def messages(self, request: web.Request) -> web.Response:
        """POST /v1/messages."""
        body = await request.json()
        self.requests.append((request.path, body))
        if self.status != 200:
            error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
            return web.json_response(error, status=self.status)
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"]}
        content = [{"type": "text", "text": "42"}]
        usage = {"input_tokens": 10, "output_tokens": 2}
        end = {"content": content, "stop_reason": "end_turn", "usage": usage}
        return web.json_response(head | end)

    async def chat(self, request: web.Request) -> web.Response:
        """POST /v1/chat/completions."""
        body = await request.json()
        self.requests.append((request.path, body))
        message = {"role": "assistant", "content": "42"}
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response(
            {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"]}
            | {"choices": [choice], "usage": usage}
        )

    @contextmanager
    def serving(self) -> Generator[None]:
        """In a thread of their own."""
        ready, loop = threading.Event(), asyncio.new_event_loop()

        async def start() -> web.AppRunner:
            app = web.Application()
            app.router.add_post("/v1/messages", self.messages)
            app.router.add_post(CHAT, self.chat)
            runner = web.AppRunner(app)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self.port).start()
            return runner

        def run() -> None:
            runner = loop.run_until_complete(start())
            ready.set()
            loop.run_forever()
            loop.run_until_complete(runner.cleanup())

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert ready.wait(60)
        try:
            yield
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)


@pytest.fixture(scope="module")
def translated(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Gateway, Providers]]:
    """RACER, LiteLLM behind it by the files of the folder, and the providers behind that."""
    if not LITELLM.exists():
        pytest.skip("LiteLLM is not installed: make setup-litellm")
    folder, port, providers = tmp_path_factory.mktemp("litellm"), free_port(), Providers()
    keys = {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o", "LITELLM_MASTER_KEY": "sk-between"}
    places = {
        "ANTHROPIC_API_BASE": f"http://127.0.0.1:{providers.port}",
        "OPENAI_BASE_URL": f"http://127.0.0.1:{providers.port}/v1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MODE": "PRODUCTION",
    }
    command = [str(LITELLM), "--config", str(FOLDER / "litellm.yaml"), "--telemetry", "False"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    written = with_ports("racer.yaml", folder, p4000=port)
    values = yaml.safe_load(written.read_text(encoding="utf-8"))
    ours = {"port": 0, "routing": {"fallback": "whole_pool"}, "fleet": {"failures": 1000}}
    written.write_text(yaml.safe_dump(values | ours), encoding="utf-8")
    with (
        providers.serving(),
        listening(command, port, {**os.environ, **keys, **places}, "/health/liveliness"),
        running(written, ENVIRONMENT | keys) as gateway,
    ):
        yield gateway, providers


@pytest.mark.slow
def test_a_provider_behind_litellm_is_a_candidate(translated: tuple[Gateway, Providers]) -> None:
    """One is called in its own format, system prompt and all, and both answers vote."""
    gateway, providers = translated
    providers.requests.clear()
    messages = [{"role": "system", "content": "Be brief."}, *user("What is 3 plus 4?")]
    body = {"model": "auto", "messages": messages, "temperature": 0, "racer": {"explain": True}}
    answer = gateway.post(CHAT, json=body).json()
    assert answer["racer"]["votes"] == {"42": 2.0}
    used = {name: answer["usage"][name] for name in CHAT_USAGE}  # beside LiteLLM's own details
    assert used == {"prompt_tokens": 20, "completion_tokens": 4, "total_tokens": 24}
    sent = dict(providers.requests)
    assert sent["/v1/messages"]["system"] == [{"type": "text", "text": "Be brief."}]
    assert sent["/v1/messages"]["model"] == "claude-sonnet-4-5"
    assert sent[CHAT]["model"] == "gpt-4.1-mini"
    assert sent[CHAT]["messages"] == messages
    assert {each["temperature"] for each in sent.values()} == {0}


@pytest.mark.slow
def test_a_failure_behind_litellm_is_that_candidates_own(
    translated: tuple[Gateway, Providers],
) -> None:
    """The other one answers, and the certificate says so."""
    gateway, providers = translated
    providers.status = 529
    try:
        answer = gateway.chat("What is 4 plus 5?")
    finally:
        providers.status = 200
    assert answer["racer"]["served_by"] == "gpt"
    failed = [each for each in answer["racer"]["calls"] if "error" in each]
    assert [each["candidate"] for each in failed] == ["claude"]
    assert "candidate_failed:claude" in answer["racer"]["certificate"]["reasons"]


# Envoy in front ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def candidates_of_envoy() -> Iterator[FakePool]:
    """Candidates behind the gateway that Envoy is in front of."""
    with FakePool() as pool:
        yield pool


@pytest.fixture(scope="module")
def front(
    tmp_path_factory: pytest.TempPathFactory, candidates_of_envoy: FakePool
) -> Iterator[Callable[..., httpx2.Client]]:
    """Makes clients of Envoy, with the guard and the gateway behind it."""
    if not ENVOY.exists():
        pytest.skip("Envoy is not installed: make setup-envoy")
    folder = tmp_path_factory.mktemp("envoy")
    path = configure(
        folder,
        Path("absent"),
        candidates_of_envoy.url,
        answer_cache={"temperature": "any"},
        applications={"shop": {"answer_cache": {"temperature": "any"}}},
    )
    listener, guard = free_port(), free_port()
    with running(path, ENVIRONMENT) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        written = with_ports("envoy.yaml", folder, p10000=listener, p9000=guard, p8080=port)
        guarding = [sys.executable, str(FOLDER / "guard.py"), str(guard)]
        command = [str(ENVOY), "--config-path", str(written), "--log-level", "error"]
        with (
            listening(guarding, guard),
            listening([*command, "--use-dynamic-base-id"], listener, path="/healthz"),
        ):

            def client(key: str | None = DATA_KEY) -> httpx2.Client:
                headers = {"authorization": f"Bearer {key}"} if key else {}
                url = f"http://127.0.0.1:{listener}"
                return httpx2.Client(base_url=url, headers=headers, trust_env=False, timeout=30)

            yield client


Front = Callable[..., httpx2.Client]


def body(text: str, **fields: Any) -> dict[str, Any]:
    """A chat request."""
    return {"model": "auto", "messages": user(text), **fields}


def test_what_the_guard_refuses_calls_no_candidate(
    front: Front, candidates_of_envoy: FakePool
) -> None:
    """The client gets the guard's own answer, in the envelope that OpenAI's clients read."""
    candidates_of_envoy.reset()
    with front() as client:
        refused = client.post(CHAT, json=body(CARD))
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "guardrail"
        assert candidates_of_envoy.requests == []
        passed = client.post(CHAT, json=body("What is 3 plus 4?"))
    assert passed.status_code == 200
    assert len(candidates_of_envoy.requests) == 1


def test_headers_pass_in_both_directions(front: Front) -> None:
    """Key, application, cache control and request id to the gateway; its own back to the client."""
    with front() as client:
        request = body("What is 30 plus 4?")
        named = {HEADER: "shop", "x-request-id": "the-clients-own"}
        first = client.post(CHAT, json=request, headers=named)
        assert first.headers["x-request-id"] == "the-clients-own"
        assert first.json()["racer"]["application"] == "shop"
        assert first.headers["x-racer-guarantee"].startswith("void; ")
        assert first.headers["x-racer-decision-id"] == first.json()["id"]
        fresh = {**named, "cache-control": "no-cache"}
        found = [client.post(CHAT, json=request, headers=each) for each in (named, fresh, {})]
        assert [each.headers["x-racer-cache"] for each in found] == ["hit", "miss", "miss"]
    with front("wrong") as client:
        refused = client.post(CHAT, json=request)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
    assert client.is_closed


def test_a_stream_is_not_held_back(front: Front, candidates_of_envoy: FakePool) -> None:
    """The first letter is there while the candidate still answers."""
    candidates_of_envoy.reset()
    candidates_of_envoy.say("adder", "seven", pause_s=0.3)
    with (
        front() as client,
        client.stream("POST", CHAT, json=body("What is 31 plus 4?", stream=True)) as response,
    ):
        lines = iter(response.iter_lines())
        first = next(line for line in lines if line.startswith("data: {"))
        assert '"s"' in first
        assert candidates_of_envoy.running == ["adder"]
        assert list(lines)[-2] == "data: [DONE]"


def test_without_the_guard_nothing_passes(tmp_path: Path, candidates_of_envoy: FakePool) -> None:
    """It fails closed, and so does a body that the guard would not see whole."""
    if not ENVOY.exists():
        pytest.skip("Envoy is not installed: make setup-envoy")
    candidates_of_envoy.reset()
    path = configure(tmp_path, Path("absent"), candidates_of_envoy.url)
    listener = free_port()
    with running(path, ENVIRONMENT) as gateway, socket.socket() as nothing:
        nothing.bind(("127.0.0.1", 0))  # bound, and does not listen
        port = int(gateway.url.rpartition(":")[2])
        ports = {"p10000": listener, "p9000": nothing.getsockname()[1], "p8080": port}
        written = with_ports("envoy.yaml", tmp_path, **ports)
        command = [str(ENVOY), "--config-path", str(written), "--log-level", "error"]
        with (
            listening([*command, "--use-dynamic-base-id"], listener, path="/healthz"),
            httpx2.Client(base_url=f"http://127.0.0.1:{listener}", trust_env=False) as client,
        ):
            headers = {"authorization": f"Bearer {DATA_KEY}"}
            closed = client.post(CHAT, json=body("What is 3 plus 4?"), headers=headers)
            assert closed.status_code == 503
            large = client.post(CHAT, json=body("x" * 2**20), headers=headers)
            assert large.status_code == 413
    assert candidates_of_envoy.requests == []
