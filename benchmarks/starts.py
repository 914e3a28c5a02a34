"""Start-up time of a process until its first answer, and its memory before any request."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import peers
import queries
import rig
import yaml
from measures import family
from verdict import PINNED_ONLY, WITH_TORCH

_DEMO = rig.HERE.parent / "deploy" / "demo"
Start = Callable[[], AbstractContextManager[rig.Server]]


def measured(folder: Path, upstream: rig.Server, times: int) -> dict[str, dict[str, float]]:
    """Medians over ``times`` starts of each kind."""
    return {name: _started(start, times) for name, start in _kinds(folder, upstream).items()}


def _kinds(folder: Path, upstream: rig.Server) -> dict[str, Start]:
    base_url = upstream.url + "/v1"
    config = rig.configure(folder, base_url)
    with rig.gateway(config) as gateway:
        gateway.calibrate(3)  # its store remembers it, so that the others start calibrated
    kinds: dict[str, Start] = {"bare": partial(peers.bare, folder, base_url)}
    if peers.litellm_version() is not None:
        kinds["LiteLLM"] = partial(peers.litellm, folder, base_url)
    kinds[PINNED_ONLY] = partial(rig.gateway, _pinned(folder, base_url))
    kinds["racer, character n-grams"] = partial(rig.gateway, config)
    if (_DEMO / "router").exists():
        kinds[WITH_TORCH] = partial(rig.gateway, demo(folder, base_url))
    return kinds


def demo(folder: Path, base_url: str, **changes: Any) -> Path:
    """The configuration of a gateway with the demo's artifact, in a folder of its own."""
    values: dict[str, Any] = yaml.safe_load((_DEMO / "racer.yaml").read_text(encoding="utf-8"))
    for candidate in values["candidates"]:
        candidate["base_url"] = base_url
    (own := folder / "demo").mkdir()
    store = f"sqlite:///{own}/racer.db"
    given = {"artifact": str(_DEMO / "router"), "store": store, **changes}
    return rig.written(own, {**values, **given})


def _pinned(folder: Path, base_url: str) -> Path:
    """Candidates without an artifact."""
    (own := folder / "pinned").mkdir()
    candidates = [{"name": name, "base_url": base_url} for name in queries.POOL]
    return rig.written(own, {"schema_version": 1, "candidates": candidates})


def _started(start: Start, times: int) -> dict[str, float]:
    with start():  # files are in memory from here on, and bytecode is made
        pass
    seconds: list[float] = []
    mib: list[float] = []
    for _ in range(times):
        with start() as server:
            seconds.append(server.ready_s)
            mib.append(family(server.pid).rss_kib / 1024)
    return {"ready_s": median(seconds), "rest_mib": median(mib)}
