"""A gateway of a random history between scripted candidates: what each of them was sent."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from app.settings import key_format
from tests.support.certificate_judge import read_body
from tests.support.gateway import ENVIRONMENT, POOL, Gateway, candidates, configure, running
from tests.support.histories import ALIASES, KEYS, POOLS, TEMPLATES, USUAL, Key, body_of
from tests.upstreams.scripted import FakePool, Script

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
