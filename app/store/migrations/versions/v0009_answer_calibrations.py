"""Calibrations of the promise `same_answer`, and the setup under which samples were answered."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Samples without a setup are no rows of these calibrations."""
    op.add_column("samples", sa.Column("answer_setup", sa.String(64), nullable=True))
    op.create_table(
        "answer_calibrations",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("activated_at", sa.String(32), nullable=True),
        sa.Column("answer_setup", sa.String(64), nullable=False),
        sa.Column("application", sa.String(256), nullable=False),
        sa.Column("document", sa.String(), nullable=False),
        sa.Column("arrays", sa.LargeBinary(), nullable=False),
    )
    for column in ("created_at", "answer_setup"):
        op.create_index(f"ix_answer_calibrations_{column}", "answer_calibrations", [column])
