"""Keys of the store: secrets of its keyed hashes and draws, the same for all its gateways."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.store.engine import insert_into
from app.store.tables import StoreKeyRow

_KEY_BYTES: Final = 32


class KeyPurpose(StrEnum):
    """What a key of the store is for."""

    SEEN_ROWS = "seen_rows"  # hashes of the queries of shown rows
    SAMPLES = "samples"  # draws of the shadow sample, and ids of conversations


def own_key(session: Session, purpose: KeyPurpose) -> bytes:
    """The store's own key for a purpose, which stays.

    Of gateways that make it at the same time the first sets it for all.
    """
    stored = session.get(StoreKeyRow, purpose)
    if stored is None:
        made = {"name": purpose, "value": secrets.token_bytes(_KEY_BYTES)}
        insert = insert_into(session, StoreKeyRow).values(made)
        session.execute(insert.on_conflict_do_nothing())
        stored = session.get_one(StoreKeyRow, purpose)
    return stored.value


def all_keys(session: Session, purpose: KeyPurpose) -> tuple[bytes, ...]:
    """The store's own key for a purpose, and then those that were taken over."""
    own = own_key(session, purpose)
    others = select(StoreKeyRow.value).where(
        StoreKeyRow.name.startswith(f"{purpose}/", autoescape=True)
    )
    return own, *session.scalars(others.order_by(StoreKeyRow.name))


def take_over_keys(session: Session, purpose: KeyPurpose, keys: Iterable[bytes]) -> None:
    """Store the keys of another store; the first becomes the own key of a store that has none."""
    for value in keys:
        own = session.get(StoreKeyRow, purpose)
        if own is not None and own.value == value:
            continue
        digest = hashlib.sha256(value).hexdigest()[:16]
        name = purpose if own is None else f"{purpose}/{digest}"
        insert = insert_into(session, StoreKeyRow).values({"name": name, "value": value})
        session.execute(insert.on_conflict_do_nothing())
