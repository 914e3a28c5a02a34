"""The effect of every setting that a reload changes, on a request or on what it governs.

A setting that reloads and has no row here fails, and so does a row without such a setting. Each row
has two configurations, which differ in that setting, and what a probe sees under each. All run on a
few gateways, which go from one configuration to the next by reloads alone.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest

from app.monitoring.decisions import housekeeping
from app.settings.reloading import all_settings
from tests.kit.accounts import configured_key
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ENVIRONMENT,
    ONE,
    TWO,
    UNANSWERABLE,
    Gateway,
    as_json,
    candidates,
    configure,
    labelled,
    running,
    user,
)
from tests.kit.hostile.process import certify
from tests.kit.upstream import FakePool
from tests.kit.waiting import until, wait_until

Configuration = dict[str, Any]
Make = Callable[["Bench"], Configuration]
Probe = Callable[["Bench"], object]

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
SPELL = "Spell the number 3 and then 4"
OTHER_HASH = configured_key("other")[1]["hash"]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
_numbers = count(1)

STARTS: dict[str, Configuration] = {
    "plain": {},
    "fresh": {},  # not calibrated
    "keyed": {"routing": {"group_by": "key"}},
    "apps": {"applications": {"bot": {"keys": ["data"]}}},
}


@dataclass
class Bench:
    """Gateways under changing configurations, and what probes see through them."""

    folder: Path
    artifact: Path
    pool: FakePool  # every candidate says 42
    other: FakePool  # every candidate says "elsewhere"
    encrypted: str  # the URL of a server with a self-signed certificate
    stack: ExitStack
    kind: str = "plain"
    key: str = DATA_KEY  # of this row alone, known where its configuration lists `entry`
    entry: dict[str, Any] = field(default_factory=dict[str, Any])
    gateways: dict[str, Gateway] = field(default_factory=dict[str, Gateway])

    @property
    def gateway(self) -> Gateway:
        """The gateway of the row."""
        return self.gateways[self.kind]

    def begin(self, kind: str, row: Row) -> None:
        """Serve a row's first configuration, and make it a key."""
        self.pool.reset()
        self.kind = kind
        self.key, self.entry = configured_key(f"team{next(_numbers)}")
        if kind not in self.gateways:
            environment = ENVIRONMENT | {"KEY_A": "a", "KEY_B": "b"}
            gateway = self.stack.enter_context(running(self._write({}), environment))
            self.gateways[kind] = gateway
            rows = as_json(labelled(10_000, 60))
            if kind == "apps":
                rows = [each | {"application": "bot"} for each in rows]
            if kind != "fresh":
                gateway.upload(rows)
        self.take(row.before)

    def take(self, make: Make) -> list[str]:
        """Take a configuration over by a reload; the settings that changed."""
        self._write(make(self))
        response = self.gateway.post("/admin/reload", ADMIN_KEY)
        assert response.status_code == 200, response.text
        return response.json()["changed"]

    def _write(self, changes: Configuration) -> Path:
        start = {"access": {"failures_per_minute": 1_000}} | STARTS[self.kind]
        for name, each in changes.items():
            is_section = isinstance(each, dict) and name != "applications"
            start[name] = start.get(name, {}) | each if is_section else each
        path = configure(self.folder / self.kind, self.artifact, self.pool.url, **start)
        return path

    def asks(self, text: str = ONE, key: str = DATA_KEY, **request: Any) -> Any:
        """A chat request."""
        headers = request.pop("headers", {})
        body = {"model": "auto", "messages": user(text), **request}
        return self.gateway.post("/v1/chat/completions", key, json=body, headers=headers)

    def decision(self, text: str = ONE, **request: Any) -> dict[str, Any]:
        """The stored decision of an answered request."""
        answered = self.asks(text, **request)
        assert answered.status_code == 200, answered.text
        place = f"/decisions/{answered.headers['x-racer-decision-id']}"
        found: dict[str, Any] = {}

        def is_stored() -> bool:
            response = self.gateway.get(place, ADMIN_KEY)
            found.update(response.json() if response.status_code == 200 else {})
            return bool(found)

        wait_until(is_stored)
        return found


# Configurations ---------------------------------------------------------------------------------


def of(section: str, **settings: Any) -> Make:
    """Settings of one section; none: as it starts."""
    return lambda bench: {section: settings}


