"""The demo's pool for long requests: its models read a paragraph as one token."""

from __future__ import annotations

import json
import shutil
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Final
from unittest import mock

import yaml

from tests.support.lazy import LazyModule
from tests.support.ports import free_port

run = LazyModule("app.tools.demo.run")

PARAGRAPH: Final = "The parcel left Rome on Monday and was seen in Turin on Tuesday. " * 10
LONG: Final = PARAGRAPH * 31  # more than 20,000 characters


@contextmanager
def long_pool(folder: Path) -> Generator[str]:
    """Serve copies of the demo's checkpoints, which differ in the tokenizer; yields their URL.

    The demo's models read single characters, and 20,000 tokens take 14 s a call on a CPU.
    """
    for source in (run.FOLDER / "pool").glob("*/"):
        copy = folder / "pool" / source.name
        shutil.copytree(source, copy)
        file = copy / "tokenizer.json"
        tokenizer = json.loads(file.read_text(encoding="utf-8"))
        long = {"type": "Replace", "pattern": {"String": PARAGRAPH}, "content": "."}
        file.write_text(json.dumps(tokenizer | {"normalizer": long}), encoding="utf-8")
    demo = import_module("app.tools.demo.run")
    port, log = free_port(), folder / "pool.log"
    with ExitStack() as stack:
        with mock.patch.object(demo, "FOLDER", folder):  # where the server looks for models
            process = stack.enter_context(demo.child_process(demo.pool_command(port), log))
        demo.wait_until_ready(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}/v1"


def configure(folder: Path, server: str) -> Path:
    """The demo's configuration with this pool, a store, and a router that refuses no request.

    The router was trained on single questions, and what it refuses of other requests is chance.
    """
    for name in ("encoder", "router"):
        shutil.copytree(run.FOLDER / name, folder / name)
    manifest = folder / "router" / "manifest.json"
    trained = json.loads(manifest.read_text(encoding="utf-8"))
    manifest.write_text(json.dumps(trained | {"null_threshold": 1.0}), encoding="utf-8")
    values = yaml.safe_load((run.FOLDER / "racer.yaml").read_text(encoding="utf-8"))
    for each in values["candidates"]:
        each |= {"base_url": server, "timeout_s": 120}
    values |= {
        "artifact": str(folder / "router"),
        "store": f"sqlite:///{folder / 'racer.db'}",
        "port": 0,
        "limits": {"deadline_s": 120},
    }
    path = folder / "racer.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path
