"""The sampling rate of every decision, drawn or not: sampled rows are thinned to the lowest."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Leave the rates of earlier decisions unknown; those that were drawn have theirs in a row."""
    op.add_column("decisions", sa.Column("sampling_rate", sa.Double(), nullable=True))
    op.create_index(
        "decisions_by_rate", "decisions", ["application", "sampling_rate", "created_at"]
    )
