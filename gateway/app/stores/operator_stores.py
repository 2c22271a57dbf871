"""Stores as commands of operators open them, whether or not a gateway runs on one.

The schema is not upgraded: a command of another version must not change the store of a running gateway. No access rules
of callers apply. A change of the stop list and its entry in the decision log are one transaction.
"""

import platform
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

from gateway.app.project import LoadedProject
from gateway.app.secrets import Secrets
from gateway.app.stores.databases import (
    PostgresLocation,
    PostgresUrl,
    load_postgres,
    locate_storage,
    require_database_file,
)
from gateway.approvals import ApprovalRecord
from gateway.audit import AuditOrigin, shard_name
from gateway.engine import grant_entry, stop_entry
from gateway.errors import StoreUnavailable
from gateway.model import Principal, now_microseconds
from gateway.policy import (
    Grant,
    GrantChange,
    Stop,
    StopChange,
    StopTarget,
    forward_now,
    require_reason,
    revoke_grant,
)
from gateway.review import UsageTable, UseCount
from gateway.storage import (
    AuditLog,
    CallFilter,
    ChangeSignal,
    FileChangeSignal,
    GroupCommit,
    RemoteStore,
    SqlGrantStore,
    SqliteConnection,
    SqlStopList,
    StoredCall,
    StoreLocation,
    count_usage,
    find_audit_entries,
    find_call_approvals,
    find_calls,
    list_calls,
    list_grants,
    retry_while_locked,
)


@dataclass(frozen=True, slots=True)
class CallTrace:
    """Related calls, entries of the decision log and approvals, each oldest first."""

    calls: Sequence[StoredCall]
    entries: Sequence[Mapping[str, Any]]
    approvals: Sequence[ApprovalRecord]


def list_project_calls(
    assembled: LoadedProject, secrets: Secrets, filter: CallFilter, *, since: datetime | None, limit: int
) -> list[StoredCall]:
    """Return calls, newest first. Raises `StoreMissing` or `StoreUnavailable`."""
    return list_calls(locate_records(assembled, secrets), filter, since=since, limit=limit)


def load_project_usage(assembled: LoadedProject, secrets: Secrets, *, since: datetime) -> UsageTable:
    """Return the use of tools and approvals that the store shows. Raises `StoreMissing` or `StoreUnavailable`."""
    return load_usage(locate_records(assembled, secrets), since=since)


def load_usage(location: StoreLocation, *, since: datetime) -> UsageTable:
    """Return the use of tools and approvals that a store shows. Raises `StoreUnavailable`."""
    found = count_usage(location, since=since)
    uses = [
        UseCount(each.kind, each.principal, each.catalogue, each.identity, each.count, each.last) for each in found.uses
    ]
    return UsageTable(uses, since, found.oldest)


def find_project_call(assembled: LoadedProject, secrets: Secrets, id: str, *, turn_id: str | None) -> StoredCall | None:
    found = find_calls(locate_records(assembled, secrets), id, turn_id=turn_id)
    return found[0] if found else None


def list_project_grants(assembled: LoadedProject, secrets: Secrets) -> list[Grant]:
    """Return requests and grants, newest first. Raises `StoreMissing` or `StoreUnavailable`."""
    return list_grants(locate_records(assembled, secrets))


def load_trace(assembled: LoadedProject, secrets: Secrets, id: str, *, turn_id: str | None) -> CallTrace | None:
    """Return a call with all its records, and the calls that share an approval with it."""
    database = locate_records(assembled, secrets)
    found = find_calls(database, id, turn_id=turn_id)
    if not found:
        return None
    mine = [
        each for each in find_audit_entries(database, {id}) if _call_of(each) in ((id, found[0].turn_id), (id, None))
    ]
    approvals = {gate for each in mine if (gate := _approval_of(each)) is not None}
    entries = [*mine, *(each for each in find_audit_entries(database, approvals) if each not in mine)]
    addresses = {address for each in entries if (address := _call_of(each))[0] is not None}
    calls = {(each.id, each.turn_id): each for each in found[:1]}
    for call_id, turn in addresses - calls.keys():
        for each in find_calls(database, str(call_id), turn_id=turn):
            calls.setdefault((each.id, each.turn_id), each)
    return CallTrace(
        sorted(calls.values(), key=lambda each: each.created_at),
        sorted(entries, key=lambda each: int(each["at"])),
        find_call_approvals(database, approvals),
    )


