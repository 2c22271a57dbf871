"""The decision log of a store: entries are chained and written in the transaction of what they are about.

Each process writes a shard of its own, so that none waits for another. What a transaction that was taken back had
chained is taken back, too.
"""

import sqlite3
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from gateway.audit.chain import Chain, Head, Row
from gateway.audit.contents import ContentKey
from gateway.audit.entries import Mark, Place, body_of
from gateway.audit.statements import gathered, unfollowed
from gateway.errors import StoreUnavailable
from gateway.storage.inserting import Insertion, insert_rows
from gateway.storage.links import unavailable

if TYPE_CHECKING:  # whoever only writes rows need not know what calls are
    from gateway.governance.records import AuditBody

_HELP: Final = "restore the table audit of the database from a backup, or restart the gateway on a new one"
_INTO: Final = Insertion("INSERT INTO audit (shard, seq, prev, hash, body, at) VALUES ", "(?, ?, ?, ?, ?, ?)")
_SHARDS: Final = """
WITH RECURSIVE shards (shard) AS (
    SELECT min(shard) FROM audit
    UNION ALL
    SELECT (SELECT min(shard) FROM audit WHERE shard > shards.shard) FROM shards WHERE shard IS NOT NULL
)
SELECT shard FROM shards WHERE shard IS NOT NULL
"""
"""From one shard to the next by the index: there are few of them, and millions of entries."""

_HEAD: Final = "SELECT shard, seq, hash FROM audit WHERE shard = ? ORDER BY seq DESC LIMIT 1"
_OPENING: Final = "SELECT shard, seq, prev, hash, body FROM audit WHERE shard = ? AND seq = 1"


class AuditLog:
    """The writer's own: nobody else calls anything but `durable_head`."""

    def __init__(
        self, shard: Callable[[], str], place: Place, *, clock: Callable[[], int], key: ContentKey | None = None
    ) -> None:
        """`shard` gives a new name each time it is asked, `clock` microseconds since 1970. `key` is that of contents,
        for entries that are not encoded yet.
        """
        self._shard = shard
        self._place = place
        self._clock = clock
        self._key = key
        self._chain: Chain | None = None
        self._durable: Head | None = None

    def durable_head(self) -> Head:
        """How far it has come for good. Something must have been written."""
        assert self._durable is not None, "nothing was written yet"  # noqa: S101 - whoever asks has written
        return self._durable

    def mark(self) -> Head | None:
        return None if self._chain is None else self._chain.head

    def committed(self) -> None:
        if self._chain is not None:
            self._durable = self._chain.head

    def rewind(self, mark: Head | None) -> None:
        """A shard that was begun since then is gone with its first entry."""
        if mark is not None and self._chain is not None and self._chain.head.shard == mark.shard:
            self._chain.rewind(mark)
        else:
            self._chain = None

    def append(self, connection: sqlite3.Connection, bodies: "Sequence[AuditBody]") -> None:
        """Encode, chain and write entries. A place that is taken, by a commit nobody learnt of, begins a new shard.

        Raises `StoreUnavailable` where there is no log: what cannot be recorded does not happen.
        """
        if not bodies:
            return
        try:
            self._append(connection, [(at, body_of(at, said, self._key)) for at, said in bodies])
        except sqlite3.OperationalError as error:
            if unavailable(error):  # as everything else in the file
                raise
            raise StoreUnavailable("the decision log cannot be written", help=_HELP) from error

    def _append(self, connection: sqlite3.Connection, bodies: Sequence[tuple[int, bytes]]) -> None:
        if self._chain is not None:
            try:
                _insert(connection, self._chain.append(bodies))
                return
            except sqlite3.IntegrityError:
                self._chain = None
        self._chain = Chain(self._shard())
        first = self._chain.open(self._place, at=self._clock(), predecessors=_predecessors(connection))
        _insert(connection, [first, *self._chain.append(bodies)])


def _insert(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    insert_rows(connection, _INTO, [tuple(row) for row in rows])


def all_shards(connection: sqlite3.Connection) -> list[str]:
    return [shard for [shard] in connection.execute(_SHARDS).fetchall()]


def _predecessors(connection: sqlite3.Connection) -> list[Mark]:
    """The ends of shards that no shard follows yet."""
    shards = all_shards(connection)
    heads = [Head(*found) for shard in shards for found in connection.execute(_HEAD, (shard,))]
    openings = [Row(*found) for shard in shards for found in connection.execute(_OPENING, (shard,))]
    return unfollowed(heads, gathered(openings))
