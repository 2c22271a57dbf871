"""Records of calls: that one is about to run, how it ended, and requests for things that do not exist for the caller.

Nothing consequential runs before its start is durable. A call returns when its outcome is durable, or when the store
failed to write the outcome of a call that ran: the store then keeps that outcome, and the response states it.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from time import perf_counter
from typing import Any, Final

from gateway.artifacts import SpooledArtifact, encode_utf8
from gateway.audit import Reason
from gateway.engine.call import Call, get_current_call
from gateway.engine.observer import CallMeter
from gateway.engine.records.auditor import Auditor, decision_of
from gateway.engine.records.excerpts import excerpt_of
from gateway.engine.records.rows import to_started_row as start_of
from gateway.engine.records.rows import to_stored_call as record_of
from gateway.engine.records.rows import to_stored_result, to_stored_results
from gateway.engine.turns.turn import Turn
from gateway.errors import NotPermitted, RecordConflict, StorageError, StoreUnavailable
from gateway.model import ToolCall, duration_microseconds, now_microseconds, to_microseconds
from gateway.registries import DeclaredTool
from gateway.storage import MAX_REFUSALS, ArgumentExcerpt, AuditBody, LateOutcome, RecordStore, Refusal

MAX_FETCHED: Final = 64 << 20
"""Bytes of one media that are fetched for its record; larger ones are in the response, but not available later."""

_log: Final = logging.getLogger(__name__)

LARGEST_QUERY: Final = 2048
"""Characters of the arguments of a failed query; of longer ones only an excerpt is stored."""


def refusal_reason(call: Call) -> str | None:
    """Return why a call was refused; `None` if it ran, or may run once it is approved."""
    effect, reason, *_ = decision_of(call)
    return reason if effect == "deny" or (effect == "hold" and call.limited is not None) else None


class CallRecorder:
    """One per process. `lives` is how long records are retained at least."""

    def __init__(
        self,
        store: RecordStore,
        auditor: Auditor | None,
        meter: CallMeter | None,
        *,
        lives: timedelta,
        most_refusals: int = MAX_REFUSALS,
    ) -> None:
        """`most_refusals`: of one caller, for one reason and minute, that many are stored; the rest is only counted."""
        self._store = store
        self._most_refusals = most_refusals
        self._auditor = auditor
        self._meter = meter
        self._lives = duration_microseconds(lives)

    async def record_start(self, call: Call, tool: DeclaredTool) -> None:
        """Make it durable that a call is about to run. Nothing consequential runs without it."""
        turn = call.turn
        assert turn is not None, "a served call has its turn"  # noqa: S101 - set where calls are made
        audit = [self._auditor.start_entry(call, tool)] if self._auditor is not None else ()
        began = perf_counter()
        try:
            if call.is_started:  # its idempotency key was claimed before the decision
                await self._store.note(audit)
            else:
                start = start_of(call, turn.id)
                try:
                    await self._store.start_call(start, turn=None if turn.is_stored else turn.stored, audit=audit)
                except RecordConflict:
                    if not turn.is_stored:
                        raise
                    # The store was replaced and does not know the turn.
                    await self._store.start_call(start, turn=turn.stored, audit=audit)
                turn.is_stored = call.is_started = True
        except StoreUnavailable:
            if self._meter is not None:
                self._meter.record_write_failure()
            raise
        if self._meter is not None:
            self._meter.record_write(perf_counter() - began)

    async def record_outcome(self, ctx: Any, record: ToolCall) -> None:
        """Make the outcome of the current call durable, with the state of its turn."""
        call = get_current_call()
        turn = call.turn
        assert turn is not None, "a served call has its turn"  # noqa: S101 - set where calls are made
        if call.decision != "allow" and not record.is_error:  # a result without a decision is never returned
            call.set_decision("deny", "check-failed", "no decision was made about the call")
            raise NotPermitted("no decision was made about the call")
        declared = call.declared
        artifact = declared.artifact if declared is not None else "text"
        result = record.results
        if isinstance(result, SpooledArtifact):  # nearly all results: nothing to await
            pieces = [to_stored_result(result, artifact)]
        else:
            # A single-call turn is not kept in memory, so its media could not be fetched later.
            fetches = MAX_FETCHED if turn.is_alone else None
            pieces = await to_stored_results(record, artifact, turn.spool, fetches=fetches)
        reason = None if call.decision == "allow" else refusal_reason(call)
        excerpt = None if call.decision == "allow" else self._excerpt(call, is_error=record.is_error, reason=reason)
        stored = record_of(record, call, pieces, turn.id, excerpt)
        if call.seen is not None:
            call.stored = stored
        remembered = turn.state
        size = 0
        for piece in pieces:
            size += piece.byte_length or 0
        is_answer = declared is None and not record.is_error  # of a query: its text is only in the record
        received = sum(len(encode_utf8(piece.text or "")) for piece in pieces) if is_answer else size
        remembered.add_bytes(received)
        if call.charge is not None:
            with suppress(StoreUnavailable):  # if that fails, the record of the call fails, too
                await call.charge(received)
        audit = [self._auditor.outcome_entry(call, stored, declared)] if self._auditor is not None else ()
        kind = turn.published.types.get_declared(artifact)
        retain = (
            self._lives if kind is None or kind.retain is None else max(self._lives, duration_microseconds(kind.retain))
        )
        if call.pending is not None:  # the held call continues in the same turn
            retain += to_microseconds(max(each.expires_at for each in call.approvals)) - now_microseconds()
        as_stored = turn.stored
        is_longer = turn.extend_lifetime(record.completed, retain)
        memory, knowing = turn.to_write(call.fingerprint, tool=call.identity or call.tool, size=received)
        writing = None if turn.implicit is None else asyncio.ensure_future(self._keep_implicit(turn))
        began = perf_counter()
        refusal: Refusal | None = None
        try:
            if reason is not None:
                row = None if turn.is_stored and not is_longer else turn.stored
                refusal = Refusal(call.principal, reason, self._most_refusals, audit, stored, call.is_started, row)
                refusal.is_alone, refusal.memory, refusal.knowing = turn.is_alone, memory, knowing
                if not await self._store_refusal(call, refusal):
                    turn.stored = as_stored
                    turn.is_stored = turn.is_stored and not (turn.is_alone and call.is_started)
                    if not turn.is_stored:
                        remembered.abort_write(memory, knowing)
                    return
            elif turn.is_stored or turn.is_late or len(turn.running) > 1:
                row = None if turn.is_stored and not is_longer else turn.stored
                await self._store.record_call(stored, turn=row, memory=memory, knowing=knowing, audit=audit)
            else:
                await self._store.record_single_call(stored, turn.stored, memory=memory, audit=audit)
            turn.is_stored = True
        except Exception as error:
            if self._meter is not None:
                self._meter.record_write_failure()
            ran = call.course.has_begun and refusal is None
            if ran or call.is_started:  # a started call that did not run frees its idempotency key
                late = LateOutcome(stored, turn.stored, memory, knowing, audit, call.is_started, call.held_key, refusal)
                late.on_drop = lambda: remembered.abort_write(memory, knowing)
                self._store.postpone(late)
            else:
                remembered.abort_write(memory, knowing)
            if not ran:
                raise
            call.is_unwritten = turn.is_late = True
            if not isinstance(error, StorageError):
                _log.exception("the outcome of a call could not be written")
            return
        finally:
            if writing is not None:
                await asyncio.shield(writing)
        if self._meter is not None:
            self._meter.record_write(perf_counter() - began)
            self._meter.record_result_size(call.catalogue, size)

    async def record_refusal(self, call: Call, reason: Reason) -> None:
        """Record a request for something that does not exist for the caller, hidden or not: attempts matter.

        Both cases take the same time, so that the caller cannot distinguish them by it.
        """
        if self._meter is not None:
            self._meter.record_refusal(call, reason)
        if self._auditor is not None:
            audit = [self._auditor.refusal_entry(call, reason)]
            await self._store.refuse(Refusal(call.principal, reason, self._most_refusals, audit))

    async def _store_refusal(self, call: Call, refusal: Refusal) -> bool:
        """Write a refusal once, even if it is cancelled meanwhile; return whether it got its own row."""
        if call.is_refused:
            return False
        call.is_refused = True
        try:
            return await self._store.refuse(refusal)
        except Exception:
            call.is_refused = False
            raise

    def _excerpt(self, call: Call, *, is_error: bool, reason: str | None) -> ArgumentExcerpt | None:
        """Return the excerpt that replaces the arguments of a call that did not run. The full arguments of calls that
        run, or that approvers are asked about, are stored: approvers have to see them.
        """
        declared = call.declared
        if declared is None:
            is_small = len(call.args_text or "") <= LARGEST_QUERY
            return None if is_small or not is_error else excerpt_of(call, None)
        if reason is None and any(each.request.call_id == call.id for each in call.approvals):
            return None
        assert call.turn is not None, "a served call has its turn"  # noqa: S101 - set where calls are made
        return excerpt_of(call, call.turn.published.types.get_declared(declared.artifact))

    async def record_turn_state(self, turn: Turn, audit: Sequence[AuditBody] = ()) -> None:
        """Write the current state of the turn, without a call."""
        memory, knowing = turn.state.begin_write()
        try:
            await self._store.note(audit, turn_id=turn.remembers.id, memory=memory, knowing=knowing)
        except StoreUnavailable:
            turn.state.abort_write(memory, knowing)
            raise

    async def _keep_implicit(self, turn: Turn) -> None:
        """Write what an implicit turn counted, beside the record of the call. What it saw is durable before the call
        runs; a failed write is made up for with the next call."""
        with suppress(StoreUnavailable):
            await self.record_turn_state(turn)
