"""The tables, as of the newest migration.

Times are microseconds since 1970, UTC; JSON is canonical text. `owner` is a principal's tenant and subject as one text:
records are never looked up by an id alone.
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

_NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")  # there only an INTEGER key increments automatically


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
    Column("memory", LargeBinary),  # the turn state as JSON; NULL: empty
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
    Column("checksum", Text, nullable=False),  # and the exact digest after a space, if it differs
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
    Column("settled_as", BigInteger),  # position among the outcomes of its turn
    Column("trace_id", Text),  # in hexadecimal digits; NULL: the call has no span
    Column("span_id", Text),
    Column("reason", Text),  # of the decision: a word of the decision log's vocabulary
    Column("decided_at", BigInteger),  # NULL: when the call began, or no rule was evaluated
    Column("implicit", Text),  # digest that names the state the call shared; NULL: that of its turn
    Column("replay", Text),  # the arguments of a refused call, if the Storage document asks for them
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
    Column("content", LargeBinary),  # NULL: the bytes are in the spool
    ForeignKeyConstraint(["turn_id", "call_id"], ["calls.turn_id", "calls.id"], name="pieces_call"),
    Index("pieces_by_call", "turn_id", "call_id"),
)

fresh: Final = Table(
    # Single-call rows: the only call of a turn, with the turn and its piece, in one row of one tree. They are expanded
    # into the other tables when more is written about the turn. Columns of the call have the same names as in `calls`.
    # A number is unique over both tables, and stays the same.
    "fresh",
    METADATA,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    *(Column(each.name, each.type, nullable=each.nullable) for each in calls.c if each.name != "number"),
    Column("turn_secret", LargeBinary, nullable=False),
    Column("turn_created_at", BigInteger, nullable=False),
    Column("turn_expires_at", BigInteger, nullable=False),
    Column("turn_stash", Text, nullable=False),
    Column("turn_memory", LargeBinary),
    Column("piece_key", Text),
    Column("piece_content", LargeBinary),
    Index("fresh_by_turn", "turn_id", unique=True),
    Index("fresh_by_tenant", "tenant", "number", sqlite_where=text("tenant IS NOT NULL")),
    Index("fresh_by_expiry", "turn_expires_at"),
    Index("fresh_in_spool", "turn_expires_at", sqlite_where=text("piece_key IS NOT NULL AND piece_content IS NULL")),
    sqlite_autoincrement=True,
)

fresh_ids: Final = Table(
    # The ids of single-call rows in runs: those of the numbers up to `upto`, sorted. One index of all ids would be
    # written to in a different place for each call.
    "fresh_ids",
    METADATA,
    Column("upto", BigInteger, primary_key=True, autoincrement=False),
    Column("id", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
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

approvals: Final = Table(
    "approvals",
    METADATA,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("rule", Text, nullable=False),
    Column("rule_at", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("tenant", Text),
    Column("subject", Text, nullable=False),
    Column("roles", Text, nullable=False),
    Column("catalogue", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("identity", Text, nullable=False),
    Column("definition", Text, nullable=False),
    Column("revision", Text, nullable=False),
    Column("turn_id", Text),
    Column("call_id", Text),
    Column("arguments", Text, nullable=False),
    Column("show", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("approvers", Text, nullable=False),
    Column("needed", Integer, nullable=False),
    Column("resolution", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("decided_at", BigInteger),
    Column("reuse_for", BigInteger),
    Column("reuse_until", BigInteger),
    Column("used_at", BigInteger),
    Column("used_by", Text),  # which use it was, so that it can be undone if its caller stopped waiting
    Column("changed", BigInteger, nullable=False),  # counts every change of any approval: higher numbers are newer
    Column("trace", Text),  # traceparent of the call that asked
    UniqueConstraint("id", name="approvals_by_id"),
    Index("approvals_live", "digest", "rule", unique=True, sqlite_where=text("state IN ('pending', 'granted')")),
    Index("approvals_by_digest", "digest"),
    Index("approvals_by_owner", "owner", "state"),
    Index("approvals_by_state", "tenant", "state", "number"),
    Index("approvals_by_expiry", "expires_at"),
    Index("approvals_by_change", "changed"),
    sqlite_autoincrement=True,
)

approval_entries: Final = Table(
    "approval_entries",
    METADATA,
    Column("approval_id", Text, primary_key=True),
    Column("owner", Text, primary_key=True),
    Column("position", Integer, nullable=False),
    Column("roles", Text, nullable=False),
    Column("decision", Text, nullable=False),
    Column("note", Text),
    Column("resolution", Text),
    Column("at", BigInteger, nullable=False),
    Column("shown_digest", Text, nullable=False),
    Column("trace", Text),  # traceparent of the decision
    ForeignKeyConstraint(["approval_id"], ["approvals.id"], name="approval_entries_approval"),
)

approval_notices: Final = Table(
    "approval_notices",
    METADATA,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False),
    Column("webhook", Text, nullable=False),
    Column("approval_id", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("due_at", BigInteger, nullable=False),
    ForeignKeyConstraint(["approval_id"], ["approvals.id"], name="approval_notices_approval"),
    Index("approval_notices_due", "webhook", "due_at"),
    Index("approval_notices_by_approval", "approval_id"),
    sqlite_autoincrement=True,
)

quotas: Final = Table(
    "quotas",
    METADATA,
    Column("key", LargeBinary, primary_key=True),  # a digest: keys may be long and private
    Column("window", BigInteger, primary_key=True),  # its number since 1970
    Column("used", BigInteger, nullable=False),
    Column("ends_at", BigInteger, nullable=False),
    Index("quotas_by_end", "ends_at"),
)

refusals: Final = Table(
    "refusals",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("reason", Text, primary_key=True),
    Column("since", BigInteger, primary_key=True, autoincrement=False),  # the start of its minute
    Column("kept", BigInteger, nullable=False),  # recorded one by one
    Column("counted", BigInteger, nullable=False),  # only counted
    Column("told", BigInteger, nullable=False),  # those counted ones that the decision log has
    Index("refusals_by_moment", "since"),
)

sightings: Final = Table(
    "sightings",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("flag", Text, primary_key=True),
    Column("seen_at", BigInteger, nullable=False),
    Index("sightings_by_moment", "seen_at"),
)

quarantines: Final = Table(
    "quarantines",
    METADATA,
    Column("target", Text, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("until", BigInteger),
)

revocations: Final = Table(
    "revocations",
    METADATA,
    Column("token_id", Text, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("until", BigInteger),
)

grants: Final = Table(
    "grants",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("tenant", Text),
    Column("subject", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("policy", Text, nullable=False),
    Column("duration", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("requester", Text, nullable=False),  # tenant and subject, as in `owner` of other tables
    Column("requester_roles", Text, nullable=False),
    Column("requested_at", BigInteger, nullable=False),
    Column("lapses_at", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("decider", Text),
    Column("decider_roles", Text),
    Column("decided_at", BigInteger),
    Column("since", BigInteger),
    Column("until", BigInteger),
    Column("revoked_by", Text),
    Column("revoked_at", BigInteger),
    Index("grants_by_end", "until"),
)

audit: Final = Table(
    "audit",
    METADATA,
    Column("shard", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("prev", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("at", BigInteger, nullable=False),
)
