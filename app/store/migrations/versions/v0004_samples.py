"""Rows out of live traffic: what the shadow sample keeps, and the verdicts of judge models."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Begin without any: earlier versions kept no answers."""
    op.create_table(
        "samples",
        sa.Column(
            "decision_id",
            sa.String(64),
            sa.ForeignKey("decisions.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("application", sa.String(256)),
        sa.Column("later", sa.Boolean(), nullable=False),
        sa.Column("conversation", sa.String(64)),
        sa.Column("classes", sa.String(), nullable=False),
        sa.Column("digests", sa.String(), nullable=False),
        sa.Column("whole", sa.Boolean(), nullable=False),
        sa.Column("body", sa.LargeBinary()),
    )
    op.create_index("ix_samples_application", "samples", ["application"])
    op.create_table(
        "judgements",
        sa.Column(
            "decision_id",
            sa.String(64),
            sa.ForeignKey("decisions.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("candidate", sa.String(256), primary_key=True),
        sa.Column("judge", sa.String(256), primary_key=True),
        sa.Column("correct", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
    )
