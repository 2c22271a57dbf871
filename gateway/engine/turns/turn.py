"""Turns of callers: the scope of artifacts, stash and state, open from one request to the next.

A turn belongs to one principal and one catalogue, keeps the revision it was opened with, and has an unguessable id.
Each call is a dispatch of its turn, so that calls may run concurrently.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.artifacts import InMemoryReader
from gateway.engine.agent.dispatch import build_query_tools
from gateway.engine.live_revision import LiveRevision
from gateway.engine.records.rows import Spool, TurnByteStore
from gateway.engine.turns.implicit import ImplicitTurn
from gateway.model import (
    CALLBACKS,
    Callback,
    DottedDict,
    EventBuses,
    InMemoryMediaReader,
    Principal,
    Tool,
    ToolCall,
    ToolRegistry,
    TurnContext,
    TurnEvent,
    candidate_call_ids,
    new_id,
    new_secret,
    new_token,
)
from gateway.policy import TurnState, load_turn_state
from gateway.storage import StoredCall, StoredTurn

FindStoredTurn = Callable[[str, Principal], Awaitable[StoredTurn | None]]

HANDLE_BYTES: Final = 24
"""192 bits: turns cannot be found by guessing."""


def _nothing(*_: object) -> tuple[()]:
    return ()


NO_PERSISTENCE: Final[Mapping[str, Callback]] = {
    **dict.fromkeys(CALLBACKS, _nothing),
    "store_media_bytes": lambda ctx, key, content: InMemoryMediaReader(content),
    "store_retrievable_bytes": lambda ctx, key, content: InMemoryReader(content),
}
"""Callbacks under which only the calls of a turn outlive it."""


@dataclass(frozen=True, slots=True)
class TurnDependencies:
    """What all turns share: the stores of their records and bytes, and the buses of all events."""

    callbacks: Mapping[str, Callback]
    buses: EventBuses
    spool: Spool


class Turn:
    """An open turn. `is_stored` becomes true with the first call, or when the turn is opened explicitly.

    Context, buses and byte store are created on first use: a single call needs few of them.
    """

    __slots__ = (
        *(
            "_alone",
            "_around",
            "_buses",
            "_ctx",
            "_memory",
            "_spool",
            "catalogue",
            "id",
            "implicit",
            "is_alone",
            "is_late",
            "is_stored",
            "principal",
            "published",
        ),
        *("running", "stored"),
    )

    def __init__(self, stored: StoredTurn, published: LiveRevision, around: TurnDependencies) -> None:
        self.id: Final = stored.id
        self.principal: Final = stored.principal
        self.catalogue: Final = published.catalogues[stored.catalogue]
        self.stored = stored
        self.published = published
        self.is_stored = False
        self.is_alone = False
        """Whether it is the turn of a single call; its id is unknown to clients until that call returns."""
        self.implicit: ImplicitTurn | None = None
        """The implicit turn that holds its state, if the call has no handle and rules read earlier calls."""
        self.is_late = False
        """Whether the outcome of one of its calls is still to be written, and the turn with it."""
        self.running: set[str] = set()
        """Ids of calls that have begun and not settled."""
        self._alone: ToolCall | None = None
        """The record of a call that was settled without a context."""
        self._around = around
        self._ctx: TurnContext | None = None
        self._buses: TurnBuses | None = None
        self._spool: TurnByteStore | None = None
        self._memory: TurnState | None = None

    @property
    def ctx(self) -> TurnContext:
        if self._ctx is None:
            self._ctx = self._make_context()
            if self._alone is not None:
                self._ctx.add_stored_call(self._alone)
        return self._ctx

    @property
    def buses(self) -> "TurnBuses":
        if self._buses is None:
            self._buses = TurnBuses(self._around.buses)
        return self._buses

    @property
    def spool(self) -> TurnByteStore:
        if self._spool is None:
            self._spool = self._around.spool.for_turn(self.id, tenant=self.stored.principal.tenant)
        return self._spool

    @property
    def state(self) -> TurnState:
        """Raise `InvalidTurnState` for malformed state: it must not be treated as empty."""
        if self.implicit is not None:
            return self.implicit.state
        if self._memory is None:
            self._memory = load_turn_state(self.stored.memory)
        return self._memory

    def continue_from(self, other: "Turn") -> None:
        """Become the same turn as another one whose calls may still run: both share their state.

        Listeners of either receive the events of both.
        """
        self.running = other.running
        self._buses = other._buses
        self._memory = other._memory

    def record_read(self, stored: StoredCall) -> None:
        """Record the taint of a call's result that may be of another turn."""
        artifact = next((piece.type for piece in stored.results), None)
        self.state.record_read(self.published.access.taint_of_artifact(stored.identity, artifact=artifact))

    @property
    def remembers(self) -> "Turn | ImplicitTurn":
        """The holder of its state: itself, or the implicit turn of calls without a handle."""
        return self.implicit or self

    def to_write(self, fingerprint: str, *, tool: str, size: int) -> tuple[bytes, bytes | None]:
        """Return the state to be written with a call, and the state known to be stored; see `TurnState.begin_write`."""
        if self.implicit is None:
            return self.state.begin_write()
        output_ran = bool(self.catalogue.turn_output)
        return self.implicit.state.to_continuation(fingerprint, tool=tool, size=size, output_ran=output_ran), None

    def add_record(self, record: ToolCall) -> None:
        """Add a call that was settled without a context; another one may have settled meanwhile."""
        if self.is_unused:
            self._alone = record
        else:
            self.ctx.add_stored_call(record)

    @property
    def is_unused(self) -> bool:
        """Whether its context was not used yet, and no call was made in it."""
        return self._ctx is None and self._alone is None

    @property
    def tools(self) -> ToolRegistry:
        return self.catalogue.registry if self._ctx is None else self._ctx.tools

    @property
    def turn_secret(self) -> bytes:
        return self.stored.secret

    def has_listener(self, kind: type[TurnEvent]) -> bool:
        return (self._buses or self._around.buses).has_listener(kind)

    def has_any_listener(self, names: frozenset[str]) -> bool:
        """Whether one of these events has a listener."""
        return self._around.buses.has_any_listener(names) or (
            self._buses is not None and self._buses.has_any_listener(names)
        )

    def emit(self, event: TurnEvent) -> None:
        (self._buses or self._around.buses).emit(event)

    def emit_warning(self, kind: str, message: str, error: BaseException | None = None) -> None:
        self.ctx.emit_warning(kind, message, error)

    def store(self, record: ToolCall) -> Awaitable[Any]:
        """Store a record that no context has."""
        stored: Awaitable[Any] = self._around.callbacks["store_tool_call"](None, record)
        return stored

    def _make_context(self) -> TurnContext:
        """Return a context ready for calls, as the turn was stored."""
        stored, catalogue = self.stored, self.catalogue
        ctx = TurnContext.from_fields(
            stored.id,
            secret=stored.secret,
            system_prompt=catalogue.catalogue.instructions or f"Tools of the catalogue {stored.catalogue}.",
            stash=DottedDict(dict(stored.stash) or None),
            tools=catalogue.registry.copy(),
            callbacks=self._around.callbacks,
            buses=self.buses,
        )
        ctx.query_guard = self.published.guard.query
        return ctx

    def extend_lifetime(self, since: int, retain: int) -> bool:
        """Extend the turn to the retention of a result; return whether that is longer than stored.

        The extension is slightly longer than needed, so that not every call of a busy turn writes it again.
        """
        if since + retain <= self.stored.expires:
            return False
        self.stored = replace(self.stored, expires=since + add_margin(retain))
        return True

    def is_over(self, at: int) -> bool:
        return self.stored.ended is not None or at >= self.stored.expires

    def unique_call_id(self, id: str | None) -> str:
        """Return the caller's id, or a new one if a call of the turn, or a piece of a result, has it."""
        if id is None:
            return new_id()
        names = candidate_call_ids(id)
        is_taken = not self.running.isdisjoint(names) or (
            not self.is_unused and any(map(self.ctx.has_tool_call, names))
        )
        return f"{id}-{new_id()}" if is_taken else id

    def query_tools(self) -> list[Tool]:
        """Return the query tools for the artifacts of the turn; none once it is acked."""
        return [] if self.stored.ending == "ack" else build_query_tools(self.ctx).all()


