"""Roles that callers asked for, and hold for a time."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_table(
        "grants",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("policy", sa.Text, nullable=False),
        sa.Column("duration", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("requester", sa.Text, nullable=False),
        sa.Column("requester_roles", sa.Text, nullable=False),
        sa.Column("requested_at", sa.BigInteger, nullable=False),
        sa.Column("lapses_at", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("decider", sa.Text),
        sa.Column("decider_roles", sa.Text),
        sa.Column("decided_at", sa.BigInteger),
        sa.Column("since", sa.BigInteger),
        sa.Column("until", sa.BigInteger),
        sa.Column("revoked_by", sa.Text),
        sa.Column("revoked_at", sa.BigInteger),
    )
    op.create_index("grants_by_end", "grants", ["until"])


def downgrade() -> None:
    op.drop_table("grants")
