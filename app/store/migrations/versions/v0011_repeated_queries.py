"""Index of queries by all that makes two of them equal: one earlier decision of a query is read."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Replace the index by fingerprint alone, which only PostgreSQL has."""
    if op.get_bind().dialect.name == "postgresql":
        key = sa.text("(fingerprint || ' ' || calibration_id || ' ' || application)")
        op.drop_index("decisions_by_query", "decisions")
        op.create_index("decisions_by_query", "decisions", [key, "loss"])
