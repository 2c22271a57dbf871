"""Open, find, renew and end the turns of callers. A caller can find only their own turns.

Unknown turns and turns of other callers raise the same error.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol, TypeGuard

from gateway.engine.access_rights import filter_readable, require_audience
from gateway.engine.live_revision import LiveRevision
from gateway.engine.records.call_mapper import Spool, from_stored_call
from gateway.engine.stages.turn_stages import TurnSummary, TurnSummaryStage
from gateway.engine.turns.implicit_turns import PREFIX as IMPLICIT
from gateway.engine.turns.implicit_turns import ImplicitTurn, ImplicitTurns
from gateway.engine.turns.turn import Turn, TurnDependencies, add_margin, new_turn
from gateway.engine.turns.turn_cache import TurnCache
from gateway.errors import StoreUnavailable, UnknownTurn
from gateway.model import (
    Principal,
    ToolCall,
    TurnEnd,
    TurnStart,
    duration_microseconds,
    elapsed_milliseconds,
    now,
    now_microseconds,
    run_pipeline,
    to_microseconds,
)
from gateway.policy import CallBounds
from gateway.storage import AuditBody, CallStore, StoredCall, TurnEndReason, TurnStateStore


class TurnStore:
    """One per process. `published` is the revision of new turns, and the one that old turns are renewed to."""

    def __init__(
        self,
        published: LiveRevision,
        store: CallStore,
        dependencies: TurnDependencies,
        *,
        most: int,
        are_shared: bool,
        lives: timedelta,
    ) -> None:
        """Up to `most` turns are in memory. Another process may have ended shared ones, so the store is checked."""
        self.published = published
        self._store = store
        self._dependencies = dependencies
        self._in_memory = TurnCache(most, store.find_turn if are_shared else None)
        self._implicit = ImplicitTurns(store, are_shared=are_shared)
        self._lives = duration_microseconds(lives)
        self._single_call_lifetime = add_margin(self._lives)
        """Lifetime of a turn that is stored with its call: slightly longer, because the call ends later."""

    def __len__(self) -> int:
        """Return the number of turns in memory."""
        return len(self._in_memory)

    async def open(
        self,
        principal: Principal,
        catalogue: str,
        *,
        stash: Mapping[str, Any] | None = None,
        is_kept: bool = True,
        is_shared: bool = False,
    ) -> Turn:
        """Open a turn. Without `is_kept` it is stored with its first call; with `is_shared` it is found before."""
        require_audience(self.published, principal, catalogue)
        turn = self._begin(self.published, principal, catalogue, self._lives if is_kept else self._single_call_lifetime)
        if stash:
            turn.stored = replace(turn.stored, stash=dict(stash))
        if turn.catalogue.turn_input:
            await run_turn_stages(turn, turn.catalogue.turn_input)
        if is_kept:
            await self._store.open_turn(turn.stored)
            turn.is_stored = True
        if is_kept or is_shared:
            self._in_memory.put(turn)
        return turn

    async def create_single_call_turn(self, principal: Principal, catalogue: str, published: LiveRevision) -> Turn:
        """Create the turn of a single call, which it is stored with; rules read the caller's implicit turn.

        The caller is in the audience of the catalogue in that revision. The output stages of the turn run after that
        call. Its state records that from the beginning, so that no process runs them again.
        """
        turn = self._begin(published, principal, catalogue, self._single_call_lifetime)
        turn.is_single_call = True
        idle = turn.catalogue.implicit
        if idle is not None:
            revision = turn.published.snapshot.revision
            turn.implicit = await self._implicit.of(principal, catalogue, revision, idle)
        elif turn.catalogue.turn_output:
            turn.state.output_ran = True
        return turn

    async def begin_reading(self, principal: Principal, catalogue: str) -> Turn | None:
        """Return a turn for a read without a call and handle, if the catalogue has implicit turns.

        Raise `UnknownCatalogue`.
        """
        published = self.published
        require_audience(published, principal, catalogue)
        has_implicit = published.catalogues[catalogue].implicit is not None
        return await self.create_single_call_turn(principal, catalogue, published) if has_implicit else None

    async def find(self, principal: Principal, id: str, *, catalogue: str | None = None) -> Turn:
        """Return the caller's own open turn, from memory or from the store. Raise `UnknownTurn`."""
        if id.startswith(IMPLICIT):
            raise UnknownTurn()
        turn = await self._in_memory.get_current(id) or await self._reopen(principal, id)
        if (
            not _is_own(turn, principal)
            or turn.is_over(now_microseconds())
            or catalogue not in (None, turn.stored.catalogue)
        ):
            raise UnknownTurn()
        require_audience(self.published, principal, turn.stored.catalogue)
        return turn if turn.published is self.published else await self._renew(turn)

    async def find_any(self, principal: Principal, id: str) -> Turn:
        """Return the caller's own turn for reading; it may have ended, and then accepts no calls."""
        try:
            return await self.find(principal, id)
        except UnknownTurn:
            turn = None if id.startswith(IMPLICIT) else await self._from_store(principal, id)
        if not _is_own(turn, principal):
            raise UnknownTurn()
        require_audience(self.published, principal, turn.stored.catalogue)
        return turn

    async def load_records(self, turn: Turn) -> Turn:
        """Return the turn with all its records, for reading; those that are not in memory come from the store."""
        if turn.calls.older is None:
            return turn
        whole = Turn(turn.stored, turn.published, self._dependencies, newest=None)
        types, spool, calls = turn.published.types, self._dependencies.spool, await self._store.list_turn_calls(turn.id)
        _add_readable(whole, calls, [await from_stored_call(each, types, spool) for each in calls])
        return whole

    async def end(self, turn: Turn, ending: TurnEndReason = "ack") -> None:
        """End a turn. Raise `RecordConflict` if it has ended already, and errors of its output stages.

        It ends before its output stages run: only one process can end it, so they run once, and their errors do not
        reopen it.
        """
        at = now()
        runs_output = ending == "ack" and bool(turn.catalogue.turn_output) and not turn.state.output_ran
        if ending == "abort":
            turn.ctx.abort("the caller ended the turn")
        if turn.is_stored:
            await self._store.end_turn(turn.id, ending, at, stash=turn.stash)
        started = turn.stored.created_at
        turn.stored = replace(turn.stored, ended=to_microseconds(at), ending=ending)
        self._in_memory.drop(turn.id)
        try:
            if runs_output:
                turn.state.output_ran = True
                await run_turn_stages(turn, turn.catalogue.turn_output)
        finally:
            if ending == "ack":
                turn.prune_ephemeral_tools()
            turn.emit(TurnEnd(turn.id, started, at, elapsed_milliseconds(started, at)))

    def find_open_record(self, stored: StoredCall) -> ToolCall | None:
        """Return the record if it has media whose bytes are elsewhere: only its open turn can fetch them."""
        if not any(each.kind == "media" and each.key is None for each in stored.results):
            return None
        turn = self._in_memory.get(stored.turn_id)
        return None if turn is None else turn.calls.find_media(stored.id)

    def _begin(self, published: LiveRevision, principal: Principal, catalogue: str, lives: int) -> Turn:
        stored = new_turn(principal, catalogue, published.snapshot.revision, now_microseconds(), lives)
        turn = Turn(stored, published, self._dependencies)
        buses = self._dependencies.buses
        if buses.has_listener(TurnStart):  # the turn itself cannot have listeners yet
            buses.emit(TurnStart(turn.id, stored.created_at))
        return turn

    async def _reopen(self, principal: Principal, id: str) -> Turn | None:
        turn = await self._from_store(principal, id)
        if turn is None or turn.stored.ended is not None:
            return None
        if current := self._in_memory.get(id):  # another request was faster: both must share the state
            return current
        self._in_memory.put(turn)
        return turn

    async def _from_store(self, principal: Principal, id: str) -> Turn | None:
        stored = await self._store.find_turn(id, principal)
        if stored is None or stored.catalogue not in self.published.catalogues:
            return None
        turn = Turn(stored, self.published, self._dependencies)
        turn.is_stored = True
        types, spool, calls = turn.published.types, self._dependencies.spool, await self._store.list_turn_calls(id)
        _add_readable(turn, calls, [await from_stored_call(each, types, spool) for each in calls])
        return turn

    async def _renew(self, turn: Turn) -> Turn:
        """Return the turn under the published revision: rights that its caller has lost are lost in the turn, too.

        Its artifacts are created again, because their classes may mask more than when the calls were made.
        """
        stored = replace(turn.stored, revision=self.published.snapshot.revision, stash=turn.stash)
        renewed = Turn(stored, self.published, self._dependencies)
        renewed.is_stored = turn.is_stored
        renewed.continue_from(turn)
        types, spool = renewed.published.types, self._dependencies.spool
        calls = await self._store.list_turn_calls(turn.id) if turn.is_stored else ()
        records = [self.find_open_record(each) or await from_stored_call(each, types, spool) for each in calls]
        current = self._in_memory.get(turn.id)
        if current is not None and current.published is renewed.published:  # another request was faster
            return current
        _add_readable(renewed, calls, records)
        self._in_memory.put(renewed)
        return renewed


