"""Tables that gateways on several hosts share in PostgreSQL, and its column types. SQLite needs none of it."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_LIVE = "state IN ('pending', 'granted')"


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    op.drop_table("fresh")  # PostgreSQL has no single-call rows
    op.drop_index("approvals_live", table_name="approvals")
    op.create_index("approvals_live", "approvals", ["digest", "rule"], unique=True, postgresql_where=sa.text(_LIVE))
    op.drop_index("calls_running", table_name="calls")
    op.create_index("calls_running", "calls", ["process"], postgresql_where=sa.text("status = 'started'"))
    # Compared byte by byte, whatever the collation of the database: texts of one prefix are neighbours.
    op.execute('ALTER TABLE pieces ALTER COLUMN key TYPE text COLLATE "C"')
    op.execute('ALTER TABLE audit ALTER COLUMN shard TYPE text COLLATE "C"')
    op.create_table(
        "leases",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("address", sa.Text),  # at which other gateways reach it, if they should
    )
    changes = op.create_table("changes", sa.Column("number", sa.BigInteger, nullable=False))
    op.bulk_insert(changes, [{"number": 1}])
    op.create_table(
        "rates",
        sa.Column("key", sa.LargeBinary, primary_key=True),
        sa.Column("full_at", sa.BigInteger, nullable=False),
        prefixes=["UNLOGGED"],  # rates may be lost in a crash
    )
    op.create_index("rates_by_moment", "rates", ["full_at"])
