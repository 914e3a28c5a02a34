"""The tables of the time before a database said its version."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Calibrations, decisions, verdicts and watches."""
    op.create_table(
        "calibrations",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("created_at", sa.String(32), nullable=False, index=True),
        sa.Column("artifact", sa.String(64), nullable=False),
        sa.Column("document", sa.String(), nullable=False),
        sa.Column("arrays", sa.LargeBinary(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
    )
    op.create_table(
        "active_calibration",
        sa.Column("slot", sa.Integer(), primary_key=True),
        sa.Column(
            "calibration_id", sa.String(64), sa.ForeignKey("calibrations.id"), nullable=False
        ),
    )
    op.create_table(
        "decisions",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("created_at", sa.String(32), nullable=False, index=True),
        sa.Column("calibration_id", sa.String(64), nullable=False),
        sa.Column("key", sa.String(128), nullable=False),
        sa.Column("selected", sa.String(), nullable=False),
        sa.Column("null_selected", sa.Boolean(), nullable=False),
        sa.Column("ordinary", sa.Boolean(), nullable=False),
        sa.Column("shadow", sa.Boolean(), nullable=False),
        sa.Column("judged", sa.Boolean(), nullable=False),
        sa.Column("loss", sa.Double()),
        sa.Column("document", sa.String(), nullable=False),
        sa.Column("neighbours", sa.LargeBinary()),
    )
    op.create_index(
        "decisions_by_set",
        "decisions",
        ["calibration_id", "ordinary", "selected", "null_selected"],
    )
    op.create_index(
        "decisions_by_sample", "decisions", ["calibration_id", "shadow", "judged", "loss"]
    )
    op.create_table(
        "verdicts",
        sa.Column(
            "decision_id",
            sa.String(64),
            sa.ForeignKey("decisions.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("candidate", sa.String(256), primary_key=True),
        sa.Column("correct", sa.Boolean(), nullable=False),
        sa.Column("counts", sa.Boolean(), nullable=False),
        sa.Column("key", sa.String(128), nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
    )
    op.create_table(
        "watches",
        sa.Column(
            "calibration_id",
            sa.String(64),
            sa.ForeignKey("calibrations.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("since", sa.String(32), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
    )