async def run_turn_stages(turn: Turn, middlewares: Sequence[Any]) -> None:
    """Run stages of the catalogue on a turn; raise their first error. A summary without a listener is left out."""
    middlewares = [
        each for each in middlewares if not isinstance(each, TurnSummaryStage) or turn.has_listener(TurnSummary)
    ]
    if not middlewares:
        return
    passage = await run_pipeline(turn.ctx, middlewares, is_aborted=lambda: turn.ctx.aborted)
    for error in passage.errors:
        raise error


def _add_readable(turn: Turn, calls: Sequence[StoredCall], records: Sequence[ToolCall]) -> None:
    """Add the records of stored calls that the caller may read."""
    fingerprints = {each.id: each.fingerprint for each in calls}
    for record in filter_readable(turn, records):
        turn.calls.add(record, fingerprints.get(record.id))


def _is_own(turn: Turn | None, principal: Principal) -> TypeGuard[Turn]:
    """Whether names, roles included, and tenant match: a turn must not carry roles that its caller has lost."""
    return turn is not None and turn.principal.names == principal.names and turn.principal.tenant == principal.tenant


class TurnSync:
    def __init__(self, store: CallStore, spool: Spool) -> None:
        self._store = store
        self._spool = spool

    async def __call__(self, turn: Turn) -> None:
        """Add the settled calls that are stored and not in memory, except those that this process still adds itself."""
        missing = [each for each in await self._store.list_turn_calls(turn.id) if not turn.calls.has(each.id)]
        if not missing:
            return
        types = turn.published.types
        found = {each.id: await from_stored_call(each, types, self._spool) for each in missing}
        for record in filter_readable(turn, [*turn.calls, *found.values()]):
            if record.id in found and record.id not in turn.running and not turn.calls.has(record.id):
                turn.calls.add(record)