def fleet(**settings: Any) -> Make:
    """Settings of all candidates, or of single ones by name."""
    return lambda bench: {"candidates": candidates(bench.pool.url, **settings)}


def key(**settings: Any) -> Make:
    """Settings of the row's API key."""
    return lambda bench: {"access": {"keys": [bench.entry | settings]}}


def both(*makes: Make) -> Make:
    """Several sections."""
    return lambda bench: {name: each for make in makes for name, each in make(bench).items()}


def apps(**settings: Any) -> Make:
    """Settings of the application `bot`, whose key is the data key."""
    return lambda bench: {"applications": {"bot": {"keys": ["data"]} | settings}}


def priced(**price: float) -> Make:
    """The price of all candidates."""
    return fleet(price=price)


usual: Make = lambda bench: {}  # noqa: E731 - a configuration like the others
call = {"price": {"call": 1}}


def money(**budget: Any) -> Make:
    """The budget of all requests, where each call costs 1."""
    return both(fleet(**call), of("budget", **budget) if budget else usual)


# Probes -----------------------------------------------------------------------------------------


def status(*args: Any, **request: Any) -> Probe:
    """The status of a chat request."""
    return lambda bench: bench.asks(*args, **request).status_code


def content(bench: Bench) -> object:
    """The answer."""
    return bench.asks().json()["choices"][0]["message"]["content"]


def agreeing(bench: Bench) -> object:
    """How many of two answers that state one number vote alike."""
    bench.pool.say("adder", "7")
    bench.pool.say("speller", "The sum is 7")
    return max(bench.asks(TWO, racer={"explain": True}).json()["racer"]["votes"].values())


def header(name: str, *args: Any, **request: Any) -> Probe:
    """A header of the answer."""
    return lambda bench: bench.asks(*args, **request).headers.get(name)


def sent(name: str) -> Probe:
    """A header of the call to a candidate."""

    def probe(bench: Bench) -> object:
        bench.pool.reset()
        bench.asks()
        return bench.pool.headers[-1].get(name)

    return probe


def pool(**request: Any) -> Probe:
    """The candidates among which the set of a request is chosen."""
    body = {"messages": user(ONE), **request}
    return lambda bench: ",".join(bench.gateway.decide(**body)["guarantee"]["pool"])


def cost(bench: Bench) -> object:
    """What an answer costs: ten tokens in, of which four are cached, and two out."""
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    usage |= {"prompt_tokens_details": {"cached_tokens": 4}}  # type: ignore[dict-item]
    bench.pool.say("adder", "42", fields={"usage": usage})
    return bench.asks().json()["racer"]["cost"]["cost"]


def costs_over(amount: float) -> Probe:
    """Whether it costs more than some amount: what a GPU's time costs differs each time."""

    def probe(bench: Bench) -> object:
        found = cost(bench)
        assert isinstance(found, float | int)
        return found > amount

    return probe


def of_decision(name: str, **request: Any) -> Probe:
    """A field of the stored decision."""
    return lambda bench: bench.decision(**request).get(name)


def of_team(probe: Callable[..., object], *args: Any, **request: Any) -> Probe:
    """A probe that asks with the row's own key."""
    return lambda bench: probe(*args, key=bench.key, **request)(bench)  # type: ignore[operator]


def evidence(name: str, **options: Any) -> Probe:
    """A field of the evidence of rows that no one saw before."""

    def probe(bench: Bench) -> object:
        rows = as_json(labelled(100_000 * next(_numbers), 60))
        return bench.gateway.upload(rows, dry_run=True, **options)["evidence"][name]

    return probe


def last_of(times: int, probe: Probe) -> Probe:
    """What a probe sees at last."""
    return lambda bench: [probe(bench) for _ in range(times)][-1]


def outlasts_a_slow_candidate(bench: Bench) -> object:
    """The status where a candidate takes one second."""
    gate = threading.Event()
    for name in ("adder", "speller", "poet"):
        bench.pool.say(name, "42", gate=gate)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(bench.asks)
        until(asked.done, 1.0)
        gate.set()
        return asked.result().status_code


