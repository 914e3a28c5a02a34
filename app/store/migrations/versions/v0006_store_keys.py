"""A key of the store's own: the hashes of shown rows outlive the artifact that scored them."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Forget hashes under an artifact's key: no query has them any more."""
    op.create_table(
        "store_keys",
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("value", sa.LargeBinary(), nullable=False),
    )
    op.execute("DELETE FROM seen_rows")
