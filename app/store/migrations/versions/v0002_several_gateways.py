"""What several gateways share: an active calibration per artifact, queries, alarms, limits."""

import json
import math

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Keep what is active and what alarmed; the watches go on where they were."""
    op.create_table(
        "active_calibrations",
        sa.Column("artifact", sa.String(64), primary_key=True),
        sa.Column(
            "calibration_id", sa.String(64), sa.ForeignKey("calibrations.id"), nullable=False
        ),
    )
    op.execute(
        "INSERT INTO active_calibrations (artifact, calibration_id) "
        "SELECT calibrations.artifact, calibrations.id FROM active_calibration "
        "JOIN calibrations ON calibrations.id = active_calibration.calibration_id"
    )
    op.drop_table("active_calibration")
    op.add_column("decisions", sa.Column("fingerprint", sa.String(64)))
    if op.get_bind().dialect.name == "postgresql":
        op.drop_index("decisions_by_set", "decisions")
        op.create_index("decisions_by_kind", "decisions", ["calibration_id", "ordinary"])
        op.create_index("decisions_by_query", "decisions", ["fingerprint"])
    op.add_column("watches", sa.Column("raised", sa.String(), nullable=False, server_default="[]"))
    connection = op.get_bind()
    for calibration_id, state in connection.execute(
        sa.text("SELECT calibration_id, state FROM watches")
    ).all():
        connection.execute(
            sa.text("UPDATE watches SET raised = :raised WHERE calibration_id = :id"),
            {"raised": json.dumps(_raised(state)), "id": calibration_id},
        )
    op.create_table(
        "budgets",
        sa.Column("key", sa.String(128), primary_key=True),
        sa.Column("unit", sa.String(16), primary_key=True),
        sa.Column("level", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
    )
    op.create_table(
        "leases",
        sa.Column("key", sa.String(128), primary_key=True),
        sa.Column("unit", sa.String(16), primary_key=True),
        sa.Column("gateway", sa.String(64), primary_key=True),
        sa.Column("held", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
    )


def _raised(state: str) -> list[str]:
    """The streams whose capital ever reached 1 / level, in a watch of the first version."""
    try:
        return [
            name
            for name, stream in json.loads(state)["streams"].items()
            if stream["wager"]["log_peak"] >= -math.log(stream["level"])
        ]
    except (KeyError, TypeError, ValueError):  # damaged: it begins again
        return []
