"""Limits and leases of all kinds in two tables."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Amounts are decimal digits; what was spent before is not kept."""
    for table in ("budgets", "leases", "budget_leases"):
        op.drop_table(table)
    op.create_table(
        "limits",
        sa.Column("name", sa.String(160), primary_key=True),
        sa.Column("period", sa.String(10), primary_key=True),
        sa.Column("used", sa.String(40), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(160), primary_key=True),
        sa.Column("period", sa.String(10), primary_key=True),
        sa.Column("lease", sa.String(32), primary_key=True),
        sa.Column("spent", sa.String(40), nullable=False),
        sa.Column("reserved", sa.String(40), nullable=False),
        sa.Column("ceiling", sa.String(40), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
    )
