"""Queries of operators for calls and their records, whether or not a gateway runs on the store.

The schema is not upgraded: a command of another version must not change the store of a running gateway. No access rules
of callers apply.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from gateway.app.project import LoadedProject
from gateway.app.secrets import Secrets
from gateway.app.stores.databases import PostgresLocation, load_postgres, locate_storage, require_database_file
from gateway.approvals import ApprovalRecord
from gateway.storage import (
    CallFilter,
    RemoteStore,
    StoredCall,
    StoreLocation,
    find_audit_entries,
    find_call_approvals,
    find_calls,
    list_calls,
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
    return list_calls(_database(assembled, secrets), filter, since=since, limit=limit)


def find_project_call(assembled: LoadedProject, secrets: Secrets, id: str, *, turn_id: str | None) -> StoredCall | None:
    found = find_calls(_database(assembled, secrets), id, turn_id=turn_id)
    return found[0] if found else None


def load_trace(assembled: LoadedProject, secrets: Secrets, id: str, *, turn_id: str | None) -> CallTrace | None:
    """Return a call with all its records, and the calls that share an approval with it."""
    database = _database(assembled, secrets)
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


def _database(assembled: LoadedProject, secrets: Secrets) -> StoreLocation:
    path = locate_storage(assembled).database
    if isinstance(path, PostgresLocation):
        return RemoteStore(partial(load_postgres().open_read_only_session, secrets.read(path.connection)))
    require_database_file(path)
    return path
