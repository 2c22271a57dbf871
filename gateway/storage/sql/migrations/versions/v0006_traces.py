"""The trace of a call, so that later findings about it go into the same trace."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    for table in ("calls", "fresh"):
        op.add_column(table, sa.Column("trace_id", sa.Text))
        op.add_column(table, sa.Column("span_id", sa.Text))
    op.add_column("approvals", sa.Column("trace", sa.Text))
    op.add_column("approval_entries", sa.Column("trace", sa.Text))
