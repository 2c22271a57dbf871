"""The calls of a project's own store, for whoever operates it. What callers may see is another question."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from gateway.assembly import Assembled
from gateway.errors import ProgramError
from gateway.governance.approvals import ApprovalRecord
from gateway.governance.records import CallFilter, StoredCall
from gateway.runtime.engines import PostgresDatabase, postgres
from gateway.runtime.kept import kept_by
from gateway.runtime.secrets import Secrets
from gateway.storage.history import Elsewhere, Where, approvals_of, entries_about, found_calls, listed_calls


@dataclass(frozen=True, slots=True)
class Traced:
    """Calls, entries of the decision log and approvals that belong together, each from the oldest on."""

    calls: Sequence[StoredCall]
    entries: Sequence[Mapping[str, Any]]
    approvals: Sequence[ApprovalRecord]


class NothingKept(ProgramError):
    code = "E_NOTHING_KEPT"
    default_message = "there are no records yet"


def project_calls(
    assembled: Assembled, secrets: Secrets, filter: CallFilter, *, since: datetime | None, limit: int
) -> list[StoredCall]:
    """Newest first. Raises `NothingKept`, or `StoreUnavailable`."""
    return listed_calls(_database(assembled, secrets), filter, since=since, limit=limit)


def project_call(assembled: Assembled, secrets: Secrets, id: str, *, turn_id: str | None) -> StoredCall | None:
    found = found_calls(_database(assembled, secrets), id, turn_id=turn_id)
    return found[0] if found else None


def project_trace(assembled: Assembled, secrets: Secrets, id: str, *, turn_id: str | None) -> Traced | None:
    """A call with everything that is on record of it, and the calls that share an approval with it."""
    database = _database(assembled, secrets)
    found = found_calls(database, id, turn_id=turn_id)
    if not found:
        return None
    mine = [each for each in entries_about(database, {id}) if _call_of(each) in ((id, found[0].turn_id), (id, None))]
    approvals = {gate for each in mine if (gate := _approval_of(each)) is not None}
    entries = [*mine, *(each for each in entries_about(database, approvals) if each not in mine)]
    addresses = {address for each in entries if (address := _call_of(each))[0] is not None}
    calls = {(each.id, each.turn_id): each for each in found[:1]}
    for call_id, turn in addresses - calls.keys():
        for each in found_calls(database, str(call_id), turn_id=turn):
            calls.setdefault((each.id, each.turn_id), each)
    return Traced(
        sorted(calls.values(), key=lambda each: each.created_at),
        sorted(entries, key=lambda each: int(each["at"])),
        approvals_of(database, approvals),
    )


def _call_of(entry: Mapping[str, Any]) -> tuple[str | None, str | None]:
    call = entry.get("call") or {}
    return call.get("id"), call.get("turn")


def _approval_of(entry: Mapping[str, Any]) -> str | None:
    found: str | None = (entry.get("gate") or {}).get("approval")
    return found


def _database(assembled: Assembled, secrets: Secrets) -> Where:
    path = kept_by(assembled).database
    if isinstance(path, PostgresDatabase):
        return Elsewhere(partial(postgres().looking_at, secrets.read(path.connection)))
    if not path.exists():
        raise NothingKept(
            f"there are no records in {path}",
            help="run this where the gateway runs: the path is relative to its folder",
        )
    return path
