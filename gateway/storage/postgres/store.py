"""Turns and calls in a PostgreSQL database, for gateways on any number of hosts.

Writes go through one thread and are committed in groups, reads through a few of their own. Groups of different gateways
come one after the other, so what holds for one SQLite file holds here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg
from sqlalchemy import bindparam, literal_column
from sqlalchemy.dialects.sqlite import insert

from gateway.core.events import now
from gateway.errors import RecordConflict
from gateway.governance.memory import Bounds
from gateway.governance.outcomes import LateOutcome
from gateway.governance.principals import Principal
from gateway.governance.records import (
    AuditBody,
    CallFilter,
    Claim,
    KeptTurn,
    Reserved,
    StoredCall,
    StoredResult,
    StoredTurn,
    TurnEnding,
)
from gateway.governance.refusals import Refusal
from gateway.storage import changes, refusals, sightings, statements
from gateway.storage.audit_log import AuditLog
from gateway.storage.backlog import Name, OutcomeBacklog
from gateway.storage.columns import is_storable
from gateway.storage.paging import beginning_with, page_of_calls
from gateway.storage.postgres.faults import FULL
from gateway.storage.postgres.leases import Lease
from gateway.storage.postgres.migrating import refuse_other_versions
from gateway.storage.postgres.pulse import Pulse
from gateway.storage.postgres.reading import PostgresReader
from gateway.storage.postgres.sessions import Session
from gateway.storage.postgres.writing import PostgresWriter
from gateway.storage.prepared import Prepared
from gateway.storage.refusals import RefusalRows
from gateway.storage.rows import (
    call_from,
    call_row,
    json_text,
    microseconds,
    owner_of,
    piece_rows,
    results_from,
    turn_from,
    turn_row,
)
from gateway.storage.schema import calls
from gateway.storage.turn_memories import Reservation, keep_going, recalled, remember

_PRUNED_AT_ONCE: Final = 200
_BEFORE_RUNNING: Final = 0.75
"""Seconds a call waits for its start to be durable, so that it is refused within one."""

_OUTCOME: Final = 6.0
"""Seconds an outcome waits for a server that is there, which is more than a statement may take: the tool has run."""

_LEFT_BEHIND: Final = 0.05
"""Seconds it waits for one that is silent. It is written when the server is back, whether or not somebody waits."""

_FIRST_TO_SETTLE: Final = Prepared(
    insert(calls).values(
        {
            each.name: literal_column("1") if each.name == "settled_as" else bindparam(each.name, type_=each.type)
            for each in calls.c
            if each.name != "number"
        }
    )
)

Row = dict[str, Any]


@dataclass(slots=True)
class _Alone:
    """A call with its turn, neither of which anybody else can know of."""

    turn: Row
    call: Row
    pieces: list[Row]
    audit: Sequence[AuditBody]


@dataclass(slots=True)
class _Settling:
    row: Row
    turn: Row | None
    pieces: list[Row]
    audit: Sequence[AuditBody]


class PostgresStore:
    """Implements `gateway.governance.records.Store`, and keeps the small pieces of a spool beside the records."""

    def __init__(
        self, address: str, *, clock: Callable[[], datetime], lease: Lease, pulse: Pulse, readers: int, waiting: int
    ) -> None:
        self._clock = clock
        self._lease = lease
        self.pulse = pulse
        self._writer = PostgresWriter(address, waiting=waiting, lease=lease)
        self._reader = PostgresReader(address, size=readers)
        self._audit: AuditLog | None = None
        self._abandoned: Callable[[StoredCall], AuditBody] | None = None
        self._summed: refusals.Summed | None = None
        self._backlog = OutcomeBacklog(self)
        self._writer.free.add(self._write_alone)
        self._writer.on_full = pulse.note_full

    @property
    def writer(self) -> PostgresWriter:
        """For what else lives in the same database, and is committed together with calls."""
        return self._writer

    @property
    def reader(self) -> PostgresReader:
        return self._reader

    def advertise(self, address: str) -> None:
        """Tell the other gateways how they reach this one."""
        self._lease.address = address
        self.pulse.renew_now()

    async def addresses(self) -> list[str]:
        """How the gateways that live are reached, as far as they tell."""
        return await self._reader.run(self._lease.addresses)

    @property
    def problem(self) -> str | None:
        """Why nothing can be recorded at the moment."""
        if self.pulse.is_writable:
            return None
        return self.pulse.problem or (FULL if self.pulse.is_full else "the database does not answer")

    @staticmethod
    async def open(
        address: str, *, clock: Callable[[], datetime] = now, readers: int = 4, waiting: int = 4096
    ) -> "PostgresStore":
        """Open a database that was set up for this version.

        Raises `StoreNotOurs` for one of another version, `StoreUnavailable` for one that cannot be read and written.
        """

        def opened() -> PostgresStore:
            refuse_other_versions_at(address)
            lease = Lease()
            pulse = Pulse(address, lease)
            try:
                return PostgresStore(address, clock=clock, lease=lease, pulse=pulse, readers=readers, waiting=waiting)
            except BaseException:
                pulse.close()
                raise

        return await asyncio.to_thread(opened)

    async def open_turn(self, turn: StoredTurn) -> None:
        row = turn_row(turn)

        def insert(connection: Any) -> None:
            with _conflict("there is a turn with that id already"):
                statements.INSERT_TURN.run(connection, row)

        await self._writer.run(insert)

    async def keep_turn(self, turn: StoredTurn) -> KeptTurn:
        row, at = turn_row(turn), microseconds(self._clock())
        return await self._writer.run(lambda connection: keep_going(connection, row, at), within=_BEFORE_RUNNING)

    async def find_turn(self, id: str, principal: Principal) -> StoredTurn | None:
        if not is_storable(id):
            return None
        wanted = {"id": id, "owner": owner_of(principal), "at": microseconds(self._clock())}
        rows = await self._reader.run(lambda connection: statements.FIND_TURN.rows(connection, wanted))
        return turn_from(rows[0]) if rows else None

    async def end_turn(self, id: str, ending: TurnEnding, at: datetime, *, stash: Mapping[str, Any]) -> None:
        row = {"turn": id, "at": microseconds(at), "how": ending, "left": json_text(stash)}

        def end(connection: Any) -> None:
            if not statements.END_TURN.run(connection, row).rowcount:
                raise RecordConflict("there is no such turn, or it has ended already")

        await self._writer.run(end)

    def keep_audit(
        self,
        log: AuditLog,
        *,
        abandoned: Callable[[StoredCall], AuditBody] | None = None,
        summed: refusals.Summed | None = None,
    ) -> None:
        """From now on entries of the decision log are written; until then they are let go.

        `abandoned` makes the entry of a call whose process is gone, `summed` that of refusals that were counted.
        """
        self._audit = self._writer.ledger = log
        self._abandoned = abandoned
        self._summed = summed

    async def note(
        self,
        audit: Sequence[AuditBody],
        *,
        turn_id: str | None = None,
        memory: bytes | None = None,
        knowing: bytes | None = None,
    ) -> None:
        def note(connection: Any) -> None:
            if turn_id is not None and memory is not None:
                remember(connection, turn_id, memory, knowing)
            self._note(connection, audit)

        await self._writer.run(note)

    async def start_call(
        self, call: StoredCall, *, turn: StoredTurn | None = None, audit: Sequence[AuditBody] = ()
    ) -> None:
        start = self._starting(call, turn)

        def run(connection: Any) -> None:
            start.run(connection)
            self._note(connection, audit)

        part = (start, audit)
        work = self._writer.run_together(run, self._start_many, part, within=_BEFORE_RUNNING, undo=start.undo)
        await self._backlog.started((call.turn_id, call.id), work)

    async def settle_call(
        self,
        call: StoredCall,
        *,
        turn: StoredTurn | None = None,
        memory: bytes | None = None,
        knowing: bytes | None = None,
        audit: Sequence[AuditBody] = (),
    ) -> None:
        row = call_row(call, status="settled", process=self._lease.id)
        pieces = piece_rows(call)
        turn_columns = None if turn is None else turn_row(turn)

        def settle(connection: Any) -> None:
            _settled(connection, row, turn_columns, pieces)
            if memory is not None:
                remember(connection, call.turn_id, memory, knowing)
            self._note(connection, audit)

        if memory is None:
            part = _Settling(row, turn_columns, pieces, audit)
            await self._writer.run_together(settle, self._settle_many, part, within=self._patience)
        else:
            await self._writer.run(settle, within=self._patience)
        self._backlog.end((call.turn_id, call.id))

    async def settle_alone(
        self, call: StoredCall, turn: StoredTurn, *, memory: bytes | None = None, audit: Sequence[AuditBody] = ()
    ) -> None:
        row = call_row(call, status="settled", process=self._lease.id)
        alone = _Alone({**turn_row(turn), "memory": memory}, row, piece_rows(call), audit)

        def settle(connection: Any) -> None:
            _settled(connection, row, alone.turn, alone.pieces)
            self._note(connection, audit)

        await self._writer.run_together(settle, self._write_alone, alone, within=self._patience)

    async def refuse(self, refusal: Refusal) -> bool:
        rows = RefusalRows.of(refusal, process=self._lease.id)

        def refuse(connection: Any) -> None:
            self._write_refusals(connection, [rows])

        await self._writer.run_together(refuse, self._write_refusals, rows, within=self._patience)
        if refusal.call is not None:
            self._backlog.end((refusal.call.turn_id, refusal.call.id))
        return rows.is_kept

    async def tell_refusals(self, at: int) -> int:
        summed = self._summed
        if summed is None or not await self._reader.run(lambda connection: refusals.untold(connection, at=at, limit=1)):
            return 0

        def tell(connection: Any) -> int:
            rows = refusals.untold(connection, at=at)  # another process may have told them meanwhile
            self._note(connection, refusals.tell(connection, rows, summed))
            return len(rows)

        told = 0
        while found := await self._writer.run(tell):
            told += found
        return told

    async def refusals_by_reason(self) -> dict[str, tuple[int, int]]:
        return await self._reader.run(refusals.by_reason)

    async def memory_of_turn(self, turn_id: str) -> bytes | None:
        return await self._reader.run(lambda connection: recalled(connection, turn_id))

    async def reserve_call(
        self,
        turn_id: str,
        fingerprint: str,
        *,
        bounds: Bounds,
        memory: bytes | None = None,
        knowing: bytes | None = None,
    ) -> Reserved:
        reservation = Reservation(turn_id, fingerprint, bounds)

        def reserve(connection: Any) -> Reserved:
            if memory is not None:
                remember(connection, turn_id, memory, knowing)
            return reservation.make(connection)

        return await self._writer.run(reserve, within=_BEFORE_RUNNING, undo=reservation.undo)

    async def give_up_call(self, id: str, *, turn_id: str, at: datetime, audit: Sequence[AuditBody] = ()) -> bool:
        row = {"call": id, "turn": turn_id, "at": microseconds(at)}

        def give_up(connection: Any) -> bool:
            if not statements.GIVE_UP_CALL.run(connection, row).rowcount:
                return False
            self._note(connection, audit)
            return True

        is_given_up = await self._writer.run(give_up)
        self._backlog.end((turn_id, id))
        return is_given_up

    def postpone(self, late: LateOutcome) -> None:
        self._backlog.add(late)

    def postpone_audit(self, audit: Sequence[AuditBody]) -> None:
        self._backlog.add_audit(audit)

    def leave(self, turn_id: str, call_id: str) -> None:
        self._backlog.leave((turn_id, call_id))

    async def find_call(self, id: str, principal: Principal, *, turn_id: str | None = None) -> StoredCall | None:
        if not is_storable(id) or not is_storable(turn_id or ""):
            return None
        if (late := self._backlog.find(id, principal, turn_id)) is not None:
            return late
        at = microseconds(self._clock())
        wanted = {"id": id, "owner": owner_of(principal), "turn_id": turn_id, "at": at}
        rows = await self._reader.run(lambda connection: statements.FIND_CALL.rows(connection, wanted))
        return call_from(rows[0]) if rows else None

    async def calls_of(self, turn_id: str) -> list[StoredCall]:
        if not is_storable(turn_id):
            return []
        wanted = {"turn_id": turn_id}
        rows = await self._reader.run(lambda connection: statements.CALLS_OF.rows(connection, wanted))
        return [call_from(row) for row in rows]

    async def list_calls(
        self, filter: CallFilter, *, limit: int, before: str | None = None
    ) -> tuple[list[StoredCall], str | None]:
        return await page_of_calls(self._reader.run, filter, limit=limit, before=before)

    async def claim(
        self,
        key: str,
        principal: Principal,
        *,
        digest: str,
        call: StoredCall,
        until: datetime,
        turn: StoredTurn | None = None,
    ) -> Claim:
        if (late := self._backlog.claimed(key, principal, digest)) is not None:
            return late
        start = self._starting(call, turn)
        claim = {"owner": owner_of(principal), "key": key, "digest": digest, "until": microseconds(until)}
        claim |= {"turn_id": call.turn_id, "call_id": call.id}
        at = microseconds(self._clock())
        work = self._writer.run(
            lambda connection: changes.claim(connection, claim, at, start), within=_BEFORE_RUNNING, undo=start.undo
        )
        return await self._backlog.claim((call.turn_id, call.id), work)

    async def recover(self, at: datetime) -> int:
        given_up = await self._backlog.write()  # first: nobody else can tell those outcomes while we live
        if not await self._reader.run(self._lease.may_be_dead):
            return given_up
        moment = microseconds(at)

        def give_up(connection: Any) -> int:
            return sum(self._give_up(connection, {"gone": each, "at": moment}) for each in self._lease.gone(connection))

        return given_up + await self._writer.run(give_up)

    async def expired_results(self, at: datetime, *, limit: int) -> list[StoredResult]:
        wanted = {"at": microseconds(at), "limit": limit}
        rows = await self._reader.run(lambda connection: statements.EXPIRED_PIECES.rows(connection, wanted))
        return [results_from(row["results"])[row["position"]] for row in rows]

    async def forget_results(self, keys: Sequence[str]) -> None:
        rows = [{"key": key} for key in keys if is_storable(key)]
        await self._writer.run(lambda connection: changes.forget_pieces(connection, rows))

    async def known_results(self, keys: Sequence[str]) -> set[str]:
        def known(connection: Any) -> set[str]:
            return {key for key in keys if is_storable(key) and statements.FIND_PIECE.rows(connection, {"key": key})}

        return await self._reader.run(known)

    async def prune(self, at: datetime) -> int:
        wanted = {"at": microseconds(at), "limit": _PRUNED_AT_ONCE}
        pruned = await self._writer.run(lambda connection: statements.PRUNE_CLAIMS.run(connection, wanted).rowcount)
        is_told = self._summed is not None
        pruned += await self._writer.run(
            lambda connection: refusals.prune(connection, at=wanted["at"], is_told=is_told)
        )
        pruned += await self._writer.run(lambda connection: sightings.prune(connection, at=wanted["at"]))
        # Few turns at a time: calls that settle meanwhile go in between.
        while went := await self._writer.run(lambda connection: changes.prune_some(connection, wanted)):
            pruned += went
        return pruned

    async def find_piece(self, key: str) -> bytes | None:
        """The bytes of a small piece that settled with its record."""
        if (late := self._backlog.find_piece(key)) is not None:
            return late
        rows = await self._reader.run(lambda connection: statements.FIND_PIECE.rows(connection, {"key": key}))
        return rows[0]["content"] if rows else None

    async def last_piece(self, prefix: str) -> tuple[str, bytes] | None:
        """The last small piece, in the order of keys, whose key begins like that."""
        wanted = beginning_with(prefix)
        rows = await self._reader.run(lambda connection: statements.LAST_PIECE.rows(connection, wanted))
        return (rows[0]["key"], rows[0]["content"]) if rows else None

    async def delete_pieces(self, prefix: str) -> bool:
        wanted = beginning_with(prefix)
        return await self._writer.run(lambda connection: statements.DROP_PIECES.run(connection, wanted).rowcount > 0)

    async def close(self) -> None:
        """Write what was taken on, then let go. Calls that have not settled are unknown from now on."""
        await self._backlog.close()
        await self._writer.close()
        await self._reader.close()
        await asyncio.to_thread(self.pulse.close)

    # --- what the backlog needs of an engine ---

    def run(self, work: Callable[[Any], Any]) -> Awaitable[Any]:
        return self._writer.run(work)

    def write_late(self, connection: Any, late: LateOutcome) -> None:
        if late.refusal is not None:
            self._write_refusals(connection, [RefusalRows.of(late.refusal, process=self._lease.id)])
            return
        with _conflict("the call's turn is another principal's"):
            changes.settle_late(connection, late, process=self._lease.id, at=microseconds(self._clock()))
        self._note(connection, late.audit)

    def write_audit(self, connection: Any, audit: Sequence[AuditBody]) -> None:
        self._note(connection, audit)

    def give_up_left(self, connection: Any, is_running: Callable[[Name], bool]) -> int:
        at = microseconds(self._clock())
        left = changes.give_up_left(connection, self._lease.id, at, is_running)
        tell = self._abandoned
        self._note(connection, [] if tell is None else [tell(call) for call in left])
        return len(left)

    @property
    def _patience(self) -> float:
        is_there = self.pulse.is_trusted and not self._writer.is_slow
        return _OUTCOME if is_there else _LEFT_BEHIND

    def _note(self, connection: Any, audit: Sequence[AuditBody]) -> None:
        if self._audit is not None:
            self._audit.append(connection, audit)

    def _give_up(self, connection: Any, gone: Row) -> int:
        if self._abandoned is not None:
            left = [self._abandoned(call_from(row)) for row in statements.STARTED_BY.rows(connection, gone)]
            self._note(connection, left)
        went: int = statements.GIVE_UP.run(connection, gone).rowcount
        return went

    def _write_alone(self, connection: Any, all: list[_Alone]) -> None:
        session: Session = connection
        session.run_many(statements.INSERT_TURN, [each.turn for each in all])
        session.run_many(_FIRST_TO_SETTLE, [each.call for each in all])
        session.run_many(statements.INSERT_PIECE, [piece for each in all for piece in each.pieces])
        self._note(connection, [body for each in all for body in each.audit])

    def _start_many(self, connection: Any, parts: list[tuple["_Start", Sequence[AuditBody]]]) -> None:
        session: Session = connection
        starts = [start for start, _ in parts]
        for start in starts:
            start.prepare()
        session.run_many(statements.ENSURE_TURN, [start.turn for start in starts if start.turn is not None])
        session.run_many(statements.START_CALL, [start.row for start in starts])
        self._note(connection, [body for _, audit in parts for body in audit])
        for start in starts:
            start.is_written = True

    def _settle_many(self, connection: Any, parts: list["_Settling"]) -> None:
        session: Session = connection
        session.run_many(statements.ENSURE_TURN, [each.turn for each in parts if each.turn is not None])
        if session.run_many(statements.SETTLE_CALL, [each.row for each in parts]) != len(parts):
            raise RecordConflict("one of the calls has an outcome already")  # each is tried by itself then
        session.run_many(statements.INSERT_PIECE, [piece for each in parts for piece in each.pieces])
        self._note(connection, [body for each in parts for body in each.audit])

    def _write_refusals(self, connection: Any, all: list[RefusalRows]) -> None:
        with _conflict("the call's turn is unknown, or another principal's"):
            told = refusals.write_refusals(connection, all, at=microseconds(self._clock()))
        self._note(connection, told)

    def _starting(self, call: StoredCall, turn: StoredTurn | None) -> "_Start":
        row = call_row(call, status="started", process=self._lease.id)
        return _Start(row, None if turn is None else turn_row(turn), self._lease)


class _Start:
    """The start of a call, which is taken back if its caller gave up before learning of it, and so never ran it."""

    def __init__(self, row: Row, turn: Row | None, lease: Lease) -> None:
        self.row = row
        self.turn = turn
        self._lease = lease
        self.is_written = False

    def prepare(self) -> None:
        """Raises `StoreUnavailable` if its process was given up."""
        self.is_written = False
        self._lease.refuse_others(self.row["process"])

    def run(self, connection: Any) -> None:
        self.prepare()
        with _conflict("the call was started before, or its turn is unknown or another principal's"):
            if self.turn is not None:
                statements.ENSURE_TURN.run(connection, self.turn)
            statements.START_CALL.run(connection, self.row)
        self.is_written = True

    def undo(self, connection: Any) -> None:
        if self.is_written:  # else the row there is, if any, is another call's
            statements.UNDO_CLAIM.run(connection, self.row)
            statements.UNDO_START.run(connection, self.row)


@contextmanager
def _conflict(message: str) -> Any:
    """Turns a violated constraint into `RecordConflict`."""
    try:
        yield
    except psycopg.IntegrityError as error:
        raise RecordConflict(message) from error


def refuse_other_versions_at(address: str) -> None:
    """Raises `StoreNotOurs` unless the database was set up for this version."""
    session = Session(address, is_reader=True)
    try:
        refuse_other_versions(session)
    finally:
        session.close()


def _settled(connection: Any, row: Row, turn: Row | None, pieces: Sequence[Row]) -> None:
    with _conflict("the call's turn is unknown, or another principal's"):
        changes.settle(connection, row, turn, pieces)
