"""Numbers as the page writes them."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal


def fixed(value: float, digits: int) -> str:
    """As JavaScript's ``toFixed``: a half goes up, where Python goes to the even digit."""
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def plain(value: float, digits: int = 2) -> str:
    """Without zeros at its end."""
    return fixed(value, digits).rstrip("0").rstrip(".")
