"""Probe of the model hub: says within seconds that an encoder cannot be fetched from it.

The libraries that load a model try an unreachable hub again and again, for minutes where packets
are dropped.
"""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import Final

import httpx2

from racer_core.encoder.char_ngrams import SPEC as CHAR_NGRAMS
from racer_core.encoder.word_vectors import WORDLLAMA
from racer_core.errors import ArtifactError
from racer_core.offline.encoder_choice import is_cached

TIMEOUT_S: Final = 3.0  # for name service, connection and answer together
_HUB_NAME: Final = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?(@[\w.-]+)?")
_OFFLINE: Final = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # variables of the hub's library
_TRUE: Final = ("1", "ON", "YES", "TRUE")
_INSTEAD: Final = (
    "Without a hub: `--encoder wordllama` (static word vectors of an installed package), "
    "`--encoder FOLDER` (a transformer or word vectors that were fetched elsewhere) or "
    "`--encoder auto` (the best of what is on this machine). A mirror: $HF_ENDPOINT"
)


def check_hub(name: str) -> None:
    """Check that an encoder is on this machine, or that the hub answers.

    Args:
        name: As `--encoder` names it.

    Raises:
        ArtifactError: It is neither; the message says what can be done instead.
    """
    by_name = (CHAR_NGRAMS.name, WORDLLAMA)
    if name in by_name or not _HUB_NAME.fullmatch(name) or Path(name).exists():
        return
    is_off = any(os.environ.get(each, "").upper() in _TRUE for each in _OFFLINE)
    probe = _Probe(os.environ.get("HF_ENDPOINT") or "https://huggingface.co", name)
    if not is_off:
        probe.start()
    if is_cached(name):  # takes as long as an import of transformers, which comes anyway
        return
    reason = f"the hub is switched off by ${_OFFLINE[0]}" if is_off else probe.result()
    if reason is not None:
        raise ArtifactError(f"encoder {name!r} is not on this machine, and {reason}. {_INSTEAD}")


class _Probe(threading.Thread):
    """One request to the hub, on a thread: name service has no time limit of its own."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(name="hub probe", daemon=True)
        repository, _, revision = name.partition("@")
        self._url = url
        self._file = f"{url.rstrip('/')}/{repository}/resolve/{revision or 'main'}/config.json"
        self._deadline = time.monotonic() + TIMEOUT_S
        self._reason: str | None = f"the hub {url} did not answer within {TIMEOUT_S:g} s"

    def run(self) -> None:
        """Ask for one file; any answer of a hub is good, also a refusal or another certificate."""
        try:
            with httpx2.Client(timeout=TIMEOUT_S, verify=False) as client:
                response = client.head(self._file)
        except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
            if not isinstance(exc, httpx2.TimeoutException):
                self._reason = f"the hub {self._url} cannot be reached ({exc})"
        else:
            is_hub = _is_hub(response)
            status = response.status_code
            self._reason = None if is_hub else f"{self._url} is no hub (it answers {status})"

    def result(self) -> str | None:
        """Why the hub cannot be used; None if it answers."""
        self.join(max(0.0, self._deadline - time.monotonic()))
        return self._reason


def _is_hub(response: httpx2.Response) -> bool:
    """Whether a hub answers, or the access control of a mirror.

    The page of a network's login redirects to its own host, and a proxy refuses by 403 or 407.
    """
    marks = {"x-repo-commit", "x-error-code"}  # of a file, and of why there is none
    wants_key = response.status_code == 401 and "www-authenticate" in response.headers
    is_marked = not marks.isdisjoint(response.headers.keys())
    return is_marked or wants_key or _stays_here(response)


def _stays_here(response: httpx2.Response) -> bool:
    """Whether it redirects to its own host, as for another name of a repository."""
    if not response.has_redirect_location:
        return False
    try:
        host = response.url.join(response.headers["location"]).host
    except (httpx2.InvalidURL, ValueError):
        return False
    return host == response.url.host
