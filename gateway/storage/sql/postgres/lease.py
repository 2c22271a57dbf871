"""Liveness of processes by leases in the database: a process that does not renew its lease in time is dead.

Only the server's clock counts. A process ends the lease of another by deleting its row, in an exclusive transaction. A
process that writes looks for its own row first, in an exclusive transaction, too. So a process that was taken for dead
writes nothing under its old id: it finds that its lease was ended, and continues under a new one.

After an outage of the database every lease is overdue. Only a process that always renewed its own lease in time ends
those of others, so that all of them have the time of a lease to come back.
"""

import platform
from collections.abc import Callable
from time import monotonic
from typing import Final
from uuid import uuid4

from gateway.storage.sql.postgres.connection import PostgresConnection, broken_connection_error

LEASE_SECONDS: Final = 3.0
"""With a sweep every two seconds, the calls of a dead process are found within five."""

RENEW_INTERVAL: Final = 0.75

_RENEW: Final = """
UPDATE leases AS mine SET until = clock_timestamp() + make_interval(secs => ?), address = ? FROM leases AS before
WHERE mine.id = ? AND before.id = mine.id RETURNING before.until > clock_timestamp()
"""
_TAKE: Final = """
INSERT INTO leases (id, node, until, address) VALUES (?, ?, clock_timestamp() + make_interval(secs => ?), ?)
"""
_END_OVERDUE: Final = "DELETE FROM leases WHERE until < clock_timestamp() AND id <> ?"
_LARGE: Final = """
INSERT INTO leases (id, node, until, address)
SELECT ?, '', clock_timestamp(), string_agg(gen_random_uuid()::text, '') FROM generate_series(1, 7000)
"""
_ADDRESSES: Final = "SELECT DISTINCT address FROM leases WHERE until > clock_timestamp() AND address IS NOT NULL"
_ABANDONED: Final = """
SELECT DISTINCT process FROM calls WHERE status = 'started' AND process NOT IN (SELECT id FROM leases {condition})
"""


class Lease:
    """The lease of this opening of a store. Its id changes only if another process ended it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._sound_since = clock()
        self._renewed_at = clock()
        self.id = uuid4().hex
        self.address: str | None = None
        """Address at which other gateways reach this one, if they should."""
        self._is_taken = False

    def renew(self, session: PostgresConnection) -> None:
        """Renew it, more often than every `LEASE_SECONDS`."""
        found = session.execute(_RENEW, (LEASE_SECONDS, self.address, self.id)).fetchone() if self._is_taken else None
        now = self._clock()
        if found is None:
            if self._is_taken:
                self.id = uuid4().hex
            session.execute(_TAKE, (self.id, platform.node(), LEASE_SECONDS, self.address))
            self._is_taken = True
        if found is None or not found[0] or now - self._renewed_at > LEASE_SECONDS:
            self._sound_since = now
        self._renewed_at = now

    @staticmethod
    def probe_space(session: PostgresConnection) -> None:
        """Write more than a call takes, and roll back. A renewal may succeed on a full disk: it reuses space."""
        session.execute("BEGIN")
        session.execute(_LARGE, (uuid4().hex,))
        session.execute("ROLLBACK")

    def release(self, session: PostgresConnection) -> None:
        session.execute("DELETE FROM leases WHERE id = ?", (self.id,))

    def has_expired_peers(self, session: PostgresConnection) -> bool:
        """Whether some call runs in a process whose lease is ended or overdue. Does not use the writer."""
        condition = "WHERE until > clock_timestamp()"
        return bool(session.execute(_ABANDONED.format(condition=condition)).fetchall())

    def find_dead_processes(self, session: PostgresConnection) -> list[str]:
        """Return processes that have running calls and no lease. Call it in an exclusive transaction."""
        now = self._clock()
        if now - self._sound_since >= LEASE_SECONDS and now - self._renewed_at < LEASE_SECONDS:
            session.execute(_END_OVERDUE, (self.id,))
        return [process for (process,) in session.execute(_ABANDONED.format(condition="")).fetchall()]

    @staticmethod
    def addresses(session: PostgresConnection) -> list[str]:
        """Return the addresses of all live gateways."""
        return [address for (address,) in session.execute(_ADDRESSES).fetchall()]

    def require_held(self, process: str) -> None:
        """Raise `StoreUnavailable` for a call that would start under an id whose lease was ended."""
        if process != self.id:
            raise broken_connection_error()
