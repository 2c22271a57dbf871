"""Record calls: their start, their outcome, and requests for tools that do not exist for the caller.

Nothing consequential runs before its start is durable. A call returns when its outcome is durable, or when the store
failed to write the outcome of a call that ran: the store then keeps that outcome, and the response states it.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from time import perf_counter
from typing import Any, Final

from gateway.artifacts import SpooledArtifact, encode_utf8
from gateway.audit import Reason
from gateway.engine.call import Call, get_current_call
from gateway.engine.observer import CallMeter
from gateway.engine.records.auditor import Auditor, decision_of
from gateway.engine.records.call_mapper import to_started_row as start_of
from gateway.engine.records.call_mapper import to_stored_call as record_of
from gateway.engine.records.call_mapper import to_stored_result, to_stored_results
from gateway.engine.records.known_refusals import KnownRefusals
from gateway.engine.turns.turn import Turn
from gateway.errors import NotPermitted, RecordConflict, StorageError, StoreUnavailable
from gateway.model import Tokenizable, ToolCall, duration_microseconds, now_microseconds, to_microseconds
from gateway.policy import TurnStateWrite
from gateway.registries import ArtifactClass, DeclaredTool
from gateway.storage import (
    MAX_REFUSALS,
    ArgumentExcerpt,
    AuditBody,
    LateOutcome,
    RecordStore,
    Refusal,
    ReplayArguments,
)

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
        replayed: Callable[[Call], ReplayArguments | None] | None = None,
    ) -> None:
        """`replayed` returns the arguments of a refused call that are stored for replays.

        `most_refusals`: of one caller, for one reason and minute, that many are stored; the rest is only counted."""
        self._store = store
        self._most_refusals = most_refusals
        self._known_refusals = known = KnownRefusals(store)
        self.repeat_refusal = known.repeat
        """Returns the record of a call that is refused as one was a moment before, if it is."""
        self._replayed = replayed
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
        reason = None if call.decision == "allow" else refusal_reason(call)
        if reason is not None and self._is_counted(call, turn, reason, record):
            self._known_refusals.remember(turn, call, reason, record)
            return
        declared = call.declared
        artifact = declared.artifact if declared is not None else "text"
        result = record.results
        if isinstance(result, SpooledArtifact):  # nearly all results: nothing to await
            pieces = [to_stored_result(result, artifact)]
        else:
            # A single-call turn is not kept in memory, so its media could not be fetched later.
            fetches = MAX_FETCHED if turn.is_single_call else None
            pieces = await to_stored_results(record, artifact, turn.spool, fetches=fetches)
        excerpt = None if call.decision == "allow" else self._excerpt(call, is_error=record.is_error, reason=reason)
        replay = None if excerpt is None or self._replayed is None else self._replayed(call)
        why = decision_of(call)[1]
        stored = record_of(record, call, pieces, turn.id, excerpt, reason=why, replay=replay)
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
        implicit = (
            None if turn.implicit is None else TurnStateWrite(turn.implicit.id, *turn.implicit.state.begin_write())
        )
        began = perf_counter()
        refusal: Refusal | None = None
        try:
            if reason is not None:
                row = None if turn.is_stored and not is_longer else turn.stored
                refusal = Refusal(call.principal, reason, self._most_refusals, audit, stored, call.is_started, row)
                refusal.is_alone, refusal.memory, refusal.knowing = turn.is_single_call, memory, knowing
                refusal.implicit = implicit
                if not await self._store_refusal(call, refusal):
                    turn.stored = as_stored
                    turn.is_stored = turn.is_stored and not (turn.is_single_call and call.is_started)
                    if not turn.is_stored:
                        remembered.abort_write(memory, knowing)
                    return
            elif turn.is_stored or turn.is_late or len(turn.running) > 1:
                row = None if turn.is_stored and not is_longer else turn.stored
                await self._store.record_call(
                    stored, turn=row, memory=memory, knowing=knowing, audit=audit, implicit=implicit
                )
            else:
                await self._store.record_single_call(stored, turn.stored, memory=memory, audit=audit, implicit=implicit)
            turn.is_stored = True
        except Exception as error:
            if self._meter is not None:
                self._meter.record_write_failure()
            if implicit is not None:  # the next call writes it
                remembered.abort_write(implicit.memory, implicit.knowing)
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
        if self._meter is not None:
            self._meter.record_write(perf_counter() - began)
            self._meter.record_result_size(call.catalogue, size)

    async def record_refusal(self, call: Call, reason: Reason) -> None:
        """Record a request for something that does not exist for the caller, hidden or not: attempts matter.

        Both cases take the same time, so that the caller cannot distinguish them by it.
        """
        if not self.is_only_counted(call, reason):
            await self.log_refusal(call, reason)

    def is_only_counted(self, call: Call, reason: Reason) -> bool:
        """Count such a request; false if the decision log needs an entry of its own, by `log_refusal`."""
        if self._meter is not None:
            self._meter.record_refusal(call, reason)
        return self._auditor is None or self._store.count_refusal(call.principal, reason)

    async def log_refusal(self, call: Call, reason: Reason) -> None:
        if self._auditor is not None:
            audit = [self._auditor.refusal_entry(call, reason)]
            await self._store.refuse(Refusal(call.principal, reason, self._most_refusals, audit))

    def _is_counted(self, call: Call, turn: Turn, reason: str, record: ToolCall) -> bool:
        """Count a refusal that leaves no record, if its start has none either and no rule reads refused calls.

        The state of a turn then says nothing new: what it knows of a refused call is written with its next record.
        """
        leaves_nothing = not (call.is_started or call.is_refused or call.approvals or call.charge)
        if not leaves_nothing or turn.published.access.reads_turn_calls or not isinstance(record.results, Tokenizable):
            return False
        call.is_refused = self._store.count_refusal(call.principal, reason)
        return call.is_refused

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


LONGEST: Final = 240
"""Maximum characters of an excerpt."""

MASK: Final = "[redacted]"

_LONGEST_PIECE: Final = 40
_LARGEST_NUMBER: Final = 10**_LONGEST_PIECE
_SECRET_NAME: Final = re.compile(
    r"(?i)pass(word|wd|phrase|code)|secret|token|credential|authorization|cookie|(api|private|access)[-_ ]?key|^pin$"
)
_FIRST_MEMBER: Final = re.compile(r"\$(?:\.([A-Za-z_][A-Za-z0-9_]*)|\['([^'\\]*)'\]|\[\"([^\"\\]*)\"\])(?=[.\[]|$)")


def excerpt_of(call: Call, kind: ArtifactClass | None) -> ArgumentExcerpt:
    """Return the excerpt. `kind` is the artifact class of the tool: what it hides from traces is hidden here, too."""
    text = (call.args_text or "").encode()
    schema = (None if call.declared is None else call.declared.input_schema) or {}
    may_show = "values" if kind is None else kind.capture_arguments
    masked = _find_masked(() if kind is None else kind.redact) if may_show == "values" else None
    excerpt = "" if may_show == "none" else _cut(" ".join(_pieces(call.args, schema, masked)), LONGEST)
    return ArgumentExcerpt(excerpt, len(text), sha256(text).hexdigest())


def find_masked_arguments(args: Mapping[str, Any], schema: Mapping[str, Any], redact: Sequence[str]) -> frozenset[str]:
    """Return the names of arguments that no record of a refused call shows: masked, undeclared, or like a secret."""
    masked = _find_masked(redact)
    declared = schema.get("properties")
    declared = declared if isinstance(declared, Mapping) else {}
    return frozenset(name for name in args if not _is_open(name, declared, masked))


def _is_open(name: str, declared: Mapping[str, Any], masked: frozenset[str] | None) -> bool:
    is_open = masked is not None and name not in masked and name in declared
    return is_open and not _SECRET_NAME.search(name) and not _is_secret(declared[name])


def _pieces(args: Mapping[str, Any], schema: Mapping[str, Any], masked: frozenset[str] | None) -> Iterator[str]:
    """Yield one piece per argument, up to the limit. `masked` are names; `None` masks every argument."""
    declared = schema.get("properties")
    declared = declared if isinstance(declared, Mapping) else {}
    length = 0
    for name, value in args.items():
        piece = (
            f"{json.dumps(name[:_LONGEST_PIECE])[1:-1]}={_value(value) if _is_open(name, declared, masked) else MASK}"
        )
        yield piece
        length += len(piece) + 1
        if length > LONGEST:
            return


def _value(value: Any) -> str:
    match value:
        case str():
            return _cut(json.dumps(value[: _LONGEST_PIECE + 1]), _LONGEST_PIECE)
        case bool() | None:
            return json.dumps(value)
        case int() | float():
            return json.dumps(value) if abs(value) < _LARGEST_NUMBER else "…"
        case list():
            return f"[{len(value)}]"
        case _:
            return f"{{{len(value)}}}"


def _is_secret(schema: Any) -> bool:
    """Whether any part of a property is write-only or a password. A reference may lead to one."""
    if isinstance(schema, Mapping):
        if schema.get("writeOnly") is True or schema.get("format") == "password" or "$ref" in schema:
            return True
        return any(map(_is_secret, schema.values()))
    return isinstance(schema, list | tuple) and any(map(_is_secret, schema))


def _find_masked(redact: Sequence[str]) -> frozenset[str] | None:
    """Return the arguments that the paths lead into; `None` if one may lead into any."""
    found = [_FIRST_MEMBER.match(path) for path in redact]
    names = [next(name for name in each.groups() if name is not None) for each in found if each is not None]
    return frozenset(names) if len(names) == len(redact) else None


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
