"""Other gateways of the comparison: the bare proxy, and LiteLLM's proxy.

LiteLLM has its own environment (`make setup-litellm`) and the smallest configuration: one worker,
one key, no database, no callbacks, no retries, no admin pages. It runs offline.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import queries
import rig
import yaml

LITELLM = Path(os.environ.get("RACER_LITELLM", rig.HERE.parent / ".venv-litellm/bin/litellm"))
LITELLM_KEY = "sk-key-of-the-benchmarks"


@contextlib.contextmanager
def bare(folder: Path, base_url: str) -> Generator[rig.Server]:
    """The bare proxy."""
    port = rig.free_port()
    command = [sys.executable, str(rig.HERE / "bare.py"), "--upstream", base_url]
    command += ["--port", str(port)]
    with rig.listening(command, port, "/healthz", folder / "bare.log", {}) as started:
        yield started


@contextlib.contextmanager
def litellm(folder: Path, base_url: str) -> Generator[rig.Server]:
    """LiteLLM's proxy with the same candidates."""
    models = [
        {
            "model_name": name,
            "litellm_params": {
                "model": f"openai/{name}",
                "api_base": base_url,
                "api_key": "unused",
            },
        }
        for name in queries.POOL
    ]
    values: dict[str, Any] = {
        "model_list": models,
        "general_settings": {"master_key": LITELLM_KEY},
        "litellm_settings": {"callbacks": [], "num_retries": 0, "request_timeout": 30},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
    }
    config = folder / "litellm.yaml"
    config.write_text(yaml.safe_dump(values), encoding="utf-8")
    port = rig.free_port()
    command = [str(LITELLM), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--num_workers", "1", "--telemetry", "False"]
    environment = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        **dict.fromkeys(("DISABLE_ADMIN_UI", "NO_DOCS", "NO_REDOC"), "True"),
    }
    alive = "/health/liveliness"
    with rig.listening(command, port, alive, folder / "litellm.log", environment) as started:
        yield started


def litellm_version() -> str | None:
    """None: it is not installed."""
    if not LITELLM.exists():
        return None
    code = "import importlib.metadata as m; print(m.version('litellm'))"
    command = [str(LITELLM.with_name("python")), "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
