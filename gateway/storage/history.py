"""Looking at the calls of a store from outside: read-only, whether or not a gateway runs on it. Nothing is upgraded."""

import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import Table, bindparam, select

from gateway.errors import StoreUnavailable
from gateway.governance.approvals import ApprovalRecord
from gateway.governance.records import CallFilter, StoredCall
from gateway.storage.approvals import found_approvals
from gateway.storage.columns import is_storable
from gateway.storage.links import unavailable
from gateway.storage.prepared import Prepared
from gateway.storage.rows import call_from, microseconds
from gateway.storage.schema import calls, fresh

_PATIENCE: Final = 2.0
_ALL: Final = 1 << 31
_ABOUT: Final = "SELECT body FROM audit WHERE instr(body, CAST(? AS BLOB))"
_ELSEWHERE: Final = "SELECT body FROM audit WHERE position(convert_to(?, 'UTF8') IN body) > 0"
_FILTERS: Final = ("tenant", "subject", "turn_id", "catalogue", "tool", "status")


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A store that is no file. `looking` gives its connection, as of one moment."""

    looking: Callable[[], AbstractContextManager[Any]] = field(repr=False)

    def __str__(self) -> str:
        return "the database"


Where = Path | Elsewhere


def listed_calls(path: Where, filter: CallFilter, *, since: datetime | None, limit: int) -> list[StoredCall]:
    """The newest calls that fit, newest first. Raises `StoreUnavailable` for what cannot be read."""
    chosen: dict[str, Any] = {name: getattr(filter, name) for name in _FILTERS}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if not all(map(is_storable, chosen.values())):
        return []
    if since is not None:
        chosen["since"] = microseconds(since)
    return _read(path, {**chosen, "limit": limit})


def found_calls(path: Where, id: str, *, turn_id: str | None) -> list[StoredCall]:
    """The calls of that id, newest first: ids are unique within a turn only."""
    if not is_storable(id) or not is_storable(turn_id or ""):
        return []
    return _read(path, {"id": id, "limit": _ALL, **({} if turn_id is None else {"turn_id": turn_id})})


def _newest(table: Table, wanted: Collection[str]) -> Prepared:
    conditions = [table.c[name] == bindparam(name) for name in wanted if name in table.c]
    if "since" in wanted:
        conditions.append(table.c.created_at >= bindparam("since"))
    newest = select(*(table.c[each.name] for each in calls.c)).where(*conditions).order_by(table.c.number.desc())
    return Prepared(newest.limit(bindparam("limit")))


def _read(path: Where, wanted: dict[str, Any]) -> list[StoredCall]:
    tables = (fresh, calls) if isinstance(path, Path) else (calls,)
    with _told_plainly(path), looking(path) as connection:
        found = [row for table in tables for row in _newest(table, wanted).rows(connection, wanted)]
        newest = sorted(found, key=itemgetter("number"), reverse=True)
        return [call_from(row) for row in newest[: wanted["limit"]]]


def approvals_of(path: Where, ids: Collection[str]) -> list[ApprovalRecord]:
    """Those that are still kept, oldest first."""
    with _told_plainly(path), looking(path) as connection:
        return sorted(found_approvals(connection, ids), key=lambda each: each.created_at)


def entries_about(path: Where, ids: Collection[str]) -> list[Mapping[str, Any]]:
    """Entries of the decision log that are about one of these calls or approvals, oldest first."""
    found: dict[bytes, Mapping[str, Any]] = {}
    about = _ABOUT if isinstance(path, Path) else _ELSEWHERE
    with _told_plainly(path), looking(path) as connection:
        for id in ids:
            for body, *_ in connection.execute(about, (json.dumps(id, ensure_ascii=False),)):
                entry = _entry(body)
                if entry is not None and id in (_of(entry, "call", "id"), _of(entry, "gate", "approval")):
                    found[body] = entry
    return sorted(found.values(), key=lambda entry: int(entry["at"]))


def looking(path: Where) -> AbstractContextManager[Any]:
    return looking_at(path) if isinstance(path, Path) else path.looking()


@contextmanager
def looking_at(path: Path) -> Iterator[sqlite3.Connection]:
    """As of one moment: calls that are put away meanwhile would be in neither table, or in both."""
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=_PATIENCE)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("BEGIN")
        yield connection
    finally:
        connection.close()


def _entry(body: object) -> Mapping[str, Any] | None:
    """What somebody else has put into the table is passed over: verifying is another command's."""
    try:
        found = json.loads(body) if isinstance(body, bytes) else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and type(found.get("at")) is int else None


def _of(entry: Mapping[str, Any], part: str, name: str) -> Any:
    found = entry.get(part)
    return found.get(name) if isinstance(found, dict) else None


@contextmanager
def _told_plainly(path: Where) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        told = unavailable(error)
        if told is not None:
            raise told from error
        raise StoreUnavailable(
            f"{path} cannot be read as a store of this version",
            help="start the gateway on it once, or correct the path",
        ) from error
