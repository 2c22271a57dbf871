"""Turns and calls in one SQLite file, for the processes of one host.

Writes go through one thread and are committed in groups, reads through a few of their own.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Self

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
from gateway.storage.finding_fresh import (
    drop_run,
    empty_runs,
    expired_in_spool,
    forget_expired,
    turns_of_call,
    turns_of_pieces,
)
from gateway.storage.fresh_calls import INTO_FRESH, MOVES, fresh_values, rows_among
from gateway.storage.fresh_rows import Values, fresh_row
from gateway.storage.group_commit import GroupCommit
from gateway.storage.opening import own_link, prepare, when_free
from gateway.storage.paging import beginning_with, page_of_calls
from gateway.storage.prepared import Prepared
from gateway.storage.processes import ProcessLock
from gateway.storage.putting_away import AT_ONCE, put_some_away, put_turn_away, write_away
from gateway.storage.reading import ReadPool
from gateway.storage.recording import Recording
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
from gateway.storage.schema import calls, fresh
from gateway.storage.turn_memories import Reservation, keep_going, remember

_PRUNED_AT_ONCE: Final = 200
_BEFORE_RUNNING: Final = 1.0
"""Seconds a call waits for its start to be durable. Its outcome waits as long as it takes: the tool has run."""

Row = dict[str, Any]


class SqliteStore:
    """Implements `gateway.governance.records.Store`, and keeps the small pieces of a spool beside the records."""

    def __init__(self, path: Path, *, clock: Callable[[], datetime], process: ProcessLock, readers: int, waiting: int):
        self._clock = clock
        self._process = process
        self._writer = when_free(lambda: GroupCommit(lambda: own_link(path), waiting=waiting))
        self._reader = ReadPool(path, size=readers)
        self._audit: AuditLog | None = None
        self._recording: Recording | None = None
        self._abandoned: Callable[[StoredCall], AuditBody] | None = None
        self._summed: refusals.Summed | None = None
        self._backlog = OutcomeBacklog(self)

    @property
    def writer(self) -> GroupCommit:
        """For what else lives in the same file, and is committed together with calls."""
        return self._writer

    @property
    def reader(self) -> ReadPool:
        return self._reader

    @classmethod
    async def open(
        cls, path: str | Path, *, clock: Callable[[], datetime] = now, readers: int = 4, waiting: int = 4096
    ) -> Self:
        """Open or create a database and bring it up to date.

        Raises `StoreNotOurs` for one that is newer than this program or another program's, `StoreUnavailable` for
        one that cannot be read and written. `waiting` bounds the writes that may wait for the disk.
        """
        absolute = Path(path).absolute()
        process = await asyncio.to_thread(prepare, absolute)
        try:
            return await asyncio.to_thread(
                cls, absolute, clock=clock, process=process, readers=readers, waiting=waiting
            )
        except BaseException:
            process.release()
            raise

    async def open_turn(self, turn: StoredTurn) -> None:
        row = turn_row(turn)

        def insert(connection: sqlite3.Connection) -> None:
            put_turn_away(connection, MOVES, turn.id)
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
        rows = await self._read_turn(id, statements.FIND_TURN, wanted)
        return turn_from(rows[0]) if rows else None

    async def end_turn(self, id: str, ending: TurnEnding, at: datetime, *, stash: Mapping[str, Any]) -> None:
        row = {"turn": id, "at": microseconds(at), "how": ending, "left": json_text(stash)}

        def end(connection: sqlite3.Connection) -> None:
            put_turn_away(connection, MOVES, id)
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

    def record_through(self, recording: Recording) -> None:
        """Leave fresh calls to a process that does nothing else."""
        self._recording = recording

    async def note(
        self,
        audit: Sequence[AuditBody],
        *,
        turn_id: str | None = None,
        memory: bytes | None = None,
        knowing: bytes | None = None,
    ) -> None:
        def note(connection: sqlite3.Connection) -> None:
            if turn_id is not None and memory is not None:
                put_turn_away(connection, MOVES, turn_id)
                remember(connection, turn_id, memory, knowing)
            self._note(connection, audit)

        await self._writer.run(note)

    async def start_call(
        self, call: StoredCall, *, turn: StoredTurn | None = None, audit: Sequence[AuditBody] = ()
    ) -> None:
        start = self._starting(call, turn)

        def run(connection: sqlite3.Connection) -> None:
            start.run(connection)
            self._note(connection, audit)

        work = self._writer.run(run, within=_BEFORE_RUNNING, undo=start.undo)
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
        row = call_row(call, status="settled", process=self._process.id)
        pieces = piece_rows(call)
        turn_columns = None if turn is None else turn_row(turn)

        def settle(connection: sqlite3.Connection) -> None:
            put_turn_away(connection, MOVES, call.turn_id)
            _settled(connection, row, turn_columns, pieces)
            if memory is not None:
                remember(connection, call.turn_id, memory, knowing)
            self._note(connection, audit)

        await self._writer.run(settle)
        self._backlog.end((call.turn_id, call.id))

    async def settle_alone(
        self, call: StoredCall, turn: StoredTurn, *, memory: bytes | None = None, audit: Sequence[AuditBody] = ()
    ) -> None:
        process = self._process.id
        fresh = fresh_values(call, turn, process=process, memory=memory)
        recording = self._recording
        is_unsure = False
        if recording is not None and fresh is not None and recording.takes_another():
            is_unsure = True
            if await recording.write(fresh, audit):
                return

        def settle(connection: sqlite3.Connection) -> None:
            row = call_row(call, status="settled", process=process)
            put_turn_away(connection, MOVES, call.turn_id)
            if is_unsure and statements.CALL_OF_TURN.rows(connection, row):
                return
            _settled(connection, row, {**turn_row(turn), "memory": memory}, piece_rows(call))
            self._note(connection, audit)

        if is_unsure or fresh is None:
            await self._writer.run(settle)
        else:
            await self._writer.run_merged(settle, self._write_fresh, (fresh, audit))

    async def refuse(self, refusal: Refusal) -> bool:
        rows = RefusalRows.of(refusal, process=self._process.id)
        await self._writer.run_merged(
            lambda connection: self._write_refusals(connection, [rows]), self._write_refusals, rows
        )
        if refusal.call is not None:
            self._backlog.end((refusal.call.turn_id, refusal.call.id))
        return rows.is_kept

    async def tell_refusals(self, at: int) -> int:
        summed = self._summed
        if summed is None or not await self._reader.run(lambda connection: refusals.untold(connection, at=at, limit=1)):
            return 0

        def tell(connection: sqlite3.Connection) -> int:
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
        rows = await self._read_turn(turn_id, statements.REMEMBERED, {"turn": turn_id})
        return rows[0]["memory"] if rows else None

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

        def reserve(connection: sqlite3.Connection) -> Reserved:
            put_turn_away(connection, MOVES, turn_id)
            if memory is not None:
                remember(connection, turn_id, memory, knowing)
            return reservation.make(connection)

        return await self._writer.run(reserve, within=_BEFORE_RUNNING, undo=reservation.undo)

    async def give_up_call(self, id: str, *, turn_id: str, at: datetime, audit: Sequence[AuditBody] = ()) -> bool:
        row = {"call": id, "turn": turn_id, "at": microseconds(at)}

        def give_up(connection: sqlite3.Connection) -> bool:
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
        at, owner = microseconds(self._clock()), owner_of(principal)
        wanted = {"id": id, "owner": owner, "turn_id": turn_id, "at": at}
        if turn_id is not None:
            rows = await self._read_turn(turn_id, statements.FIND_CALL, wanted)
        else:
            rows = await self._read(
                statements.FIND_CALL, wanted, fresh=lambda connection: turns_of_call(connection, id, owner, at=at)
            )
        newest = max(rows, key=itemgetter("number"), default=None)
        return None if newest is None else call_from(newest)

    async def calls_of(self, turn_id: str) -> list[StoredCall]:
        if not is_storable(turn_id):
            return []
        rows = await self._read_turn(turn_id, statements.CALLS_OF, {"turn_id": turn_id})
        return [call_from(row) for row in rows]

    async def list_calls(
        self, filter: CallFilter, *, limit: int, before: str | None = None
    ) -> tuple[list[StoredCall], str | None]:
        return await page_of_calls(self._reader.run, filter, limit=limit, before=before, tables=(calls, fresh))

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
        given_up = await self._backlog.write()
        # What is fresh has settled: it need not be put away for this.
        rows = await self._reader.run(lambda connection: statements.RUNNING_PROCESSES.rows(connection, {}))
        gone = [row["process"] for row in rows if self._process.is_gone(row["process"])]
        await asyncio.to_thread(self._process.sweep)
        if not gone:
            return given_up
        moment = microseconds(at)
        return given_up + await self._writer.run(
            lambda connection: sum(self._give_up(connection, {"gone": process, "at": moment}) for process in gone)
        )

    async def expired_results(self, at: datetime, *, limit: int) -> list[StoredResult]:
        wanted = {"at": microseconds(at), "limit": limit}
        rows = await self._read(
            statements.EXPIRED_PIECES,
            wanted,
            fresh=lambda connection: expired_in_spool(connection, at=wanted["at"], limit=limit),
        )
        return [results_from(row["results"])[row["position"]] for row in rows[:limit]]

    async def forget_results(self, keys: Sequence[str]) -> None:
        rows = [{"key": key} for key in keys if is_storable(key)]

        def forget(connection: sqlite3.Connection) -> None:
            for row in rows:
                _put_turns_away(connection, turns_of_pieces(connection, row["key"], row["key"]))
            changes.forget_pieces(connection, rows)

        await self._writer.run(forget)

    async def known_results(self, keys: Sequence[str]) -> set[str]:
        def known(connection: sqlite3.Connection) -> set[str]:
            return {key for key in keys if is_storable(key) and _is_known(connection, key)}

        return await self._reader.run(known)

    async def prune(self, at: datetime) -> int:
        wanted = {"at": microseconds(at), "limit": _PRUNED_AT_ONCE}
        pruned = await self._writer.run(lambda connection: statements.PRUNE_CLAIMS.run(connection, wanted).rowcount)
        is_told = self._summed is not None
        pruned += await self._writer.run(
            lambda connection: refusals.prune(connection, at=wanted["at"], is_told=is_told)
        )
        pruned += await self._writer.run(lambda connection: sightings.prune(connection, at=wanted["at"]))
        while went := await self._writer.run(lambda connection: forget_expired(connection, **wanted)):
            pruned += 2 * went  # a call and its turn
        for run in await self._reader.run(empty_runs):
            await self._writer.run(partial(drop_run, upto=run))
        # Few turns at a time: calls that settle meanwhile go in between.
        while went := await self._writer.run(lambda connection: changes.prune_some(connection, wanted)):
            pruned += went
        return pruned

    async def find_piece(self, key: str) -> bytes | None:
        """The bytes of a small piece that settled with its record."""
        if (late := self._backlog.find_piece(key)) is not None:
            return late
        rows = await self._read(
            statements.FIND_PIECE, {"key": key}, fresh=lambda connection: turns_of_pieces(connection, key, key)
        )
        return rows[0]["content"] if rows else None

    async def last_piece(self, prefix: str) -> tuple[str, bytes] | None:
        """The last small piece, in the order of keys, whose key begins like that."""
        wanted = beginning_with(prefix)
        rows = await self._read(
            statements.LAST_PIECE, wanted, fresh=lambda connection: turns_of_pieces(connection, **wanted)
        )
        last = max(rows, key=itemgetter("key"), default=None)
        return None if last is None else (last["key"], last["content"])

    async def delete_pieces(self, prefix: str) -> bool:
        wanted = beginning_with(prefix)

        def delete(connection: sqlite3.Connection) -> bool:
            _put_turns_away(connection, turns_of_pieces(connection, **wanted))
            return statements.DROP_PIECES.run(connection, wanted).rowcount > 0

        return await self._writer.run(delete)

    async def put_away(self) -> None:
        """Everything that is fresh now, some at a time: calls that settle meanwhile go in between."""
        while await self._writer.run(lambda connection: put_some_away(connection, MOVES)) == AT_ONCE:
            pass

    async def close(self) -> None:
        """Write what was taken on, then let go of the file. Calls that have not settled are unknown from now on."""
        await self._backlog.close()
        if self._recording is not None:
            await self._recording.close()
        await self._writer.close()
        await self._reader.close()
        self._process.release()

    # --- what the backlog needs of an engine ---

    def run(self, work: Callable[[Any], Any]) -> Awaitable[Any]:
        return self._writer.run(work)

    def write_late(self, connection: sqlite3.Connection, late: LateOutcome) -> None:
        if late.refusal is not None:
            self._write_refusals(connection, [RefusalRows.of(late.refusal, process=self._process.id)])
            return
        put_turn_away(connection, MOVES, late.call.turn_id)
        with _conflict("the call's turn is another principal's"):
            changes.settle_late(connection, late, process=self._process.id, at=microseconds(self._clock()))
        self._note(connection, late.audit)

    def write_audit(self, connection: sqlite3.Connection, audit: Sequence[AuditBody]) -> None:
        self._note(connection, audit)

    def give_up_left(self, connection: sqlite3.Connection, is_running: Callable[[Name], bool]) -> int:
        at = microseconds(self._clock())
        left = changes.give_up_left(connection, self._process.id, at, is_running)
        tell = self._abandoned
        self._note(connection, [] if tell is None else [tell(call) for call in left])
        return len(left)

    async def _read_turn(self, id: str, statement: Prepared, wanted: Row) -> list[Row]:
        """A turn is fresh, or it is not. One that is put away between the first two looks is found by the third."""

        def read(connection: sqlite3.Connection) -> list[Row]:
            found = statement.rows(connection, wanted) or rows_among(connection, [id], statement, wanted)
            return found or statement.rows(connection, wanted)

        return await self._reader.run(read)

    async def _read(
        self, statement: Prepared, wanted: Row, *, fresh: Callable[[sqlite3.Connection], list[str]]
    ) -> list[Row]:
        """What is found in turns that are `fresh`, and in all others; twice what is put away in between."""

        def read(connection: sqlite3.Connection) -> list[Row]:
            found = fresh(connection)
            rows = rows_among(connection, found, statement, wanted) if found else []
            return rows + statement.rows(connection, wanted)

        return await self._reader.run(read)

    def _note(self, connection: sqlite3.Connection, audit: Sequence[AuditBody]) -> None:
        if self._audit is not None:
            self._audit.append(connection, audit)

    def _give_up(self, connection: sqlite3.Connection, gone: Row) -> int:
        if self._abandoned is not None:
            left = [self._abandoned(call_from(row)) for row in statements.STARTED_BY.rows(connection, gone)]
            self._note(connection, left)
        return statements.GIVE_UP.run(connection, gone).rowcount

    def _write_fresh(self, connection: sqlite3.Connection, group: list[tuple[Values, Sequence[AuditBody]]]) -> None:
        write_away(connection, MOVES, INTO_FRESH, rows=[fresh_row(fresh) for fresh, _ in group])
        self._note(connection, [body for _, audit in group for body in audit])

    def _write_refusals(self, connection: sqlite3.Connection, all: list[RefusalRows]) -> None:
        for each in all:
            if each.call is not None:
                put_turn_away(connection, MOVES, each.call["turn_id"])
        with _conflict("the call's turn is unknown, or another principal's"):
            told = refusals.write_refusals(connection, all, at=microseconds(self._clock()))
        self._note(connection, told)

    def _starting(self, call: StoredCall, turn: StoredTurn | None) -> "_Start":
        row = call_row(call, status="started", process=self._process.id)
        return _Start(row, None if turn is None else turn_row(turn))


class _Start:
    """The start of a call, which is taken back if its caller gave up before learning of it, and so never ran it."""

    def __init__(self, row: Row, turn: Row | None) -> None:
        self.row = row
        self._turn = turn
        self._is_written = False

    def run(self, connection: sqlite3.Connection) -> None:
        self._is_written = False
        put_turn_away(connection, MOVES, self.row["turn_id"])
        with _conflict("the call was started before, or its turn is unknown or another principal's"):
            if self._turn is not None:
                statements.ENSURE_TURN.run(connection, self._turn)
            statements.START_CALL.run(connection, self.row)
        self._is_written = True

    def undo(self, connection: sqlite3.Connection) -> None:
        if self._is_written:  # else the row there is, if any, is another call's
            statements.UNDO_CLAIM.run(connection, self.row)
            statements.UNDO_START.run(connection, self.row)


class _conflict:  # noqa: N801 - reads as a statement; a generator-based one costs 2 µs per call
    """Turns a violated constraint into `RecordConflict`."""

    __slots__ = ("_message",)

    def __init__(self, message: str) -> None:
        self._message = message

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.IntegrityError):
            raise RecordConflict(self._message) from error


def _settled(connection: sqlite3.Connection, row: Row, turn: Row | None, pieces: Iterable[Row]) -> None:
    with _conflict("the call's turn is unknown, or another principal's"):
        changes.settle(connection, row, turn, pieces)


def _put_turns_away(connection: sqlite3.Connection, ids: Iterable[str]) -> None:
    for id in ids:
        put_turn_away(connection, MOVES, id)


def _is_known(connection: sqlite3.Connection, key: str) -> bool:
    """Fresh first: what is put away in between is found all the same."""
    return bool(turns_of_pieces(connection, key, key) or statements.FIND_PIECE.rows(connection, {"key": key}))
