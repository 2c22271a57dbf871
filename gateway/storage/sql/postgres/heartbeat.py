"""The thread that renews the lease of a process, listens to other processes, and refreshes cached values.

Calls do not read the stop list from the database: it is cached, and trusted for a second after the database was last
asked for changes. `publish` waits for that long, so no process decides by an older list, however badly it reaches the
database.
"""

import asyncio
import logging
import os
import platform
from collections.abc import Callable
from math import inf
from select import POLLIN, poll
from threading import Event, Thread
from time import monotonic
from typing import Any, Final, Generic, TypeVar
from uuid import uuid4

import psycopg

from gateway.errors import GatewayError, StoreUnavailable
from gateway.storage.sql.group_commit import GroupCommit
from gateway.storage.sql.postgres.connection import FULL, PostgresConnection, broken_connection_error

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


T = TypeVar("T")

TRUSTED: Final = 1.0
"""Seconds for which a cached value is trusted, counted from before it was read."""

REREAD: Final = 5.0
"""Seconds after which every cached value is read again, whether or not a change was published."""

CHANNEL: Final = "gateway"
APPROVALS: Final = "approvals"
CHANGES: Final = "changes"

_LOOK: Final = 0.25
_RETRY: Final = 0.25
_PATIENCE: Final = 0.8
_CLOSE_SECONDS: Final = 2.0
"""How long closing waits for a server that does not answer."""

_log: Final = logging.getLogger(__name__)


class Heartbeat:
    """Renews `lease`, if there is one. Callbacks are called in its thread."""

    def __init__(self, address: str, lease: Lease | None = None) -> None:
        """Ask the database once. Raises `StoreUnavailable` if it cannot be used."""
        self._address = address
        self._lease = lease
        self._session: PostgresConnection | None = None
        self._closing = Event()
        self._number: int | None = None
        self._reread_at = 0.0
        self._renew_at = 0.0
        self.trusted_until = 0.0
        self.writable_until = 0.0 if lease is not None else inf
        self.problem: str | None = None
        self.is_full = False
        """Whether a write found no room, and none has succeeded since. Any thread may set it."""
        self.noticed: list[PostgresCachedValue[Any]] = []
        self.on_approvals: list[Callable[[], None]] = []
        try:
            self._ask()
        except BaseException:
            self._disconnect()
            raise
        self._woken, self._wake = os.pipe()
        self._thread = Thread(target=self._serve, name="gateway-store-pulse", daemon=True)
        self._thread.start()

    @property
    def is_trusted(self) -> bool:
        return monotonic() < self.trusted_until

    @property
    def is_writable(self) -> bool:
        """Whether the lease was renewed and the disk has room, so that calls can be recorded."""
        return not self.is_full and monotonic() < min(self.trusted_until, self.writable_until)

    def mark_full(self) -> None:
        """Mark the disk as full until `Lease.probe_space` succeeds: a renewal may succeed on a full disk."""
        self.is_full = True

    def close(self) -> None:
        """Stop the thread and end the lease, unless the database is unavailable."""
        self._closing.set()
        os.write(self._wake, b"!")
        self._thread.join(_CLOSE_SECONDS)
        while self._thread.is_alive():
            if (session := self._session) is not None:  # pragma: no branch - there is none while it connects
                session.abort()
            self._thread.join(_RETRY)
        os.close(self._wake)
        os.close(self._woken)
        try:
            if self._lease is not None and self._session is not None:
                self._lease.release(self._session)
        except StoreUnavailable:
            _log.warning("the lease of this process was not released; it expires in a moment")
        self._disconnect()

    def renew_now(self) -> None:
        """Renew the lease now: it has a new address."""
        self._renew_at = 0.0
        os.write(self._wake, b"!")

    def read_once(self, read: Callable[[Any], T]) -> T:
        session = PostgresConnection(self._address, patience=_PATIENCE, is_reader=True)
        try:
            return read(session)
        finally:
            session.close()

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                self._listen()
                self._ask()
            except Exception as error:
                self._report(error)
                self._disconnect()
                self._closing.wait(_RETRY)

    def _listen(self) -> None:
        """Wait until another process notifies, or it is time to ask."""
        if self._session is None:
            return
        waiting = poll()
        waiting.register(self._session.raw.fileno(), POLLIN)
        waiting.register(self._woken, POLLIN)
        for descriptor, _ in waiting.poll(_LOOK * 1000):  # notifications are read with the next query
            if descriptor == self._woken:
                os.read(self._woken, 64)

    def _on_notify(self, notify: psycopg.Notify) -> None:
        if notify.payload == APPROVALS:
            for callback in list(self.on_approvals):
                callback()

    def _ask(self) -> None:
        """Read changes first: that works with a read-only database, too. Then renew the lease."""
        began = monotonic()
        session = self._connect()
        [number] = session.execute("SELECT number FROM changes").fetchone()
        if number != self._number or began >= self._reread_at:
            for each in list(self.noticed):
                each.reread(session)
            self._number, self._reread_at = number, began + REREAD
        self.trusted_until = began + TRUSTED
        if self._lease is not None and began >= self._renew_at:
            self._lease.renew(session)
            self._renew_at = began + RENEW_INTERVAL
            if self.is_full:
                self._lease.probe_space(session)
                self.is_full = False
            self.writable_until = began + RENEW_INTERVAL + TRUSTED
        if self.problem is not None:
            _log.warning("the database can be reached again")
        self.problem = None

    def _connect(self) -> PostgresConnection:
        if self._session is None:
            session = self._session = PostgresConnection(self._address, patience=_PATIENCE)
            session.raw.add_notify_handler(self._on_notify)
            session.execute(f"LISTEN {CHANNEL}")
            self._number, self._renew_at = None, 0.0
        return self._session

    def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _report(self, error: Exception) -> None:
        """Log a failure, once per outage."""
        words = error.message if isinstance(error, GatewayError) else "the database cannot be understood"
        if self.problem is None:
            unexpected = None if isinstance(error, StoreUnavailable) else error
            _log.error("lost contact with the other gateways: %s", words, exc_info=unexpected)
        self.problem = words
        if words == FULL:
            self.mark_full()


