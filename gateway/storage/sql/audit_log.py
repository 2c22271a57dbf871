"""The decision log of a store: entries are chained, and written in the transaction of the records they describe.

Each process writes its own shard, so that none waits for another. A rollback also rewinds the chain. Expired entries at
the start of a shard are found by binary search and deleted in batches.
"""

import sqlite3
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from gateway.audit import (
    AuditOrigin,
    Chain,
    ChainHead,
    ChainPosition,
    ChainRow,
    ContentKey,
    ExpiredPrefix,
    collect_statements,
    encode_entry,
    find_open_heads,
)
from gateway.errors import StoreUnavailable
from gateway.storage.sql.column_values import InsertStatement, insert_rows
from gateway.storage.sql.sqlite.connection import to_store_error

if TYPE_CHECKING:  # the writer process loads no model of calls
    from gateway.storage.call_store import AuditBody

_HELP: Final = "restore the table audit of the database from a backup, or restart the gateway on a new one"
_INTO: Final = InsertStatement("INSERT INTO audit (shard, seq, prev, hash, body, at) VALUES ", "(?, ?, ?, ?, ?, ?)")
_SHARDS: Final = """
WITH RECURSIVE shards (shard) AS (
    SELECT min(shard) FROM audit
    UNION ALL
    SELECT (SELECT min(shard) FROM audit WHERE shard > shards.shard) FROM shards WHERE shard IS NOT NULL
)
SELECT shard FROM shards WHERE shard IS NOT NULL
"""
"""Goes from one shard to the next by the index: there are few shards, and millions of entries."""

_HEAD: Final = "SELECT shard, seq, hash FROM audit WHERE shard = ? ORDER BY seq DESC LIMIT 1"
_OPENING: Final = "SELECT shard, seq, prev, hash, body FROM audit WHERE shard = ? AND seq = 1"


class AuditLog:
    """Belongs to the writer: other threads may call `durable_head` only."""

    def __init__(
        self, shard: Callable[[], str], place: AuditOrigin, *, clock: Callable[[], int], key: ContentKey | None = None
    ) -> None:
        """`shard` returns a new name each time, `clock` microseconds since 1970. `key` is for entries to encode."""
        self._shard = shard
        self._place = place
        self._clock = clock
        self._key = key
        self._chain: Chain | None = None
        self._durable: ChainHead | None = None

    def durable_head(self) -> ChainHead:
        """Return the last durable entry. Something must have been written."""
        assert self._durable is not None, "nothing was written yet"  # noqa: S101 - callers write first
        return self._durable

    def mark(self) -> ChainHead | None:
        return None if self._chain is None else self._chain.head

    def on_commit(self) -> None:
        if self._chain is not None:
            self._durable = self._chain.head

    def rewind(self, mark: ChainHead | None) -> None:
        """Go back to an earlier head. A shard that was begun since then is dropped."""
        if mark is not None and self._chain is not None and self._chain.head.shard == mark.shard:
            self._chain.rewind(mark)
        else:
            self._chain = None

    def append(self, connection: sqlite3.Connection, bodies: "Sequence[AuditBody]") -> None:
        """Encode, chain and write entries. If the next place is taken by an unknown commit, begin a new shard.

        Raises `StoreUnavailable` if the log cannot be written: what cannot be recorded must not happen.
        """
        if not bodies:
            return
        try:
            self._append(connection, [(at, encode_entry(at, body, self._key)) for at, body in bodies])
        except sqlite3.OperationalError as error:
            if to_store_error(error):  # the writer translates it
                raise
            raise StoreUnavailable("the decision log cannot be written", help=_HELP) from error

    def _append(self, connection: sqlite3.Connection, bodies: Sequence[tuple[int, bytes]]) -> None:
        if self._chain is not None:
            if self._insert(connection, self._chain.append(bodies)):
                return
            self._chain = None  # a commit that this process did not learn of took the place
        self._chain = Chain(self._shard())
        first = self._chain.open(self._place, at=self._clock(), predecessors=_predecessors(connection))
        if not self._insert(connection, [first, *self._chain.append(bodies)]):
            raise StoreUnavailable("the decision log cannot be written: the name of a new shard is taken")

    def _insert(self, connection: Any, rows: Sequence[ChainRow]) -> bool:
        """Whether the rows are written. They are not if one of their places is taken."""
        try:
            insert_rows(connection, _INTO, [tuple(row) for row in rows])
        except sqlite3.IntegrityError:
            return False
        return True


