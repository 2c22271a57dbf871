"""The decision log in PostgreSQL, where a constraint that is violated ends the whole transaction: so none is."""

from collections.abc import Sequence
from typing import Any, Final

from gateway.audit.chain import Chain, Row
from gateway.errors import StoreUnavailable
from gateway.storage.audit_log import AuditLog, _predecessors

_INSERT: Final = """
INSERT INTO audit (shard, seq, prev, hash, body, at)
SELECT * FROM unnest(?::text[], ?::bigint[], ?::bytea[], ?::bytea[], ?::bytea[], ?::bigint[])
WHERE NOT EXISTS (SELECT 1 FROM audit WHERE shard = ? AND seq = ?)
"""


class PostgresAuditLog(AuditLog):
    def _append(self, connection: Any, bodies: Sequence[tuple[int, bytes]]) -> None:
        if self._chain is not None:
            if _is_inserted(connection, self._chain.append(bodies)):
                return
            self._chain = None  # its place was taken by a commit nobody learnt of
        self._chain = Chain(self._shard())
        first = self._chain.open(self._place, at=self._clock(), predecessors=_predecessors(connection))
        if not _is_inserted(connection, [first, *self._chain.append(bodies)]):
            raise StoreUnavailable("the decision log cannot be written: the name of a new shard is taken")


def _is_inserted(connection: Any, rows: Sequence[Row]) -> bool:
    """Who wrote the first place wrote the others, too: it is enough to ask for that one."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    inserted: int = connection.execute(_INSERT, [*columns, rows[0].shard, rows[0].seq]).rowcount
    return inserted == len(rows)
