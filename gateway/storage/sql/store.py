"""Turns, calls and results in a SQL database.

Writes go through one thread and are committed in groups. Reads use a few other threads. `engine_base` has what differs
between SQLite and PostgreSQL.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

from gateway.errors import RecordConflict
from gateway.model import Principal
from gateway.policy import CallBounds, TurnStateWrite
from gateway.storage.call_store import (
    AuditBody,
    CallFilter,
    CallReservation,
    ExtendedTurn,
    IdempotencyClaim,
    StoredCall,
    StoredResult,
    StoredTurn,
    TurnEndReason,
)
from gateway.storage.refusal_store import Refusal
from gateway.storage.sql import call_statements as statements
from gateway.storage.sql import call_transactions as transactions
from gateway.storage.sql import flags_seen_by_caller, refusal_counts
from gateway.storage.sql.audit_log import AuditLog
from gateway.storage.sql.call_rows import (
    blob_rows,
    call_from_row,
    call_to_row,
    encode_json,
    owner_key,
    results_from_json,
    to_microseconds,
    turn_from_row,
    turn_to_row,
)
from gateway.storage.sql.call_transactions import CallStart
from gateway.storage.sql.column_values import is_storable
from gateway.storage.sql.engine_base import CallOutcomeRows, Note, ReadPool, Row, SqlEngine
from gateway.storage.sql.group_commit import GroupCommit
from gateway.storage.sql.lock_keys import Footprint, claim_key, turn_footprint, turn_key
from gateway.storage.sql.refusal_counts import RefusalCounter, RefusalRows
from gateway.storage.unwritten_outcomes import LateOutcome, Name, OutcomeBacklog

_PRUNED_AT_ONCE: Final = 200

E = TypeVar("E", bound=SqlEngine)
T = TypeVar("T")


class SqlStore(Generic[E]):
    """Implements `gateway.storage.RecordStore`, and stores small results of a spool with the records."""

    def __init__(self, engine: E, *, clock: Callable[[], datetime]) -> None:
        self.engine: E = engine
        self.writer: GroupCommit = engine.writer
        """Also used by what else is in the same database and committed with calls."""
        self.reader: ReadPool = engine.reader
        self._clock = clock
        self._abandoned: Callable[[StoredCall], AuditBody] | None = None
        self._summed: refusal_counts.Summed | None = None
        self._backlog = OutcomeBacklog(self)
        self._refusals = RefusalCounter(engine.writer, clock=clock)
        self.count_refusal = self._refusals.count

    async def open_turn(self, turn: StoredTurn) -> None:
        row = turn_to_row(turn)

        def insert(connection: Any) -> None:
            self.engine.expand_turn(connection, turn.id)
            with self.engine.translate_conflict("there is a turn with that id already"):
                statements.INSERT_TURN.run(connection, row)

        await self.writer.run(insert, footprint=turn_footprint(turn.id))

    async def extend_turn(self, turn: StoredTurn) -> ExtendedTurn:
        row, at = turn_to_row(turn), to_microseconds(self._clock())
        return await self.writer.run(
            lambda connection: transactions.keep_turn_alive(connection, row, at),
            within=self.engine.start_timeout,
            footprint=turn_footprint(turn.id),
        )

    async def find_turn(self, id: str, principal: Principal) -> StoredTurn | None:
        if not is_storable(id):
            return None
        wanted = {"id": id, "owner": owner_key(principal), "at": to_microseconds(self._clock())}
        rows = await self.engine.find(statements.FIND_TURN, wanted)
        return turn_from_row(rows[0]) if rows else None

    async def end_turn(self, id: str, ending: TurnEndReason, at: datetime, *, stash: Mapping[str, Any]) -> None:
        row = {"turn": id, "at": to_microseconds(at), "how": ending, "left": encode_json(stash)}

        def end(connection: Any) -> None:
            self.engine.expand_turn(connection, id)
            if not statements.END_TURN.run(connection, row).rowcount:
                raise RecordConflict("there is no such turn, or it has ended already")

        await self.writer.run(end, footprint=turn_footprint(id))

    def use_audit_log(
        self,
        log: AuditLog,
        *,
        abandoned: Callable[[StoredCall], AuditBody] | None = None,
        summed: refusal_counts.Summed | None = None,
    ) -> None:
        """Write the decision log from now on. `abandoned` makes entries of lost calls, `summed` of counted refusals."""
        self.engine.audit_log = self.writer.ledger = log
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
        state = None if turn_id is None or memory is None else TurnStateWrite(turn_id, memory, knowing)
        await self.engine.write_note(state, audit, self._write_notes)

    async def start_call(
        self, call: StoredCall, *, turn: StoredTurn | None = None, audit: Sequence[AuditBody] = ()
    ) -> None:
        start = CallStart.of(call, turn, audit, process=self.engine.process_id)
        work = self.writer.run_merged(
            self._write_starts,
            start,
            within=self.engine.start_timeout,
            undo=start.undo,
            footprint=turn_footprint(call.turn_id),
        )
        await self._backlog.start((call.turn_id, call.id), work)

    async def record_call(
        self,
        call: StoredCall,
        *,
        turn: StoredTurn | None = None,
        memory: bytes | None = None,
        knowing: bytes | None = None,
        audit: Sequence[AuditBody] = (),
        implicit: TurnStateWrite | None = None,
    ) -> None:
        row = call_to_row(call, status="settled", process=self.engine.process_id)
        state = None if memory is None else TurnStateWrite(call.turn_id, memory, knowing)
        turn_row = None if turn is None else turn_to_row(turn)
        outcome = CallOutcomeRows(row, turn_row, blob_rows(call), audit, (state, implicit))
        await self.engine.write_outcome(outcome, self._write_outcomes)
        self._backlog.end((call.turn_id, call.id))

    async def record_single_call(
        self,
        call: StoredCall,
        turn: StoredTurn,
        *,
        memory: bytes | None = None,
        audit: Sequence[AuditBody] = (),
        implicit: TurnStateWrite | None = None,
    ) -> None:
        def write(connection: Any) -> None:
            row = call_to_row(call, status="settled", process=self.engine.process_id)
            outcome = CallOutcomeRows(row, {**turn_to_row(turn), "memory": memory}, blob_rows(call), audit, (implicit,))
            self._write_outcomes(connection, [outcome])

        await self.engine.write_single_call(call, turn, memory=memory, audit=audit, implicit=implicit, write=write)

    async def refuse(self, refusal: Refusal) -> bool:
        rows = RefusalRows.of(refusal, process=self.engine.process_id)
        await self.writer.run_merged(
            self._write_refusals, rows, within=self.engine.outcome_timeout, footprint=rows.footprint
        )
        self._refusals.learn(rows)
        if refusal.call is not None:
            self._backlog.end((refusal.call.turn_id, refusal.call.id))
        return rows.is_kept

    async def audit_refusal_counts(self, at: int) -> int:
        summed, find_pending = self._summed, partial(refusal_counts.find_pending, at=at)
        await self._refusals.write()
        if summed is None or not await self.reader.run(partial(find_pending, limit=1)):
            return 0

        def record(connection: Any) -> int:
            rows = find_pending(connection)  # again: another process may have recorded some meanwhile
            self.engine.append_audit(connection, refusal_counts.mark_recorded(connection, rows, summed))
            return len(rows)

        recorded = 0
        while batch := await self.writer.run(record):
            recorded += batch
        return recorded

    async def refusals_by_reason(self) -> dict[str, tuple[int, int]]:
        await self._refusals.write()
        return await self.reader.run(refusal_counts.count_by_reason)

    async def read_turn_state(self, turn_id: str) -> bytes | None:
        is_sent = is_storable(turn_id)  # one that cannot be must not fail those that are looked up with it
        rows = await self.engine.find(statements.SELECT_TURN_STATE, {"turn": turn_id}) if is_sent else []
        return rows[0]["memory"] if rows else None

    async def reserve_call(
        self,
        turn_id: str,
        fingerprint: str,
        *,
        bounds: CallBounds,
        memory: bytes | None = None,
        knowing: bytes | None = None,
    ) -> CallReservation:
        seen = None if memory is None else TurnStateWrite(turn_id, memory, knowing)
        reservation = transactions.TurnStateReservation(turn_id, fingerprint, bounds, seen)
        await self.writer.run_merged(
            self._reserve_calls,
            reservation,
            within=self.engine.start_timeout,
            undo=reservation.undo,
            footprint=Footprint((turn_key(turn_id),), (turn_id,)),
        )
        return reservation.made

    async def abandon_call(self, id: str, *, turn_id: str, at: datetime, audit: Sequence[AuditBody] = ()) -> bool:
        row = {"call": id, "turn": turn_id, "at": to_microseconds(at)}

        def give_up(connection: Any) -> bool:
            if not statements.ABANDON_CALL.run(connection, row).rowcount:
                return False
            self.engine.append_audit(connection, audit)
            return True

        is_given_up = await self.writer.run(give_up, footprint=turn_footprint(turn_id))
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
        at = to_microseconds(self._clock())
        wanted = {"id": id, "owner": owner_key(principal), "turn_id": turn_id, "at": at}
        rows = await self.engine.find(statements.FIND_CALL, wanted)
        newest = max(rows, key=itemgetter("number"), default=None)
        return None if newest is None else call_from_row(newest)

    async def list_turn_calls(self, turn_id: str) -> list[StoredCall]:
        if not is_storable(turn_id):
            return []
        rows = await self.engine.find(statements.CALLS_OF, {"turn_id": turn_id})
        return [call_from_row(row) for row in rows]

    async def list_calls(
        self, filter: CallFilter, *, limit: int, before: str | None = None
    ) -> tuple[list[StoredCall], str | None]:
        return await statements.read_call_page(
            self.reader.run, filter, limit=limit, before=before, tables=self.engine.call_tables
        )

    async def claim_idempotency_key(
        self,
        key: str,
        principal: Principal,
        *,
        digest: str,
        call: StoredCall,
        until: datetime,
        turn: StoredTurn | None = None,
    ) -> IdempotencyClaim:
        if (late := self._backlog.find_claim(key, principal, digest)) is not None:
            return late
        start = CallStart.of(call, turn, process=self.engine.process_id)
        claim: Row = {"owner": owner_key(principal), "key": key, "digest": digest, "until": to_microseconds(until)}
        claim |= {"turn_id": call.turn_id, "call_id": call.id}
        at = to_microseconds(self._clock())
        work = self.writer.run(
            lambda connection: transactions.claim(
                connection, claim, at, lambda: self._write_starts(connection, [start])
            ),
            within=self.engine.start_timeout,
            undo=start.undo,
            footprint=Footprint((claim_key(claim["owner"], key), turn_key(call.turn_id))),
        )
        return await self._backlog.claim((call.turn_id, call.id), work)

    async def close_interrupted_calls(self, at: datetime) -> int:
        given_up = await self._backlog.write()  # first: only this process knows these outcomes
        find_dead_processes = await self.engine.find_dead_processes()
        if find_dead_processes is None:
            return given_up
        moment = to_microseconds(at)

        def give_up(connection: Any) -> int:
            dead = find_dead_processes(connection)
            return sum(self._abandon_calls(connection, {"gone": process, "at": moment}) for process in dead)

        return given_up + await self.writer.run(give_up)

    async def list_expired_results(self, at: datetime, *, limit: int) -> list[StoredResult]:
        wanted = {"at": to_microseconds(at), "limit": limit}
        rows = await self.engine.find(statements.EXPIRED_PIECES, wanted)
        return [results_from_json(row["results"])[row["position"]] for row in rows[:limit]]

    async def delete_results(self, keys: Sequence[str]) -> None:
        rows = [{"key": key} for key in keys if is_storable(key)]

        def delete(connection: Any) -> None:
            for row in rows:
                self.engine.expand_blobs(connection, row["key"], row["key"])
            transactions.delete_blob_rows(connection, rows)

        await self.writer.run(delete)

    async def filter_known_results(self, keys: Sequence[str]) -> set[str]:
        def find(connection: Any) -> set[str]:
            select = self.engine.select
            return {key for key in keys if is_storable(key) and select(connection, statements.FIND_PIECE, {"key": key})}

        return await self.reader.run(find)

    async def prune(self, at: datetime) -> int:
        wanted = {"at": to_microseconds(at), "limit": _PRUNED_AT_ONCE}
        pruned = await self.writer.run(lambda connection: statements.PRUNE_CLAIMS.run(connection, wanted).rowcount)
        prune_refusals = partial(refusal_counts.prune, at=wanted["at"], is_told=self._summed is not None)
        pruned += await self.writer.run(prune_refusals)
        pruned += await self.writer.run(partial(flags_seen_by_caller.prune, at=wanted["at"]))
        pruned += await self.engine.prune_single_calls(**wanted)
        # Few turns per transaction: calls that are recorded meanwhile go in between.
        while batch := await self.writer.run(lambda connection: transactions.prune_turns(connection, wanted)):
            pruned += batch
        return pruned

    async def find_blob(self, key: str) -> bytes | None:
        """Return the bytes of a small piece that is stored with its record."""
        if (late := self._backlog.find_piece(key)) is not None:
            return late
        rows = await self.engine.find(statements.FIND_PIECE, {"key": key})
        return rows[0]["content"] if rows else None

    async def find_last_blob(self, prefix: str) -> tuple[str, bytes] | None:
        """Return key and bytes of the small piece with the greatest key of that prefix."""
        rows = await self.engine.find(statements.LAST_PIECE, statements.key_range(prefix))
        last = max(rows, key=itemgetter("key"), default=None)
        return None if last is None else (last["key"], last["content"])

    async def delete_blobs(self, prefix: str) -> bool:
        wanted = statements.key_range(prefix)

        def delete(connection: Any) -> bool:
            self.engine.expand_blobs(connection, **wanted)
            return statements.DROP_PIECES.run(connection, wanted).rowcount > 0

        return await self.writer.run(delete)

    async def close(self) -> None:
        """Write everything that was accepted and close the database. Calls without an outcome become `unknown`."""
        await self._backlog.close()
        await self._refusals.close()
        await self.engine.close()

    # --- for the backlog ---

    def run(self, work: Callable[[Any], Any]) -> Awaitable[Any]:
        return self.writer.run(work)

    def write_late(self, connection: Any, late: LateOutcome) -> None:
        if late.refusal is not None:
            self._write_refusals(connection, [RefusalRows.of(late.refusal, process=self.engine.process_id)])
            return
        self.engine.expand_turn(connection, late.call.turn_id)
        with self.engine.translate_conflict("the call's turn is another principal's"):
            transactions.write_late(connection, late, process=self.engine.process_id, at=to_microseconds(self._clock()))
        self.engine.append_audit(connection, late.audit)

    def write_audit(self, connection: Any, audit: Sequence[AuditBody]) -> None:
        self.engine.append_audit(connection, audit)

    def abandon_left_calls(self, connection: Any, is_running: Callable[[Name], bool]) -> int:
        at = to_microseconds(self._clock())
        left = transactions.abandon_left_calls(connection, self.engine.process_id, at, is_running)
        self._audit_abandoned(connection, left)
        return len(left)

    def _abandon_calls(self, connection: Any, gone: Row) -> int:
        self._audit_abandoned(connection, map(call_from_row, statements.STARTED_BY.rows(connection, gone)))
        return statements.ABANDON_CALLS.run(connection, gone).rowcount

    def _audit_abandoned(self, connection: Any, calls: Iterable[StoredCall]) -> None:
        if self._abandoned is not None:
            self.engine.append_audit(connection, [self._abandoned(call) for call in calls])

    def _write_notes(self, connection: Any, notes: list[Note]) -> None:
        states = [state for state, _ in notes if state is not None]
        for state in states:
            self.engine.expand_turn(connection, state.turn_id)
        transactions.write_turn_states(connection, states)
        self.engine.append_audit(connection, [body for _, audit in notes for body in audit])

    def _reserve_calls(self, connection: Any, reservations: list[transactions.TurnStateReservation]) -> None:
        for each in reservations:
            self.engine.expand_turn(connection, each.turn_id)
            each.make(connection)

    def _write_starts(self, connection: Any, starts: list[CallStart]) -> None:
        for start in starts:
            start.is_written = False
            self.engine.require_alive(start.row["process"])
            self.engine.expand_turn(connection, start.row["turn_id"])
        conflict = "the call was started before, or its turn is unknown or another principal's"
        with self.engine.translate_conflict(conflict):
            transactions.ensure_turns(connection, [start.turn for start in starts if start.turn is not None])
            statements.START_CALL.run_all(connection, [start.row for start in starts])
        self.engine.append_audit(connection, [body for start in starts for body in start.audit])
        for start in starts:
            start.is_written = True

    def _write_outcomes(self, connection: Any, outcomes: list[CallOutcomeRows]) -> None:
        for each in outcomes:
            self.engine.expand_turn(connection, each.row["turn_id"])
        with self.engine.translate_conflict("the call's turn is unknown, or another principal's"):
            turns = [each.turn for each in outcomes if each.turn is not None]
            pieces = [piece for each in outcomes for piece in each.pieces]
            transactions.write_outcomes(connection, [each.row for each in outcomes], turns=turns, pieces=pieces)
        transactions.write_turn_states(connection, (state for each in outcomes for state in each.states))
        self.engine.append_audit(connection, [body for each in outcomes for body in each.audit])

    def _write_refusals(self, connection: Any, all: list[RefusalRows]) -> None:
        for each in all:
            if each.call is not None:
                self.engine.expand_turn(connection, each.call["turn_id"])
        with self.engine.translate_conflict("the call's turn is unknown, or another principal's"):
            audit = refusal_counts.write_refusals(connection, all, at=to_microseconds(self._clock()))
        self.engine.append_audit(connection, audit)
