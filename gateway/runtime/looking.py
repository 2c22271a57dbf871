"""The calls of a project's own store, for whoever operates it. What callers may see is another question."""

from datetime import datetime
from pathlib import Path

from gateway.assembly import Assembled
from gateway.errors import ProgramError
from gateway.governance.records import CallFilter, StoredCall
from gateway.runtime.running import kept_by
from gateway.storage.history import found_calls, listed_calls


class NothingKept(ProgramError):
    code = "E_NOTHING_KEPT"
    default_message = "there are no records yet"


def project_calls(assembled: Assembled, filter: CallFilter, *, since: datetime | None, limit: int) -> list[StoredCall]:
    """Newest first. Raises `NothingKept`, or `StoreUnavailable`."""
    return listed_calls(_database(assembled), filter, since=since, limit=limit)


def project_call(assembled: Assembled, id: str, *, turn_id: str | None) -> StoredCall | None:
    found = found_calls(_database(assembled), id, turn_id=turn_id)
    return found[0] if found else None


def _database(assembled: Assembled) -> Path:
    path = kept_by(assembled).database
    if not path.exists():
        raise NothingKept(
            f"there are no records in {path}",
            help="run this where the gateway runs: the path is relative to its folder",
        )
    return path
