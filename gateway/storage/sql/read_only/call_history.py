"""All stored calls in the order of their decisions, as a stream: memory does not grow with their number.

The order is found first, from a few numbers per call; the database sorts them outside of memory. Then the rows are read
in batches. Everything is seen as of one moment, also while a gateway runs.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from gateway.policy import Grant
from gateway.storage.sql.grants import read_all_grants
from gateway.storage.sql.read_only.read_only_store import (
    RemoteStore,
    StoreLocation,
    open_for_reading,
    translate_store_errors,
)

_BATCH: Final = 512

_COLUMNS: Final = (
    *("number", "turn_id", "id", "owner", "roles", "tool", "args", "checksum", "catalogue", "created_at", "status"),
    *("decision", "because", "is_error", "from_artifact_tool", "results", "completed_at", "reason", "decided_at"),
    *("implicit", "replay"),
)


class CallRow(NamedTuple):
    """One stored call as it is in the database."""

    number: int
    turn_id: str
    id: str
    owner: str
    roles: str
    tool: str
    args: str
    checksum: str
    catalogue: str
    created_at: int
    status: str
    decision: str | None
    because: str | None
    is_error: int
    from_artifact_tool: int
    results: str
    completed_at: int | None
    reason: str | None
    decided_at: int | None
    implicit: str | None
    replay: str | None

    @property
    def moment(self) -> int:
        return self.created_at if self.decided_at is None else self.decided_at


class CountedRefusals(NamedTuple):
    """Refusals of one caller in one minute that were only counted."""

    owner: str
    since: int
    counted: int


class CallHistory:
    """One moment of a store. `since` limits calls to those decided from then on, in microseconds."""

    def __init__(self, connection: Any, *, is_file: bool) -> None:
        self._connection = connection
        self._tables = ("calls", "fresh") if is_file else ("calls",)

    def count(self, since: int | None) -> int:
        return sum(self._scalar(f"SELECT count(*) FROM {each}{_where(since)}") for each in self._tables)  # noqa: S608 - our names

    def find_oldest(self) -> tuple[int, int] | None:
        """Return the lowest number and the earliest time of all stored calls."""
        found = []
        for table in self._tables:
            query = f"SELECT min(number), min(created_at) FROM {table}"  # noqa: S608 - our names
            found.append(self._connection.execute(query).fetchone())
        known = [(number, at) for number, at in found if number is not None]
        return (min(number for number, _ in known), min(at for _, at in known)) if known else None

    def calls(self, since: int | None) -> Iterator[CallRow]:
        parts = [
            f"SELECT coalesce(decided_at, created_at) AS moment, number FROM {each}{_where(since)}"  # noqa: S608 - our names
            for each in self._tables
        ]
        ordered = self._stream(f"{' UNION ALL '.join(parts)} ORDER BY 1, 2")
        while batch := [number for _, number in islice(ordered, _BATCH)]:
            found = {row[0]: row for table in self._tables for row in self._find(table, batch)}
            yield from (CallRow(*found[number]) for number in batch)

    def entries(self, since: int | None, texts: Sequence[str]) -> Iterator[tuple[int, bytes]]:
        """Yield time and body of entries of the decision log that contain one of these texts, oldest first."""
        found = (
            "instr(body, CAST('{}' AS BLOB))" if len(self._tables) > 1 else "position(convert_to('{}', 'UTF8') IN body)"
        )
        about = " OR ".join(f"{found.format(text)} > 0" for text in texts)
        after = "" if since is None else f" AND at >= {int(since)}"
        for at, body in self._stream(f"SELECT at, body FROM audit WHERE ({about}){after} ORDER BY at, shard, seq"):  # noqa: S608 - our texts
            yield at, bytes(body)

    def counted_refusals(self, since: int | None) -> list[CountedRefusals]:
        after = "" if since is None else f" AND since > {int(since) - 60_000_000}"
        query = f"SELECT owner, since, counted FROM refusals WHERE counted > 0{after}"  # noqa: S608 - a number
        return [CountedRefusals(*row) for row in self._connection.execute(query).fetchall()]

    def grants(self) -> list[Grant]:
        """Return the requests and grants that are still stored, newest first."""
        return read_all_grants(self._connection)

    def _find(self, table: str, numbers: Sequence[int]) -> Any:
        listed = ", ".join(map(str, numbers))
        query = f"SELECT {', '.join(_COLUMNS)} FROM {table} WHERE number IN ({listed})"  # noqa: S608 - numbers
        return self._connection.execute(query).fetchall()

    def _scalar(self, query: str) -> int:
        [value] = self._connection.execute(query).fetchone()
        return int(value)

    def _stream(self, query: str) -> Iterator[tuple[Any, ...]]:
        if isinstance(self._connection, sqlite3.Connection):
            yield from self._connection.execute(query)
            return
        yield from self._connection.stream(query, at_once=_BATCH * 4)


@contextmanager
def open_call_history(location: Path | RemoteStore) -> Iterator[CallHistory]:
    """Raises `StoreUnavailable` if the store is not of this version, or cannot be read."""
    place: StoreLocation = location
    with translate_store_errors(place), open_for_reading(place) as connection:
        yield CallHistory(connection, is_file=isinstance(place, Path))


def _where(since: int | None) -> str:
    return "" if since is None else f" WHERE coalesce(decided_at, created_at) >= {int(since)}"
