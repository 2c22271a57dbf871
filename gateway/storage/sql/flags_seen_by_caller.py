"""Sightings in the database: one row for each caller and flag, with the time it was last seen."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Protocol

from sqlalchemy import bindparam, delete, select
from sqlalchemy.dialects.sqlite import insert

from gateway.model import Principal, duration_microseconds
from gateway.policy import LONGEST_LOOKBACK
from gateway.storage.sql.call_rows import owner_key, to_microseconds
from gateway.storage.sql.compiled_statement import CompiledStatement
from gateway.storage.sql.lock_keys import Footprint, sighting_key
from gateway.storage.sql.tables import sightings

_WITHIN: Final = 0.75
"""Seconds a call waits for its sightings to be durable; it has not run yet."""

_RENEWED_AFTER: Final = 1_000_000
"""Microseconds for which a sighting is not written again: rules look back over seconds at least."""

_REMEMBERED: Final = 16_384

_NOTED: Final = insert(sightings).values({column.name: bindparam(column.name) for column in sightings.c})
_NOTE: Final = CompiledStatement(
    _NOTED.on_conflict_do_update(
        index_elements=["owner", "flag"],
        set_={"seen_at": _NOTED.excluded.seen_at},
        where=sightings.c.seen_at < _NOTED.excluded.seen_at,
    )
)
_OF: Final = CompiledStatement(
    select(sightings.c.flag, sightings.c.seen_at).where(
        sightings.c.owner == bindparam("owner"), sightings.c.seen_at > bindparam("since")
    )
)
_PRUNE: Final = CompiledStatement(delete(sightings).where(sightings.c.seen_at <= bindparam("since")))


class Writer(Protocol):
    async def run(
        self, work: Callable[[Any], Any], *, within: float | None = None, footprint: Footprint | None = None
    ) -> Any: ...


class Reader(Protocol):
    async def run(self, work: Callable[[Any], Any]) -> Any: ...


class StoredSightings:
    """Implements `gateway.policy.rules.conditions.Sightings`."""

    def __init__(self, writer: Writer, reader: Reader, *, clock: Callable[[], datetime]) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock
        self._written: OrderedDict[tuple[str, str], int] = OrderedDict()
        """When this process last wrote which sighting."""

    async def of(self, principal: Principal) -> Mapping[str, int]:
        wanted = {"owner": owner_key(principal), "since": _oldest(self._clock())}
        rows = await self._reader.run(lambda connection: _OF.rows(connection, wanted))
        return {row["flag"]: row["seen_at"] for row in rows}

    async def note(self, principal: Principal, flags: Iterable[str]) -> None:
        owner, at = owner_key(principal), to_microseconds(self._clock())
        new = [flag for flag in flags if not 0 <= at - self._written.get((owner, flag), 0) < _RENEWED_AFTER]
        if not new:
            return
        rows = [{"owner": owner, "flag": flag, "seen_at": at} for flag in new]

        def note(connection: Any) -> None:
            _NOTE.run_all(connection, rows, by="flag")

        await self._writer.run(note, within=_WITHIN, footprint=Footprint((sighting_key(owner),)))
        self._written.update({(owner, flag): at for flag in new})
        while len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)


def prune(connection: Any, *, at: int) -> int:
    """Delete sightings that are too old for any rule. Return how many."""
    pruned: int = _PRUNE.run(connection, {"since": at - duration_microseconds(LONGEST_LOOKBACK)}).rowcount
    return pruned


def _oldest(at: datetime) -> int:
    return to_microseconds(at - LONGEST_LOOKBACK)
