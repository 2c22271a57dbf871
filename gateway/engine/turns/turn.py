"""A turn of a caller: the scope of artifacts, stash and state, which stays open between requests.

A turn belongs to one principal and one catalogue, keeps the revision it was opened with, and has an unguessable id.
Each call is a dispatch of its turn, so that calls may run concurrently.
"""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol

from gateway.artifacts import InMemoryReader
from gateway.engine.live_revision import LiveRevision
from gateway.engine.records.call_mapper import Spool, TurnByteStore
from gateway.engine.stages.turn_stages import TurnSummary
from gateway.engine.turn_pipeline.dispatch_loop import build_query_tools
from gateway.engine.turns.implicit_turns import ImplicitTurn
from gateway.engine.turns.turn_calls import NEWEST_RECORDS, TurnCalls
from gateway.model import (
    CALLBACKS,
    Callback,
    DottedDict,
    EventBuses,
    InMemoryMediaReader,
    Principal,
    QueryGuard,
    Tool,
    ToolCall,
    ToolRegistry,
    TurnContext,
    TurnEvent,
    TurnRecordSets,
    candidate_call_ids,
    new_id,
    new_secret,
    new_token,
)
from gateway.policy import TurnState, load_turn_state
from gateway.storage import StoredCall, StoredTurn

HANDLE_BYTES: Final = 24
"""192 bits: turns cannot be found by guessing."""


def _nothing(*_: object) -> tuple[()]:
    return ()


class OutcomeRecorder(Protocol):
    async def record_outcome(self, ctx: Any, record: ToolCall) -> None:
        """Make the outcome of the current call durable."""
        ...


@dataclass(frozen=True, slots=True)
class TurnDependencies:
    """What all turns share: the stores of their records and bytes, and the buses of all events."""

    recorder: OutcomeRecorder
    buses: EventBuses
    spool: Spool

    def to_callbacks(self) -> Mapping[str, Callback]:
        """Return the callbacks of a context: only the calls of a turn outlive it."""
        return {
            **dict.fromkeys(CALLBACKS, _nothing),
            "store_tool_call": self.recorder.record_outcome,
            "store_media_bytes": lambda ctx, key, content: InMemoryMediaReader(content),
            "store_retrievable_bytes": lambda ctx, key, content: InMemoryReader(content),
        }


