"""The one thread of a process that keeps in touch with the others: it renews the lease, and hears what they announce.

What calls are decided by is read here, not on their way: the kill switch and the revoked tokens are in memory, and are
trusted for a moment after the database was last asked whether anything has changed. Whoever announces a change waits
for as long as that, so nobody decides by what was before it, however badly they reach the database.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from math import inf
from select import POLLIN, poll
from threading import Event, Thread
from time import monotonic
from typing import Any, Final, Generic, TypeVar

import psycopg

from gateway.errors import GatewayError, StoreUnavailable
from gateway.storage.postgres.faults import FULL
from gateway.storage.postgres.leases import BEAT, Lease
from gateway.storage.postgres.sessions import Session
from gateway.storage.postgres.writing import PostgresWriter

T = TypeVar("T")

TRUSTED: Final = 1.0
"""Seconds for which what was read is decided by, counted from before it was asked for."""

REREAD: Final = 5.0
"""Seconds after which everything is read again, whether or not somebody announced a change."""

CHANNEL: Final = "gateway"
APPROVALS: Final = "approvals"
CHANGES: Final = "changes"

_LOOK: Final = 0.25
_RETRY: Final = 0.25
_PATIENCE: Final = 0.8
_CLOSE_SECONDS: Final = 2.0
"""How long closing waits for a server that does not answer."""

_log: Final = logging.getLogger(__name__)


class Pulse:
    """`lease` is renewed, if there is one. Callbacks are called in its thread."""

    def __init__(self, address: str, lease: Lease | None = None) -> None:
        """Asks once, here: raises `StoreUnavailable` for a database that cannot be used."""
        self._address = address
        self._lease = lease
        self._session: Session | None = None
        self._closing = Event()
        self._number: int | None = None
        self._reread_at = 0.0
        self._renew_at = 0.0
        self.trusted_until = 0.0
        self.writable_until = 0.0 if lease is not None else inf
        self.problem: str | None = None
        self.is_full = False
        """Whether there was no room for something, and has not been since. Any thread may tell."""
        self.noticed: list[Noticed[Any]] = []
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
        """Whether the lease was renewed, and there is room: what cannot be written is not recorded either."""
        return not self.is_full and monotonic() < min(self.trusted_until, self.writable_until)

    def note_full(self) -> None:
        """Something found no room. A lease may find some still: until more than a call takes does, nothing is ready."""
        self.is_full = True

    def close(self) -> None:
        """The lease ends with it, unless the database cannot be told."""
        self._closing.set()
        os.write(self._wake, b"!")
        self._thread.join(_CLOSE_SECONDS)
        while self._thread.is_alive():
            if (session := self._session) is not None:  # pragma: no branch - there is none while it connects
                session.cut()
            self._thread.join(_RETRY)
        os.close(self._wake)
        os.close(self._woken)
        try:
            if self._lease is not None and self._session is not None:
                self._lease.release(self._session)
        except StoreUnavailable:
            _log.warning("the lease of this process was not given back; others take it back in a moment")
        self._disconnect()

    def renew_now(self) -> None:
        """Do not wait for the next beat: there is something new to tell."""
        self._renew_at = 0.0
        os.write(self._wake, b"!")

    def read_once(self, read: Callable[[Any], T]) -> T:
        session = Session(self._address, patience=_PATIENCE, is_reader=True)
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
                self._tell(error)
                self._disconnect()
                self._closing.wait(_RETRY)

    def _listen(self) -> None:
        """Until somebody announces something, or it is time to ask."""
        if self._session is None:
            return
        waiting = poll()
        waiting.register(self._session.raw.fileno(), POLLIN)
        waiting.register(self._woken, POLLIN)
        for descriptor, _ in waiting.poll(_LOOK * 1000):  # what others sent is read along with the next answer
            if descriptor == self._woken:
                os.read(self._woken, 64)

    def _heard(self, notify: psycopg.Notify) -> None:
        if notify.payload == APPROVALS:
            for callback in list(self.on_approvals):
                callback()

    def _ask(self) -> None:
        """Reads first: a database that can only be read tells what was stopped and revoked all the same."""
        began = monotonic()
        session = self._connected()
        [number] = session.execute("SELECT number FROM changes").fetchone()
        if number != self._number or began >= self._reread_at:
            for each in list(self.noticed):
                each.reread(session)
            self._number, self._reread_at = number, began + REREAD
        self.trusted_until = began + TRUSTED
        if self._lease is not None and began >= self._renew_at:
            self._lease.renew(session)
            self._renew_at = began + BEAT
            if self.is_full:
                self._lease.try_room(session)
                self.is_full = False
            self.writable_until = began + BEAT + TRUSTED
        if self.problem is not None:
            _log.warning("the database can be reached again")
        self.problem = None

    def _connected(self) -> Session:
        if self._session is None:
            session = self._session = Session(self._address, patience=_PATIENCE)
            session.raw.add_notify_handler(self._heard)
            session.execute(f"LISTEN {CHANNEL}")
            self._number, self._renew_at = None, 0.0
        return self._session

    def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _tell(self, error: Exception) -> None:
        """Once per outage."""
        words = error.message if isinstance(error, GatewayError) else "the database cannot be understood"
        if self.problem is None:
            unexpected = None if isinstance(error, StoreUnavailable) else error
            _log.error("no touch with the other gateways: %s", words, exc_info=unexpected)
        self.problem = words
        if words == FULL:
            self.note_full()


class Noticed(Generic[T]):
    """Something small that is read again whenever a change was announced, by the pulse."""

    def __init__(self, pulse: Pulse, read: Callable[[Any], T]) -> None:
        self._pulse = pulse
        self._read = read
        self.last: T = pulse.read_once(read)
        pulse.noticed.append(self)

    @property
    def problem(self) -> str | None:
        return None if self._pulse.is_trusted else self._pulse.problem or "the database does not answer"

    def current(self) -> T:
        """Raises `StoreUnavailable` if it cannot be known."""
        if monotonic() < self._pulse.trusted_until:
            return self.last
        raise StoreUnavailable(
            self._pulse.problem or "the database does not answer", help="look at the database; nothing needs a restart"
        )

    def reread(self, session: Session) -> None:
        self.last = self._read(session)

    def close(self) -> None:
        if self in self._pulse.noticed:
            self._pulse.noticed.remove(self)


class PostgresNotices:
    """What `gateway.storage.notices.Notices` is beside an SQLite file."""

    def __init__(self, pulse: Pulse, writer: PostgresWriter) -> None:
        self._pulse = pulse
        self._writer = writer

    def noticed(self, read: Callable[[Any], T], *, at_first: T) -> Noticed[T]:
        return Noticed(self._pulse, read)

    async def announce(self) -> None:
        """Returns when no process can decide any more by what it read before. What changed is committed already."""

        def write(connection: Any) -> None:
            connection.execute("UPDATE changes SET number = number + 1")
            tell(connection, CHANGES)

        try:
            await self._writer.run(write)
        except StoreUnavailable as error:
            raise StoreUnavailable(
                "the change is stored, but it could not be announced",
                help=f"gateways notice it within {REREAD:.0f} s, or refuse until they do",
                cause=error,
            ) from error
        await asyncio.sleep(TRUSTED)

    def close(self) -> None: ...


def tell(connection: Any, what: str) -> None:
    """Everybody, once the transaction is committed."""
    connection.execute("SELECT pg_notify(?, ?)", (CHANNEL, what))
