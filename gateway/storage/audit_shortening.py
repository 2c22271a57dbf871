"""Beginnings of a decision log that are old enough to go: found by halving, deleted in steps, in either database."""

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from gateway.audit.chain import Head, Row
from gateway.audit.retention import OldBeginning

MOST: Final = 100_000
"""Entries of a shard that go in one pass: they are looked through for what has to be said again."""

AT_ONCE: Final = 1000
"""Entries that are deleted in one transaction: calls that settle meanwhile wait for it."""

_FIRST: Final = """
SELECT seq, hash, (SELECT max(seq) FROM audit AS every WHERE every.shard = first.shard)
FROM (SELECT * FROM audit WHERE shard = ? ORDER BY seq LIMIT 1) AS first WHERE at < ?
"""
"""Nothing, if even the first entry of a shard is new."""
_AT: Final = "SELECT at, hash FROM audit WHERE shard = ? AND seq = ?"
_STATEMENTS: Final = "SELECT shard, seq, prev, hash, body FROM audit WHERE shard = ? AND seq <= ? AND "
_SAYS: Final = "instr(body, CAST('\"log\":{' AS BLOB)) ORDER BY seq"
_SAYS_ELSEWHERE: Final = "position(convert_to('\"log\":{', 'UTF8') IN body) > 0 ORDER BY seq"
_DELETE: Final = "DELETE FROM audit WHERE shard = ? AND seq <= ?"
_MAY_DELETE: Final = "SELECT has_table_privilege(current_user, 'audit', 'DELETE')"


def may_delete(connection: Any) -> bool:
    """Whether whoever is connected may remove entries at all; a gateway's role need not."""
    if isinstance(connection, sqlite3.Connection):
        return True
    [is_allowed] = connection.execute(_MAY_DELETE).fetchone()
    return bool(is_allowed)


def old_beginnings(connection: Any, shards: Sequence[str], *, before: int, most: int = MOST) -> list[OldBeginning]:
    """Of each shard, as far as its entries are from before that moment, in microseconds since 1970."""
    found = (_old_beginning(connection, shard, before, most) for shard in shards)
    return [each for each in found if each is not None]


def delete_step(connection: Any, beginning: OldBeginning, step: int) -> bool:
    """Whether there is another one after it."""
    upto = min(beginning.last.seq, beginning.first + (step + 1) * AT_ONCE - 1)
    connection.execute(_DELETE, (beginning.last.shard, upto))
    return upto < beginning.last.seq


def _old_beginning(connection: Any, shard: str, before: int, most: int) -> OldBeginning | None:
    beginning = connection.execute(_FIRST, (shard, before)).fetchone()
    if beginning is None:
        return None
    first, digest, last = beginning
    old, new = first, min(last, first + most - 1) + 1  # the first is old, and whatever is `new` stays
    while new - old > 1:
        middle = (old + new) // 2
        found = connection.execute(_AT, (shard, middle)).fetchone()
        if found is not None and found[0] < before:
            old, digest = middle, found[1]
        else:
            new = middle
    says = _SAYS if isinstance(connection, sqlite3.Connection) else _SAYS_ELSEWHERE
    statements = [Row(*row) for row in connection.execute(_STATEMENTS + says, (shard, old))]
    return OldBeginning(first, Head(shard, old, digest), statements)
