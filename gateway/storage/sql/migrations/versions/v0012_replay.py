"""What a replay of a call needs: why it was decided so, when, and whose state it shared."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    tables = ("calls", "fresh") if op.get_bind().dialect.name == "sqlite" else ("calls",)
    for table in tables:
        op.add_column(table, sa.Column("reason", sa.Text))
        op.add_column(table, sa.Column("decided_at", sa.BigInteger))
        op.add_column(table, sa.Column("implicit", sa.Text))
        op.add_column(table, sa.Column("replay", sa.Text))


def downgrade() -> None:
    tables = ("calls", "fresh") if op.get_bind().dialect.name == "sqlite" else ("calls",)
    for table in tables:
        for column in ("reason", "decided_at", "implicit", "replay"):
            op.drop_column(table, column)
