"""Trust flags that callers have seen, and when they last did."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "sightings",
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("flag", sa.Text, primary_key=True),
        sa.Column("seen_at", sa.BigInteger, nullable=False),
    )
    op.create_index("sightings_by_moment", "sightings", ["seen_at"])


def downgrade() -> None:
    op.drop_table("sightings")
