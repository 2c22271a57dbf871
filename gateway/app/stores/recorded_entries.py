"""Recorded calls from entries of a decision log: in a store, or as `gateway audit export` writes them.

Entries have neither arguments nor results, only keyed hashes and sizes. An export comes from others: it is read line by
line, each of bounded length, and a line that no gateway writes is refused with its number.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, cast

from gateway.audit import JsonLinesLog, parse_body
from gateway.errors import GatewayError
from gateway.model import Principal
from gateway.policy import Decision
from gateway.registries import CONTENT
from gateway.review import RecordedCall, RecordedHistory

_DECIDED: Final = frozenset({"call-settled", "call-decided", "call-unknown"})
_DECISIONS: Final = frozenset({"allow", "hold", "deny"})
_MOST_ROLES: Final = 1_024
_MOST_RULES: Final = 64
_MOST_GRANTS: Final = 64


class InvalidExport(GatewayError):
    code = "E_EXPORT_INVALID"
    default_message = "the export cannot be replayed"


def to_recorded_entry(body: Mapping[str, Any]) -> RecordedCall | None:
    """Return the call of an entry; `None` if it is about something else. Raises `ValueError` for other shapes."""
    event, at = body.get("event"), body.get("at")
    if event not in _DECIDED:
        return None
    if type(at) is not int:
        raise ValueError("it has no time")
    caller, target, call = (_part(body, name) for name in ("caller", "target", "call"))
    decision, outcome = _part(body, "decision"), _part(body, "outcome")
    tool, subject = _text(target, "tool"), _text(caller, "subject")
    if not tool or not subject:
        return None  # the start and the end of a process, or a call of an earlier version
    effect = decision.get("effect")
    if effect is not None and effect not in _DECISIONS:
        raise ValueError("its decision is unknown")
    size = outcome.get("bytes")
    fingerprint = _text(call, "arguments")
    return RecordedCall(
        _text(call, "id") or "",
        tool,
        Principal(subject, frozenset(_texts(caller, "roles", _MOST_ROLES)), _text(caller, "tenant")),
        subject,
        _text(target, "catalogue") or "",
        at,
        cast("Decision | None", effect),
        _text(decision, "reason"),
        tuple(_texts(decision, "rules", _MOST_RULES)),
        None,
        _to_place(_text(decision, "position")),
        at,
        _text(call, "turn"),
        None,
        fingerprint=fingerprint,
        size=size if type(size) is int and size >= 0 else None,
        artifact="" if outcome.get("artifact") is not None else None,
        reads=_find_read(tool, _text(target, "identity") or ""),
        grants=tuple(_texts(decision, "grants", _MOST_GRANTS)),
    )


def _find_read(tool: str, identity: str) -> str | None:
    """Return what a request that is no call reads; `None` for a call, empty for a result of an unknown tool."""
    if identity.startswith(("prompt:", "resource:")):
        return identity
    return "" if tool == CONTENT else None


@contextmanager
def open_exported_calls(path: Path) -> Iterator[RecordedHistory]:
    """Open the history of an exported decision log, also gzipped. Raises `InvalidExport` as it is read."""
    if not path.is_file():
        raise InvalidExport(f"there is no file {path}", help="gateway audit export writes one")
    log = JsonLinesLog(path)
    with closing(sqlite3.connect("")) as ordered:  # a temporary file: an export may be larger than memory
        first_at, is_whole, total = _load(ordered, log)
        yield RecordedHistory(
            _read_entries(ordered),
            complete_since=None if is_whole else first_at,
            total=total,
            are_turns_whole=is_whole,
            tolerance=_TOLERANCE,
        )


def _load(ordered: sqlite3.Connection, log: JsonLinesLog) -> tuple[int, bool, int]:
    """Put the entries about calls into a table. Return the earliest time, whether all shards are whole, how many."""
    ordered.executescript(_TABLES)
    first_of: dict[str, int] = {}
    earliest, total = 1 << 62, 0
    for number, row in enumerate(log, start=1):
        if first_of.setdefault(row.shard, row.seq) == row.seq and len(first_of) > _MOST_SHARDS:
            raise InvalidExport(f"line {number} begins one shard too many: at most {_MOST_SHARDS} are replayed")
        body = parse_body(row.body)
        at, event = body.get("at"), body.get("event")
        if type(at) is not int or not 0 <= at < _LATEST:
            raise InvalidExport(f"line {number} has no time", help=_EXPORT_AGAIN)
        earliest = min(earliest, at)
        if event == "call-started":
            call = body.get("call")
            call = call if isinstance(call, dict) else {}
            ordered.execute("INSERT OR IGNORE INTO starts VALUES (?, ?)", (_name_call(call), at))
        elif event in _DECIDED:
            call = body.get("call")
            name = _name_call(call if isinstance(call, dict) else {})
            ordered.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", (number, at, name, row.body))
            total += 1
    return earliest, all(seq == 1 for seq in first_of.values()), total


def _name_call(call: Mapping[str, Any]) -> str:
    return f"{str(call.get('turn'))[:_LONGEST_ID]} {str(call.get('id'))[:_LONGEST_ID]}"


def _read_entries(ordered: sqlite3.Connection) -> Iterator[RecordedCall]:
    for number, at, ended, body in ordered.execute(_ORDERED):
        try:
            found = to_recorded_entry(parse_body(body))
        except ValueError as error:
            raise InvalidExport(f"line {number} cannot be replayed: {error}", help=_EXPORT_AGAIN) from None
        if found is not None:
            found.at, found.ended, found.turn = at, ended, None  # it is not known which calls shared a state
            yield found


_TABLES: Final = """
CREATE TABLE entries (number INTEGER PRIMARY KEY, at INTEGER, name TEXT, body BLOB);
CREATE TABLE starts (name TEXT PRIMARY KEY, at INTEGER) WITHOUT ROWID;
"""
_ORDERED: Final = """
SELECT entries.number, coalesce(starts.at, entries.at) AS moment, entries.at, entries.body
FROM entries LEFT JOIN starts ON starts.name = entries.name ORDER BY moment, entries.number
"""
_EXPORT_AGAIN: Final = "export the log again with gateway audit export"
_LONGEST_ID: Final = 512
_LATEST: Final = 1 << 53
_MOST_SHARDS: Final = 10_000
_TOLERANCE: Final = 1_000_000
"""Microseconds: the log has the end of a call that has no effects, not its beginning."""


def _part(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = body.get(name, {})
    if not isinstance(found, dict):
        raise ValueError(f"{name} is not an object")
    return found


def _text(part: Mapping[str, Any], name: str) -> str | None:
    found = part.get(name)
    if found is not None and not isinstance(found, str):
        raise ValueError(f"{name} is not a text")
    return found


def _texts(part: Mapping[str, Any], name: str, most: int) -> list[str]:
    found = part.get(name, [])
    if not isinstance(found, list) or len(found) > most or not all(isinstance(each, str) for each in found):
        raise ValueError(f"{name} is not a list of at most {most} texts")
    return found


def _to_place(position: str | None) -> str | None:
    """Return FILE:LINE of FILE:LINE:COLUMN."""
    if position is None or position.count(":") < 2:
        return position
    return position.rpartition(":")[0]
