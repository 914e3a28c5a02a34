"""What the front door answers by itself; statuses are those of the classes above."""

from __future__ import annotations

from app.errors import Forbidden, Overloaded
from racer_core.errors import InputError


class InvalidHost(InputError):
    """The Host header is missing, doubled, malformed or not ours."""

    code = "invalid_host"


class CrossSite(Forbidden):
    """A browser sent this from somebody else's page."""

    code = "cross_site"


class RateLimited(Overloaded):
    """A limit of this key, of this address or of the process is reached.

    Attributes:
        retry_after_s: After so many whole seconds there is room again.
    """

    code = "rate_limited"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
