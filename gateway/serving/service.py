"""Service: what every wire speaks to. Lists, turns, calls, records and artifacts, always for one principal.

It knows no protocol. Unknown things and things that are not the caller's raise the same error; what a tool refuses or
fails at is a settled call with an error the model can read.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import Any, Final, TypeGuard

from gateway.core.calls import ToolCall
from gateway.core.events import Buses, TurnEnd, TurnStart, milliseconds, now
from gateway.core.ids import new_id
from gateway.core.moments import clock, microseconds, microseconds_in
from gateway.core.pipeline import run_pipeline
from gateway.core.tools import Tool
from gateway.errors import (
    GatewayError,
    RecordConflict,
    StoreUnavailable,
    UnknownCall,
    UnknownCatalogue,
    UnknownTool,
    UnknownTurn,
)
from gateway.governance.approvals import ApprovalRecord
from gateway.governance.principals import Principal
from gateway.governance.records import CallFilter, Store, StoredCall, TurnEnding
from gateway.serving.arguments import checked, decoded_args
from gateway.serving.auditing import Auditor
from gateway.serving.claims import claimed
from gateway.serving.current import ORDINARY, Client, Holding, ServedCall, Unconfirmed
from gateway.serving.dispatching import inlining, refused, settled_call
from gateway.serving.having import Having
from gateway.serving.keeping import Spool, is_queryable, restored
from gateway.serving.metering import Meter
from gateway.serving.observing import Observer, SeenRequest
from gateway.serving.offers import Announcement
from gateway.serving.published import Published
from gateway.serving.relayed import Aside
from gateway.serving.rights import may_call, may_know, may_read, still_readable
from gateway.serving.running_calls import RunningCalls
from gateway.serving.turns import KEEPING_NOTHING, OpenTurns, Surroundings, Turn, longer, new_turn
from gateway.serving.writing import Writing
from gateway.snapshot import DeclaredTool

DEFAULT_LIFE: Final = timedelta(days=1)
"""How long calls are kept, and with them their turn, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A tool as one caller is shown it. Query tools are forged, not declared."""

    name: str
    tool: Tool
    declared: DeclaredTool | None = None


@dataclass(slots=True)
class Settled:
    """A call that is over. `is_replay` says that an earlier call with the same key settled it."""

    record: ToolCall
    turn: Turn
    is_replay: bool = False
    pending: Mapping[str, Any] | None = None
    """What a program is told of a call that waits for people."""
    limited: Mapping[str, Any] | None = None
    """What it is told of one that a rate or a quota stopped."""
    approvals: Sequence[ApprovalRecord] = ()
    """What a call that waits for people waits for."""
    aside: Aside | None = None
    """What another server said beside its result."""
    is_confirmed: bool = False
    """Whether its caller has confirmed a call that waits for people."""
    unconfirmed: Unconfirmed | None = None
    """What its caller has to answer before it runs."""


class Service:
    """One per process. `published` may be replaced at any time; calls keep the one they began with."""

    def __init__(
        self,
        published: Published,
        store: Store,
        spool: Spool,
        *,
        open_turns: int = 10_000,
        shares_turns: bool = False,
        lives: timedelta = DEFAULT_LIFE,
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
        self._turns = OpenTurns(open_turns, store.find_turn if shares_turns else None)
        self.lives: Final = lives
        """How long a settled call can be read, at least."""
        self._lives = microseconds_in(lives)
        self._lives_alone = longer(self._lives)
        """Of a turn that is stored with its call: a little longer, so that the call, which ends later, leaves it."""
        self._auditor = auditor
        self.meter = meter
        self.observer = observer
        """Told of every call, and by wires of every request, if there is one."""
        self.running = RunningCalls()
        self._writing = writing = Writing(store, auditor, meter, lives=lives)
        self.journal = writing.started
        """Makes it durable that a call is about to run."""
        callbacks = {**KEEPING_NOTHING, "store_tool_call": writing.settled}
        self.having = Having(store, auditor, remember=writing.remember, write_down=writing.refused)
        self._around = Surroundings(callbacks, self.buses, spool)

    # --- what there is ---

    def publish(self, published: Published) -> None:
        self.published = published
        for tell in tuple(self.on_change):
            tell()

    def announce(self, announcement: Announcement) -> None:
        for tell in tuple(self.on_announcement):
            tell(announcement)

    def admit(self, principal: Principal, catalogue: str) -> None:
        """Raises `UnknownCatalogue` unless the caller is in the audience."""
        if not self.published.access.admits(principal, catalogue):
            raise UnknownCatalogue()

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

    # --- turns ---

    async def open_turn(
        self,
        principal: Principal,
        catalogue: str,
        *,
        stash: Mapping[str, Any] | None = None,
        is_kept: bool = True,
        is_shared: bool = False,
    ) -> Turn:
        """A new turn. One that is not kept is stored with its first call; shared ones can be found before that."""
        turn = self._begun(principal, catalogue, lives=self._lives if is_kept else self._lives_alone, stash=stash)
        if turn.catalogue.turn_input:
            await self._pass(turn, turn.catalogue.turn_input)
        if is_kept:
            await self._store.open_turn(turn.stored)
            turn.is_stored = True
        if is_kept or is_shared:
            self._turns.put(turn)
        return turn

    async def find_turn(self, principal: Principal, id: str, *, catalogue: str | None = None) -> Turn:
        """The caller's own open turn, from memory or from the store. Raises `UnknownTurn`."""
        turn = await self._turns.current(id) or await self._reopened(principal, id)
        if not _is_own(turn, principal) or turn.is_over(clock()) or catalogue not in (None, turn.stored.catalogue):
            raise UnknownTurn()
        self.admit(principal, turn.stored.catalogue)
        return turn if turn.published is self.published else await self._renewed(turn)

    async def seen_turn(self, principal: Principal, id: str) -> Turn:
        """The caller's own turn to look at, which may have ended; nothing is called in it then."""
        try:
            return await self.find_turn(principal, id)
        except UnknownTurn:
            turn = await self._from_store(principal, id)
        if not _is_own(turn, principal):
            raise UnknownTurn()
        self.admit(principal, turn.stored.catalogue)
        return turn

    async def end_turn(self, turn: Turn, ending: TurnEnding = "ack") -> None:
        at = now()
        if ending == "ack":
            await self._pass(turn, turn.catalogue.turn_output)
            turn.ctx.tools.prune_ephemeral()
        elif ending == "abort":
            turn.ctx.abort("the caller ended the turn")
        started = turn.stored.created_at
        turn.stored = replace(turn.stored, ended=microseconds(at), ending=ending)
        if turn.is_stored:
            await self._store.end_turn(turn.id, ending, at, stash=turn.ctx.stash.all())
        self._turns.drop(turn.id)
        turn.emit(TurnEnd(turn.id, started, at, milliseconds(started, at)))

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
    ) -> Coroutine[Any, Any, Settled]:
        """Run one call to its end. Raises `UnknownTool` for what the caller may not know of, before anything else."""
        return self._called(turn, name, args, id, key, client, holding, request)

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
        *,
        is_admitted: bool = False,
    ) -> Settled:
        """`is_admitted`: it was asked in the same moment whether its caller is in the audience."""
        decoded = decoded_args(args)
        checksum, text = checked(name, decoded)
        call = ServedCall(
            turn.free_id(id),
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
        )
        try:
            call.declared = declared = self._known(turn, name, is_admitted=is_admitted)
        except UnknownTool:
            await self._writing.refused(call, "unknown-tool")
            raise
        if declared is None:
            await self._load_target(turn, decoded)
        if self.observer is not None:
            call.seen = self.observer.called(call, declared, request)
        turn.running.add(call.id)
        try:
            found = None if key is None else await self._settled_before(turn, call, declared)
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
                found = _settled(record, turn, call)
        except BaseException as error:
            if call.seen is not None:
                call.seen.failed(error)
            raise
        finally:
            turn.running.discard(call.id)
            seen, call.seen = call.seen, None  # what is observed knows its call: together they would outlive it
        if seen is not None:
            if seen.shows_content:
                await seen.look_at(found)
            seen.settled(found)
        return found

    async def _settled_before(self, turn: Turn, call: ServedCall, declared: DeclaredTool | None) -> Settled | None:
        """What an earlier call with the same key has settled as; if there was none, the key is this one's."""
        call.identity = None if declared is None else declared.name
        earlier = await claimed(self._store, turn, call)
        return None if earlier is None else await self._told_again(earlier, turn, call)

    async def _broken_off(
        self, turn: Turn, call: ServedCall, declared: DeclaredTool | None, error: BaseException, *, seconds: float
    ) -> None:
        if self.meter is not None:
            self.meter.failed(call, declared, error, seconds=seconds)
        if isinstance(error, asyncio.CancelledError):
            await asyncio.shield(self._cut_off(turn, call))

    @property
    def open_turns(self) -> int:
        """Turns in memory."""
        return len(self._turns)

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
    ) -> Settled:
        """A call in a turn of its own, or in the one that an earlier call gave the handle of."""
        try:
            if handle:
                turn = await self.find_turn(principal, handle, catalogue=catalogue)
            else:
                turn = self._begun(principal, catalogue, lives=self._lives_alone)
        except UnknownCatalogue:
            revision = self.published.snapshot.revision
            asked = ServedCall(new_id(), name, {}, principal, catalogue, revision)
            await self._writing.refused(asked, "not-in-audience")
            raise
        is_admitted = not handle
        if is_admitted and turn.catalogue.turn_input:
            await self._pass(turn, turn.catalogue.turn_input)
            is_admitted = False  # that may have taken its time
        settled = await self._called(turn, name, args, id, key, client, holding, request, is_admitted=is_admitted)
        if turn.catalogue.turn_output:
            await self._pass(turn, turn.catalogue.turn_output)
        return settled

    async def _cut_off(self, turn: Turn, call: ServedCall) -> None:
        """Write down that a call was cancelled: one whose start is on record may have had its effect."""
        call.is_cancelled = True
        with suppress(RecordConflict, StoreUnavailable):  # it has an outcome, or whoever recovers next finds out
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
        return stored, self._in_memory(stored) or await restored(stored, self.published.types, self._spool)

    async def stored_call(self, principal: Principal, id: str, *, turn_id: str | None = None) -> StoredCall:
        """The same as it is stored, whether or not it is still what was written."""
        stored = await self._store.find_call(id, principal, turn_id=turn_id)
        if stored is None or stored.status == "started":
            raise UnknownCall()
        return stored

    async def outcome_of(self, principal: Principal, id: str, *, turn_id: str) -> StoredCall | Settled | None:
        """What became of the caller's own call: how it stands if it has not settled, `None` if it was not made.

        Raises `UnknownCall` for what the caller may neither call nor read any more.
        """
        stored = await self._store.find_call(id, principal, turn_id=turn_id)
        if stored is None or stored.status != "settled":
            return stored
        return await self._replayed(stored, await self.seen_turn(principal, turn_id))

    async def list_calls(
        self, filter: CallFilter, *, limit: int = 50, before: str | None = None
    ) -> tuple[list[StoredCall], str | None]:
        return await self._store.list_calls(filter, limit=limit, before=before)

    def may_read(self, principal: Principal, stored: StoredCall) -> bool:
        """Whether the caller may still read what a call of theirs yielded."""
        return may_read(self.published, principal, stored)

    def brought_into(self, turn: Turn, stored: StoredCall) -> None:
        """Have a turn remember what it read of another one's result."""
        artifact = next((piece.type for piece in stored.results), None)
        turn.memory.reads(turn.published.access.brought_by(stored.identity, artifact=artifact))

    async def read_into(self, turn: Turn, stored: StoredCall) -> None:
        """The same for what is read without a call. It is durable: any process may serve the next call of the turn."""
        self.brought_into(turn, stored)
        if turn.is_stored:
            await self._writing.remember(turn)

    # --- inside ---

    def _in_memory(self, stored: StoredCall) -> ToolCall | None:
        """The record of media whose bytes are elsewhere: only its open turn knows how to fetch them."""
        if not any(each.kind == "media" and each.key is None for each in stored.results):
            return None
        turn = self._turns.get(stored.turn_id)
        records = turn.ctx.turn_tool_calls if turn is not None else ()
        return next((record for record in records if record.id == stored.id), None)

    async def _told_again(self, earlier: StoredCall, turn: Turn, call: ServedCall) -> Settled:
        """The same for a call that was sent again: on record, and what it tells is known to the turn it was sent in."""
        try:
            replayed = await self._replayed(earlier, turn)
        except UnknownCall:
            await self._writing.refused(call, "not-permitted")
            raise
        told = await self._target_of(earlier, turn.principal)
        if earlier.turn_id != turn.id and told is not None:
            self.brought_into(turn, told)
        await self._writing.remember(turn, [self._auditor.replayed(call, earlier)] if self._auditor is not None else ())
        return replayed

    async def _replayed(self, earlier: StoredCall, turn: Turn) -> Settled:
        """What an earlier call settled as, in its own turn as long as that is open. Raises `UnknownCall`."""
        if not await self._may_hear_again(turn, earlier):
            raise UnknownCall()
        record = await restored(earlier, turn.published.types, self._spool)
        if earlier.turn_id != turn.id:
            with suppress(UnknownTurn):
                turn = await self.find_turn(turn.principal, earlier.turn_id)
        return Settled(record, turn, is_replay=True)

    async def _target_of(self, earlier: StoredCall, principal: Principal) -> StoredCall | None:
        """The call whose result it tells of: of a query, the one that it asks about."""
        if not earlier.from_artifact_tool:
            return earlier
        return await self._store.find_call(str(earlier.args.get("callId")), principal)

    async def _may_hear_again(self, turn: Turn, earlier: StoredCall) -> bool:
        """A key is no right: what the caller may neither call nor read any more is not told again."""
        principal = turn.principal
        if earlier.from_artifact_tool:
            found = await self._target_of(earlier, principal)
            return earlier.is_error or (found is not None and self.may_read(principal, found))
        may_again = may_call(self.published, principal, earlier) or self.may_read(principal, earlier)
        return earlier.is_error or may_again

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

    async def _load_target(self, turn: Turn, args: Mapping[str, Any]) -> None:
        """Bring the artifact a query is about into the turn, if it is the caller's own from an earlier turn."""
        id = args.get("callId")
        if not isinstance(id, str) or any(record.id == id for record in turn.ctx.turn_tool_calls):
            return
        stored = await self._store.find_call(id, turn.principal)
        if stored is None or stored.catalogue != turn.stored.catalogue or not self.may_read(turn.principal, stored):
            return
        record = await restored(stored, turn.published.types, self._spool)
        if is_queryable(record):
            turn.ctx.adopt_tool_call(record)
            self.brought_into(turn, stored)

    def _begun(
        self, principal: Principal, catalogue: str, *, lives: int, stash: Mapping[str, Any] | None = None
    ) -> Turn:
        """A turn that nothing was done in yet. Raises `UnknownCatalogue`."""
        self.admit(principal, catalogue)
        published = self.published
        stored = new_turn(principal, catalogue, published.snapshot.revision, clock(), lives)
        turn = Turn(replace(stored, stash=dict(stash)) if stash else stored, published, self._around)
        if self.buses.hears(TurnStart):  # nobody can follow the turn itself yet
            self.buses.emit(TurnStart(turn.id, stored.created_at))
        return turn

    async def _reopened(self, principal: Principal, id: str) -> Turn | None:
        turn = await self._from_store(principal, id)
        if turn is None or turn.stored.ended is not None:
            return None
        if current := self._turns.get(id):  # another request was faster: both have to remember the same
            return current
        self._turns.put(turn)
        return turn

    async def _from_store(self, principal: Principal, id: str) -> Turn | None:
        stored = await self._store.find_turn(id, principal)
        if stored is None or stored.catalogue not in self.published.catalogues:
            return None
        turn = Turn(stored, self.published, self._around)
        turn.is_stored = True
        records = [await restored(each, turn.published.types, self._spool) for each in await self._store.calls_of(id)]
        for record in still_readable(turn, records):
            turn.ctx.adopt_tool_call(record)
        return turn

    async def _renewed(self, turn: Turn) -> Turn:
        """The turn under what is published now: what was taken from its caller meanwhile is taken from it, too.

        Its artifacts are made again: what their classes mask may be more than when the calls were made.
        """
        stored = replace(turn.stored, revision=self.published.snapshot.revision, stash=turn.ctx.stash.all())
        renewed = Turn(stored, self.published, self._around)
        renewed.is_stored = turn.is_stored
        renewed.goes_on_from(turn)
        types = renewed.published.types
        kept = await self._store.calls_of(turn.id) if turn.is_stored else ()
        records = [self._in_memory(each) or await restored(each, types, self._spool) for each in kept]
        current = self._turns.get(turn.id)
        if current is not None and current.published is renewed.published:  # another request was faster
            return current
        for record in still_readable(renewed, records):
            renewed.ctx.adopt_tool_call(record)
        self._turns.put(renewed)
        return renewed

    async def _pass(self, turn: Turn, middlewares: Sequence[Any]) -> None:
        passage = await run_pipeline(turn.ctx, middlewares, is_aborted=lambda: turn.ctx.aborted)
        for error in passage.errors:
            raise error


def _settled(record: ToolCall, turn: Turn, call: ServedCall) -> Settled:
    """The record with what its caller is told beside it."""
    settled = Settled(record, turn, False, call.pending, call.limited)
    settled.aside = call.aside
    if call.decision == "hold":
        settled.unconfirmed = call.unconfirmed
        settled.approvals = call.approvals
        settled.is_confirmed = any(call.holding.has_confirmed(each.digest) for each in call.approvals)
    return settled


def _is_acked(turn: Turn | None) -> bool:
    return turn is not None and turn.stored.ending == "ack"


def _is_own(turn: Turn | None, principal: Principal) -> TypeGuard[Turn]:
    """Roles count, too: a turn must not carry those that its caller had once."""
    return turn is not None and turn.principal.names == principal.names and turn.principal.tenant == principal.tenant