def list_shards(connection: sqlite3.Connection) -> list[str]:
    return [shard for [shard] in connection.execute(_SHARDS).fetchall()]


def _predecessors(connection: sqlite3.Connection) -> list[ChainPosition]:
    """Return the heads of shards that no other shard continues."""
    shards = list_shards(connection)
    heads = [ChainHead(*found) for shard in shards for found in connection.execute(_HEAD, (shard,))]
    openings = [ChainRow(*found) for shard in shards for found in connection.execute(_OPENING, (shard,))]
    return find_open_heads(heads, collect_statements(openings))


MAX_PRUNED_ENTRIES: Final = 100_000
"""Entries of a shard that one pass deletes: they are searched for statements that have to be repeated."""

AT_ONCE: Final = 1000
"""Entries that are deleted in one transaction: calls that are recorded meanwhile wait for it."""

_FIRST: Final = """
SELECT seq, hash, (SELECT max(seq) FROM audit AS every WHERE every.shard = first.shard)
FROM (SELECT * FROM audit WHERE shard = ? ORDER BY seq LIMIT 1) AS first WHERE at < ?
"""
"""Finds no row if even the first entry of a shard is new."""
_AT: Final = "SELECT at, hash FROM audit WHERE shard = ? AND seq = ?"
_STATEMENTS: Final = "SELECT shard, seq, prev, hash, body FROM audit WHERE shard = ? AND seq <= ? AND "
_SAYS: Final = "instr(body, CAST('\"log\":{' AS BLOB)) ORDER BY seq"
_SAYS_ELSEWHERE: Final = "position(convert_to('\"log\":{', 'UTF8') IN body) > 0 ORDER BY seq"
_DELETE: Final = "DELETE FROM audit WHERE shard = ? AND seq <= ?"
_MAY_DELETE: Final = "SELECT has_table_privilege(current_user, 'audit', 'DELETE')"


def can_prune_audit(connection: Any) -> bool:
    """Whether the database role may delete entries. The role of a gateway need not."""
    if isinstance(connection, sqlite3.Connection):
        return True
    [is_allowed] = connection.execute(_MAY_DELETE).fetchone()
    return bool(is_allowed)


def find_expired_prefixes(
    connection: Any, shards: Sequence[str], *, before: int, most: int = MAX_PRUNED_ENTRIES
) -> list[ExpiredPrefix]:
    """Return the first entries of each shard that are older than `before`, in microseconds since 1970."""
    found = (_old_beginning(connection, shard, before, most) for shard in shards)
    return [each for each in found if each is not None]


def delete_audit_batch(connection: Any, beginning: ExpiredPrefix, step: int) -> bool:
    """Delete one batch. Return whether another one follows."""
    upto = min(beginning.last.seq, beginning.first + (step + 1) * AT_ONCE - 1)
    connection.execute(_DELETE, (beginning.last.shard, upto))
    return upto < beginning.last.seq


def _old_beginning(connection: Any, shard: str, before: int, most: int) -> ExpiredPrefix | None:
    beginning = connection.execute(_FIRST, (shard, before)).fetchone()
    if beginning is None:
        return None
    first, digest, last = beginning
    old, new = first, min(last, first + most - 1) + 1  # the first is old, and entries from `new` on stay
    while new - old > 1:
        middle = (old + new) // 2
        found = connection.execute(_AT, (shard, middle)).fetchone()
        if found is not None and found[0] < before:
            old, digest = middle, found[1]
        else:
            new = middle
    says = _SAYS if isinstance(connection, sqlite3.Connection) else _SAYS_ELSEWHERE
    statements = [ChainRow(*row) for row in connection.execute(_STATEMENTS + says, (shard, old))]
    return ExpiredPrefix(first, ChainHead(shard, old, digest), statements)