class PostgresCachedValue(Generic[T]):
    """A small value that the heartbeat reads again after every published change."""

    def __init__(self, pulse: Heartbeat, read: Callable[[Any], T]) -> None:
        self._pulse = pulse
        self._read = read
        self.last: T = pulse.read_once(read)
        pulse.noticed.append(self)

    @property
    def problem(self) -> str | None:
        return None if self._pulse.is_trusted else self._pulse.problem or "the database does not answer"

    def current(self) -> T:
        """Raises `StoreUnavailable` if the value cannot be known."""
        if monotonic() < self._pulse.trusted_until:
            return self.last
        raise StoreUnavailable(
            self._pulse.problem or "the database does not answer", help="look at the database; nothing needs a restart"
        )

    def reread(self, session: PostgresConnection) -> None:
        self.last = self._read(session)

    def close(self) -> None:
        if self in self._pulse.noticed:
            self._pulse.noticed.remove(self)


class PostgresChangeSignal:
    """Implements `gateway.storage.cache_invalidation.ChangeSignal`."""

    def __init__(self, pulse: Heartbeat, writer: GroupCommit) -> None:
        self._pulse = pulse
        self._writer = writer

    def cache(self, read: Callable[[Any], T], *, at_first: T) -> PostgresCachedValue[T]:
        return PostgresCachedValue(self._pulse, read)

    async def publish(self) -> None:
        """Return when no process can use a value from before the change, which must be committed already."""

        def write(connection: Any) -> None:
            connection.execute("UPDATE changes SET number = number + 1")
            notify_channel(connection, CHANGES)

        try:
            await self._writer.run(write)
        except StoreUnavailable as error:
            raise StoreUnavailable(
                "the change is stored, but it could not be published",
                help=f"gateways notice it within {REREAD:.0f} s, or refuse until they do",
                cause=error,
            ) from error
        await asyncio.sleep(TRUSTED)

    def close(self) -> None: ...


def notify_channel(connection: Any, what: str) -> None:
    """Notify all processes when the transaction is committed."""
    connection.execute("SELECT pg_notify(?, ?)", (CHANNEL, what))
