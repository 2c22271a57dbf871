"""What is written down of calls: that one is about to run, how it ended, and that somebody asked for what is not there.

Nothing consequential runs, and nothing is answered, before it is durable.
"""

from collections.abc import Sequence
from datetime import timedelta
from time import perf_counter
from typing import Any

from gateway.audit.words import Reason
from gateway.core.artifacts import SpooledArtifact
from gateway.core.calls import ToolCall
from gateway.core.moments import clock, microseconds, microseconds_in
from gateway.errors import StoreUnavailable
from gateway.governance.records import AuditBody, Store
from gateway.serving.auditing import Auditor
from gateway.serving.current import ServedCall, current_call
from gateway.serving.keeping import settled as record_of
from gateway.serving.keeping import started as start_of
from gateway.serving.keeping import stored_piece, stored_pieces
from gateway.serving.metering import Meter
from gateway.serving.turns import Turn
from gateway.snapshot import DeclaredTool


class Writing:
    """One per process. `lives` is how long records are kept at least."""

    def __init__(self, store: Store, auditor: Auditor | None, meter: Meter | None, *, lives: timedelta) -> None:
        self._store = store
        self._auditor = auditor
        self._meter = meter
        self._lives = microseconds_in(lives)

    async def started(self, call: ServedCall, tool: DeclaredTool) -> None:
        """Make it durable that a call is about to run. Nothing consequential runs without this."""
        turn = call.turn
        assert turn is not None, "a served call has its turn"  # noqa: S101 - set where calls are made
        audit = [self._auditor.started(call, tool)] if self._auditor is not None else ()
        began = perf_counter()
        try:
            if call.is_started:  # by its idempotency key, before anything was decided
                await self._store.note(audit)
            else:
                row = None if turn.is_stored else turn.stored
                await self._store.start_call(start_of(call, turn.id), turn=row, audit=audit)
                turn.is_stored = call.is_started = True
        except StoreUnavailable:
            if self._meter is not None:
                self._meter.wrote_nothing()
            raise
        if self._meter is not None:
            self._meter.wrote(perf_counter() - began)

    async def settled(self, ctx: Any, record: ToolCall) -> None:
        """Make the outcome of the current call durable, with what its turn has come to remember."""
        call = current_call()
        turn = call.turn
        assert turn is not None, "a served call has its turn"  # noqa: S101 - set where calls are made
        declared = call.declared
        artifact = declared.artifact if declared is not None else "text"
        result = record.results
        if isinstance(result, SpooledArtifact):  # which is what nearly all of them are: nothing is waited for
            pieces = [stored_piece(result, artifact)]
        else:
            pieces = await stored_pieces(record, artifact, turn.spool)
        stored = record_of(record, call, pieces, turn.id)
        if call.seen is not None:
            call.stored = stored
        remembered = turn.memory
        size = 0
        for piece in pieces:
            size += piece.byte_length or 0
        remembered.receives(size)
        audit = [self._auditor.settled(call, stored, declared)] if self._auditor is not None else ()
        kept = turn.published.types.declared(artifact)
        retain = self._lives if kept is None or kept.retain is None else max(self._lives, microseconds_in(kept.retain))
        if call.pending is not None:  # what it waits for is picked up in the same turn
            retain += microseconds(max(each.expires_at for each in call.approvals)) - clock()
        is_longer = turn.lives_on(record.completed, retain)
        memory, knowing = remembered.to_write()
        began = perf_counter()
        try:
            if turn.is_stored or len(turn.running) > 1:
                row = None if turn.is_stored and not is_longer else turn.stored
                await self._store.settle_call(stored, turn=row, memory=memory, knowing=knowing, audit=audit)
            else:
                await self._store.settle_alone(stored, turn.stored, memory=memory, audit=audit)
            turn.is_stored = True
        except StoreUnavailable:
            remembered.was_not_written(memory, knowing)
            if self._meter is not None:
                self._meter.wrote_nothing()
            raise
        if self._meter is not None:
            self._meter.wrote(perf_counter() - began)
            self._meter.kept(call.catalogue, size)

    async def refused(self, call: ServedCall, reason: Reason) -> None:
        """Write down that somebody asked for what is not there for them: an attempt is worth knowing of, hidden or not.

        Both take the same time, so that nobody learns from it which one it was.
        """
        if self._meter is not None:
            self._meter.refused(call, reason)
        if self._auditor is not None:
            await self._store.note([self._auditor.refused(call, reason)])

    async def remember(self, turn: Turn, audit: Sequence[AuditBody] = ()) -> None:
        """Write down what the turn remembers by now, without a call that it is about."""
        memory, knowing = turn.memory.to_write()
        try:
            await self._store.note(audit, turn_id=turn.id, memory=memory, knowing=knowing)
        except StoreUnavailable:
            turn.memory.was_not_written(memory, knowing)
            raise
