"""The command line's side of a running gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2

from racer_core.errors import RacerError


class GatewayUnreachable(RacerError):
    """Nothing answers at the URL."""


class GatewayRefused(RacerError):
    """The gateway answered with an error; the message is its own."""


class GatewayClient:
    """Three calls, with the gateway's own words as errors."""

    def __init__(self, url: str, key: str | None = None) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._url = url
        self._client = httpx2.Client(base_url=url, headers=headers, timeout=600.0, trust_env=False)

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

    def ready(self) -> bool:
        """Whether the gateway answers at all."""
        try:
            return self._client.get("/healthz", timeout=2.0).status_code == 200
        except httpx2.TransportError:
            return False

    def _post(self, path: str, **request: Any) -> dict[str, Any]:
        try:
            response = self._client.post(path, **request)
        except httpx2.TransportError as exc:
            raise GatewayUnreachable(
                f"no gateway answers at {self._url}: start one with `racer serve` or `racer demo`"
            ) from exc
        body: dict[str, Any] = response.json()
        if response.status_code != 200:
            raise GatewayRefused(f"{body['error']['message']} ({response.status_code})")
        return body
