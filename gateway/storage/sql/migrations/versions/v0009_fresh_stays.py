"""Single-call rows stay until more is written about their turn. PostgreSQL has no such rows."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_CALL = """
turn_id, id, owner, tenant, subject, roles, tool, identity, args, checksum, catalogue, revision, created_at, status,
definition, decision, because, is_error, inline, trusted, from_artifact_tool, results, completed_at, idempotency_key,
process, settled_as, trace_id, span_id
"""
_PUT_AWAY = (
    """
    INSERT INTO turns (
        id, owner, tenant, subject, roles, catalogue, revision, secret, created_at, expires_at, stash, memory
    ) SELECT
        turn_id, owner, tenant, subject, roles, catalogue, revision, turn_secret, turn_created_at, turn_expires_at,
        turn_stash, turn_memory
    FROM fresh WHERE true ORDER BY number ON CONFLICT DO NOTHING
    """,
    f"INSERT INTO calls ({_CALL}) SELECT {_CALL} FROM fresh WHERE true ORDER BY number ON CONFLICT DO NOTHING",  # noqa: S608 - our own names
    """
    INSERT INTO pieces (key, turn_id, call_id, position, content)
    SELECT piece_key, turn_id, id, 0, piece_content FROM fresh WHERE piece_key IS NOT NULL
    ORDER BY number ON CONFLICT DO NOTHING
    """,
    "DELETE FROM fresh",
    "INSERT INTO sqlite_sequence (name, seq) SELECT 'calls', 0"
    " WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'calls')",
)
_IN_SPOOL = sa.text("piece_key IS NOT NULL AND piece_content IS NULL")


def upgrade() -> None:
    if op.get_bind().dialect.name != "sqlite":
        return
    for statement in _PUT_AWAY:
        op.execute(statement)
    op.drop_index("fresh_by_turn", table_name="fresh")
    op.create_index("fresh_by_turn", "fresh", ["turn_id"], unique=True)
    op.create_index("fresh_by_tenant", "fresh", ["tenant", "number"], sqlite_where=sa.text("tenant IS NOT NULL"))
    op.create_index("fresh_by_expiry", "fresh", ["turn_expires_at"])
    op.create_index("fresh_in_spool", "fresh", ["turn_expires_at"], sqlite_where=_IN_SPOOL)
    op.create_table(
        "fresh_ids",
        sa.Column("upto", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Leave single-call rows: an earlier program expands them."""
    if op.get_bind().dialect.name != "sqlite":
        return
    op.drop_table("fresh_ids")
    for name in ("fresh_by_turn", "fresh_by_tenant", "fresh_by_expiry", "fresh_in_spool"):
        op.drop_index(name, table_name="fresh")
    op.create_index("fresh_by_turn", "fresh", ["turn_id"])
