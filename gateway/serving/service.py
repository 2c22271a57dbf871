"""Service: what every wire speaks to. Lists, calls, records and artifacts, always for one principal.

It knows no protocol. Unknown things and things that are not the caller's raise the same error; what a tool refuses or
fails at is a settled call with an error the model can read.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import Any, Final

from gateway.core.artifacts import calls_named_by
from gateway.core.bounded_json import LARGE
from gateway.core.calls import ToolCall
from gateway.core.events import Buses, now
from gateway.core.ids import new_id
from gateway.core.tools import Tool
from gateway.errors import (
    GatewayError,
    NotPermitted,
    RecordConflict,
    StoreUnavailable,
    UnknownCall,
    UnknownCatalogue,
    UnknownTool,
)
from gateway.governance.outcomes import RecordStore
from gateway.governance.principals import Principal
from gateway.governance.records import CallFilter, StoredCall
from gateway.governance.refusals import MOST
from gateway.serving.arguments import read_arguments
from gateway.serving.auditing import Auditor
from gateway.serving.course import Course, OutcomeNotRecorded
from gateway.serving.current import NOT_WAITING, ORDINARY, Client, Holding, ServedCall
from gateway.serving.dispatching import inlining, refused, settled_call
from gateway.serving.having import Asked, Having
from gateway.serving.keeping import Spool, is_queryable, restored
from gateway.serving.metering import Meter
from gateway.serving.observing import Observer, SeenRequest
from gateway.serving.offers import Announcement
from gateway.serving.own_turns import OwnTurns, passed
from gateway.serving.published import Published
from gateway.serving.replaying import Replaying
from gateway.serving.rights import admit, is_kept, may_know, may_read, queries_of
from gateway.serving.running_calls import RunningCalls
from gateway.serving.settled import Settled, settled_as
from gateway.serving.turns import KEEPING_NOTHING, Surroundings, Turn
from gateway.serving.writing import Writing
from gateway.snapshot import CONTENT, DeclaredTool, Query

DEFAULT_LIFE: Final = timedelta(days=1)
"""How long calls are kept, and with them their turn, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A tool as one caller is shown it. Query tools are forged, not declared."""

    name: str
    tool: Tool
    declared: DeclaredTool | None = None


class Service:
    """One per process. `published` may be replaced at any time; calls keep the one they began with."""

    def __init__(
        self,
        published: Published,
        store: RecordStore,
        spool: Spool,
        *,
        open_turns: int = 10_000,
        shares_turns: bool = False,
        lives: timedelta = DEFAULT_LIFE,
        most_refusals: int = MOST,
        auditor: Auditor | None = None,
        meter: Meter | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.on_change: set[Callable[[], None]] = set()
        """Told after another revision was published."""
        self.on_announcement: set[Callable[[Announcement], None]] = set()
        """Told what servers behind us announce to everybody."""
        self.published = published
        self.buses = Buses()
        """Everything that happens in any turn."""
        self._store = store
        self._spool = spool
        self.lives: Final = lives
        """How long a settled call can be read, at least."""
        self._auditor = auditor
        self.meter = meter
        self.observer = observer
        """Told of every call, and by wires of every request, if there is one."""
        self.running = RunningCalls()
        self._writing = writing = Writing(store, auditor, meter, lives=lives, most_refusals=most_refusals)
        self.journal = writing.started
        """Makes it durable that a call is about to run."""
        callbacks = {**KEEPING_NOTHING, "store_tool_call": writing.settled}
        self.having = Having(store, auditor, remember=writing.remember, write_down=writing.refused)
        around = Surroundings(callbacks, self.buses, spool)
        self.turns = OwnTurns(published, store, around, most=open_turns, are_shared=shares_turns, lives=lives)
        self.replaying = Replaying(store, spool, self.turns, writing, auditor)

    # --- what there is ---

    def publish(self, published: Published) -> None:
        self.published = self.turns.published = published
        for tell in tuple(self.on_change):
            tell()

    def announce(self, announcement: Announcement) -> None:
        for tell in tuple(self.on_announcement):
            tell(announcement)

    def admit(self, principal: Principal, catalogue: str) -> None:
        """Raises `UnknownCatalogue` unless the caller is in the audience."""
        admit(self.published, principal, catalogue)

    def listed(self, principal: Principal, catalogue: str, *, turn: Turn | None = None) -> list[Listed]:
        """The tools a caller is shown: in a turn with its query tools, without one with all that could be needed."""
        published = turn.published if turn else self.published
        self.admit(principal, catalogue)
        of_catalogue = published.catalogues[catalogue]
        registry = turn.ctx.tools if turn else of_catalogue.registry
        visible = {tool.name: tool for tool in registry.visible()}
        shown = [
            Listed(name, tool, declared)
            for name, declared in published.access.listed(principal, catalogue, at=datetime.now(UTC))
            if (tool := visible.get(name)) is not None
            and not (declared.ephemeral and _is_acked(turn))
            and not published.is_withheld(declared)
        ]
        queries: Sequence[Tool] = list(of_catalogue.queries.values()) if turn is None else turn.query_tools()
        return [*shown, *(Listed(tool.name, tool) for tool in queries)]

    # --- calls ---

    def call(
        self,
        turn: Turn,
        name: str,
        args: dict[str, Any] | str | None,
        *,
        id: str | None = None,
        key: str | None = None,
        client: Client | None = None,
        holding: Holding = ORDINARY,
        request: SeenRequest | None = None,
        course: Course | None = None,
    ) -> Coroutine[Any, Any, Settled]:
        """Run one call to its end. Raises `UnknownTool` for what the caller may not know of, before anything else.

        `course` is kept up to date, so that the caller knows how far a call came that raised.
        """
        return self._called(turn, name, args, id, key, client, holding, request, course)

    async def _called(
        self,
        turn: Turn,
        name: str,
        args: dict[str, Any] | str | None,
        id: str | None,
        key: str | None,
        client: Client | None,
        holding: Holding,
        request: SeenRequest | None,
        course: Course | None,
        *,
        is_admitted: bool = False,
    ) -> Settled:
        """`is_admitted`: it was asked in the same moment whether its caller is in the audience."""
        call = await _served(turn, name, args, id, key, client, holding)
        if call.args_text is not None and len(call.args_text) >= LARGE:
            await asyncio.sleep(0)  # others had to wait for the hash, and would have to for the checks, too
        if course is not None:
            call.course = course
        call.course.call_id, call.course.turn_id = call.id, turn.id
        try:
            call.declared = declared = self._known(turn, name, is_admitted=is_admitted)
        except UnknownTool:
            await self._writing.refused(call, "unknown-tool")
            raise
        if declared is None:
            await self._find_target(turn, call)
        if self.observer is not None:
            call.seen = self.observer.called(call, declared, request)
        turn.running.add(call.id)
        try:
            found = None if key is None else await self.replaying.settled_before(turn, call)
            if found is None:
                task, began = self.running.begin(turn.published.access), perf_counter()
                try:
                    record = await settled_call(turn, call, inline=inlining(turn, declared))
                except BaseException as error:
                    await self._broken_off(turn, call, declared, error, seconds=perf_counter() - began)
                    raise
                finally:
                    self.running.end(task)
                if self.meter is not None:
                    self.meter.settled(call, declared, record.is_error, perf_counter() - began)
                if call.is_unwritten and not call.is_started:  # nothing at all is on record, so nothing is shown
                    raise OutcomeNotRecorded(call.course)
                found = settled_as(record, turn, call)
        except BaseException as error:
            if call.seen is not None:
                call.seen.failed(error)
            raise
        finally:
            turn.running.discard(call.id)
            if call.is_started:
                self._store.leave(turn.id, call.id)
            seen, call.seen = call.seen, None  # what is observed knows its call: together they would outlive it
        if seen is not None:
            if seen.shows_content:
                await seen.look_at(found)
            seen.settled(found)
        return found

    async def _broken_off(
        self, turn: Turn, call: ServedCall, declared: DeclaredTool | None, error: BaseException, *, seconds: float
    ) -> None:
        if self.meter is not None:
            self.meter.failed(call, declared, error, seconds=seconds)
        if isinstance(error, asyncio.CancelledError):
            await asyncio.shield(self._cut_off(turn, call))

    async def call_alone(
        self,
        principal: Principal,
        catalogue: str,
        name: str,
        args: dict[str, Any] | str | None,
        *,
        handle: str | None = None,
        id: str | None = None,
        key: str | None = None,
        client: Client | None = None,
        holding: Holding = ORDINARY,
        request: SeenRequest | None = None,
        course: Course | None = None,
    ) -> Settled:
        """A call in a turn of its own, or in the one that an earlier call gave the handle of."""
        try:
            if handle:
                turn = await self.turns.find(principal, handle, catalogue=catalogue)
            else:
                turn = await self.turns.begin_alone(principal, catalogue)
        except UnknownCatalogue:
            revision = self.published.snapshot.revision
            asked = ServedCall(new_id(), name, {}, principal, catalogue, revision)
            await self._writing.refused(asked, "not-in-audience")
            raise
        is_admitted = not handle and turn.implicit is None  # asking for an implicit turn takes its time
        if not handle and turn.catalogue.turn_input:
            await passed(turn, turn.catalogue.turn_input)
            is_admitted = False  # that may have taken its time, too
        settled = await self._called(
            turn, name, args, id, key, client, holding, request, course, is_admitted=is_admitted
        )
        if not handle and turn.catalogue.turn_output:  # else the turn ran them, or runs them when it ends
            await passed(turn, turn.catalogue.turn_output)
        return settled

    async def _cut_off(self, turn: Turn, call: ServedCall) -> None:
        """Write down that a call was cancelled: one whose start is on record may have had its effect."""
        call.is_cancelled = True
        if call.is_unwritten:  # the store has its outcome
            return
        with suppress(RecordConflict, StoreUnavailable):  # it has an outcome, or the store gives it up when it recovers
            if call.is_started:
                audit = [self._auditor.unknown(call)] if self._auditor is not None else ()
                call.is_unknown = await self._store.give_up_call(call.id, turn_id=turn.id, at=now(), audit=audit)
            else:
                await refused(turn, call, GatewayError("the call was cancelled before it ended"))

    # --- records and artifacts ---

    async def find_call(
        self, principal: Principal, id: str, *, turn_id: str | None = None
    ) -> tuple[StoredCall, ToolCall]:
        """The caller's own settled call. Raises `UnknownCall`."""
        stored = await self.stored_call(principal, id, turn_id=turn_id)
        return stored, self.turns.remembered_call(stored) or await restored(stored, self.published.types, self._spool)

    async def stored_call(self, principal: Principal, id: str, *, turn_id: str | None = None) -> StoredCall:
        """The same as it is stored, whether or not it is still what was written."""
        stored = await self._store.find_call(id, principal, turn_id=turn_id)
        if stored is None or stored.status == "started":
            raise UnknownCall()
        return stored

    async def list_calls(
        self, filter: CallFilter, *, limit: int = 50, before: str | None = None
    ) -> tuple[list[StoredCall], str | None]:
        return await self._store.list_calls(filter, limit=limit, before=before)

    def may_read(self, principal: Principal, stored: StoredCall, *, by: str = CONTENT) -> bool:
        """Whether policy and stop list let the caller still read what a call of theirs yielded; `by` a query tool."""
        return may_read(self.published, principal, stored, by=by)

    async def read(
        self,
        principal: Principal,
        stored: StoredCall,
        *,
        by: str = CONTENT,
        into: Turn | None = None,
        client: Client | None = None,
        holding: Holding = ORDINARY,
    ) -> None:
        """Decide whether the caller may read now what a call of theirs yielded. Nothing of it is touched before.

        Raises `UnknownCall` for what they may not know of, and `Refused` for what is refused. The decision is on
        record when this returns, and the turn that it is read into remembers it: any process may serve its next call.
        """
        published = self.published
        query = published.guard.of_stored(stored, by)
        if query is None or not is_kept(published, stored) or not published.access.admits(principal, stored.catalogue):
            raise UnknownCall()
        into = into or await self.turns.begin_reading(principal, stored.catalogue)
        asked = Asked(principal, stored.catalogue, by, published.snapshot.revision)
        call = asked.as_call({"callId": stored.id}, turn=into, client=client, holding=holding)
        await self._read(published, call, query, into=into)

    async def read_turn(self, turn: Turn) -> None:
        """The same for everything that the calls of a turn yielded, once for each tool."""
        principal, catalogue = turn.principal, turn.stored.catalogue
        for query in queries_of(turn):
            asked = Asked(principal, catalogue, query.name, turn.published.snapshot.revision)
            call = asked.as_call({"turn": turn.id}, holding=NOT_WAITING)
            await self._read(turn.published, call, query, into=None)

    def may_read_turn(self, turn: Turn) -> bool:
        """Whether policy and stop list let the caller read all of it."""
        try:
            queries = queries_of(turn)
        except UnknownCall:
            return False
        return all(turn.published.guard.permits(turn.principal, turn.stored.catalogue, each) for each in queries)

    async def _read(self, published: Published, call: ServedCall, query: Query, *, into: Turn | None) -> None:
        try:
            await self.having.decide(published, call, query)
        except NotPermitted:
            raise UnknownCall() from None
        await self.having.told(call, query, into=into)

    # --- inside ---

    def _known(self, turn: Turn, name: str, *, is_admitted: bool = False) -> DeclaredTool | None:
        """The tool of that name, `None` for a query tool. Unknown and not visible are one answer."""
        published, catalogue = turn.published, turn.stored.catalogue
        if not is_admitted and not published.access.admits(turn.principal, catalogue):
            raise UnknownCatalogue()
        if name in turn.catalogue.queries:
            return None
        declared = published.tool(catalogue, name)
        if declared is None or not may_know(turn, name, declared):
            raise UnknownTool()
        return declared

    async def _find_target(self, turn: Turn, call: ServedCall) -> None:
        """Find the artifact a query is about, if it is the caller's own from an earlier turn.

        It is brought into the turn if policy and stop list let the caller read it; else the query's handler refuses.
        """
        id = call.args.get("callId")
        if not isinstance(id, str) or any(map(turn.ctx.has_tool_call, names := calls_named_by(id))):
            return
        stored = await self._store.find_call(names[0], turn.principal)
        if stored is None and len(names) > 1:
            stored = await self._store.find_call(names[1], turn.principal)
        if stored is None or stored.catalogue != turn.stored.catalogue or not is_kept(turn.published, stored):
            return
        if not self.may_read(turn.principal, stored, by=call.tool):
            call.target = stored
            return
        record = await restored(stored, turn.published.types, self._spool)
        if is_queryable(record):
            turn.ctx.adopt_tool_call(record)
            call.target = stored


_NO_IDENTITY: Final[tuple[str, None, None]] = ("", None, None)
"""Of arguments that cannot be hashed; such a call is refused where it is settled."""


async def _served(
    turn: Turn,
    name: str,
    args: dict[str, Any] | str | None,
    id: str | None,
    key: str | None,
    client: Client | None,
    holding: Holding,
) -> ServedCall:
    decoded, identity = await read_arguments(name, args)
    checksum, text, exact = identity or _NO_IDENTITY
    stored, revision = turn.stored, turn.published.snapshot.revision
    return ServedCall(
        turn.free_id(id),
        name,
        decoded,
        stored.principal,
        stored.catalogue,
        revision,
        key,
        client,
        turn,
        checksum,
        text,
        holding,
        args,
        exact,
    )


def _is_acked(turn: Turn | None) -> bool:
    return turn is not None and turn.stored.ending == "ack"