def at_once(model: str) -> Probe:
    """How many of two calls a candidate answers at the same time."""

    def probe(bench: Bench) -> object:
        bench.pool.reset()
        gate = threading.Event()
        bench.pool.say("adder", "42", gate=gate)
        with ThreadPoolExecutor(2) as threads:
            asked = [threads.submit(bench.asks, model=model) for _ in range(2)]
            until(lambda: len(bench.pool.running) == 2, 1.0)
            peak = len(bench.pool.running)
            gate.set()
            assert [each.result().status_code for each in asked] == [200, 200]
        return peak

    return probe


def beside_another(request: Callable[[Bench], Any]) -> Probe:
    """The status of a request while another one of its kind is being answered."""

    def probe(bench: Bench) -> object:
        bench.pool.reset()
        gate = threading.Event()
        bench.pool.say("adder", "42", gate=gate)
        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(request, bench)
            wait_until(lambda: len(bench.pool.running) == 1)
            second = threads.submit(request, bench)
            until(lambda: second.done() or len(bench.pool.running) == 2, 5.0)
            gate.set()
            assert first.result().status_code == 200
            return second.result().status_code

    return probe


def comments(bench: Bench) -> object:
    """Whether a stream that waits for a second has comments."""
    gate = threading.Event()
    bench.pool.say("adder", "42", gate=gate)
    timer = threading.Timer(1.0, gate.set)
    timer.start()
    response = bench.asks(TWO, stream=True)
    timer.join()
    return "\n: " in f"\n{response.text.partition('data: ')[0]}"


def scored(bench: Bench) -> object:
    """How many of three equal requests the router scores."""
    before = bench.gateway.metric("racer_router_seconds_count")
    text = f"What is {next(_numbers)} plus {next(_numbers)}?"
    for _ in range(3):
        bench.gateway.route(text)
    return bench.gateway.metric("racer_router_seconds_count") - before


def session(bench: Bench) -> object:
    """Who is called of two who are equally good, after a turn that was the speller's."""
    headers = {"x-session-id": f"session{next(_numbers)}"}
    one = {"headers": headers, "racer": {"score": "cover"}}
    bench.asks(SPELL, **one)
    told = [*user(SPELL), {"role": "assistant", "content": "42"}]
    return bench.asks(messages=[*told, *user(TWO)], **one).headers["x-racer-selected"]


def kept(bench: Bench) -> object:
    """Whether a decision is still stored after another one and a round of housekeeping."""
    first = bench.decision()["decision_id"]
    bench.decision()

    def is_gone() -> bool:
        return bench.gateway.get(f"/decisions/{first}", ADMIN_KEY).status_code == 404

    return not until(is_gone, 1.0)


def logged(bench: Bench) -> object:
    """Whether the log has the question."""
    text, lines = f"What is {next(_numbers)} plus 5?", list[str]()

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(str(record.__dict__))

    handler, root = Lines(), logging.getLogger()
    levels = {each: each.level for each in (root, logging.getLogger("app"))}
    root.addHandler(handler)
    for each in levels:
        each.setLevel(logging.INFO)
    try:
        bench.asks(text)
        return until(lambda: any(text in each for each in lines), 1.0)  # it is logged afterwards
    finally:
        root.removeHandler(handler)
        for each, level in levels.items():
            each.setLevel(level)


def slots(bench: Bench) -> object:
    """Whether the third connection of this machine is closed after its answer: it has no place."""
    host, port = bench.gateway.url.removeprefix("http://").split(":")
    with ExitStack() as stack:
        made = [socket.create_connection((host, int(port)), 2.0) for _ in range(3)]
        for each in made:
            stack.enter_context(each)
        made[-1].sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        said = b""
        with suppress(TimeoutError):
            while piece := made[-1].recv(4096):
                said += piece
            return said.startswith(b"HTTP/1.1 200")
        return False


def period(name: str) -> Probe:
    """What GET /budgets says of the budget of all requests."""

    def probe(bench: Bench) -> object:
        found = bench.gateway.get("/budgets", ADMIN_KEY).json()["budgets"]
        return next(each for each in found if each["budget"] == "all")[name]

    return probe


def zone(bench: Bench) -> object:
    """The time zone in which the period ends."""
    return str(period("ends_at")(bench))[-6:]


def reasons(*args: Any, **request: Any) -> Probe:
    """The reasons of a certificate, but for those of a repeated query."""

    def probe(bench: Bench) -> object:
        certificate = bench.asks(*args, **request).json()["racer"]["certificate"]
        return ",".join(certificate["reasons"])

    return probe


