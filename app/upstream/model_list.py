"""Model list of a server: one ``GET /models``, which costs no tokens."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

import httpx2

from app.errors import (
    ModelListElsewhere,
    ModelListError,
    ModelListUnreachable,
    UpstreamUnauthorized,
)
from app.wire.parsing import model_names
from racer_core.errors import InputError

TIMEOUT_S: Final = 5.0
_UNREACHABLE: Final = (502, 503, 504)  # a proxy's answer for a server behind it
_ROOT: Final = "/v1"  # of the paths of an OpenAI-compatible server


@dataclass(frozen=True, slots=True)
class ModelList:
    """A server's answer."""

    base_url: str
    models: tuple[str, ...]
    ahead_s: float | None  # its clock ahead of ours; None where it sends no date


def list_models(base_url: str, headers: Mapping[str, str], *, verify_tls: bool = True) -> ModelList:
    """Fetch the list of one server; where there is none, look for it under ``/v1``.

    Args:
        base_url: As candidates have it, with ``/v1``.
        headers: The key among them.
        verify_tls: Whether its certificate must be good.

    Raises:
        UpstreamUnauthorized: The server wants a key, or another one.
        ModelListUnreachable: The server does not answer.
        ModelListElsewhere: The list is under ``/v1``, which the base URL lacks.
        ModelListError: The answer is no list of models.
    """
    try:
        return _listed(base_url, headers, verify_tls=verify_tls)
    except ModelListUnreachable:
        raise
    except ModelListError as exc:
        if base_url.endswith(_ROOT):
            raise
        rooted = f"{base_url}{_ROOT}"
        try:
            _listed(rooted, headers, verify_tls=verify_tls)
        except (ModelListError, UpstreamUnauthorized):
            raise exc from None
        found = f"{exc}, but {rooted} lists models"
        raise ModelListElsewhere(found, f"set `base_url: {rooted}`") from exc


def _listed(base_url: str, headers: Mapping[str, str], *, verify_tls: bool) -> ModelList:
    """The list at one base URL. Raises as :func:`list_models`."""
    sent_at = time.time()
    try:
        # As the gateway calls candidates: no redirects, no proxy from the environment.
        response = httpx2.get(
            f"{base_url}/models",
            headers={"accept-encoding": "identity", **headers},
            timeout=TIMEOUT_S,
            verify=verify_tls and not base_url.startswith("http:"),  # certificates load slowly
            trust_env=False,
        )
    except httpx2.TimeoutException as exc:
        raise ModelListUnreachable(f"{base_url} does not answer within {TIMEOUT_S:.0f} s") from exc
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as exc:
        raise ModelListUnreachable(
            f"{base_url} cannot be reached ({' '.join(str(exc).split())})"
        ) from exc
    if response.status_code in (401, 403):
        raise UpstreamUnauthorized(f"{base_url} refuses the key ({response.status_code})")
    if response.status_code != 200:
        kind = ModelListUnreachable if response.status_code in _UNREACHABLE else ModelListError
        raise kind(f"{base_url} answers {response.status_code} to GET /models")
    try:
        models = model_names(response.content)
    except InputError as exc:
        raise ModelListError(f"{base_url} gives no list of models") from exc
    now = (sent_at + time.time()) / 2
    return ModelList(base_url, models, _ahead_s(response.headers.get("date"), now))


def _ahead_s(date_header: str | None, now: float) -> float | None:
    """How far the header is ahead. It has whole seconds: on average half a second is cut off."""
    try:
        date = parsedate_to_datetime(date_header or "")
    except (ValueError, OverflowError):
        return None
    return date.replace(tzinfo=date.tzinfo or UTC).timestamp() + 0.5 - now
