"""What is written down of calls: that one is about to run, how it ended, and that somebody asked for what is not there.

Nothing consequential runs before its start is durable. A call is answered when its outcome is durable, or when the
store failed to write the outcome of a call that ran: the store keeps that outcome, and the answer says so.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from time import perf_counter
from typing import Any, Final

from gateway.audit.words import Reason
from gateway.core.artifacts import SpooledArtifact
from gateway.core.calls import ToolCall
from gateway.core.lines import encode
from gateway.core.moments import clock, microseconds, microseconds_in
from gateway.errors import NotPermitted, RecordConflict, StorageError, StoreUnavailable
from gateway.governance.outcomes import LateOutcome, RecordStore
from gateway.governance.records import ArgumentExcerpt, AuditBody
from gateway.governance.refusals import MOST, Refusal
from gateway.serving.auditing import Auditor, decided
from gateway.serving.current import ServedCall, current_call
from gateway.serving.excerpts import excerpt_of
from gateway.serving.keeping import settled as record_of
from gateway.serving.keeping import started as start_of
from gateway.serving.keeping import stored_piece, stored_pieces
from gateway.serving.metering import Meter
from gateway.serving.turns import Turn
from gateway.snapshot import DeclaredTool

MAX_FETCHED: Final = 64 << 20
"""Bytes of one media that are fetched for its record; larger ones can be seen in the answer, not downloaded later."""

_log: Final = logging.getLogger(__name__)

LARGEST_QUERY: Final = 2048
"""Characters of the arguments of a query that failed; of longer ones an excerpt is kept."""


def refused_for(call: ServedCall) -> str | None:
    """Why a call was refused; `None` for one that ran, or may run once somebody has agreed."""
    effect, reason, *_ = decided(call)
    return reason if effect == "deny" or (effect == "hold" and call.limited is not None) else None


class Writing:
    """One per process. `lives` is how long records are kept at least."""

    def __init__(
        self,
        store: RecordStore,
        auditor: Auditor | None,
        meter: Meter | None,
        *,
        lives: timedelta,
        most_refusals: int = MOST,
    ) -> None:
        """`most_refusals` of one caller for one reason are kept one by one in a minute; the rest is counted."""
        self._store = store
        self._most_refusals = most_refusals
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
                start = start_of(call, turn.id)
                try:
                    await self._store.start_call(start, turn=None if turn.is_stored else turn.stored, audit=audit)
                except RecordConflict:
                    if not turn.is_stored:
                        raise
                    # A store that was replaced does not know the turn.
                    await self._store.start_call(start, turn=turn.stored, audit=audit)
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
        if call.decision != "allow" and not record.is_error:  # a handler that asks nobody tells nobody anything
            call.decide("deny", "check-failed", "nobody decided about the call")
            raise NotPermitted("the call was not decided about")
        declared = call.declared
        artifact = declared.artifact if declared is not None else "text"
        result = record.results
        if isinstance(result, SpooledArtifact):  # which is what nearly all of them are: nothing is waited for
            pieces = [stored_piece(result, artifact)]
        else:
            # A turn of one call is not kept in memory: nobody could fetch its media later.
            fetches = MAX_FETCHED if turn.is_alone else None
            pieces = await stored_pieces(record, artifact, turn.spool, fetches=fetches)
        reason = None if call.decision == "allow" else refused_for(call)
        excerpt = None if call.decision == "allow" else self._excerpt(call, is_error=record.is_error, reason=reason)
        stored = record_of(record, call, pieces, turn.id, excerpt)
        if call.seen is not None:
            call.stored = stored
        remembered = turn.memory
        size = 0
        for piece in pieces:
            size += piece.byte_length or 0
        is_answer = declared is None and not record.is_error  # of a query: text that nothing but the record holds
        received = sum(len(encode(piece.text or "")) for piece in pieces) if is_answer else size
        remembered.receives(received)
        if call.charge is not None:
            with suppress(StoreUnavailable):  # where that fails, so does the record of the call
                await call.charge(received)
        audit = [self._auditor.settled(call, stored, declared)] if self._auditor is not None else ()
        kept = turn.published.types.declared(artifact)
        retain = self._lives if kept is None or kept.retain is None else max(self._lives, microseconds_in(kept.retain))
        if call.pending is not None:  # what it waits for is picked up in the same turn
            retain += microseconds(max(each.expires_at for each in call.approvals)) - clock()
        as_stored = turn.stored
        is_longer = turn.lives_on(record.completed, retain)
        memory, knowing = turn.to_write(call.fingerprint, tool=call.identity or call.tool, size=received)
        keeping = None if turn.implicit is None else asyncio.ensure_future(self._keep_implicit(turn))
        began = perf_counter()
        refusal: Refusal | None = None
        try:
            if reason is not None:
                row = None if turn.is_stored and not is_longer else turn.stored
                refusal = Refusal(call.principal, reason, self._most_refusals, audit, stored, call.is_started, row)
                refusal.is_alone, refusal.memory, refusal.knowing = turn.is_alone, memory, knowing
                if not await self._kept(call, refusal):
                    turn.stored = as_stored
                    turn.is_stored = turn.is_stored and not (turn.is_alone and call.is_started)
                    if not turn.is_stored:
                        remembered.was_not_written(memory, knowing)
                    return
            elif turn.is_stored or turn.is_late or len(turn.running) > 1:
                row = None if turn.is_stored and not is_longer else turn.stored
                await self._store.settle_call(stored, turn=row, memory=memory, knowing=knowing, audit=audit)
            else:
                await self._store.settle_alone(stored, turn.stored, memory=memory, audit=audit)
            turn.is_stored = True
        except Exception as error:
            if self._meter is not None:
                self._meter.wrote_nothing()
            ran = call.course.has_begun and refusal is None
            if ran or call.is_started:  # a started call that did not run frees its idempotency key
                late = LateOutcome(stored, turn.stored, memory, knowing, audit, call.is_started, call.held_key, refusal)
                late.on_drop = lambda: remembered.was_not_written(memory, knowing)
                self._store.postpone(late)
            else:
                remembered.was_not_written(memory, knowing)
            if not ran:
                raise
            call.is_unwritten = turn.is_late = True
            if not isinstance(error, StorageError):
                _log.exception("the outcome of a call could not be written")
            return
        finally:
            if keeping is not None:
                await asyncio.shield(keeping)
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
            audit = [self._auditor.refused(call, reason)]
            await self._store.refuse(Refusal(call.principal, reason, self._most_refusals, audit))

    async def _kept(self, call: ServedCall, refusal: Refusal) -> bool:
        """Whether a refusal is kept by itself. One that is cancelled meanwhile is written all the same, and once."""
        if call.is_refused:
            return False
        call.is_refused = True
        try:
            return await self._store.refuse(refusal)
        except Exception:
            call.is_refused = False
            raise

    def _excerpt(self, call: ServedCall, *, is_error: bool, reason: str | None) -> ArgumentExcerpt | None:
        """What is kept instead of the arguments of a call that did not run. All of them are kept of one that runs, and
        of one that people are asked about: they have to know them.
        """
        declared = call.declared
        if declared is None:
            is_small = len(call.args_text or "") <= LARGEST_QUERY
            return None if is_small or not is_error else excerpt_of(call, None)
        if reason is None and any(each.request.call_id == call.id for each in call.approvals):
            return None
        assert call.turn is not None, "a served call has its turn"  # noqa: S101 - set where calls are made
        return excerpt_of(call, call.turn.published.types.declared(declared.artifact))

    async def remember(self, turn: Turn, audit: Sequence[AuditBody] = ()) -> None:
        """Write down what the turn remembers by now, without a call that it is about."""
        memory, knowing = turn.memory.to_write()
        try:
            await self._store.note(audit, turn_id=turn.remembers.id, memory=memory, knowing=knowing)
        except StoreUnavailable:
            turn.memory.was_not_written(memory, knowing)
            raise

    async def _keep_implicit(self, turn: Turn) -> None:
        """What an implicit turn counted, beside the record of the call. What it saw is durable before the call runs;
        what cannot be written now is written with the next call."""
        with suppress(StoreUnavailable):
            await self.remember(turn)