class TurnBuses(EventBuses):
    """The buses of one turn, which forward their events to those of the whole gateway."""

    def __init__(self, everywhere: EventBuses) -> None:
        super().__init__()
        self._everywhere = everywhere

    def emit(self, event: TurnEvent) -> None:
        super().emit(event)
        self._everywhere.emit(event)

    def has_listener(self, kind: type[TurnEvent]) -> bool:
        own, every = (
            (self.functional, self._everywhere.functional)
            if kind.functional
            else (self.observability, self._everywhere.observability)
        )
        if own.has_no_listeners and every.has_no_listeners:
            return False
        return own.has_listener(kind.name) or every.has_listener(kind.name)


def add_margin(lives: int) -> int:
    """Return a slightly longer time, for an object that has to outlive another one with this lifetime."""
    return lives * 17 // 16


def new_turn(principal: Principal, catalogue: str, revision: str, at: int, lives: int) -> StoredTurn:
    id = f"turn_{new_token(HANDLE_BYTES)}"
    return StoredTurn(id, principal, catalogue, revision, new_secret(), at, at + lives)


class TurnCache:
    """Turns in memory; the least recently used are dropped first and read from the store again when needed.

    If other processes serve the same turns, `look` returns the stored row of one.
    """

    def __init__(self, limit: int, look: FindStoredTurn | None = None) -> None:
        self._limit = limit
        self._look = look
        self._turns: OrderedDict[str, Turn] = OrderedDict()

    def put(self, turn: Turn) -> None:
        self._turns[turn.id] = turn
        self._turns.move_to_end(turn.id)
        while len(self._turns) > self._limit:
            self._turns.popitem(last=False)

    def get(self, id: str) -> Turn | None:
        turn = self._turns.get(id)
        if turn is not None:
            self._turns.move_to_end(id)
        return turn

    async def get_current(self, id: str) -> Turn | None:
        """Return the turn unless another process has ended it."""
        turn = self.get(id)
        if turn is not None and self._look is not None and turn.is_stored:
            stored = await self._look(id, turn.principal)
            if stored is None or stored.ended is not None:
                self.drop(id)
                return None
        return turn

    def drop(self, id: str) -> None:
        self._turns.pop(id, None)

    def __len__(self) -> int:
        return len(self._turns)
