"""Caller of a request, as the access control middleware found it."""

from __future__ import annotations

from fastapi import Request

from app.access.api_keys import Caller


def caller_of(request: Request) -> Caller:
    """Return the caller of a request that passed access control."""
    return request.scope["state"]["caller"]
