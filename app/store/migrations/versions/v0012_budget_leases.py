"""What gateways have spent of budgets, and their leases."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """One row for each budget, period and gateway; amounts are decimal digits."""
    op.create_table(
        "budget_leases",
        sa.Column("budget", sa.String(160), primary_key=True),
        sa.Column("period", sa.String(10), primary_key=True),
        sa.Column("gateway", sa.String(64), primary_key=True),
        sa.Column("spent", sa.String(40), nullable=False),
        sa.Column("reserved", sa.String(40), nullable=False),
        sa.Column("ceiling", sa.String(40), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
    )
