"""Who may do what. Two roles, data and admin; decided on the matched route, deny by default.

Every router is included with one of these as a dependency; only the health endpoints and the
interface description are public. Keys are compared by digest in constant time.
"""

from __future__ import annotations

import hashlib
import hmac

from fastapi import Request
from pydantic import SecretStr

from app.errors import Forbidden, Unauthorized
from app.settings import Secrets


class Gatekeeper:
    """Checks the bearer key of a request."""

    def __init__(self, secrets: Secrets, admin_key_env: str) -> None:
        self._data = _digest(secrets.data_key)
        self._admin = _digest(secrets.admin_key)
        self._admin_key_env = admin_key_env

    async def data(self, request: Request) -> None:
        """Open without a data key (the server is then bound to loopback), else either key.

        Raises:
            Unauthorized: No key, or a wrong one.
        """
        if self._data is None:
            return
        key = _bearer(request)
        if not (_same(key, self._data) or _same(key, self._admin)):
            raise Unauthorized("a valid API key is needed: Authorization: Bearer <key>")

    async def admin(self, request: Request) -> None:
        """The admin key alone.

        Raises:
            Forbidden: Admin is off, or the key is the data key.
            Unauthorized: No key, or a wrong one.
        """
        if self._admin is None:
            raise Forbidden(f"admin endpoints are off: set ${self._admin_key_env} and restart")
        key = _bearer(request)
        if _same(key, self._admin):
            return
        if _same(key, self._data):
            raise Forbidden("this needs the admin key, not the data key")
        raise Unauthorized("the admin key is needed: Authorization: Bearer <key>")


def _bearer(request: Request) -> bytes:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return hashlib.sha256(key.strip().encode() if scheme.lower() == "bearer" else b"").digest()


def _digest(key: SecretStr | None) -> bytes | None:
    return None if key is None else hashlib.sha256(key.get_secret_value().encode()).digest()


def _same(key: bytes, known: bytes | None) -> bool:
    return known is not None and hmac.compare_digest(key, known)
