"""Sums of recorded calls and approvals by principal and tool, read from a store whether or not a gateway runs on it.

The database groups the records, so that millions of them need little memory here. Everything is read as of one moment.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from json import loads
from pathlib import Path
from typing import Any, Final, Literal, cast

from sqlalchemy import Table, bindparam, case, func, literal_column, select, union_all

from gateway.model import Principal, from_microseconds, to_microseconds
from gateway.storage.sql.compiled_statement import CompiledStatement
from gateway.storage.sql.read_only.read_only_store import StoreLocation, open_for_reading, translate_store_errors
from gateway.storage.sql.tables import approval_entries, approvals, calls, fresh

_COUNT: Final = "count"
_LAST: Final = "last"
_OLDEST: Final = "oldest"


@dataclass(frozen=True, slots=True)
class StoredUse:
    """The calls of a tool by a principal, or its decisions about calls of others, within a period and the last ever.

    Calls that were denied do not count. `oldest` is the first record.
    """

    kind: Literal["call", "approve"]
    principal: Principal
    catalogue: str
    identity: str
    count: int
    last: datetime


@dataclass(frozen=True, slots=True)
class StoredUsage:
    """All use, and the time of the oldest record of a call."""

    uses: tuple[StoredUse, ...]
    oldest: datetime | None


def count_usage(location: StoreLocation, *, since: datetime) -> StoredUsage:
    """Count the use since then. Raises `StoreUnavailable`."""
    tables = (fresh, calls) if isinstance(location, Path) else (calls,)
    parameters = {"since": to_microseconds(since)}
    with translate_store_errors(location), open_for_reading(location) as connection:
        rows = _USES[tables].rows(connection, parameters)
        decided = _DECISIONS.rows(connection, parameters)
        [oldest] = _OLDEST_CALLS[tables].rows(connection, {})
    first = oldest[_OLDEST]
    return StoredUsage((*_to_uses("call", rows), *_to_uses("approve", decided)), first and from_microseconds(first))


def _select_uses(tables: tuple[Table, ...]) -> CompiledStatement:
    every = union_all(*(_select_calls(table) for table in tables)).subquery()
    keys = [every.c[name] for name in ("owner", "roles", "catalogue", "identity")]
    sums = func.sum(every.c[_COUNT]).label(_COUNT), func.max(every.c[_LAST]).label(_LAST)
    return CompiledStatement(select(*keys, *sums).group_by(*keys))


def _select_calls(table: Table) -> Any:
    keys = [table.c[name] for name in ("owner", "roles", "catalogue", "identity")]
    counted = func.sum(case((table.c.created_at >= bindparam("since"), 1), else_=0)).label(_COUNT)
    permitted = table.c.decision.is_(None) | (table.c.decision != literal_column("'deny'"))
    asked = [permitted, table.c.from_artifact_tool.is_(False)]
    return select(*keys, counted, func.max(table.c.created_at).label(_LAST)).where(*asked).group_by(*keys)


def _select_oldest(tables: tuple[Table, ...]) -> CompiledStatement:
    every = union_all(*(select(func.min(table.c.created_at).label(_OLDEST)) for table in tables)).subquery()
    return CompiledStatement(select(func.min(every.c[_OLDEST]).label(_OLDEST)))


def _select_decisions() -> CompiledStatement:
    entries = approval_entries.c
    keys = (entries.owner, entries.roles, approvals.c.catalogue, approvals.c.identity)
    counted = func.sum(case((entries.at >= bindparam("since"), 1), else_=0)).label(_COUNT)
    joined = approval_entries.join(approvals, entries.approval_id == approvals.c.id)
    return CompiledStatement(
        select(*keys, counted, func.max(entries.at).label(_LAST)).select_from(joined).group_by(*keys)
    )


_USES: Final = {tables: _select_uses(tables) for tables in ((fresh, calls), (calls,))}
_OLDEST_CALLS: Final = {tables: _select_oldest(tables) for tables in ((fresh, calls), (calls,))}
_DECISIONS: Final = _select_decisions()


def _to_uses(kind: Literal["call", "approve"], rows: list[dict[str, Any]]) -> Iterator[StoredUse]:
    for row in rows:
        tenant, subject = loads(row["owner"])
        principal = Principal(subject, frozenset(loads(row["roles"])), tenant)
        last = from_microseconds(cast("int", row[_LAST]))
        yield StoredUse(kind, principal, row["catalogue"], row["identity"], int(row[_COUNT]), last)
