"""The command line's side of a running gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import httpx2

from racer_core.errors import RacerError


class GatewayUnreachable(RacerError):
    """Nothing answers at the URL, or the gateway cannot reach its candidates."""


class GatewayRefused(RacerError):
    """The gateway answered with an error; the message is its own."""


class GatewayClient:
    """Two calls, with the gateway's own words as errors. Close it, or use it as a context."""

    def __init__(self, url: str, key: str | None = None) -> None:
        if key is not None and not key.isascii():
            raise GatewayRefused("the key must be ASCII")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._url = url
        self._client = httpx2.Client(base_url=url, headers=headers, timeout=600.0, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def route(self, text: str, alpha: float | None, *, execute: bool) -> dict[str, Any]:
        """POST /route."""
        return self._post("/route", json={"query": text, "alpha": alpha, "execute": execute})

    def calibrate(self, path: Path, options: dict[str, Any]) -> dict[str, Any]:
        """POST /calibrate with a file of rows."""
        given = {name: str(value) for name, value in options.items() if value is not None}
        try:
            with path.open("rb") as file:
                return self._post("/calibrate", params=given, files={"file": (path.name, file)})
        except OSError as exc:
            raise RacerError(f"{path}: cannot be read ({exc.strerror})") from exc

    def _post(self, path: str, **request: Any) -> dict[str, Any]:
        try:
            response = self._client.post(path, **request)
        except httpx2.TimeoutException as exc:
            raise GatewayUnreachable(f"the gateway at {self._url} did not answer in time") from exc
        except (httpx2.TransportError, httpx2.UnsupportedProtocol, httpx2.InvalidURL) as exc:
            raise GatewayUnreachable(
                f"no gateway answers at {self._url}: start one with `racer serve` or `racer demo`"
            ) from exc
        try:
            body: dict[str, Any] = response.json()
            if response.status_code == 200:
                return body
            error = body["error"]
            message, kind = error["message"], error["type"]
        except (ValueError, KeyError, TypeError) as exc:
            raise GatewayUnreachable(f"what answers at {self._url} is not a RACER gateway") from exc
        if kind == "upstream_error":
            raise GatewayUnreachable(f"{message} ({response.status_code})")
        raise GatewayRefused(f"{message} ({response.status_code})")
