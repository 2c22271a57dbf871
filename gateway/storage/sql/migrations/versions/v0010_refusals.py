"""Counts of refused calls. Refused calls below a limit are recorded with an excerpt of their arguments."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "refusals",
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("reason", sa.Text, primary_key=True),
        sa.Column("since", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("kept", sa.BigInteger, nullable=False),
        sa.Column("counted", sa.BigInteger, nullable=False),
        sa.Column("told", sa.BigInteger, nullable=False),
    )
    op.create_index("refusals_by_moment", "refusals", ["since"])


def downgrade() -> None:
    """Remove excerpts: an earlier program expects arguments, which are an object."""
    op.drop_table("refusals")
    tables = ("calls", "fresh") if op.get_bind().dialect.name == "sqlite" else ("calls",)
    for table in tables:
        op.execute(f"UPDATE {table} SET args = '{{}}' WHERE args LIKE '[%'")  # noqa: S608 - our own names
