"""Approvals that people are asked for, and what they decided."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "approvals",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("rule_at", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("roles", sa.Text, nullable=False),
        sa.Column("catalogue", sa.Text, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("identity", sa.Text, nullable=False),
        sa.Column("definition", sa.Text, nullable=False),
        sa.Column("revision", sa.Text, nullable=False),
        sa.Column("turn_id", sa.Text),
        sa.Column("call_id", sa.Text),
        sa.Column("arguments", sa.Text, nullable=False),
        sa.Column("show", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("approvers", sa.Text, nullable=False),
        sa.Column("needed", sa.Integer, nullable=False),
        sa.Column("resolution", sa.Text),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("decided_at", sa.BigInteger),
        sa.Column("reuse_for", sa.BigInteger),
        sa.Column("reuse_until", sa.BigInteger),
        sa.Column("used_at", sa.BigInteger),
        sa.Column("used_by", sa.Text),
        sa.Column("changed", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("id", name="approvals_by_id"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "approvals_live",
        "approvals",
        ["digest", "rule"],
        unique=True,
        sqlite_where=sa.text("state IN ('pending', 'granted')"),
    )
    op.create_index("approvals_by_digest", "approvals", ["digest"])
    op.create_index("approvals_by_owner", "approvals", ["owner", "state"])
    op.create_index("approvals_by_state", "approvals", ["tenant", "state", "number"])
    op.create_index("approvals_by_expiry", "approvals", ["expires_at"])
    op.create_index("approvals_by_change", "approvals", ["changed"])
    op.create_table(
        "approval_entries",
        sa.Column("approval_id", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("roles", sa.Text, nullable=False),
        sa.Column("decision", sa.Text, nullable=False),
        sa.Column("note", sa.Text),
        sa.Column("resolution", sa.Text),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("shown_digest", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["approval_id"], ["approvals.id"], name="approval_entries_approval"),
    )
    op.create_table(
        "approval_notices",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("webhook", sa.Text, nullable=False),
        sa.Column("approval_id", sa.Text, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("due_at", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["approval_id"], ["approvals.id"], name="approval_notices_approval"),
        sqlite_autoincrement=True,
    )
    op.create_index("approval_notices_due", "approval_notices", ["webhook", "due_at"])
    op.create_index("approval_notices_by_approval", "approval_notices", ["approval_id"])
