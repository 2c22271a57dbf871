"""Connections to one PostgreSQL database, as those who write statements see them.

A session does what they ask of an SQLite connection, so that one set of statements and rules serves both.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from socket import SHUT_RDWR, socket
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from gateway.errors import StoreUnavailable
from gateway.storage.postgres.compiling import compiled, plain
from gateway.storage.postgres.faults import unavailable
from gateway.storage.prepared import Prepared

WRITERS: Final = 0x67772E31
"""The advisory lock of everybody who changes what others may change, too: one at a time, over all hosts."""

_CONNECT_SECONDS: Final = 2
_LOCK_MS: Final = 200
_IDLE_MS: Final = 2_000
"""How long a process that stops in the middle of a transaction can hold the others up."""

_SILENCE_MS: Final = 3_000
_HELD: Final = "EXISTS (SELECT 1 FROM leases WHERE id = '{}')"  # a name of ours, in hexadecimal digits


class Session:
    """One connection. Whatever fails because of the database raises `StoreUnavailable`."""

    def __init__(
        self,
        address: str,
        *,
        patience: float | None = 1.0,
        is_reader: bool = False,
        lease: Callable[[], str] | None = None,
    ) -> None:
        """`patience` is how many seconds the server works on one statement, `lease` what every transaction needs."""
        self._lease = lease
        try:
            self._connection = psycopg.connect(
                address,
                autocommit=True,
                connect_timeout=_CONNECT_SECONDS,
                tcp_user_timeout=_SILENCE_MS,
                keepalives_idle=2,
                keepalives_interval=1,
                keepalives_count=2,
                application_name="agent-gateway",
            )
        except psycopg.Error as error:
            raise (unavailable(error) or _not_understood(error)) from error
        self.transaction: int | None = None
        """The number of the transaction that was begun last."""
        try:
            self._set_up(patience, is_reader)
        except BaseException:
            self.close()
            raise

    @property
    def connection(self) -> Any:
        """Itself: what a link of SQLite has."""
        return self

    @property
    def raw(self) -> "psycopg.Connection[Any]":
        return self._connection

    @property
    def in_transaction(self) -> bool:
        return self._connection.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)

    def is_lost(self) -> bool:
        return self._connection.closed

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()

    def cut(self) -> None:
        """End it for whoever waits for the server in another thread: that one is told that it is broken."""
        with suppress(psycopg.Error, OSError), socket(fileno=os.dup(self._connection.fileno())) as wire:
            wire.shutdown(SHUT_RDWR)

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """A statement of our own, with `?` for its values."""
        if sql == "BEGIN IMMEDIATE":
            return self.begin()
        try:
            if parameters:
                return self._connection.execute(sql.replace("?", "%s"), [plain(each) for each in parameters])
            return self._connection.execute(sql)
        except psycopg.Error as error:
            raise _translated(error) from error

    def run(self, prepared: Prepared, parameters: Mapping[str, Any]) -> Any:
        statement = compiled(prepared)
        try:
            return self._connection.execute(statement.sql, statement.values(parameters))
        except psycopg.Error as error:
            raise _translated(error) from error

    def run_many(self, prepared: Prepared, rows: Sequence[Mapping[str, Any]]) -> int:
        """The same with each row, without waiting for one before the next is sent; how many rows that changed."""
        if not rows:
            return 0
        statement = compiled(prepared)
        try:
            with self._connection.cursor() as cursor:
                cursor.executemany(statement.sql, [statement.values(row) for row in rows])
                return cursor.rowcount
        except psycopg.Error as error:
            raise _translated(error) from error

    def begin(self, *, is_alone: bool = True) -> None:
        """Begin a transaction; when others may change the same, nobody else changes anything until it ends.

        The lease is asked for in the same step, as each costs the way there and back.
        """
        lock = f"SELECT pg_advisory_xact_lock({WRITERS});" if is_alone else ""
        held = "true" if self._lease is None else _HELD.format(self._lease())
        try:
            cursor = self._connection.execute(f"BEGIN; {lock} SELECT txid_current(), {held}")
            while cursor.nextset():
                pass
            found = cursor.fetchone()
            assert found is not None  # noqa: S101 - it is one row
            self.transaction, is_held = found
            if not is_held:
                self._connection.execute("ROLLBACK")
                raise given_up()
        except psycopg.Error as error:
            if self.in_transaction:
                with suppress(psycopg.Error):
                    self._connection.execute("ROLLBACK")
            raise _translated(error) from error

    def _set_up(self, patience: float | None, is_reader: bool) -> None:
        limit = 0 if patience is None else int(patience * 1000)
        self.execute(
            f"SET statement_timeout = {limit}; SET lock_timeout = {_LOCK_MS}; "
            f"SET idle_in_transaction_session_timeout = {_IDLE_MS}; SET timezone = 'UTC'; "
            + ("SET default_transaction_read_only = on" if is_reader else "SELECT 1")
        )
        if not is_reader:
            [durability] = self.execute("SHOW synchronous_commit").fetchone()
            if durability in ("off", "local"):  # what is answered must survive a crash; stronger ones are left alone
                self.execute("SET synchronous_commit = on")


def given_up() -> StoreUnavailable:
    return StoreUnavailable(
        "this process was silent for so long that others took it for dead",
        help="try again; look for what kept it from the database",
    )


def _translated(error: psycopg.Error) -> Exception:
    return unavailable(error) or error


def _not_understood(error: psycopg.Error) -> StoreUnavailable:
    return StoreUnavailable(
        "the connection of the Storage cannot be understood",
        help="write postgresql://USER:PASSWORD@HOST/DATABASE, or host=… dbname=…",
        cause=error,
    )
