"""Labelled rows that were shown: an alpha picked from their curve is certified by the band."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Begin without any: rows that an earlier version showed are not known."""
    op.create_table(
        "seen_rows",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("seen_at", sa.String(32), nullable=False),
        sa.Column("terms", sa.String(), nullable=False),
        sa.Column("sketch", sa.LargeBinary(), nullable=False),
    )
    op.create_index("ix_seen_rows_seen_at", "seen_rows", ["seen_at"])
