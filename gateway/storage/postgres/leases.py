"""Which processes live, told by leases in the database: one that is not renewed in time is over, and so is its process.

The server's clock alone counts. Whoever ends the lease of another removes its row, in a transaction that nobody else
writes in; whoever writes looks for its own row first, in one of those, too. So a process that comes back from the dead
writes nothing in its old name: it learns that it was given up, and goes on under another one.

After an outage of the database every lease is overdue. Only a process whose own lease was always renewed in time ends
those of others, so all of them have the time of a lease to come back.
"""

import platform
from collections.abc import Callable
from time import monotonic
from typing import Final
from uuid import uuid4

from gateway.storage.postgres.sessions import Session, given_up

LIFE: Final = 3.0
"""Seconds. With a sweep every two of them, the calls of a dead process are found within five."""

BEAT: Final = 0.75

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
    """This opening of a store. Its name changes only if others gave it up."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._sound_since = clock()
        self._renewed_at = clock()
        self.id = uuid4().hex
        self.address: str | None = None
        """How other gateways reach this one, if they should."""
        self._is_taken = False

    def renew(self, session: Session) -> None:
        """To be called more often than every `LIFE`."""
        found = session.execute(_RENEW, (LIFE, self.address, self.id)).fetchone() if self._is_taken else None
        now = self._clock()
        if found is None:
            if self._is_taken:
                self.id = uuid4().hex
            session.execute(_TAKE, (self.id, platform.node(), LIFE, self.address))
            self._is_taken = True
        if found is None or not found[0] or now - self._renewed_at > LIFE:
            self._sound_since = now
        self._renewed_at = now

    @staticmethod
    def try_room(session: Session) -> None:
        """Write more than a call takes, and take it back. A renewal finds room on a full disk, where its row was."""
        session.execute("BEGIN")
        session.execute(_LARGE, (uuid4().hex,))
        session.execute("ROLLBACK")

    def release(self, session: Session) -> None:
        session.execute("DELETE FROM leases WHERE id = ?", (self.id,))

    def may_be_dead(self, session: Session) -> bool:
        """Whether some call runs in a process whose lease is over or overdue; costs nobody's turn to write."""
        condition = "WHERE until > clock_timestamp()"
        return bool(session.execute(_ABANDONED.format(condition=condition)).fetchall())

    def gone(self, session: Session) -> list[str]:
        """Processes that have calls running and no lease. To be called by whoever writes alone."""
        now = self._clock()
        if now - self._sound_since >= LIFE and now - self._renewed_at < LIFE:
            session.execute(_END_OVERDUE, (self.id,))
        return [process for (process,) in session.execute(_ABANDONED.format(condition="")).fetchall()]

    @staticmethod
    def addresses(session: Session) -> list[str]:
        """Of all gateways that live."""
        return [address for (address,) in session.execute(_ADDRESSES).fetchall()]

    def refuse_others(self, process: str) -> None:
        """Raises `StoreUnavailable` for a call that would begin in a name that was given up meanwhile."""
        if process != self.id:
            raise given_up()