class Memories(TurnStateStore, Protocol):
    async def note(
        self, audit: Sequence[AuditBody], *, turn_id: str | None, memory: bytes | None, knowing: bytes | None
    ) -> None: ...


class SharedTurnState:
    """The state of turns that other processes may serve, too."""

    def __init__(self, memories: Memories, alone_since: Callable[[], int | None] = lambda: None) -> None:
        """`alone_since` returns a number that stays the same while no other process uses the store, else `None`."""
        self._memories = memories
        self._alone_since = alone_since

    def is_current(self, turn: Turn | ImplicitTurn) -> bool:
        """Whether this process has all that the turn has seen, because no other process can have served it."""
        since = self._alone_since()
        if since is None:
            return False
        if not turn.is_stored:  # no other process knows it, now or later
            turn.state.current_since = since
        return turn.state.current_since == since

    async def keep(self, turn: Turn | ImplicitTurn) -> None:
        """Make the state of a turn durable. Raise `StoreUnavailable`."""
        memory, knowing = turn.state.begin_write()
        try:
            await self._memories.note((), turn_id=turn.id, memory=memory, knowing=knowing)
        except StoreUnavailable:
            turn.state.abort_write(memory, knowing)
            raise

    async def refresh(self, turn: Turn | ImplicitTurn) -> None:
        """Merge the stored state of a turn. Raise `StoreUnavailable` and `InvalidTurnState`."""
        since = self._alone_since()
        if turn.is_stored:  # otherwise no other process knows it
            stored = await self._memories.read_turn_state(turn.id)
            if since is not None and turn.state.current_since == since:
                return  # another call read it meanwhile, and this process may have changed it since
            turn.state.merge_stored(stored)
        turn.state.current_since = since

    async def reserve_alone(self, turn: Turn | ImplicitTurn, fingerprint: str) -> bool:
        """Count a call of a turn whose state is current; return `False` if another process has come meanwhile.

        Written as every state of this process, in the order in which they were made, so that none has to be merged. A
        process that comes when this has returned reads the count.
        """
        turn.state.reserve_call(fingerprint)
        try:
            if turn.is_stored:  # otherwise no other process knows it
                await self.keep(turn)
            if self.is_current(turn):
                return True
        except BaseException:
            turn.state.release_call(fingerprint)
            raise
        turn.state.release_call(fingerprint)
        await self.refresh(turn)
        return False

    async def reserve(self, turn: Turn | ImplicitTurn, fingerprint: str, bounds: CallBounds) -> bool:
        """Count a call that is about to be made; return `False` if other processes have reached the bounds."""
        if not turn.is_stored:
            turn.state.reserve_call(fingerprint)
            return True
        memory, knowing = turn.state.begin_write()
        try:
            reserved = await self._memories.reserve_call(
                turn.id, fingerprint, bounds=bounds, memory=memory, knowing=knowing
            )
        except StoreUnavailable:
            turn.state.abort_write(memory, knowing)
            raise
        turn.state.merge_stored(reserved.memory)
        return reserved.is_made
