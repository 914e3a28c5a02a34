"""vLLM servers on the CPU: real weights, a real scheduler, each a group of processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx2

from tests.kit.network import free_port

# Far more than the demo's models were trained with: an answer of so many tokens takes minutes.
CONTEXT_TOKENS: Final = 2**15
_START_LIMIT_S: Final = 600.0
_STOP_LIMIT_S: Final = 20.0
_OPTIONS: Final = (
    "--dtype", "float32", "--enforce-eager", "--max-model-len", str(CONTEXT_TOKENS),
    "--hf-overrides", json.dumps({"max_position_embeddings": CONTEXT_TOKENS}),
    "--max-logprobs", "20", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
)  # fmt: skip
ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every server binds itself to the first core
    "VLLM_NO_USAGE_STATS": "1",
}


class VllmServer:
    """One server, which may be killed and started again at the same address."""

    def __init__(self, python: Path, model: Path, folder: Path) -> None:
        port = free_port()
        self.name = model.name
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / f"{model.name}.log"
        # The `vllm` script looks for a distribution of that name; the CPU build has another.
        self._command = [
            str(python), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(model), "--served-model-name", self.name,
            "--host", "127.0.0.1", "--port", str(port), *_OPTIONS,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether its first process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; :meth:`wait` says when it can be asked."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Files that it never removes go where the log is.
                env=os.environ | ENVIRONMENT | {"TMPDIR": str(self._log.parent)},
                start_new_session=True,
            )

    def wait(self) -> None:
        """Until it is healthy. Raises RuntimeError with the end of its log when it will not be."""
        deadline = time.monotonic() + _START_LIMIT_S
        while self.is_running and time.monotonic() < deadline:
            with suppress(httpx2.TransportError):
                if self._get("/health").status_code == 200:
                    return
            time.sleep(0.5)
        log = self._log.read_text(encoding="utf-8", errors="replace")
        raise RuntimeError(f"vLLM with {self.name} did not come up:\n{log[-2000:]}")

    def kill(self) -> None:
        """SIGKILL for all of its processes."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """End it in peace, so that it removes what it shares, and then in any case."""
        if self._process is not None and self.is_running:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_LIMIT_S)
        self.kill()

    def ask(self, path: str, **fields: Any) -> Any:
        """What it answers to those who ask it without a gateway."""
        body = {"model": self.name, "temperature": 0, **fields}
        answer = httpx2.post(f"{self.url}/v1/{path}", json=body, timeout=300, trust_env=False)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def running(self) -> int:
        """Requests that it is working on now."""
        return self._metric("vllm:num_requests_running", "")

    def finished(self, reason: str) -> int:
        """Requests that it has ended because of ``stop`` or ``length``."""
        return self._metric("vllm:request_success_total", f'finished_reason="{reason}"')

    def _metric(self, name: str, label: str) -> int:
        pattern = rf"^{re.escape(name)}{{[^}}]*{re.escape(label)}[^}}]*}} (\S+)$"
        found = re.search(pattern, self._get("/metrics").text, re.MULTILINE)
        assert found, f"vLLM's metrics hold no {name} {label}"
        return int(float(found[1]))

    def _get(self, path: str) -> httpx2.Response:
        return httpx2.get(f"{self.url}{path}", timeout=60, trust_env=False)


def start_all(servers: Sequence[VllmServer]) -> None:
    """Start those that do not run, all at once, and wait for them."""
    down = [server for server in servers if not server.is_running]
    for server in down:
        server.start()
    for server in down:
        server.wait()


@contextmanager
def stopped_after(servers: Sequence[VllmServer]) -> Generator[None]:
    """Leave none of their processes behind."""
    try:
        yield
    finally:
        for server in servers:
            server.stop()
