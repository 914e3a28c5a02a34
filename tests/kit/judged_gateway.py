"""A gateway with a judge beside it, for a model-based test: uploads, alarms, requests."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2

from app.monitoring.drift.store import DriftStore
from app.routing.conditions import ConditionReader
from app.settings import key_format
from app.store import Store
from app.store.backup.calibrations import restore, save
from app.store.backup.file import Backup
from racer_core.calibration.monitoring import DriftState
from tests.kit.certificate_judge import KnownCalibration, Observation, denial, read_body
from tests.kit.gateway import (
    ADMIN_KEY,
    DATA_KEY,
    ENVIRONMENT,
    POOL,
    Gateway,
    candidates,
    configure,
    running,
)
from tests.kit.histories import (
    ALIASES,
    KEYS,
    LATER,
    ORDINARY,
    PLAIN,
    POOLS,
    TEMPLATES,
    USUAL,
    JudgedDecision,
    Key,
    Label,
    Part,
    Upload,
    body_of,
    certified,
    forged,
    language_of,
    right_candidates,
)
from tests.kit.monitored import sampled, samples, shadow_rows
from tests.kit.upstream import FakePool, Script

NOWHERE: Final = "http://127.0.0.1:9/v1"  # refuses connections
SALT: Final = key_format.new_salt()


@dataclass
class RecordedGateway:
    """The gateway of one history.

    Attributes:
        artifact: The router.
        pool: The upstream servers.
        counts: Takes how often each thing happened.
        settings: Those that the history changes.
        active: The active calibration.
        failing: The candidates that may be out.
    """

    artifact: Path
    pool: FakePool
    counts: Counter[str]
    settings: dict[str, Any] = field(default_factory=lambda: dict(USUAL))
    active: str | None = None
    failing: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        """Prepare a folder; nothing is started."""
        self._root = Path(tempfile.mkdtemp(prefix="racer-machine-"))
        self.folder = self._root / "0"  # of the configuration and the store
        self._stack = ExitStack()
        # What copies of requests were sent, by their body and the settings.
        self._sent: dict[str, dict[str, frozenset[str]]] = {}
        self._number = 700_000
        self.pool.reset()

    def start(self) -> None:
        """Start with the current settings."""
        now = self.settings
        renames = now["renames"]
        if renames is None:
            renames = {name: f"own_{name}" for name in now["parameters"] | now["own"]}
        own: dict[str, Any] = {
            "adder": {"parameters": now["parameters"] | now["own"]},
            "speller": {"model": now["model"]},
            "poet": {
                "capabilities": {"tools": not now["toolless"]},
                "renames": renames | now["own_renames"],
            },
        }
        if now["gone"] is not None:
            own[now["gone"]] |= {"base_url": NOWHERE}
        shared = {"parameters": now["parameters"], "renames": renames}
        names = ("group_by", "text", "observe", "session_ttl_s")
        path = configure(
            self.folder,
            self.artifact,
            self.pool.url,
            candidates=candidates(self.pool.url, **own, **shared),
            routing={name: now[name] for name in names} | {"score": "gap"},
            watching={name: now[name] for name in ("false_alarm", "shadow_rate")}
            | {"store_queries": True},
            limits={"fan_out": now["fan_out"], "query_chars": now["query_chars"]},
            aggregation={"waves": now["waves"]},
            pools=POOLS,
            access={"keys": [_as_setting(name, key) for name, key in KEYS.items()]},
        )
        self.gateway: Gateway = self._stack.enter_context(running(path, ENVIRONMENT))
        self.failing = {now["gone"]} - {None}
        self.active = self.gateway.ready().get("calibration")

    def stop(self) -> None:
        """Stop; the store stays."""
        self._stack.close()
        self._stack = ExitStack()

    def start_anew(self, **changes: Any) -> None:
        """Stop, and start with some other settings."""
        self.stop()
        self.settings |= changes
        self.start()

    def use_another_store(self) -> None:
        """Start with an empty store the next time."""
        self.folder = self._root / str(int(self.folder.name) + 1)

    def close(self) -> None:
        """Stop, and delete the store."""
        self.stop()
        shutil.rmtree(self._root, ignore_errors=True)

    def say(self, script: Script, *names: str) -> None:
        """Set how candidates answer, under each model that serves them."""
        for name in names:
            self.pool.scripts |= dict.fromkeys((name, *ALIASES.get(name, ())), script)
            if script.fault:
                self.failing.add(name)

    def sent_alone(self, request: Mapping[str, Any]) -> Mapping[str, frozenset[str]]:
        """What each candidate is sent for a request that names it; empty if nothing reaches it.

        Bodies are read without the text, so each is sent once under the same settings.
        """
        path, body = body_of(request, TEMPLATES[0])
        names = ("parameters", "own", "renames", "own_renames", "model")
        kind = json.dumps([path, body, *map(self.settings.get, names)], sort_keys=True)
        if kind in self._sent:
            return self._sent[kind]
        before = len(self.pool.requests)
        for name in POOL:
            if name != self.settings["gone"]:
                self.gateway.post(path, json=body | {"model": name})
        arrived = self.arrived(before, "{}")
        sent = {name: arrived.get(name, frozenset()) for name in POOL}
        if all(sent.values()):
            self._sent[kind] = sent
        return sent

    def arrived(self, before: int, words: str) -> dict[str, frozenset[str]]:
        """What arrived at each candidate, of the texts with some words."""
        candidates = {each.served_as: each for each in self.gateway.settings.candidates}
        found: dict[str, frozenset[str]] = {}
        requests, paths = self.pool.requests[before:], self.pool.paths[before:]
        for body, path in zip(requests, paths, strict=True):
            if words in json.dumps(body):
                candidate = candidates[body["model"]]
                renamed = {*candidate.renames, *candidate.renames.values()}
                read = read_body(path, body, renamed)
                found[candidate.name] = found.get(candidate.name, frozenset()) | {read}
        return found

    def text(self, template: str) -> str:
        """A query that was never sent."""
        self._number += 2  # a text has the next number too
        return template.format(self._number, self._number + 1)


def _as_setting(name: str, key: Key) -> dict[str, Any]:
    hashed = key_format.format_hash(key.secret, SALT)
    own = {"group": key.group, "candidates": key.candidates, "max_alpha": key.max_alpha}
    lists = {n: list(v) if isinstance(v, tuple) else v for n, v in own.items()}
    return {"name": f"of-{name}", "hash": hashed} | {n: v for n, v in lists.items() if v}


LONG: Final = 300  # characters of a long query, more than `query_chars` in some settings
DATA: Final = Key(secret=DATA_KEY)


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A request with its response and the calls that it caused, by candidate."""

    request: Mapping[str, Any]
    text: str
    response: httpx2.Response
    calls: Mapping[str, frozenset[str]]
    alarmed: frozenset[str]


