"""The tables of the first release."""

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None


def upgrade() -> None:
    """Create all tables, with the indices of the database's kind."""
    _create_calibrations()
    _create_decisions()
    _create_samples()
    _create_limits()


def _create_calibrations() -> None:
    """Calibrations of both promises, which of them decide, and their drift alarms."""
    op.create_table(
        "calibrations",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("created_at", sa.String(32), nullable=False, index=True),
        sa.Column("artifact", sa.String(64), nullable=False),
        sa.Column("document", sa.String(), nullable=False),
        sa.Column("arrays", sa.LargeBinary(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("chosen_at", sa.String(32)),
    )
    op.create_table(
        "active_calibrations",
        sa.Column("artifact", sa.String(64), primary_key=True),
        sa.Column(
            "calibration_id", sa.String(64), sa.ForeignKey("calibrations.id"), nullable=False
        ),
    )
    op.create_table(
        "canary_calibrations",
        sa.Column("artifact", sa.String(64), primary_key=True),
        sa.Column(
            "calibration_id", sa.String(64), sa.ForeignKey("calibrations.id"), nullable=False
        ),
        sa.Column("share", sa.Double(), nullable=False),
        sa.Column("since", sa.String(32), nullable=False),
        sa.Column("ended", sa.String()),
    )
    op.create_table(
        "answer_calibrations",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("created_at", sa.String(32), nullable=False, index=True),
        sa.Column("activated_at", sa.String(32)),
        sa.Column("answer_setup", sa.String(64), nullable=False, index=True),
        sa.Column("application", sa.String(256), nullable=False),
        sa.Column("document", sa.String(), nullable=False),
        sa.Column("arrays", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "watches",
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


def _create_decisions() -> None:
    """Decisions, and verdicts on their answers."""
    op.create_table(
        "decisions",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("calibration_id", sa.String(64), nullable=False),
        sa.Column("key", sa.String(128), nullable=False),
        sa.Column("selected", sa.String(), nullable=False),
        sa.Column("null_selected", sa.Boolean(), nullable=False),
        sa.Column("ordinary", sa.Boolean(), nullable=False),
        sa.Column("shadow", sa.Boolean(), nullable=False),
        sa.Column("judged", sa.Boolean(), nullable=False),
        sa.Column("loss", sa.Double()),
        sa.Column("watched", sa.Boolean(), nullable=False),
        sa.Column("critical_score", sa.Double()),
        sa.Column("document", sa.String(), nullable=False),
        sa.Column("neighbours", sa.LargeBinary()),
        sa.Column("fingerprint", sa.String(64)),
        sa.Column("application", sa.String(256), nullable=False),
        sa.Column("sampling_rate", sa.Double()),
    )
    indices: dict[str, list[str | sa.TextClause]] = {
        "decisions_by_sample": ["calibration_id", "application", "shadow", "judged", "loss"],
        "decisions_by_time": ["created_at", "application"],
        "decisions_by_rate": ["application", "sampling_rate", "created_at"],
    }
    if op.get_bind().dialect.name == "postgresql":
        query = sa.text("(fingerprint || ' ' || calibration_id || ' ' || application)")
        indices["decisions_by_kind"] = ["calibration_id", "ordinary"]
        indices["decisions_by_query"] = [query, "loss"]
    else:
        indices["decisions_by_set"] = [
            *("calibration_id", "ordinary", "application", "selected", "null_selected")
        ]
    for name, columns in indices.items():
        op.create_index(name, "decisions", columns)
    op.create_index(
        "decisions_by_bet",
        "decisions",
        ["calibration_id", "application", "created_at", "id"],
        sqlite_where=sa.text("watched = 1"),
        postgresql_where=sa.text("watched"),
    )
    op.create_table(
        "verdicts",
        _decision_id(),
        sa.Column("candidate", sa.String(256), primary_key=True),
        sa.Column("correct", sa.Boolean(), nullable=False),
        sa.Column("counts", sa.Boolean(), nullable=False),
        sa.Column("key", sa.String(128), nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
    )


def _create_samples() -> None:
    """What the shadow sample keeps, judge models' verdicts, rows that were shown, and keys."""
    op.create_table(
        "samples",
        _decision_id(),
        sa.Column("application", sa.String(256), index=True),
        sa.Column("later", sa.Boolean(), nullable=False),
        sa.Column("conversation", sa.String(64)),
        sa.Column("classes", sa.String(), nullable=False),
        sa.Column("digests", sa.String(), nullable=False),
        sa.Column("whole", sa.Boolean(), nullable=False),
        sa.Column("body", sa.LargeBinary()),
        sa.Column("answer_setup", sa.String(64)),
    )
    op.create_table(
        "judgements",
        _decision_id(),
        sa.Column("candidate", sa.String(256), primary_key=True),
        sa.Column("judge", sa.String(256), primary_key=True),
        sa.Column("correct", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
    )
    op.create_table(
        "seen_rows",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("seen_at", sa.String(32), nullable=False, index=True),
        sa.Column("terms", sa.String(), nullable=False),
        sa.Column("sketch", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "store_keys",
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("value", sa.LargeBinary(), nullable=False),
    )


def _create_limits() -> None:
    """Quotas and budgets, and what each gateway has leased of them; amounts are decimal digits."""
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


def _decision_id() -> sa.Column[str]:
    return sa.Column(
        "decision_id",
        sa.String(64),
        sa.ForeignKey("decisions.id", ondelete="CASCADE"),
        primary_key=True,
    )