def _call_of(entry: Mapping[str, Any]) -> tuple[str | None, str | None]:
    call = entry.get("call") or {}
    return call.get("id"), call.get("turn")


def _approval_of(entry: Mapping[str, Any]) -> str | None:
    found: str | None = (entry.get("gate") or {}).get("approval")
    return found


def locate_records(assembled: LoadedProject, secrets: Secrets) -> StoreLocation:
    """Return where a project's records are. Raises `StoreMissing`."""
    path = locate_storage(assembled).database
    if isinstance(path, PostgresLocation):
        return RemoteStore(partial(load_postgres().open_read_only_session, secrets.read(path.connection)))
    require_database_file(path)
    return path


@dataclass(frozen=True, slots=True)
class AuditedStopList:
    """The stop list of a store: every change is in the decision log."""

    stops: SqlStopList
    log: AuditLog
    """The audit shard of this command, which its first change creates."""
    place: AuditOrigin

    async def add(self, stop: Stop) -> StopChange:
        return await self.stops.add(stop, also=self._audit)

    async def lift(self, target: StopTarget, *, reason: str, by: str) -> StopChange:
        """Raises `QuarantineNotFound` or `RevocationNotFound`."""
        return await self.stops.lift(target, reason=reason, by=by, also=self._audit)

    def _audit(self, connection: sqlite3.Connection, change: StopChange) -> None:
        self.log.append(connection, [stop_entry(change, self.place, at=now_microseconds())])


@dataclass(frozen=True, slots=True)
class AuditedGrants:
    """The grants of a store, for operators: they see all of them and revoke any, but approve none."""

    grants: SqlGrantStore

    async def list_grants(self) -> list[Grant]:
        return await self.grants.list_grants()

    async def revoke(self, id: str, *, by: str, reason: str) -> Grant:
        """Raises `UnknownGrant`, `GrantClosed`, or `InvalidGrant` for a reason that is not one line."""
        require_reason(reason)
        at = forward_now()
        return await self.grants.change(
            lambda found: GrantChange("revoke", revoke_grant(found, id, by, at), Principal(by), reason, at)
        )


@dataclass(frozen=True, slots=True)
class OperatorStore:
    """What operators change in a store. Every change is in the decision log."""

    stops: AuditedStopList
    grants: AuditedGrants


def _open_parts(writer: GroupCommit, notices: ChangeSignal, log: AuditLog, place: AuditOrigin) -> OperatorStore:
    def audit(connection: sqlite3.Connection, change: GrantChange) -> None:
        log.append(connection, [grant_entry(change, place, at=now_microseconds())])

    grants = SqlGrantStore(writer, notices, clock=forward_now, also=audit)
    stops = SqlStopList(writer, notices, clock=_now)
    return OperatorStore(AuditedStopList(stops, log, place), AuditedGrants(grants))


@asynccontextmanager
async def open_operator_store(database: Path | PostgresUrl) -> AsyncIterator[OperatorStore]:
    """Open what operators change in a store. Raises `StoreMissing` or `StoreUnavailable`."""
    if isinstance(database, PostgresUrl):
        node = platform.node() or "gateway"
        async with load_postgres().open_for_changes(database.text, partial(_shard, node), AuditOrigin(node)) as (
            writer,
            notices,
            log,
        ):
            yield _open_parts(writer, notices, log, AuditOrigin(node))
        return
    require_database_file(database)
    path = database.absolute()
    writer = retry_while_locked(lambda: GroupCommit(lambda: SqliteConnection(path)))
    node = platform.node() or "gateway"
    place = AuditOrigin(node)
    log = AuditLog(partial(_shard, node), place, clock=now_microseconds)
    writer.ledger = log
    try:
        notices = FileChangeSignal(path)
        opened = _open_parts(writer, notices, log, place)
        try:
            yield opened
        except sqlite3.OperationalError as error:
            raise StoreUnavailable(
                f"{database} cannot be read as a store of this version",
                help="start the gateway on it once, or correct the path",
            ) from error
        finally:
            opened.stops.stops.close()
            opened.grants.grants.close()
            notices.close()
    finally:
        await writer.close()


def _shard(node: str) -> str:
    return shard_name(node, now_microseconds(), unique=token_hex(8))


def _now() -> datetime:
    return datetime.now(UTC)
