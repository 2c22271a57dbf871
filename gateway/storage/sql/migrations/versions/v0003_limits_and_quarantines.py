"""Counts of quotas, quarantines, and revoked tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "quotas",
        sa.Column("key", sa.LargeBinary, primary_key=True),
        sa.Column("window", sa.BigInteger, primary_key=True),
        sa.Column("used", sa.BigInteger, nullable=False),
        sa.Column("ends_at", sa.BigInteger, nullable=False),
    )
    op.create_index("quotas_by_end", "quotas", ["ends_at"])
    op.create_table(
        "quarantines",
        sa.Column("target", sa.Text, primary_key=True),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("until", sa.BigInteger),
    )
    op.create_table(
        "revocations",
        sa.Column("token_id", sa.Text, primary_key=True),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("until", sa.BigInteger),
    )
