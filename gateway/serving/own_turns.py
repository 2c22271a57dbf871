"""Turns of callers: begun, found again in memory or in the store, renewed and ended. Everybody finds only their own.

Unknown ones and those of others raise the same error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeGuard

from gateway.core.calls import ToolCall
from gateway.core.events import TurnEnd, TurnStart, milliseconds, now
from gateway.core.moments import clock, microseconds, microseconds_in
from gateway.core.pipeline import run_pipeline
from gateway.errors import UnknownTurn
from gateway.governance.principals import Principal
from gateway.governance.records import Store, StoredCall, TurnEnding
from gateway.serving.implicit_turns import PREFIX as IMPLICIT
from gateway.serving.implicit_turns import ImplicitTurns
from gateway.serving.keeping import restored
from gateway.serving.published import Published
from gateway.serving.rights import admit, still_readable
from gateway.serving.turns import OpenTurns, Surroundings, Turn, longer, new_turn


class OwnTurns:
    """One per process. `published` is what new turns are of, and old ones are renewed to."""

    def __init__(
        self,
        published: Published,
        store: Store,
        around: Surroundings,
        *,
        most: int,
        are_shared: bool,
        lives: timedelta,
    ) -> None:
        """`most` are kept in memory. Shared ones may have been ended by another process: the store is asked."""
        self.published = published
        self._store = store
        self._around = around
        self._in_memory = OpenTurns(most, store.find_turn if are_shared else None)
        self._implicit = ImplicitTurns(store, are_shared=are_shared)
        self._lives = microseconds_in(lives)
        self._lives_alone = longer(self._lives)
        """Of a turn that is stored with its call: a little longer, so that the call, which ends later, leaves it."""

    def __len__(self) -> int:
        """Those in memory."""
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
        """A new turn. One that is not kept is stored with its first call; shared ones can be found before that."""
        turn = self._begun(principal, catalogue, self._lives if is_kept else self._lives_alone)
        if stash:
            turn.stored = replace(turn.stored, stash=dict(stash))
        if turn.catalogue.turn_input:
            await passed(turn, turn.catalogue.turn_input)
        if is_kept:
            await self._store.open_turn(turn.stored)
            turn.is_stored = True
        if is_kept or is_shared:
            self._in_memory.put(turn)
        return turn

    async def begin_alone(self, principal: Principal, catalogue: str) -> Turn:
        """One for a single call, which it is stored with; rules find what the caller's implicit turn remembers.

        Its output stages run after that call. The turn remembers so from the beginning: what is stored with the call
        tells every process not to run them again. Raises `UnknownCatalogue`.
        """
        turn = self._begun(principal, catalogue, self._lives_alone)
        turn.is_alone = True
        idle = turn.catalogue.implicit
        if idle is not None:
            revision = turn.published.snapshot.revision
            turn.implicit = await self._implicit.of(principal, catalogue, revision, idle)
        elif turn.catalogue.turn_output:
            turn.memory.output_ran = True
        return turn

    async def begin_reading(self, principal: Principal, catalogue: str) -> Turn | None:
        """A turn for what is read without a call and without a handle, if the catalogue has implicit turns.

        Raises `UnknownCatalogue`.
        """
        admit(self.published, principal, catalogue)
        has_implicit = self.published.catalogues[catalogue].implicit is not None
        return await self.begin_alone(principal, catalogue) if has_implicit else None

    async def find(self, principal: Principal, id: str, *, catalogue: str | None = None) -> Turn:
        """The caller's own open turn, from memory or from the store. Raises `UnknownTurn`."""
        if id.startswith(IMPLICIT):
            raise UnknownTurn()
        turn = await self._in_memory.current(id) or await self._reopened(principal, id)
        if not _is_own(turn, principal) or turn.is_over(clock()) or catalogue not in (None, turn.stored.catalogue):
            raise UnknownTurn()
        admit(self.published, principal, turn.stored.catalogue)
        return turn if turn.published is self.published else await self._renewed(turn)

    async def look_at(self, principal: Principal, id: str) -> Turn:
        """The caller's own turn to look at, which may have ended; nothing is called in it then."""
        try:
            return await self.find(principal, id)
        except UnknownTurn:
            turn = None if id.startswith(IMPLICIT) else await self._from_store(principal, id)
        if not _is_own(turn, principal):
            raise UnknownTurn()
        admit(self.published, principal, turn.stored.catalogue)
        return turn

    async def end(self, turn: Turn, ending: TurnEnding = "ack") -> None:
        """End a turn. Raises `RecordConflict` if it has ended already, and what its output stages raise.

        It ends before its output stages run: only one process can end it, so they run once, and an error of theirs
        does not open it again.
        """
        at = now()
        runs_output = ending == "ack" and bool(turn.catalogue.turn_output) and not turn.memory.output_ran
        if ending == "abort":
            turn.ctx.abort("the caller ended the turn")
        if turn.is_stored:
            await self._store.end_turn(turn.id, ending, at, stash=turn.ctx.stash.all())
        started = turn.stored.created_at
        turn.stored = replace(turn.stored, ended=microseconds(at), ending=ending)
        self._in_memory.drop(turn.id)
        try:
            if runs_output:
                turn.memory.output_ran = True
                await passed(turn, turn.catalogue.turn_output)
        finally:
            if ending == "ack":
                turn.ctx.tools.prune_ephemeral()
            turn.emit(TurnEnd(turn.id, started, at, milliseconds(started, at)))

    def remembered_call(self, stored: StoredCall) -> ToolCall | None:
        """The record of media whose bytes are elsewhere: only its open turn knows how to fetch them."""
        if not any(each.kind == "media" and each.key is None for each in stored.results):
            return None
        turn = self._in_memory.get(stored.turn_id)
        records = turn.ctx.turn_tool_calls if turn is not None else ()
        return next((record for record in records if record.id == stored.id), None)

    def _begun(self, principal: Principal, catalogue: str, lives: int) -> Turn:
        published = self.published
        admit(published, principal, catalogue)
        stored = new_turn(principal, catalogue, published.snapshot.revision, clock(), lives)
        turn = Turn(stored, published, self._around)
        buses = self._around.buses
        if buses.hears(TurnStart):  # nobody can follow the turn itself yet
            buses.emit(TurnStart(turn.id, stored.created_at))
        return turn

    async def _reopened(self, principal: Principal, id: str) -> Turn | None:
        turn = await self._from_store(principal, id)
        if turn is None or turn.stored.ended is not None:
            return None
        if current := self._in_memory.get(id):  # another request was faster: both have to remember the same
            return current
        self._in_memory.put(turn)
        return turn

    async def _from_store(self, principal: Principal, id: str) -> Turn | None:
        stored = await self._store.find_turn(id, principal)
        if stored is None or stored.catalogue not in self.published.catalogues:
            return None
        turn = Turn(stored, self.published, self._around)
        turn.is_stored = True
        types, spool = turn.published.types, self._around.spool
        records = [await restored(each, types, spool) for each in await self._store.calls_of(id)]
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
        types, spool = renewed.published.types, self._around.spool
        kept = await self._store.calls_of(turn.id) if turn.is_stored else ()
        records = [self.remembered_call(each) or await restored(each, types, spool) for each in kept]
        current = self._in_memory.get(turn.id)
        if current is not None and current.published is renewed.published:  # another request was faster
            return current
        for record in still_readable(renewed, records):
            renewed.ctx.adopt_tool_call(record)
        self._in_memory.put(renewed)
        return renewed


async def passed(turn: Turn, middlewares: Sequence[Any]) -> None:
    """Take a turn through stages of its catalogue; the first error of theirs is raised."""
    passage = await run_pipeline(turn.ctx, middlewares, is_aborted=lambda: turn.ctx.aborted)
    for error in passage.errors:
        raise error


def _is_own(turn: Turn | None, principal: Principal) -> TypeGuard[Turn]:
    """Roles count, too: a turn must not carry those that its caller had once."""
    return turn is not None and turn.principal.names == principal.names and turn.principal.tenant == principal.tenant
