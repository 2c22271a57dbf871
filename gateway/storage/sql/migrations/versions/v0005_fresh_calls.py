"""Single-call rows of calls that were just recorded, before they are expanded."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "fresh",
        sa.Column("number", number, primary_key=True, autoincrement=True),
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
        sa.Column("turn_secret", sa.LargeBinary, nullable=False),
        sa.Column("turn_created_at", sa.BigInteger, nullable=False),
        sa.Column("turn_expires_at", sa.BigInteger, nullable=False),
        sa.Column("turn_stash", sa.Text, nullable=False),
        sa.Column("turn_memory", sa.LargeBinary),
        sa.Column("piece_key", sa.Text),
        sa.Column("piece_content", sa.LargeBinary),
        sqlite_autoincrement=True,
    )
    op.create_index("fresh_by_turn", "fresh", ["turn_id"])
