"""The tables, as of the newest migration. Moments are microseconds since 1970, UTC; JSON is canonical text.

`owner` is a principal's tenant and subject as one text, so that nothing is ever looked up by an id alone.
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

METADATA: Final = MetaData()

_NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")  # only an INTEGER key counts up by itself there


turns: Final = Table(
    "turns",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("tenant", Text),
    Column("subject", Text, nullable=False),
    Column("roles", Text, nullable=False),
    Column("catalogue", Text, nullable=False),
    Column("revision", Text, nullable=False),
    Column("secret", LargeBinary, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("stash", Text, nullable=False),
    Column("ended_at", BigInteger),
    Column("ending", Text),
    UniqueConstraint("id", "owner", name="turns_by_owner"),
    Index("turns_by_expiry", "expires_at"),
)

calls: Final = Table(
    "calls",
    METADATA,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("turn_id", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("tenant", Text),
    Column("subject", Text, nullable=False),
    Column("roles", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("identity", Text, nullable=False),
    Column("args", Text, nullable=False),
    Column("checksum", Text, nullable=False),
    Column("catalogue", Text, nullable=False),
    Column("revision", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("definition", Text),
    Column("decision", Text),
    Column("because", Text),
    Column("is_error", Boolean, nullable=False),
    Column("inline", Boolean, nullable=False),
    Column("trusted", Boolean, nullable=False),
    Column("from_artifact_tool", Boolean, nullable=False),
    Column("results", Text, nullable=False),
    Column("completed_at", BigInteger),
    Column("idempotency_key", Text),
    Column("process", Text, nullable=False),
    Column("settled_as", BigInteger),  # the how manieth of its turn
    UniqueConstraint("turn_id", "id", name="calls_by_turn"),
    # With the owner: a call cannot be put into another principal's turn.
    ForeignKeyConstraint(["turn_id", "owner"], ["turns.id", "turns.owner"], name="calls_turn"),
    Index("calls_by_owner", "owner", "id"),
    Index("calls_by_tenant", "tenant", "number"),
    Index("calls_by_settling", "turn_id", "settled_as"),
    Index("calls_running", "process", sqlite_where=text("status = 'started'")),
    sqlite_autoincrement=True,
)

pieces: Final = Table(
    "pieces",
    METADATA,
    Column("key", Text, primary_key=True),
    Column("turn_id", Text, nullable=False),
    Column("call_id", Text, nullable=False),
    Column("position", Integer, nullable=False),
    Column("content", LargeBinary),  # nothing: the bytes are in the spool
    ForeignKeyConstraint(["turn_id", "call_id"], ["calls.turn_id", "calls.id"], name="pieces_call"),
    Index("pieces_by_call", "turn_id", "call_id"),
)

claims: Final = Table(
    "claims",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("turn_id", Text, nullable=False),
    Column("call_id", Text, nullable=False),
    Column("until", BigInteger, nullable=False),
    ForeignKeyConstraint(["turn_id", "call_id"], ["calls.turn_id", "calls.id"], name="claims_call"),
    Index("claims_by_call", "turn_id", "call_id"),
    Index("claims_by_expiry", "until"),
)
