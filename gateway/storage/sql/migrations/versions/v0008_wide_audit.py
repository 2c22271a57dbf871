"""The decision log of SQLite in a tree whose pages hold whole entries.

Without row numbers an entry of more than a quarter of a page has a page of its own beside the tree. PostgreSQL has
nothing of the kind.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    _lay_anew(with_rowid=True)


def downgrade() -> None:
    _lay_anew(with_rowid=False)


def _lay_anew(*, with_rowid: bool) -> None:
    if op.get_bind().dialect.name != "sqlite":
        return
    op.create_table(
        "audit_anew",
        sa.Column("shard", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True),
        sa.Column("prev", sa.LargeBinary, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sqlite_with_rowid=with_rowid,
    )
    op.execute("INSERT INTO audit_anew SELECT shard, seq, prev, hash, body, at FROM audit ORDER BY shard, seq")
    op.drop_table("audit")
    op.rename_table("audit_anew", "audit")