class Turn:
    """An open turn. `is_stored` becomes true with the first call, or when the turn is opened explicitly.

    Context, buses and byte store are created on first use: a single call needs few of them.
    """

    __slots__ = (
        *(
            "_buses",
            "_calls",
            "_ctx",
            "_dependencies",
            "_first_call",
            "_memory",
            "_spool",
            "catalogue",
            "id",
            "implicit",
            "is_single_call",
            "is_late",
            "is_stored",
            "principal",
            "published",
        ),
        *("running", "stored"),
    )

    def __init__(
        self,
        stored: StoredTurn,
        published: LiveRevision,
        dependencies: TurnDependencies,
        *,
        newest: int | None = NEWEST_RECORDS,
    ) -> None:
        """`newest`: that many records stay in memory; `None` for all of them."""
        self.id: Final = stored.id
        self.principal: Final = stored.principal
        self.catalogue: Final = published.catalogues[stored.catalogue]
        self.stored = stored
        self.published = published
        self.is_stored = False
        self.is_single_call = False
        """Whether it is the turn of a single call; its id is unknown to clients until that call returns."""
        self.implicit: ImplicitTurn | None = None
        """The implicit turn that holds its state, if the call has no handle and rules read earlier calls."""
        self.is_late = False
        """Whether the outcome of one of its calls is still to be written, and the turn with it."""
        self.running: set[str] = set()
        """Ids of calls that have begun and not settled."""
        self._dependencies = dependencies
        self._calls: TurnCalls | None = None if newest is not None else TurnCalls(newest=None)
        self._first_call: tuple[ToolCall, str | None] | None = None
        """The only call, until something reads the calls of the turn: nothing does in most turns with one call."""
        self._ctx: TurnContext | None = None
        self._buses: TurnBuses | None = None
        self._spool: TurnByteStore | None = None
        self._memory: TurnState | None = None

    @property
    def ctx(self) -> TurnContext:
        if self._ctx is None:
            self._ctx = self._make_context()
        return self._ctx

    @property
    def calls(self) -> TurnCalls:
        if self._calls is None:
            self._calls = TurnCalls()
            if self._first_call is not None:
                self._calls.add(*self._first_call)
                self._first_call = None
        return self._calls

    def add_call(self, record: ToolCall, fingerprint: str | None) -> None:
        if self._calls is None and self._first_call is None:
            self._first_call = (record, fingerprint)
        else:
            self.calls.add(record, fingerprint)

    @property
    def stash(self) -> dict[str, Any]:
        """The values that stages and handlers have stored in the turn."""
        return dict(self.stored.stash) if self._ctx is None else self._ctx.stash.all()

    @property
    def buses(self) -> "TurnBuses":
        if self._buses is None:
            self._buses = TurnBuses(self._dependencies.buses)
        return self._buses

    @property
    def spool(self) -> TurnByteStore:
        if self._spool is None:
            self._spool = self._dependencies.spool.for_turn(self.id, tenant=self.stored.principal.tenant)
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

    def count_calls(self, fingerprint: str) -> int:
        """Return how often the same call was made in the turn, here or in another process."""
        made = 0 if self.has_no_calls else self.calls.count_exactly(fingerprint)
        return max(made, self.state.count_calls(fingerprint))

    @property
    def has_no_calls(self) -> bool:
        return self._calls is None and self._first_call is None

    def to_write(self, fingerprint: str, *, tool: str, size: int) -> tuple[bytes, bytes | None]:
        """Return the state to be written with a call, and the state known to be stored; see `TurnState.begin_write`."""
        if self.implicit is None:
            return self.state.begin_write()
        output_ran = bool(self.catalogue.turn_output)
        return self.implicit.state.to_continuation(fingerprint, tool=tool, size=size, output_ran=output_ran), None

    @property
    def runs_output(self) -> bool:
        """Whether an output stage of the turn has something to do."""
        return not self.catalogue.only_summarizes or (
            bool(self.catalogue.turn_output) and self.has_listener(TurnSummary)
        )

    @property
    def is_unused(self) -> bool:
        """Whether its context was not used yet, and no call was made in it."""
        return self._ctx is None and self.has_no_calls

    @property
    def tools(self) -> ToolRegistry:
        return self.catalogue.registry if self._ctx is None else self._ctx.tools

    @property
    def query_guard(self) -> QueryGuard | None:
        """Called by every query tool before it looks for an artifact."""
        return self.published.guard.query if self._ctx is None else self._ctx.query_guard

    @property
    def retrievables(self) -> list[Any]:
        """The records that stages and handlers have fetched from a corpus."""
        return [] if self._ctx is None else self._ctx.turn_retrievables

    @property
    def turn_secret(self) -> bytes:
        return self.stored.secret

    def prune_ephemeral_tools(self) -> None:
        if self._ctx is not None:
            self._ctx.tools.prune_ephemeral()

    def has_listener(self, kind: type[TurnEvent]) -> bool:
        return (self._buses or self._dependencies.buses).has_listener(kind)

    def has_any_listener(self, names: frozenset[str]) -> bool:
        """Whether one of these events has a listener."""
        return self._dependencies.buses.has_any_listener(names) or (
            self._buses is not None and self._buses.has_any_listener(names)
        )

    def emit(self, event: TurnEvent) -> None:
        (self._buses or self._dependencies.buses).emit(event)

    def emit_warning(self, kind: str, message: str, error: BaseException | None = None) -> None:
        self.ctx.emit_warning(kind, message, error)

    def store(self, record: ToolCall) -> Awaitable[Any]:
        """Store a record that no context has."""
        return self._dependencies.recorder.record_outcome(None, record)

    def _make_context(self) -> TurnContext:
        """Return a context ready for calls, as the turn was stored."""
        stored, catalogue = self.stored, self.catalogue
        ctx = TurnContext.from_fields(
            stored.id,
            secret=stored.secret,
            system_prompt=catalogue.catalogue.instructions or f"Tools of the catalogue {stored.catalogue}.",
            stash=DottedDict(dict(stored.stash) or None),
            tools=catalogue.registry.copy(),
            callbacks=self._dependencies.to_callbacks(),
            buses=self.buses,
            records=TurnRecordSets({"tool_call": self.calls}),
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

    @property
    def is_restorable(self) -> bool:
        """Whether the store has everything of the turn: no call runs, and no stage or handler used its context."""
        return self.is_stored and not self.is_late and not self.running and self._ctx is None

    def is_over(self, at: int) -> bool:
        return self.stored.ended is not None or at >= self.stored.expires

    def unique_call_id(self, id: str | None) -> str:
        """Return the caller's id, or a new one if a call of the turn, or a piece of a result, has it."""
        if id is None:
            return new_id()
        is_taken = not self.running.isdisjoint(candidate_call_ids(id)) or (
            not self.has_no_calls and (self.calls.has_forgotten or self.calls.has_source(id))
        )
        return f"{id}-{new_id()}" if is_taken else id

    def query_tools(self) -> list[Tool]:
        """Return the query tools for the artifacts of the turn; none once it is acked."""
        return [] if self.stored.ending == "ack" else build_query_tools(_Artifacts(self)).all()

    def find_query_tool(self, name: str, id: object) -> Tool | None:
        """Return the query tool of that name for an artifact of the turn; `None` if the turn has no such artifact.

        If only the id is wrong, return a tool that accepts the ids of the turn.
        """
        record = self.calls.find_source(id) if isinstance(id, str) else None
        found = None if record is None else build_query_tools(_OneCall((record,))).get(name)
        return found or build_query_tools(_Artifacts(self)).get(name)


class _OneCall(NamedTuple):
    """A context with one call, for which query tools are created."""

    turn_tool_calls: Sequence[ToolCall]
    turn_retrievables: Sequence[Any] = ()


class _Artifacts:
    """A context with all artifacts of a turn, for which query tools are created."""

    def __init__(self, turn: Turn) -> None:
        self.turn_tool_calls = list(turn.calls.iter_artifacts())
        self.turn_retrievables = turn.retrievables


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
