"""The limit of the test that promotes a canary."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Canaries that there are go on without a test."""
    op.add_column("canary_calibrations", sa.Column("promote_below", sa.Double(), nullable=True))
