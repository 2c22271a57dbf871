"""Grants in the table `grants`; those that can be in force are cached in memory until a change is published."""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from json import loads
from typing import Any, Final, cast

from sqlalchemy import ColumnElement, bindparam, delete, insert, or_, select
from sqlalchemy.sql.expression import ClauseElement

from gateway.errors import StoreUnavailable
from gateway.model import Principal, canonical
from gateway.policy import Grant, GrantChange, GrantHook, GrantLedger, GrantState
from gateway.storage.cache_invalidation import CachedValue, ChangeSignal
from gateway.storage.sql.call_rows import from_microseconds, owner_key, to_microseconds
from gateway.storage.sql.compiled_statement import CompiledStatement
from gateway.storage.sql.group_commit import GroupCommit
from gateway.storage.sql.tables import grants

COUNTED_FOR: Final = timedelta(days=32)
"""How long an ended grant is read for decisions: longer than the longest period of a policy."""

RETAINED_FOR: Final = timedelta(days=90)
"""How long an ended grant or request is listed; the decision log has all of them."""

_MICROSECOND: Final = timedelta(microseconds=1)
_COLUMNS: Final = {column.name: bindparam(column.name, type_=column.type) for column in grants.c}
_AT: Final[ColumnElement[int]] = bindparam("at")

ALL: Final = CompiledStatement(select(grants).order_by(grants.c.requested_at.desc(), grants.c.id))
COUNTING: Final = CompiledStatement(select(grants).where(grants.c.until > _AT).order_by(grants.c.since, grants.c.id))
DELETE: Final = CompiledStatement(delete(grants).where(grants.c.id == bindparam("id")))
DELETE_OLD: Final = CompiledStatement(
    delete(grants).where(grants.c.lapses_at <= _AT, or_(grants.c.until.is_(None), grants.c.until <= _AT))
)
INSERT: Final = CompiledStatement(cast("ClauseElement", insert(grants).values(_COLUMNS)))


class SqlGrantStore:
    """Implements `gateway.policy.grants.grant_service.GrantStore`."""

    def __init__(
        self,
        writer: GroupCommit,
        notices: ChangeSignal,
        *,
        clock: Callable[[], datetime],
        also: GrantHook = lambda connection, change: None,
    ) -> None:
        """`also` writes in the transaction of each change."""
        self._writer = writer
        self._notices = notices
        self._clock = clock
        self._also = also
        self._ledger: CachedValue[GrantLedger] = notices.cache(self._read_ledger, at_first=GrantLedger())

    @property
    def problem(self) -> str | None:
        """Why no grant is in force, although there may be some."""
        return self._ledger.problem

    def current(self) -> GrantLedger:
        return self._ledger.current()

    async def change(self, work: Callable[[Sequence[Grant]], GrantChange]) -> Grant:
        def write(connection: sqlite3.Connection) -> Grant:
            DELETE_OLD.run(connection, {"at": to_microseconds(self._clock() - RETAINED_FOR)})
            change = work(read_all_grants(connection))
            row = _to_row(change.grant)
            DELETE.run(connection, row)
            INSERT.run(connection, row)
            self._also(connection, change)
            return change.grant

        grant = await self._writer.run(write)
        await self._notices.publish()
        return grant

    async def list_grants(self) -> list[Grant]:
        return await self._writer.run(read_all_grants)

    def close(self) -> None:
        self._ledger.close()

    def _read_ledger(self, connection: sqlite3.Connection) -> GrantLedger:
        since = to_microseconds(self._clock() - COUNTED_FOR)
        rows = COUNTING.rows(connection, {"at": since})
        try:
            return GrantLedger.of(map(_from_row, rows))
        except (TypeError, ValueError) as error:
            raise StoreUnavailable("a grant in the store cannot be read", cause=error) from error


def read_all_grants(connection: sqlite3.Connection) -> list[Grant]:
    """Return requests and grants, newest first."""
    return [_from_row(row) for row in ALL.rows(connection, {})]


def _to_row(grant: Grant) -> dict[str, Any]:
    decider = grant.decider
    return {
        "id": grant.id,
        "tenant": grant.tenant,
        "subject": grant.subject,
        "role": grant.role,
        "policy": grant.policy,
        "duration": grant.duration // _MICROSECOND,
        "reason": grant.reason,
        "requester": owner_key(grant.requester),
        "requester_roles": _to_roles(grant.requester),
        "requested_at": to_microseconds(grant.requested_at),
        "lapses_at": to_microseconds(grant.lapses_at),
        "state": grant.state,
        "decider": None if decider is None else owner_key(decider),
        "decider_roles": None if decider is None else _to_roles(decider),
        "decided_at": _to_number(grant.decided_at),
        "since": _to_number(grant.since),
        "until": _to_number(grant.until),
        "revoked_by": grant.revoked_by,
        "revoked_at": _to_number(grant.revoked_at),
    }


def _from_row(row: Mapping[str, Any]) -> Grant:
    return Grant(
        row["id"],
        row["subject"],
        row["tenant"],
        row["role"],
        row["policy"],
        row["duration"] * _MICROSECOND,
        row["reason"],
        _to_principal(row["requester"], row["requester_roles"]),
        from_microseconds(row["requested_at"]),
        from_microseconds(row["lapses_at"]),
        cast("GrantState", row["state"]),  # only such words are written
        None if row["decider"] is None else _to_principal(row["decider"], row["decider_roles"]),
        _to_moment(row["decided_at"]),
        _to_moment(row["since"]),
        _to_moment(row["until"]),
        row["revoked_by"],
        _to_moment(row["revoked_at"]),
    )


def _to_roles(principal: Principal) -> str:
    return canonical(sorted(principal.roles))


def _to_principal(owner: str, roles: str) -> Principal:
    tenant, subject = loads(owner)
    return Principal(subject, frozenset(loads(roles)), tenant)


def _to_number(moment: datetime | None) -> int | None:
    return None if moment is None else to_microseconds(moment)


def _to_moment(number: int | None) -> datetime | None:
    return None if number is None else from_microseconds(number)
