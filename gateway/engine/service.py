"""The service that every transport uses. Lists, calls, records and artifacts, always for one principal.

It knows no protocol. Unknown objects and objects of other callers raise the same error; a refusal or failure of a tool
is a settled call with an error the model can read.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from time import perf_counter
from typing import Any, Final

from gateway.engine.access_rights import is_kept, may_know, may_read, queries_of, require_audience
from gateway.engine.call import DEFAULT_HOLD_POLICY, NOT_WAITING, Call, Course, HoldPolicy, OutcomeNotRecorded
from gateway.engine.execute import RunningCalls, execute, read_arguments, record_refusal
from gateway.engine.live_revision import LiveRevision
from gateway.engine.observer import CallMeter, Observer, RequestObservation
from gateway.engine.records.auditor import Auditor
from gateway.engine.records.call_mapper import Spool, from_stored_call, is_queryable
from gateway.engine.records.idempotency import CallReplay
from gateway.engine.records.recorder import CallRecorder
from gateway.engine.records.replay_arguments import ReplayCapture
from gateway.engine.records.resource_audit import ResourceAudit, ResourceRequest
from gateway.engine.result_content import CallOutcome, to_outcome
from gateway.engine.tool_lists import ToolListing
from gateway.engine.turns.turn import Turn, TurnDependencies
from gateway.engine.turns.turn_store import TurnStore, run_turn_stages
from gateway.engine.upstream_resources import ChangeNotification
from gateway.errors import (
    GatewayError,
    NotPermitted,
    RecordConflict,
    StoreUnavailable,
    UnknownCall,
    UnknownCatalogue,
    UnknownTool,
)
from gateway.model import LARGE, CallerChannel, EventBuses, Principal, ToolCall, candidate_call_ids, new_id, now
from gateway.registries import CONTENT, DeclaredTool, Query
from gateway.storage import MAX_REFUSALS, CallFilter, RecordStore, StoredCall

DEFAULT_RETENTION: Final = timedelta(days=1)
"""How long calls and their turns are retained by default."""


class Service:
    """One per process. `published` may be replaced at any time; a call keeps the revision it began with."""

    def __init__(
        self,
        published: LiveRevision,
        store: RecordStore,
        spool: Spool,
        *,
        open_turns: int = 10_000,
        shares_turns: bool = False,
        lives: timedelta = DEFAULT_RETENTION,
        most_refusals: int = MAX_REFUSALS,
        replayed: ReplayCapture | None = None,
        auditor: Auditor | None = None,
        meter: CallMeter | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.on_change: set[Callable[[], None]] = set()
        """Called after another revision was published."""
        self.on_announcement: set[Callable[[ChangeNotification], None]] = set()
        """Called with notifications that upstream servers send to all clients."""
        self.published = published
        self.buses = EventBuses()
        """Carry the events of all turns."""
        self._store = store
        self._spool = spool
        self.lives: Final = lives
        """How long a settled call can be read at least."""
        self._auditor = auditor
        self.meter = meter
        self.observer = observer
        """Observes every call; transports also report every request to it."""
        self.running = RunningCalls()
        self._writing = writing = CallRecorder(
            store, auditor, meter, lives=lives, most_refusals=most_refusals, replayed=replayed
        )
        self.journal = writing.record_start
        """Makes it durable that a call is about to run."""
        self.resource_audit = ResourceAudit(
            store,
            auditor,
            remember=writing.record_turn_state,
            write_down=writing.record_refusal,
            observer=observer,
        )
        dependencies = TurnDependencies(writing, self.buses, spool)
        self.turns = TurnStore(published, store, dependencies, most=open_turns, are_shared=shares_turns, lives=lives)
        self.replaying = CallReplay(store, spool, self.turns, writing, auditor)

    # --- listing ---

    def publish(self, published: LiveRevision) -> None:
        self.published = self.turns.published = published
        for notify in tuple(self.on_change):
            notify()

    def notify(self, announcement: ChangeNotification) -> None:
        for notify in tuple(self.on_announcement):
            notify(announcement)

    def admit(self, principal: Principal, catalogue: str) -> None:
        """Raise `UnknownCatalogue` unless the caller is in the audience."""
        require_audience(self.published, principal, catalogue)

    def list_tools(self, principal: Principal, catalogue: str, *, turn: Turn | None = None) -> ToolListing:
        """Return the listing of the tools that a caller sees. Raise `UnknownCatalogue` outside of the audience."""
        self.admit(principal, catalogue)
        return ToolListing(turn.published if turn else self.published, principal, catalogue, turn)

    # --- calls ---

    async def call_in_turn(
        self,
        turn: Turn,
        name: str,
        args: dict[str, Any] | str | None,
        *,
        id: str | None = None,
        key: str | None = None,
        client: CallerChannel | None = None,
        holding: HoldPolicy = DEFAULT_HOLD_POLICY,
        request: RequestObservation | None = None,
        course: Course | None = None,
    ) -> CallOutcome:
        """Run one call to its end. Raise `UnknownTool` first if the caller may not know of the tool.

        `course` is updated as the call runs, so that the caller knows how far a call came that raised.
        """
        require_audience(turn.published, turn.principal, turn.stored.catalogue)
        declared = await self._find_tool(turn.published, turn.principal, turn.stored.catalogue, name, args, turn)
        return await self._run_call(turn, declared, name, args, id, key, client, holding, request, course)

    async def _run_call(
        self,
        turn: Turn,
        declared: DeclaredTool | None,
        name: str,
        args: dict[str, Any] | str | None,
        id: str | None,
        key: str | None,
        client: CallerChannel | None,
        holding: HoldPolicy,
        request: RequestObservation | None,
        course: Course | None,
    ) -> CallOutcome:
        """Run a call of a tool that the caller may know of; `declared` is `None` for a query tool."""
        decoded, identity = await read_arguments(name, args)
        checksum, text, exact = identity or _NO_IDENTITY
        call = Call(
            turn.unique_call_id(id),
            name,
            decoded,
            turn.principal,
            turn.stored.catalogue,
            turn.published.snapshot.revision,
            key,
            client,
            turn,
            checksum,
            text,
            holding,
            args,
            exact,
            declared,
            course=course or Course(),
        )
        if call.args_text is not None and len(call.args_text) >= LARGE:
            await asyncio.sleep(0)  # other tasks waited for the hash, and would have to for the checks, too
        call.course.call_id, call.course.turn_id = call.id, turn.id
        if declared is None:
            await self._find_target(turn, call)
        if self.observer is not None:
            call.seen = self.observer.start_call(call, declared, request)
        turn.running.add(call.id)
        try:
            found = None if key is None else await self.replaying.find_outcome(turn, call)
            if found is None:
                began = perf_counter()
                record = self._writing.repeat_refusal(turn, call) or await self._execute(turn, call, declared, began)
                if self.meter is not None:
                    self.meter.count_call(call, declared, record.is_error, perf_counter() - began)
                if call.is_unwritten and not call.is_started:  # nothing is on record, so nothing is returned
                    raise OutcomeNotRecorded(call.course)
                found = to_outcome(record, turn, call)
        except BaseException as error:
            if call.seen is not None:
                call.seen.end_with_error(error)
            raise
        finally:
            turn.running.discard(call.id)
            if call.is_started:
                self._store.leave(turn.id, call.id)
            seen, call.seen = call.seen, None  # breaks a reference cycle between call and observation
        if seen is not None:
            if seen.shows_content:
                await seen.capture_content(found)
            seen.end(found)
        return found

    async def _execute(self, turn: Turn, call: Call, declared: DeclaredTool | None, began: float) -> ToolCall:
        task = self.running.begin(turn.published.access)
        try:
            return await execute(turn, call)
        except BaseException as error:
            await self._record_interruption(turn, call, declared, error, seconds=perf_counter() - began)
            raise
        finally:
            self.running.end(task)

    async def _record_interruption(
        self, turn: Turn, call: Call, declared: DeclaredTool | None, error: BaseException, *, seconds: float
    ) -> None:
        if self.meter is not None:
            self.meter.record_failure(call, declared, error, seconds=seconds)
        if isinstance(error, asyncio.CancelledError):
            await asyncio.shield(self._cut_off(turn, call))

    async def call_tool(
        self,
        principal: Principal,
        catalogue: str,
        name: str,
        args: dict[str, Any] | str | None,
        *,
        handle: str | None = None,
        id: str | None = None,
        key: str | None = None,
        client: CallerChannel | None = None,
        holding: HoldPolicy = DEFAULT_HOLD_POLICY,
        request: RequestObservation | None = None,
        course: Course | None = None,
    ) -> CallOutcome:
        """Run a call in its own turn, or in the turn whose handle an earlier call returned."""
        try:
            if handle:
                turn = await self.turns.find(principal, handle, catalogue=catalogue)
                published = turn.published
            else:
                published = self.published
            require_audience(published, principal, catalogue)
        except UnknownCatalogue:
            attempt = Call(new_id(), name, {}, principal, catalogue, self.published.snapshot.revision)
            await self._writing.record_refusal(attempt, "not-in-audience")
            raise
        declared = await self._find_tool(published, principal, catalogue, name, args, turn if handle else None)
        if not handle:
            turn = await self.turns.create_single_call_turn(principal, catalogue, published)
            if turn.catalogue.turn_input:
                await run_turn_stages(turn, turn.catalogue.turn_input)
        outcome = await self._run_call(turn, declared, name, args, id, key, client, holding, request, course)
        if not handle and turn.runs_output:  # otherwise they ran, or run when the turn ends
            await run_turn_stages(turn, turn.catalogue.turn_output)
        return outcome

    async def _cut_off(self, turn: Turn, call: Call) -> None:
        """Record that a call was cancelled: if its start is on record, it may have had an effect."""
        call.is_cancelled = True
        if call.is_unwritten:  # the store has its outcome
            return
        with suppress(RecordConflict, StoreUnavailable):  # it has an outcome, or the store abandons it on recovery
            if call.is_started:
                audit = [self._auditor.unknown_outcome_entry(call)] if self._auditor is not None else ()
                call.is_unknown = await self._store.abandon_call(call.id, turn_id=turn.id, at=now(), audit=audit)
            else:
                await record_refusal(turn, call, GatewayError("the call was cancelled before it ended"))

    # --- records and artifacts ---

    async def find_call(
        self, principal: Principal, id: str, *, turn_id: str | None = None
    ) -> tuple[StoredCall, ToolCall]:
        """Return the caller's own settled call. Raise `UnknownCall`."""
        stored = await self.get_stored_call(principal, id, turn_id=turn_id)
        return stored, self.turns.find_open_record(stored) or await from_stored_call(
            stored, self.published.types, self._spool
        )

    async def get_stored_call(self, principal: Principal, id: str, *, turn_id: str | None = None) -> StoredCall:
        """Return the call as it is stored, even if it was changed since it was written. Raise `UnknownCall`."""
        stored = await self._store.find_call(id, principal, turn_id=turn_id)
        if stored is None or stored.status == "started":
            raise UnknownCall()
        return stored

    async def list_calls(
        self, filter: CallFilter, *, limit: int = 50, before: str | None = None
    ) -> tuple[list[StoredCall], str | None]:
        return await self._store.list_calls(filter, limit=limit, before=before)

    def may_read(self, principal: Principal, stored: StoredCall, *, by: str = CONTENT) -> bool:
        """Whether policy and stop list still let the caller read the result of their call; `by` names a query tool."""
        return may_read(self.published, principal, stored, by=by)

    async def read(
        self,
        principal: Principal,
        stored: StoredCall,
        *,
        by: str = CONTENT,
        into: Turn | None = None,
        client: CallerChannel | None = None,
        holding: HoldPolicy = DEFAULT_HOLD_POLICY,
    ) -> None:
        """Decide whether the caller may read the result of their call now; nothing of it is touched before.

        Raise `UnknownCall` if they may not know of it, and `Refused` if it is refused. When this returns, the decision
        is on record and the turn that reads the result has stored its taint: any process may serve its next call.
        """
        published = self.published
        query = published.guard.of_stored(stored, by)
        if (
            query is None
            or not is_kept(published, stored)
            or not published.access.is_in_audience(principal, stored.catalogue)
        ):
            raise UnknownCall()
        into = into or await self.turns.begin_reading(principal, stored.catalogue)
        request = ResourceRequest(principal, stored.catalogue, by, published.snapshot.revision)
        call = request.to_call({"callId": stored.id}, turn=into, client=client, holding=holding)
        await self._read(published, call, query, into=into)

    async def read_turn(self, turn: Turn) -> None:
        """Decide the same for the results of all calls of a turn, once for each tool."""
        principal, catalogue = turn.principal, turn.stored.catalogue
        for query in queries_of(turn):
            request = ResourceRequest(principal, catalogue, query.name, turn.published.snapshot.revision)
            call = request.to_call({"turn": turn.id}, holding=NOT_WAITING)
            await self._read(turn.published, call, query, into=None)

    def may_read_turn(self, turn: Turn) -> bool:
        """Whether policy and stop list let the caller read all results of the turn."""
        try:
            queries = queries_of(turn)
        except UnknownCall:
            return False
        return all(turn.published.guard.permits(turn.principal, turn.stored.catalogue, each) for each in queries)

    async def _read(self, published: LiveRevision, call: Call, query: Query, *, into: Turn | None) -> None:
        try:
            await self.resource_audit.decide(published, call, query)
        except NotPermitted:
            raise UnknownCall() from None
        await self.resource_audit.record_read(call, query, into=into)

    # --- internals ---

    async def _find_tool(
        self,
        published: LiveRevision,
        principal: Principal,
        catalogue: str,
        name: str,
        args: dict[str, Any] | str | None,
        turn: Turn | None,
    ) -> DeclaredTool | None:
        """Return the tool of that name, `None` for a query tool. Unknown and hidden tools raise the same error.

        Arguments for such a tool are hashed only for a refusal that has its own entry in the log.
        """
        if name in published.catalogues[catalogue].queries:
            return None
        declared = published.tool(catalogue, name)
        if declared is not None and may_know(published, principal, catalogue, name, declared):
            return declared
        attempt = Call(new_id(), name, {}, principal, catalogue, published.snapshot.revision, turn=turn)
        if not self._writing.is_only_counted(attempt, "unknown-tool"):
            checksum, _, exact = (await read_arguments(name, args))[1] or _NO_IDENTITY
            await self._writing.log_refusal(replace(attempt, checksum=checksum, exact=exact), "unknown-tool")
        raise UnknownTool()

    async def _find_target(self, turn: Turn, call: Call) -> None:
        """Find the artifact that a query reads, if it is the caller's own from an earlier turn.

        It is added to the turn if policy and stop list let the caller read it; otherwise the query's handler refuses.
        """
        id = call.args.get("callId")
        if not isinstance(id, str) or turn.calls.find_source(id) is not None:
            return
        stored = await self._find_stored_source(turn, candidate_call_ids(id))
        if stored is None or stored.catalogue != turn.stored.catalogue or not is_kept(turn.published, stored):
            return
        if not self.may_read(turn.principal, stored, by=call.tool):
            call.target = stored
            return
        record = await from_stored_call(stored, turn.published.types, self._spool)
        if is_queryable(record):
            turn.calls.add(record)
            call.target = stored

    async def _find_stored_source(self, turn: Turn, ids: Sequence[str]) -> StoredCall | None:
        """Return the first call with one of these ids: of the turn if it is known there, otherwise of any turn."""
        for id in ids:
            known = turn.id if turn.calls.has(id) else None
            stored = await self._store.find_call(id, turn.principal, turn_id=known)
            if stored is not None:
                return stored
        return None


_NO_IDENTITY: Final[tuple[str, None, None]] = ("", None, None)
"""For arguments that cannot be hashed; such a call is refused when it is executed."""
