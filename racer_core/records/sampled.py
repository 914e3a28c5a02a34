"""Sampled rows: the fields by which a gateway drew a row's request from its traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from racer_core.errors import InputError


def parse_turn(
    fields: Mapping[str, Any], decision_id: str | None, cluster: str | None
) -> int | None:
    """The number of the turn that drew a row; None: its decision did, if it is of a sample.

    Args:
        fields: The parsed row.
        decision_id: The decision of the row.
        cluster: The cluster of the row, the conversation of the turn.

    Raises:
        InputError: A field lacks one that belongs to it, or is no number of a turn.
    """
    if decision_id is not None and fields.get("weight") is None:
        raise InputError(
            '"decision_id" stands without "weight", 1 / the rate at which the decision was drawn: '
            "use the rows of `GET /shadow/rows` unchanged"
        )
    turn = fields.get("turn")
    if turn is None:
        return None
    if isinstance(turn, bool) or not isinstance(turn, int) or turn < 0:
        raise InputError('"turn" must be a whole number from 0')
    if decision_id is None or cluster is None:
        raise InputError(
            '"turn" stands without "decision_id" or "cluster", the conversation of which it is a '
            "turn: use the rows of `GET /shadow/rows` unchanged"
        )
    return turn
