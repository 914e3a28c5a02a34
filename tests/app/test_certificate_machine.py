"""Model-based test: no history of a gateway holds a certificate that an independent judge denies.

``RACER_MACHINE_SECONDS=3600 pytest -s tests/app/test_certificate_machine.py`` searches for an hour
with fresh seeds.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
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

from app.monitoring.drift_store import DriftStore
from app.routing.conditions import ConditionReader
from app.settings import key_format
from app.store import Store
from racer_core.calibration.monitoring import DriftState
from tests.support.certificate_judge import (
    KnownCalibration,
    LabelledPart,
    Observation,
    denial,
    read_body,
)
from tests.support.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ENVIRONMENT,
    POOL,
    SKILLS,
    Gateway,
    candidates,
    configure,
    running,
)
from tests.support.histories import (
    ALIASES,
    CHANGES,
    LATER,
    SCRIPTS,
    TEMPLATES,
    USUAL,
    certified,
    groups,
    labels,
    messages,
    requests,
    some_requests,
)
from tests.upstreams.scripted import FakePool, Script

SECONDS: Final = int(os.environ.get("RACER_MACHINE_SECONDS", "0"))
NOWHERE: Final = "http://127.0.0.1:9/v1"  # refuses connections
KEYS: Final = {None: DATA_KEY, "a": "key-of-group-a", "c": "key-of-group-c"}
SALT: Final = key_format.new_salt()
LONG: Final = 300  # characters of a long query, more than `query_chars` in some settings

TOTALS: Counter[str] = Counter()


class CertificateMachine(RuleBasedStateMachine):
    """A gateway with scripted candidates, and what the judge knows of both."""

    artifact: ClassVar[Path]
    pool: ClassVar[FakePool]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="racer-machine-"))
        self.settings = dict(USUAL)
        self.calibrations: dict[str, KnownCalibration] = {}
        # Rows that were labelled once: the digests, what was sent, whether they are later turns.
        self.labelled: list[tuple[dict[str, str], dict[str, str], dict[str, Any]]] = []
        self.active: str | None = None
        self.alarmed: set[str] = set()
        self.failing: set[str] = set()
        self.number = 700_000
        self.stack = ExitStack()
        self.pool.reset()
        TOTALS["histories"] += 1

    # The gateway --------------------------------------------------------------------------------

    @initialize(count=st.sampled_from([40, 60]))
    def begin(self, count: int) -> None:
        """A gateway with an ordinary calibration."""
        self.start()
        self.upload([(None, None, count)], alpha=0.1, wrong_every=4)

    def start(self) -> None:
        """Start the gateway with the current settings."""
        now = self.settings
        own: dict[str, Any] = {"adder": {"parameters": now["parameters"] | now["own"]}}
        own["speller"] = {"model": now["model"]}
        own["poet"] = {"capabilities": {"tools": not now["toolless"]}}
        if now["gone"] is not None:
            own[now["gone"]] |= {"base_url": NOWHERE}
        shared = {"parameters": now["parameters"], "renames": now["renames"]}
        names = ("group_by", "text", "observe", "session_ttl_s")
        path = configure(
            self.folder,
            self.artifact,
            self.pool.url,
            candidates=candidates(self.pool.url, **own, **shared),
            routing={name: now[name] for name in names} | {"score": "gap"},
            watching={"false_alarm": now["false_alarm"]},
            limits={"fan_out": now["fan_out"], "query_chars": now["query_chars"]},
            pools={"pair": {"candidates": ["adder", "speller"]}},
            access={
                "keys": [
                    {
                        "name": f"of-{group}",
                        "group": group,
                        "hash": key_format.format_hash(key, SALT),
                    }
                    for group, key in KEYS.items()
                    if group is not None
                ]
            },
        )
        self.gateway: Gateway = self.stack.enter_context(running(path, ENVIRONMENT))
        self.failing = {now["gone"]} - {None}

    def teardown(self) -> None:
        """Stop the gateway."""
        self.stack.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @invariant()
    def count_step(self) -> None:
        """Count the steps of all histories."""
        self.note("steps")

    @rule(changes=st.lists(st.sampled_from(CHANGES), min_size=1, max_size=2), then=some_requests)
    def restart(self, changes: list[dict[str, Any]], then: list[dict[str, Any]]) -> None:
        """Restart with other settings."""
        self.stack.close()
        self.stack = ExitStack()
        for change in changes:
            self.settings |= change
        self.start()
        self.active = self.gateway.ready().get("calibration")
        self.note("restarts")
        if self.active is None:  # its rows are those of another model
            self.upload([(None, None, 40)], alpha=0.1, wrong_every=4)
        self.ask(then)

    # Calibrations -------------------------------------------------------------------------------

    @rule(
        parts=st.lists(
            st.tuples(st.none() | labels | st.integers(0, 5), groups, st.sampled_from([4, 20, 40])),
            min_size=1,
            max_size=3,
        ),
        alpha=st.sampled_from([0.1, 0.1, 0.2, 0.02]),
        wrong_every=st.sampled_from([0, 4, 10]),
        activate=st.sampled_from([True, True, True, False]),
        then=some_requests,
    )
    def calibrate(
        self,
        parts: list[tuple[Any, str | None, int]],
        alpha: float,
        wrong_every: int,
        activate: bool,
        then: list[dict[str, Any]],
    ) -> None:
        """Upload rows that were labelled now, or before a restart."""
        self.upload(parts, alpha=alpha, wrong_every=wrong_every, activate=activate)
        self.ask(then)

    def upload(
        self,
        parts: list[tuple[Any, str | None, int]],
        *,
        alpha: float,
        wrong_every: int,
        activate: bool = True,
    ) -> None:
        """Calibrate on parts: how they were labelled, their group and their number of rows."""
        rows: list[dict[str, Any]] = []
        known: list[LabelledPart] = []
        for label, group, count in parts:
            digests, sent, shape = self.labels(label)
            if sent is None:
                continue
            for _ in range(count):
                template = TEMPLATES[len(rows) % len(TEMPLATES)]
                text, right = self.text(template), SKILLS[template]
                wrong = wrong_every > 0 and len(rows) % wrong_every == 0
                row: dict[str, Any] = {"correct": {n: (n in right) != wrong for n in POOL}}
                row |= (
                    {"messages": messages("earlier", text)} if shape["later"] else {"query": text}
                )
                row |= {"conditions": digests} if digests else {}
                rows.append(row | ({"group": group} if group else {}))
            known.append(
                LabelledPart(sent=sent, is_later=shape["later"], groups=Counter({group: count}))
            )
        body = {"rows": rows, "alpha": alpha, "activate": activate, "confirm": True}
        response = self.gateway.post("/calibrate", ADMIN_KEY, json=body)
        self.note("uploads" if response.status_code == 200 else f"upload {response.status_code}")
        if response.status_code == 200:
            name = response.json()["id"]
            now = self.settings
            self.calibrations[name] = KnownCalibration(
                parts=known, group_by=now["group_by"], text=now["text"]
            )
            if response.json()["active"]:
                self.active = name

    def labels(self, label: Any) -> tuple[dict[str, str], Any, dict[str, Any]]:
        """Digests for rows, what candidates are sent for them, and the kind of their turns.

        Args:
            label: How they are labelled now; None: as configured, without digests; a number: those
                of an earlier upload, if there was one.
        """
        if isinstance(label, int):
            if self.labelled:
                return self.labelled[label % len(self.labelled)]
            label = None
        asked = label or {"surface": "chat", "turns": "plain", "fields": {}}
        path, body = self.body(asked, self.text(TEMPLATES[0]))
        sent = {name: self.sent_to(name, path, body) for name in POOL}
        if any(len(each) != 1 for each in sent.values()):
            return {}, None, {}
        bodies = {name: min(each) for name, each in sent.items()}
        if label is None:
            return {}, bodies, {"later": False}
        reader = ConditionReader(self.gateway.settings.candidates)
        fields = {name: value for name, value in body.items() if name not in ("model", "stream")}
        if asked["surface"] == "responses":
            fields["store"] = False
        digests = dict(reader.read(fields, path.removeprefix("/v1/")).digests)
        self.labelled.append((digests, bodies, {"later": asked["turns"] in LATER}))
        return self.labelled[-1]

    @precondition(lambda self: self.calibrations)
    @rule(place=st.integers(0, 5), then=some_requests)
    def roll_back(self, place: int, then: list[dict[str, Any]]) -> None:
        """Make a stored calibration the active one, and ask."""
        self.activate(place)
        self.ask(then)

    def activate(self, place: int) -> None:
        """Make a stored calibration the active one."""
        name = [*self.calibrations][place % len(self.calibrations)]
        path = f"/calibrations/{name}/activate"
        response = self.gateway.post(path, ADMIN_KEY, json={"confirm": True})
        if response.status_code == 200:
            self.active = name
        self.note("activations")

    # Drift and outages --------------------------------------------------------------------------

    @precondition(lambda self: self.active and self.settings["false_alarm"])
    @rule(stream=st.integers(0, 5), then=some_requests)
    def raise_alarm(self, stream: int, then: list[dict[str, Any]]) -> None:
        """Raise a drift alarm of the active calibration."""
        assert self.active
        self.gateway.get("/drift", ADMIN_KEY)
        with (
            Store(self.gateway.settings.store) as store,
            DriftStore(store).updating(self.active, new=_no_streams) as stored,
        ):
            streams = [*stored.state.streams.values()]
            streams[stream % len(streams)].wager.log_peak = 1e6
        assert self.gateway.get("/drift", ADMIN_KEY).json()["alarms"]["raised"]
        self.alarmed.add(self.active)
        self.note("alarms")
        self.ask(then)

    @precondition(lambda self: self.active in self.alarmed and self.settings["false_alarm"])
    @rule()
    def reset_alarms(self) -> None:
        """Begin the alarms of the active calibration again."""
        assert self.active
        self.gateway.post("/drift/reset", ADMIN_KEY).raise_for_status()
        self.alarmed.discard(self.active)

    @rule(name=st.sampled_from(POOL), script=st.sampled_from(SCRIPTS), then=some_requests)
    def script(self, name: str, script: Script, then: list[dict[str, Any]]) -> None:
        """Let a candidate answer otherwise, or fail."""
        self.say(script, name)
        if script.fault:
            self.failing.add(name)
        self.ask(then)

    def say(self, script: Script, *names: str) -> None:
        """Set how candidates answer, under each model that serves them."""
        for name in names:
            self.pool.scripts |= dict.fromkeys((name, *ALIASES.get(name, ())), script)

    @rule()
    def mend(self) -> None:
        """Let all candidates answer again."""
        self.pool.scripts.clear()

    # Requests -----------------------------------------------------------------------------------

    @rule(some=some_requests)
    def ask(self, some: list[dict[str, Any]]) -> None:
        """Ask, and let the judge read the certificates."""
        for request in some:
            self.ask_one(request)

    @rule(request=requests, place=st.integers(0, 5))
    def ask_while_activating(self, request: dict[str, Any], place: int) -> None:
        """Ask while another calibration becomes active."""
        before = self.active
        self.say(Script(delay_s=0.05), *POOL)
        thread = threading.Thread(target=self.activate, args=(place,))
        thread.start()
        seen = self.exchange(request)
        thread.join()
        self.pool.scripts.clear()
        if seen is not None:
            self.judge(*seen, before=before)

    @rule(request=requests, after_s=st.sampled_from([0.005, 0.02]))
    def leave(self, request: dict[str, Any], after_s: float) -> None:
        """Ask, and disconnect before the answer."""
        scripts = dict(self.pool.scripts)
        self.say(Script(delay_s=0.04, pause_s=0.02), *POOL)
        with contextlib.suppress(httpx2.TimeoutException):
            self.exchange(request, timeout=after_s)
        self.pool.scripts.clear()
        self.pool.scripts |= scripts
        self.note("clients left")

    def ask_one(self, request: dict[str, Any]) -> None:
        """Ask once."""
        seen = self.exchange(request)
        if seen is not None:
            self.judge(*seen, before=self.active)

    def exchange(self, request: dict[str, Any], **options: Any) -> Any:
        """Send a request; returns it with its text, its response and the calls that it caused."""
        text = self.text(request["template"])
        if request["is_long"]:
            text = f"{'please ' * (LONG // 7)}{text}"
        path, body = self.body(request, text)
        racer = dict(request["racer"])
        if request["surface"] in ("route", "execute"):
            body.pop("model")
            racer.pop("stream", None)
            path, body = "/route", {**body, "execute": request["surface"] == "execute"}
        else:
            body |= {"model": request["pool"], "stream": request["stream"]}
        body |= {"racer": racer} if racer else {}
        headers = {"x-session-id": request["session"]} if request["session"] else {}
        before, alarmed = len(self.pool.requests), frozenset(self.alarmed)
        key = KEYS[request["key"]]
        response = self.gateway.post(path, key, json=body, headers=headers, **options)
        calls = [
            (each["model"], served, each)
            for each, served in zip(
                self.pool.requests[before:], self.pool.paths[before:], strict=True
            )
            if str(self.number) in json.dumps(each)
        ]
        return request, text, response, calls, alarmed

    def judge(
        self,
        request: dict[str, Any],
        text: str,
        response: httpx2.Response,
        calls: list[tuple[str, str, dict[str, Any]]],
        alarmed: frozenset[str],
        *,
        before: str | None,
    ) -> None:
        """Fail if a certificate holds that the judge denies."""
        racer = certified(response)
        self.note("requests")
        if racer is None:
            self.check_stored(response)
            self.note(f"no certificate, status {response.status_code}")
            return
        holds = racer["certificate"]["holds"]
        self.note("held" if holds else "void")
        header = response.headers["x-racer-guarantee"]
        if not holds:
            assert header != "holds", (request, racer)
            return
        served = {each.served_as: each.name for each in self.gateway.settings.candidates}
        sent: dict[str, set[str]] = {}
        for model, path, body in calls:
            sent.setdefault(served[model], set()).add(read_body(path, body, self.renamed))
        called = frozenset(sent)
        for name in set(racer["certificate"]["guarantee"]["pool"]) - called:
            sent[name] = self.sent_to(name, *self.body(request, text))
        executes = request["surface"] != "route"
        now = self.settings
        streams = executes and request["stream"] and request["surface"] != "execute"
        seen = Observation(
            racer=racer,
            header=header,
            is_stream=streams,
            executes=executes,
            sent=sent,
            called=called,
            answers={
                name: script.text
                for name in POOL
                if name != now["gone"]
                and (script := self.pool.scripts.get(name, Script())).fault is None
            },
            allowed=self.allowed(request),
            failing=self.failing,
            is_later=request["turns"] in LATER and request["surface"] != "completions",
            is_too_long=len(text) > now["query_chars"],
            group=request["key"] if now["group_by"] == "key" else request["racer"].get("group"),
            alpha=request["racer"].get("alpha"),
            group_by=now["group_by"],
            text=now["text"],
            active={before, self.active} - {None},
            alarmed=alarmed if now["false_alarm"] else (),
        )
        denied = denial(seen, self.calibrations)
        assert denied is None, f"{denied}\n{request}\n{now}\n{racer}\n{calls}"

    def check_stored(self, response: httpx2.Response) -> None:
        """A decision whose stream broke is stored as void."""
        name = response.headers.get("x-racer-decision-id")
        if name is None or response.status_code != 200:
            return
        stored = self.gateway.get(f"/decisions/{name}", ADMIN_KEY).json()
        assert stored["outcome"] != "failed" or not stored["holds"], stored
        assert response.headers["x-racer-guarantee"] != "holds"
        self.note("stream broken")

    def sent_to(self, name: str, path: str, body: dict[str, Any]) -> set[str]:
        """What a candidate is sent for a request that names it; empty if nothing reaches it."""
        before = len(self.pool.requests)
        path = path if path.startswith("/v1") else "/v1/chat/completions"
        self.gateway.post(path, json=body | {"model": name, "stream": False})
        arrived = zip(self.pool.requests[before:], self.pool.paths[before:], strict=True)
        return {read_body(to, each, self.renamed) for each, to in arrived}

    @property
    def renamed(self) -> set[str]:
        """Both names of each renamed field."""
        return {*self.settings["renames"], *self.settings["renames"].values()}

    def allowed(self, request: dict[str, Any]) -> set[str]:
        """The candidates among which the set may be chosen."""
        names = set(request["racer"].get("candidates", POOL))
        named = request["surface"] not in ("route", "execute")
        if named and request["pool"] == "auto/pair":
            names &= {"adder", "speller"}
        return names

    def body(self, request: dict[str, Any], text: str) -> tuple[str, dict[str, Any]]:
        """The path and the body of a request, without options of the gateway."""
        fields = dict(request["fields"])
        match request["surface"]:
            case "completions":
                fields.pop("prompt", None)
                prompt = [text] if request["turns"] == "part" else text
                return "/v1/completions", {"model": "auto", "prompt": prompt, **fields}
            case "responses":
                turns = text if request["turns"] == "plain" else messages(request["turns"], text)
                return "/v1/responses", {"model": "auto", "input": turns, **fields}
            case _:
                turns = messages(request["turns"], text)
                return "/v1/chat/completions", {"model": "auto", "messages": turns, **fields}

    def text(self, template: str) -> str:
        """A query that was never asked."""
        self.number += 2  # a text has the next number too
        return template.format(self.number, self.number + 1)

    @staticmethod
    def note(what: str) -> None:
        """Count what happened."""
        TOTALS[what] += 1


def _no_streams() -> DriftState:
    return DriftState(delta=0.01, streams={})


@pytest.mark.timeout(300 + 2 * SECONDS)
def test_no_history_holds_a_certificate_that_is_denied(
    noisy_artifact: Path, shared_pool: FakePool
) -> None:
    """Calibrations, restarts, settings, outages, alarms, fields, surfaces, streams, departures."""
    CertificateMachine.artifact, CertificateMachine.pool = noisy_artifact, shared_pool
    usual = settings(
        deadline=None,
        suppress_health_check=[*HealthCheck],
        database=None,
        phases=[Phase.generate],  # shorter histories take minutes to find
        report_multiple_bugs=False,
    )
    if not SECONDS:
        few = settings(usual, max_examples=16, stateful_step_count=12, derandomize=True)
        run_state_machine_as_test(CertificateMachine, settings=few)
        assert TOTALS["held"] > TOTALS["requests"] / 40, TOTALS
    ends_at = time.monotonic() + SECONDS
    while time.monotonic() < ends_at:
        many = settings(usual, max_examples=5, stateful_step_count=30, derandomize=False)
        run_state_machine_as_test(CertificateMachine, settings=many)
        sys.stdout.write(f"{dict(sorted(TOTALS.items()))}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{dict(sorted(TOTALS.items()))}\n")