def counted_feedback(bench: Bench) -> object:
    """Whether the verdict of a data key counts."""
    place = {"decision_id": bench.decision()["decision_id"], "correct": {"adder": True}}
    return not bench.gateway.post("/feedback", json=place).json()["waiting"]


def sampled(bench: Bench) -> object:
    """The rate at which requests are drawn for the shadow sample."""
    drift = bench.gateway.get("/drift", ADMIN_KEY).json()
    report = drift["applications"]["bot"] if "applications" in drift else drift
    return report["shadow"]["rate"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """Two configurations, and what a probe sees under them."""

    probe: Probe
    seen: tuple[object, object]
    before: Make = usual
    after: Make
    gateway: str = "plain"
    is_changed: str | None = None  # the place that the reload names; None: below the row's name


LARGE = "x " * 80_000
QUESTION = {"role": "user", "content": ONE}
SMALL = {"candidates": ["adder"]}
EMBED = {"model": "adder", "input": "one"}

ROWS: dict[str, Row] = {
    "candidates[].base_url": Row(
        probe=content,
        seen=("42", "elsewhere"),
        after=lambda bench: {"candidates": candidates(bench.other.url)},
    ),
    "candidates[].base_urls": Row(
        probe=content,
        seen=("42", "elsewhere"),
        after=lambda bench: {
            "candidates": candidates("", base_url=None, base_urls=[bench.other.url])
        },
    ),
    "candidates[].api_key_env": Row(
        probe=sent("authorization"),
        seen=("Bearer a", "Bearer b"),
        before=fleet(api_key_env="KEY_A"),
        after=fleet(api_key_env="KEY_B"),
    ),
    "candidates[].key_header": Row(
        probe=sent("x-api-key"),
        seen=(None, "a"),
        before=fleet(api_key_env="KEY_A"),
        after=fleet(api_key_env="KEY_A", key_header="x-api-key"),
    ),
    "candidates[].headers": Row(
        probe=sent("x-own"), seen=(None, "a"), after=fleet(headers={"x-own": "a"})
    ),
    "candidates[].timeout_s": Row(
        probe=outlasts_a_slow_candidate,
        seen=(504, 200),
        before=fleet(timeout_s=0.05),
        after=fleet(timeout_s=60),
    ),
    "candidates[].concurrency": Row(
        probe=at_once("adder"), seen=(1, 2), before=fleet(concurrency=1), after=fleet(concurrency=2)
    ),
    "candidates[].price.input": Row(
        probe=cost, seen=(1, 11), before=priced(call=1), after=priced(call=1, input=1e6)
    ),
    "candidates[].price.cached_input": Row(
        probe=cost,
        seen=(10, 6),
        before=priced(input=1e6),
        after=priced(input=1e6, cached_input=0),
    ),
    "candidates[].price.output": Row(
        probe=cost, seen=(1, 3), before=priced(call=1), after=priced(call=1, output=1e6)
    ),
    "candidates[].price.call": Row(
        probe=cost, seen=(1, 2), before=priced(call=1), after=priced(call=2)
    ),
    "candidates[].price.gpu_second": Row(
        probe=costs_over(1.0),
        seen=(False, True),
        before=priced(call=1),
        after=priced(call=1, gpu_second=1),
    ),
    "candidates[].price.gpus": Row(
        probe=costs_over(1e5),
        seen=(False, True),
        before=priced(gpu_second=1),
        after=priced(gpu_second=1, gpus=1e12),
    ),
    "candidates[].capabilities.tools": Row(
        probe=pool(tools=TOOLS),
        seen=("adder,speller,poet", "speller,poet"),
        after=fleet(adder={"capabilities": {"tools": False}}),
    ),
    "candidates[].capabilities.vision": Row(
        probe=pool(
            messages=[{"role": "user", "content": [PICTURE, {"type": "text", "text": ONE}]}]
        ),
        seen=("adder,speller,poet", "speller,poet"),
        after=fleet(adder={"capabilities": {"vision": False}}),
    ),
    "candidates[].capabilities.json_schema": Row(
        probe=pool(
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "object"}},
            }
        ),
        seen=("adder,speller,poet", "speller,poet"),
        after=fleet(adder={"capabilities": {"json_schema": False}}),
    ),
    "candidates[].capabilities.context_chars": Row(
        probe=pool(),
        seen=("adder,speller,poet", "speller,poet"),
        after=fleet(adder={"capabilities": {"context_chars": 3}}),
    ),
    "candidates[].verify_tls": Row(
        probe=status(),
        seen=(502, 200),
        before=lambda bench: {"candidates": candidates(bench.encrypted)},
        after=lambda bench: {"candidates": candidates(bench.encrypted, verify_tls=False)},
    ),
    "budget.per": Row(
        probe=period("per"),
        seen=("month", "day"),
        before=money(hard=1e9),
        after=money(hard=1e9, per="day"),
    ),
    "budget.time_zone": Row(
        probe=zone,
        seen=("+00:00", "+09:00"),
        before=money(hard=1e9),
        after=money(hard=1e9, time_zone="Asia/Tokyo"),
    ),
    "budget.soft": Row(
        probe=last_of(2, header("x-racer-selected", TWO)),
        seen=("adder,speller", "adder"),
        before=money(hard=1e9, soft=1e8, above_soft="cheapest"),
        after=money(hard=1e9, soft=1e-6, above_soft="cheapest"),
    ),
    "budget.hard": Row(
        probe=last_of(2, status()), seen=(200, 429), before=money(hard=1e9), after=money(hard=1e-6)
    ),
    "budget.above_soft": Row(
        probe=last_of(2, header("x-racer-selected", TWO)),
        seen=("adder,speller", "adder"),
        before=money(soft=1e-6),
        after=money(soft=1e-6, above_soft="cheapest"),
    ),
    "pools.<name>.candidates": Row(
        probe=header("x-racer-selected", model="auto/small"),
        seen=("adder", "poet"),
        before=of("pools", small=SMALL),
        after=of("pools", small={"candidates": ["poet"]}),
    ),
    "pools.<name>.alpha": Row(
        probe=header("x-racer-alpha", model="auto/small"),
        seen=("0.1", "0.2"),
        before=of("pools", small=SMALL),
        after=of("pools", small=SMALL | {"alpha": 0.2}),
    ),
    "pools.<name>.budget": Row(
        probe=status(model="auto/small"),
        seen=(200, 429),
        before=both(fleet(**call), of("pools", small=SMALL)),
        after=both(fleet(**call), of("pools", small=SMALL | {"budget": {"hard": 1e-6}})),
    ),
    "applications.<name>.alpha": Row(
        probe=header("x-racer-alpha"), seen=("0.1", "0.2"), after=apps(alpha=0.2), gateway="apps"
    ),
    "applications.<name>.on_uncovered": Row(
        probe=header("x-racer-selected", temperature=0.5),
        seen=("adder", "poet"),
        after=apps(on_uncovered="poet"),
        gateway="apps",
    ),
    "applications.<name>.shadow_rate": Row(
        probe=sampled, seen=(0.0, 0.5), after=apps(shadow_rate=0.5), gateway="apps"
    ),
    "applications.<name>.budget": Row(
        probe=status(),
        seen=(200, 429),
        before=both(fleet(**call), apps()),
        after=both(fleet(**call), apps(budget={"hard": 1e-6})),
        gateway="apps",
    ),
    "embeddings": Row(
        probe=lambda bench: (
            bench.gateway.post("/v1/embeddings", json={"model": "auto", "input": "one"}).status_code
        ),
        seen=(404, 200),
        after=lambda bench: {"embeddings": "adder"},
    ),
    "examples": Row(
        probe=lambda bench: len(bench.gateway.get("/examples").json()["examples"]),
        seen=(0, 1),
        after=lambda bench: {"examples": ["What is 3 plus 4?"]},
    ),
    "aggregation.equality": Row(
        probe=agreeing, seen=(1, 2), after=of("aggregation", equality="number")
    ),
    "routing.alpha": Row(
        probe=header("x-racer-alpha"), seen=("0.1", "0.05"), after=of("routing", alpha=0.05)
    ),
    "routing.levels": Row(
        probe=evidence("alpha_basis", alpha=0.07),
        seen=("band", "declared"),
        after=of("routing", levels=[0.07]),
    ),
    "routing.score": Row(
        probe=evidence("score"), seen=("gap", "prob"), after=of("routing", score="prob")
    ),
    "routing.risk_target": Row(
        probe=evidence("risk_target"),
        seen=("answerable", "paper"),
        after=of("routing", risk_target="paper"),
    ),
    "routing.on_abstain": Row(
        probe=status(UNANSWERABLE), seen=(200, 422), after=of("routing", on_abstain="error")
    ),
    "routing.on_infeasible": Row(
        probe=status(racer={"alpha": 0.001}),
        seen=(200, 409),
        after=of("routing", on_infeasible="reject"),
    ),
    "routing.fallback": Row(
        probe=header("x-racer-selected"),
        seen=("adder", "poet"),
        after=of("routing", fallback="poet"),
        gateway="fresh",
    ),
    "routing.on_uncovered": Row(
        probe=header("x-racer-selected", temperature=0.5),
        seen=("adder", "poet"),
        after=of("routing", on_uncovered="poet"),
    ),
    "routing.observe": Row(
        probe=header("x-racer-served-by"),
        seen=("adder", "poet"),
        after=of("routing", observe="poet"),
    ),
    "routing.session_ttl_s": Row(
        probe=session, seen=("adder", "speller"), after=of("routing", session_ttl_s=600)
    ),
    "access.keys[].name": Row(
        probe=of_team(lambda **request: of_decision("key", **request)),
        seen=("before", "after"),
        before=key(name="before"),
        after=key(name="after"),
        is_changed="access.keys.after",
    ),
    "access.keys[].role": Row(
        probe=lambda bench: bench.gateway.get("/calibrations", bench.key).status_code,
        seen=(403, 200),
        before=key(),
        after=key(role="admin"),
    ),
    "access.keys[].hash": Row(
        probe=of_team(status), seen=(200, 401), before=key(), after=key(hash=OTHER_HASH)
    ),
    "access.keys[].requests_per_minute": Row(
        probe=lambda bench: last_of(2, of_team(status))(bench),
        seen=(200, 429),
        before=key(),
        after=key(requests_per_minute=1),
    ),
    "access.keys[].tokens_per_minute": Row(
        probe=lambda bench: last_of(2, of_team(status))(bench),
        seen=(200, 429),
        before=key(),
        after=key(tokens_per_minute=1),
    ),
    "access.keys[].concurrency": Row(
        probe=beside_another(lambda bench: bench.asks(key=bench.key)),
        seen=(200, 429),
        before=key(),
        after=key(concurrency=1),
    ),
    "access.keys[].max_alpha": Row(
        probe=of_team(status, racer={"alpha": 0.3}),
        seen=(200, 403),
        before=key(),
        after=key(max_alpha=0.2),
    ),
    "access.keys[].group": Row(
        probe=of_team(lambda **request: of_decision("group", **request)),
        seen=(None, "a"),
        before=key(),
        after=key(group="a"),
        gateway="keyed",
    ),
    "access.keys[].candidates": Row(
        probe=lambda bench: bench.gateway.post("/route", bench.key, json={"query": ONE}).json()[
            "certificate"
        ]["guarantee"]["pool"],
        seen=(["adder", "speller", "poet"], ["poet"]),
        before=key(),
        after=key(candidates=["poet"]),
    ),
    "access.keys[].budget": Row(
        probe=of_team(status),
        seen=(200, 429),
        before=both(fleet(**call), key()),
        after=both(fleet(**call), key(budget={"hard": 1e-6})),
    ),
    "access.hosts": Row(
        probe=status(headers={"host": "a.example"}),
        seen=(400, 200),
        after=of("access", hosts=["a.example"]),
    ),
    "access.failures_per_minute": Row(
        probe=last_of(3, status(key="wrong")),
        seen=(401, 429),
        after=of("access", failures_per_minute=2),
    ),
    "limits.body_bytes": Row(probe=status(), seen=(200, 413), after=of("limits", body_bytes=50)),
    "limits.body_buffer_bytes": Row(
        probe=status(LARGE), seen=(200, 413), after=of("limits", body_buffer_bytes=1_000)
    ),
    "limits.upload_bytes": Row(
        probe=lambda bench: (
            bench.gateway.post(
                "/calibrate",
                ADMIN_KEY,
                json={"rows": as_json(labelled(70_000, 60)), "dry_run": True},
            ).status_code
        ),
        seen=(200, 413),
        after=of("limits", upload_bytes=100),
    ),
    "limits.messages": Row(
        probe=status(messages=[QUESTION] * 2), seen=(200, 400), after=of("limits", messages=1)
    ),
    "limits.tools": Row(
        probe=status(tools=TOOLS * 2), seen=(200, 400), after=of("limits", tools=1)
    ),
    "limits.choices": Row(
        probe=status(model="adder", n=2), seen=(200, 400), after=of("limits", choices=1)
    ),
    "limits.max_tokens": Row(
        probe=status(max_tokens=11), seen=(200, 400), after=of("limits", max_tokens=10)
    ),
    "limits.fan_out": Row(
        probe=header("x-racer-selected", TWO),
        seen=("adder,speller", "adder"),
        after=of("limits", fan_out=1),
    ),
    "limits.connections_per_address": Row(
        probe=slots, seen=(False, True), after=of("limits", connections_per_address=1)
    ),
    "limits.in_flight": Row(
        probe=beside_another(Bench.asks), seen=(200, 429), after=of("limits", in_flight=1)
    ),
    "limits.decisions_kept": Row(
        probe=scored, seen=(1.0, 3.0), after=of("limits", decisions_kept=0)
    ),
    "limits.comment_every_s": Row(
        probe=comments,
        seen=(False, True),
        before=of("limits", comment_every_s=1_000),
        after=of("limits", comment_every_s=0.02),
    ),
    "watching.store_queries": Row(
        probe=of_decision("query"), seen=(None, ONE), after=of("watching", store_queries=True)
    ),
    "watching.keep_days": Row(probe=kept, seen=(True, False), after=of("watching", keep_days=1e-9)),
    "watching.keep_rows": Row(probe=kept, seen=(True, False), after=of("watching", keep_rows=1)),
    "watching.feedback": Row(
        probe=counted_feedback, seen=(False, True), after=of("watching", feedback="all")
    ),
    "watching.shadow_rate": Row(
        probe=sampled, seen=(0.0, 0.5), after=of("watching", shadow_rate=0.5)
    ),
    "watching.shadow_calls_per_day": Row(
        probe=lambda bench: until(lambda: sampled(bench) != 0.5, 1.0),
        seen=(False, True),
        before=of("watching", shadow_rate=0.5),
        after=of("watching", shadow_rate=0.5, shadow_calls_per_day=1),
    ),
    "watching.expire_after_days": Row(
        probe=reasons(), seen=("", "stale:age"), after=of("watching", expire_after_days=1e-9)
    ),
    "telemetry.log_prompts": Row(
        probe=logged, seen=(False, True), after=of("telemetry", log_prompts=True)
    ),
    "limits.route_timeout_s": Row(  # the last: the router is out for a while
        probe=lambda bench: (
            "router"
            in str(
                bench.gateway.route(f"What is {next(_numbers)} plus 6?")["certificate"]["reasons"]
            )
        ),
        seen=(False, True),
        after=of("limits", route_timeout_s=1e-9),
    ),
}


