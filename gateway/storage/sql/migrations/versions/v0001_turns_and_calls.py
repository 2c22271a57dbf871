"""Turns, their calls, the pieces of results, and idempotency keys."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "turns",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("roles", sa.Text, nullable=False),
        sa.Column("catalogue", sa.Text, nullable=False),
        sa.Column("revision", sa.Text, nullable=False),
        sa.Column("secret", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.Column("stash", sa.Text, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("ending", sa.Text),
        sa.UniqueConstraint("id", "owner", name="turns_by_owner"),
    )
    op.create_index("turns_by_expiry", "turns", ["expires_at"])
    op.create_table(
        "calls",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("turn_id", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("roles", sa.Text, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("identity", sa.Text, nullable=False),
        sa.Column("args", sa.Text, nullable=False),
        sa.Column("checksum", sa.Text, nullable=False),
        sa.Column("catalogue", sa.Text, nullable=False),
        sa.Column("revision", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("definition", sa.Text),
        sa.Column("decision", sa.Text),
        sa.Column("because", sa.Text),
        sa.Column("is_error", sa.Boolean, nullable=False),
        sa.Column("inline", sa.Boolean, nullable=False),
        sa.Column("trusted", sa.Boolean, nullable=False),
        sa.Column("from_artifact_tool", sa.Boolean, nullable=False),
        sa.Column("results", sa.Text, nullable=False),
        sa.Column("completed_at", sa.BigInteger),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("process", sa.Text, nullable=False),
        sa.Column("settled_as", sa.BigInteger),
        sa.UniqueConstraint("turn_id", "id", name="calls_by_turn"),
        sa.ForeignKeyConstraint(["turn_id", "owner"], ["turns.id", "turns.owner"], name="calls_turn"),
        sqlite_autoincrement=True,
    )
    op.create_index("calls_by_owner", "calls", ["owner", "id"])
    op.create_index("calls_by_tenant", "calls", ["tenant", "number"])
    op.create_index("calls_by_settling", "calls", ["turn_id", "settled_as"])
    op.create_index("calls_running", "calls", ["process"], sqlite_where=sa.text("status = 'started'"))
    op.create_table(
        "pieces",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("turn_id", sa.Text, nullable=False),
        sa.Column("call_id", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("content", sa.LargeBinary),
        sa.ForeignKeyConstraint(["turn_id", "call_id"], ["calls.turn_id", "calls.id"], name="pieces_call"),
    )
    op.create_index("pieces_by_call", "pieces", ["turn_id", "call_id"])
    op.create_table(
        "claims",
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("turn_id", sa.Text, nullable=False),
        sa.Column("call_id", sa.Text, nullable=False),
        sa.Column("until", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["turn_id", "call_id"], ["calls.turn_id", "calls.id"], name="claims_call"),
    )
    op.create_index("claims_by_call", "claims", ["turn_id", "call_id"])
    op.create_index("claims_by_expiry", "claims", ["until"])