@dataclass
class JudgedGateway(RecordedGateway):
    """A gateway whose certificates a judge reads.

    Attributes:
        alarmed: The calibrations with an alarm.
        calibrations: What the judge knows of each upload, by the name of its calibration.
    """

    alarmed: set[str] = field(default_factory=set[str])
    calibrations: dict[str, KnownCalibration] = field(default_factory=dict[str, KnownCalibration])
    # By calibration: how its rows were labelled, and their group.
    _labels_of: dict[str, list[tuple[Label, str | None]]] = field(
        default_factory=dict[str, list[tuple[Label, str | None]]]
    )
    _labels: list[Label] = field(default_factory=list[Label])
    _decisions: dict[str, JudgedDecision] = field(default_factory=dict[str, JudgedDecision])
    _text: str = ""  # of the last request

    def restart(self, changes: Sequence[Mapping[str, Any]]) -> None:
        """Restart with other settings; a gateway without a calibration gets one."""
        self.start_anew(**{name: new for change in changes for name, new in change.items()})
        self.counts["restarts"] += 1
        self.calibrate_if_none()  # rows of another model decide nothing

    def restore(self, changes: Sequence[Mapping[str, Any]], *, activates: bool) -> None:
        """Restore a backup into another store, under other settings.

        Args:
            changes: The changes of the settings.
            activates: The active calibration of the backup decides; else an ordinary one.
        """
        self.stop()
        path = self.folder / "backup.zip"
        with Store(self.gateway.settings.store) as store:
            save(store, (), path)
        self.use_another_store()
        self.settings |= {name: new for change in changes for name, new in change.items()}
        self.start()
        if not activates:
            self.calibrate_if_none()
        self.stop()
        with Store(self.gateway.settings.store) as store, Backup(path) as backup:
            restore(store, backup, activate=activates)
        self.start()
        self.counts["restores"] += 1
        self.calibrate_if_none()  # rows of another model decide nothing

    # Calibrations --------------------------------------------------------------------------------

    def upload(
        self, parts: Sequence[Part], *, alpha: float, wrong_every: int, activate: bool = True
    ) -> None:
        """Calibrate on rows that were labelled now, or before a restart."""
        upload = Upload()
        queries: dict[str, frozenset[str]] = {}
        group: str | None = None
        is_by_language = self.settings["group_by"] == "language"
        number = 0
        for part in parts:
            label = self.label(part.label)
            if label is None:
                continue
            if not (part.repeats and queries):
                queries, group = {}, part.group
                for _ in range(part.count):
                    text = self.text(TEMPLATES[number % len(TEMPLATES)])
                    queries[text] = right_candidates(text, number, wrong_every)
                    number += 1
            upload.add(label, queries, group, is_by_language=is_by_language)
        self._send(upload, alpha=alpha, activate=activate)

    def _send(self, upload: Upload, *, alpha: float, activate: bool) -> None:
        if not upload.rows:
            return
        body = {"rows": upload.rows, "alpha": alpha, "activate": activate}
        response = self.gateway.post("/calibrate", ADMIN_KEY, json=body)
        if response.status_code != 200:
            self.counts[f"upload {response.status_code}"] += 1
            return
        self.counts["uploads"] += 1
        name, now = response.json()["id"], self.settings
        self._labels_of[name] = upload.labels
        self.calibrations[name] = KnownCalibration(
            parts=upload.parts,
            alpha=alpha,
            **{name: now[name] for name in ("group_by", "text", "query_chars")},
        )
        if response.json()["active"]:
            self.active = name

    def judge_sample(self, drawn: Mapping[str, Any], count: int) -> None:
        """Ask with the whole pool called, and judge all answers."""
        if not self.settings["shadow_rate"]:
            self.restart([{"shadow_rate": 1.0, "fan_out": 16}])
        for number in range(count):
            template = TEMPLATES[number % len(TEMPLATES)]
            before = self.active
            exchange = self.exchange({**drawn, "template": template})
            self.judge(exchange, before=before)
            racer = certified(exchange.response)
            if racer is None or "shadow_rate" not in racer:
                continue
            right = right_candidates(exchange.text, number, 4)
            pool, name = racer["certificate"]["guarantee"]["pool"], racer["decision_id"]
            verdicts = {"decision_id": name, "correct": {each: each in right for each in pool}}
            self.gateway.post("/feedback", ADMIN_KEY, json=verdicts).raise_for_status()
            sent = {each: min(found, default="") for each, found in self._sent_of(exchange).items()}
            self._decisions[name] = JudgedDecision(
                label=Label(request=exchange.request, digests={}, sent=sent),
                text=exchange.text,
                groups=_groups_of(exchange),
                right=right,
            )
            self.counts["judged decisions"] += 1

    def upload_sample(self) -> None:
        """Calibrate on the judged decisions, as the gateway exports them."""
        rows = [row for row in shadow_rows(self.gateway) if row["decision_id"] in self._decisions]
        judged = [row for row in rows if "correct" in row]
        upload = Upload()
        upload.add_sample(judged, self._decisions, self.settings["group_by"])
        self.counts["rows of samples"] += len(judged)
        self._send(upload, alpha=0.1, activate=True)

    def calibrate_if_none(self) -> None:
        """Upload ordinary rows if no calibration is active."""
        if self.active is not None:
            return
        gone = self.settings["gone"]
        if gone is not None:  # what it is sent shows while it runs
            self.start_anew(gone=None)
        self.upload([Part()], alpha=0.1, wrong_every=4)
        if gone is not None:
            self.start_anew(gone=gone)

    def label(self, drawn: Any) -> Label | None:
        """How rows are labelled; None if some candidate cannot be reached.

        Args:
            drawn: A request that labels them now; None: as configured, without digests; a number:
                as rows of an earlier upload.
        """
        if isinstance(drawn, int):
            if self._labels:
                return self._labels[drawn % len(self._labels)]
            drawn = None
        request = PLAIN if drawn is None else drawn
        sent = self.sent_alone(request)
        if any(len(sent[name]) != 1 for name in POOL):
            return None
        bodies = {name: min(sent[name]) for name in POOL}
        if drawn is None:
            return Label(request=PLAIN, digests={}, sent=bodies)
        path, fields = body_of(request, self.text(TEMPLATES[0]))
        if request["surface"] == "responses":
            fields["store"] = False
        reader = ConditionReader(self.gateway.settings.candidates)
        digests = reader.read(fields, path.removeprefix("/v1/")).digests
        self._labels.append(Label(request=request, digests=digests, sent=bodies))
        return self._labels[-1]

    def activate(self, place: int) -> None:
        """Make a stored calibration the active one."""
        name = [*self.calibrations][place % len(self.calibrations)]
        path = f"/calibrations/{name}/activate"
        response = self.gateway.post(path, ADMIN_KEY, json={})
        if response.status_code == 200:
            self.active = name
        self.counts["activations"] += 1

    # Drift and outages ---------------------------------------------------------------------------

    def raise_alarm(self, stream: int) -> None:
        """Raise a drift alarm of the active calibration."""
        assert self.active
        self.gateway.get("/drift", ADMIN_KEY)
        with (
            Store(self.gateway.settings.store) as store,
            DriftStore(store).updating(self.active, "", new=_no_streams) as stored,
        ):
            streams = [*stored.state.streams.values()]
            streams[stream % len(streams)].wager.log_peak = 1e6
        assert self.gateway.get("/drift", ADMIN_KEY).json()["alarms"]["raised"]
        self.alarmed.add(self.active)
        self.counts["alarms"] += 1

    def reset_alarms(self) -> None:
        """Begin the alarms of the active calibration again."""
        assert self.active
        self.gateway.post("/drift/reset", ADMIN_KEY).raise_for_status()
        self.alarmed.discard(self.active)

    # Requests ------------------------------------------------------------------------------------

    def ask(self, drawn: Mapping[str, Any]) -> None:
        """Ask, and let the judge read the certificate."""
        before = self.active
        self.judge(self.exchange(drawn), before=before)

    def ask_like_rows(self) -> None:
        """Ask once as the rows of each part of the active calibration were labelled.

        Where a field can state a system prompt of the rows, ask with the field instead, too.
        """
        for place, (label, group) in enumerate(self._labels_of.get(self.active or "", ())):
            key = group if self.settings["group_by"] == "key" else None
            racer = {"group": group} if group and key is None else {}
            request = ORDINARY | {"like": place, "key": key, "racer": racer}
            self.ask(request)
            if forged(label.request) != label.request:
                self.ask(request | {"forges": True})

    def exchange(self, drawn: Mapping[str, Any], **options: Any) -> Exchange:
        """Send a request."""
        request = self._request(drawn)
        text = self._text if request["again"] else ""
        if not text:
            text = self.text(request["template"])
            text = f"{'please ' * (LONG // 7)}{text}" if request["is_long"] else text
        self._text = ""  # a client that leaves may leave calls behind, which are of this text
        path, body = body_of(request, text)
        racer = dict(request["racer"])
        body["model"] = "/".join(filter(None, ("auto", request["pool"])))
        if request["surface"] in ("route", "execute", "levels"):
            del body["model"]
            path = "/route"
            body["execute"] = request["surface"] == "execute"
            if request["surface"] == "levels":
                path, body = "/route/levels", {"query": text} | racer
                racer = {}
        elif request["stream"]:
            body["stream"] = True
        if racer:
            body["racer"] = racer
        headers = {"x-session-id": request["session"]} if request["session"] else {}
        key = KEYS.get(request["key"], DATA).secret
        while self.pool.running:
            time.sleep(0.001)
        before, alarmed = len(self.pool.requests), frozenset(self.alarmed)
        over = sum(samples(self.gateway).values()) if self.settings["shadow_rate"] else 0
        response = self.gateway.post(path, key, json=body, headers=headers, **options)
        if '"shadow_rate"' in response.text:  # its other candidates are called afterwards
            sampled(self.gateway, over + 1)
        self._text = text
        return Exchange(
            request=request,
            text=text,
            response=response,
            calls=self.arrived(before, _number_in(text)),
            alarmed=alarmed,
        )

    def _request(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """The drawn request, sent as rows were labelled if it is to be, and of its endpoint."""
        request = dict(drawn)
        labels = self._labels_of.get(self.active or "", [])
        if request["like"] is not None and labels:
            like = labels[request["like"] % len(labels)][0].request
            is_of_chat = request["surface"] not in ("completions", "responses")
            if not (is_of_chat and like["surface"] == "chat"):
                request["surface"] = like["surface"]
            request |= {name: like[name] for name in ("turns", "fields")}
        if request["forges"]:
            request = forged(request)
        request["fields"] = request["fields"] | request["beside"]
        if request["surface"] == "levels":
            request |= {"turns": "plain", "fields": {}}
            usable = ("score", "candidates", "group")
            request["racer"] = {n: v for n, v in request["racer"].items() if n in usable}
        if request["surface"] in ("route", "execute", "levels"):
            request["pool"] = None
        return request

    def judge(self, exchange: Exchange, *, before: str | None) -> None:
        """Fail if a certificate holds that the judge denies.

        Args:
            exchange: The request.
            before: The calibration that was active when it was sent.
        """
        request, response = exchange.request, exchange.response
        racer = certified(response)
        self.counts["requests"] += 1
        if racer is None:
            self._check_stored(response)
            self.counts[f"no certificate, status {response.status_code}"] += 1
            return
        header = response.headers.get("x-racer-guarantee")  # not of levels
        if not racer["certificate"]["holds"]:
            assert header != "holds", (request, racer)
            self.counts["void"] += 1
            return
        self.counts["held"] += 1
        self.counts[f"held: {request['surface']}"] += 1
        now, key = self.settings, KEYS.get(request["key"], DATA)
        executes = request["surface"] not in ("route", "levels")
        alpha = request["racer"].get("alpha", POOLS.get(request["pool"], {}).get("alpha"))
        seen = Observation(
            racer=racer,
            header=header or "holds",
            is_stream=executes and request["stream"] and request["surface"] != "execute",
            executes=executes,
            sent=self._sent_of(exchange),
            called=frozenset(exchange.calls),
            answers={
                name: script.text
                for name in POOL
                if name != now["gone"]
                and (script := self.pool.scripts.get(name, Script())).fault is None
            },
            allowed=_allowed(request, key),
            failing=self.failing,
            is_later=request["turns"] in LATER and request["surface"] != "completions",
            chars=len(exchange.text),
            query_chars=now["query_chars"],
            group=_groups_of(exchange)[now["group_by"]],
            alpha=alpha,
            max_alpha=key.max_alpha,
            fan_out=now["fan_out"],
            group_by=now["group_by"],
            text=now["text"],
            active={name for name in (before, self.active) if name is not None},
            alarmed=exchange.alarmed if now["false_alarm"] else (),
        )
        denied = denial(seen, self.calibrations)
        assert denied is None, f"{denied}\n{request}\n{now}\n{racer}\n{seen.sent}"

    def _sent_of(self, exchange: Exchange) -> dict[str, frozenset[str]]:
        """What each candidate was sent for a request, or would have been."""
        copies = self.sent_alone(exchange.request)
        return {name: exchange.calls.get(name) or copies[name] for name in POOL}

    def _check_stored(self, response: httpx2.Response) -> None:
        """A decision whose stream broke is stored as void."""
        name = response.headers.get("x-racer-decision-id")
        if name is None or response.status_code != 200:
            return
        stored = self.gateway.get(f"/decisions/{name}", ADMIN_KEY).json()
        assert stored["outcome"] != "failed" or not stored["holds"], stored
        assert response.headers["x-racer-guarantee"] != "holds"
        self.counts["stream broken"] += 1


def _number_in(text: str) -> str:
    """The first number of a text, which no other text has in its place."""
    return next(word for word in text.split() if word.isdigit())


def _groups_of(exchange: Exchange) -> dict[str, str | None]:
    """The group of a request under each `routing.group_by`."""
    request = exchange.request
    return {
        "key": KEYS.get(request["key"], DATA).group,
        "language": language_of(exchange.text),
        "request": request["racer"].get("group"),
    }


def _allowed(request: Mapping[str, Any], key: Key) -> set[str]:
    """The candidates among which the set may be chosen."""
    names = set(request["racer"].get("candidates", POOL))
    if request["pool"]:
        names &= set(POOLS[request["pool"]]["candidates"])
    return names if key.candidates is None else names & set(key.candidates)


def _no_streams() -> DriftState:
    return DriftState(delta=0.01, streams={})