class Encrypted(BaseHTTPRequestHandler):
    """Answers every call with 42."""

    body: ClassVar = (
        b'{"choices": [{"index": 0, "finish_reason": "stop", '
        b'"message": {"role": "assistant", "content": "42"}}]}'
    )

    def do_POST(self) -> None:
        """Read the call, and answer."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def bench(
    tmp_path_factory: pytest.TempPathFactory, artifact: Path, shared_pool: FakePool
) -> Iterator[Bench]:
    """All gateways, with a round of housekeeping each twentieth of a second."""
    folder = tmp_path_factory.mktemp("reloaded")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certify(folder))
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(housekeeping, "EVERY_S", 0.05)
        other = stack.enter_context(FakePool(answer=lambda _: "elsewhere"))
        server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Encrypted))
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        url = f"https://127.0.0.1:{server.server_port}"
        yield Bench(folder, artifact, shared_pool, other, url, stack)


def test_every_setting_that_reloads_has_a_row() -> None:
    """And no other has: a new setting needs one before it is listed as reloaded."""
    assert set(ROWS) == {each.name for each in all_settings() if each.is_reloaded}


@pytest.mark.parametrize("name", ROWS)
def test_a_reload_has_its_effect(bench: Bench, name: str) -> None:
    """Of one setting, on a request or on what it governs, and back."""
    row = ROWS[name]
    bench.begin(row.gateway, row)
    try:
        before = row.probe(bench)
        changed = bench.take(row.after)
        assert changed, "nothing changed"
        assert (before, row.probe(bench)) == row.seen
    finally:
        bench.take(usual)
