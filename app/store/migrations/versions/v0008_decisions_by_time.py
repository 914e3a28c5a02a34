"""Index of decisions by time and application: the budget of samples counts a day of requests."""

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Replace the index by time alone."""
    op.drop_index("ix_decisions_created_at", "decisions")
    op.create_index("decisions_by_time", "decisions", ["created_at", "application"])
