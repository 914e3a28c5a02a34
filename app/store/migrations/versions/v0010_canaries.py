"""The calibration that decides a share of the requests beside the active one."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """One for each artifact and fleet at most."""
    op.create_table(
        "canary_calibrations",
        sa.Column("artifact", sa.String(64), primary_key=True),
        sa.Column("calibration_id", sa.String(64), nullable=False),
        sa.Column("share", sa.Double(), nullable=False),
        sa.Column("since", sa.String(32), nullable=False),
        sa.Column("ended", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["calibration_id"], ["calibrations.id"]),
    )
