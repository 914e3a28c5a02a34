"""Asks a server which models it serves: one ``GET /models``, which costs nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx2

from app.errors import ModelListError, ModelListUnreachable, UpstreamUnauthorized
from racer_core import strict_json
from racer_core.errors import InputError

ASKING_S: Final = 5.0
_NOBODY: Final = (502, 503, 504)  # says a proxy, of whoever stands behind it


@dataclass(frozen=True, slots=True)
class Listing:
    """What a server said."""

    base_url: str
    models: tuple[str, ...]
    ahead_s: float | None  # its clock before ours; None where it tells no time


def list_models(base_url: str, headers: Mapping[str, str], *, verify_tls: bool = True) -> Listing:
    """Ask one server.

    Args:
        base_url: As candidates have it, with ``/v1``.
        headers: The key among them.
        verify_tls: Whether its certificate must be good.

    Raises:
        KeyRefused: It wants a key, or another one.
        Unreachable: Nobody answers.
        Unlisted: The answer is no list of models.
    """
    began = time.time()
    try:
        # As the gateway calls candidates: no redirect, no proxy of the environment's.
        answer = httpx2.get(
            f"{base_url}/models",
            headers={"accept-encoding": "identity", **headers},
            timeout=ASKING_S,
            verify=verify_tls,
            trust_env=False,
        )
    except httpx2.TimeoutException as exc:
        raise ModelListUnreachable(f"{base_url} does not answer within {ASKING_S:.0f} s") from exc
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as exc:
        raise ModelListUnreachable(
            f"{base_url} cannot be reached ({' '.join(str(exc).split())})"
        ) from exc
    if answer.status_code in (401, 403):
        raise UpstreamUnauthorized(f"{base_url} refuses the key ({answer.status_code})")
    if answer.status_code != 200:
        kind = ModelListUnreachable if answer.status_code in _NOBODY else ModelListError
        raise kind(f"{base_url} answers {answer.status_code} to GET /models")
    try:
        models = _ids(strict_json.load_object(answer.content))
    except (InputError, KeyError, TypeError) as exc:
        raise ModelListError(f"{base_url} gives no list of models") from exc
    now = (began + time.time()) / 2
    return Listing(base_url, models, _ahead_s(answer.headers.get("date"), now))


def _ids(document: Mapping[str, Any]) -> tuple[str, ...]:
    ids = [each["id"] for each in document["data"]]
    if not all(isinstance(each, str) and each for each in ids):
        raise TypeError
    return tuple(dict.fromkeys(ids))


def _ahead_s(told: str | None, now: float) -> float | None:
    """The header has whole seconds: half of one is what it leaves out on average."""
    try:
        date = parsedate_to_datetime(told or "")
    except ValueError:
        return None
    return date.replace(tzinfo=date.tzinfo or UTC).timestamp() + 0.5 - now
