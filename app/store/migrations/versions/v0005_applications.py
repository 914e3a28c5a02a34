"""Applications: drift alarms and the realised risk of each."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Keep every alarm and decision as one of no application."""
    op.create_table(
        "watches_by_application",
        sa.Column(
            "calibration_id",
            sa.String(64),
            sa.ForeignKey("calibrations.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("application", sa.String(256), primary_key=True),
        sa.Column("since", sa.String(32), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("raised", sa.String(), nullable=False),
    )
    op.execute(
        "INSERT INTO watches_by_application (calibration_id, application, since, state, raised) "
        "SELECT calibration_id, '', since, state, raised FROM watches"
    )
    op.drop_table("watches")
    op.rename_table("watches_by_application", "watches")
    op.add_column(
        "decisions", sa.Column("application", sa.String(256), nullable=False, server_default="")
    )
    op.drop_index("decisions_by_sample", "decisions")
    op.create_index(
        "decisions_by_sample",
        "decisions",
        ["calibration_id", "application", "shadow", "judged", "loss"],
    )
    if op.get_bind().dialect.name == "sqlite":
        op.drop_index("decisions_by_set", "decisions")
        op.create_index(
            "decisions_by_set",
            "decisions",
            ["calibration_id", "ordinary", "application", "selected", "null_selected"],
        )
