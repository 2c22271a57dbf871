"""Turns over the wire: the scope of artifacts, stash and memory, open from one request to the next.

A turn belongs to one principal and one catalogue, keeps the revision it was opened with, and is named by an id that
nobody can guess. Each call is a dispatch of its turn, so that calls may run side by side.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.core.artifacts import calls_named_by
from gateway.core.callbacks import CALLBACKS, Callback
from gateway.core.calls import ToolCall
from gateway.core.context import TurnContext
from gateway.core.events import Buses, Event
from gateway.core.forging import forged_tools
from gateway.core.ids import new_id, new_secret, new_token
from gateway.core.media import InMemoryMediaReader
from gateway.core.registry import Registry
from gateway.core.spool import InMemoryReader
from gateway.core.tool_registry import ToolRegistry
from gateway.core.tools import Tool
from gateway.governance.memory import TurnMemory, memory_of
from gateway.governance.principals import Principal
from gateway.governance.records import StoredCall, StoredTurn
from gateway.serving.implicit_turns import ImplicitTurn
from gateway.serving.keeping import Spool, TurnStore
from gateway.serving.published import Published

Look = Callable[[str, Principal], Awaitable[StoredTurn | None]]

HANDLE_BYTES: Final = 24
"""192 bits: nobody finds a turn by trying."""


def _nothing(*_: object) -> tuple[()]:
    return ()


KEEPING_NOTHING: Final[Mapping[str, Callback]] = {
    **dict.fromkeys(CALLBACKS, _nothing),
    "store_media_bytes": lambda ctx, key, content: InMemoryMediaReader(content),
    "store_retrievable_bytes": lambda ctx, key, content: InMemoryReader(content),
}
"""Of what a turn may hold besides calls, nothing outlives it."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all turns have in common: who keeps their records and bytes, and who hears of everything."""

    callbacks: Mapping[str, Callback]
    buses: Buses
    spool: Spool


class Turn:
    """An open turn. `is_stored` becomes true with the first call, or when somebody asked for the turn by name.

    Its context, buses and store are made when they are first asked for: a call that is alone in its turn needs few of
    them.
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

    def __init__(self, stored: StoredTurn, published: Published, around: Surroundings) -> None:
        self.id: Final = stored.id
        self.principal: Final = stored.principal
        self.catalogue: Final = published.catalogues[stored.catalogue]
        self.stored = stored
        self.published = published
        self.is_stored = False
        self.is_alone = False
        """Whether it is that of a single call, and nobody can name it before that one is answered."""
        self.implicit: ImplicitTurn | None = None
        """What remembers its call, if that has no handle and rules look back."""
        self.is_late = False
        """Whether an outcome of one of its calls is still to be written, and the turn with it."""
        self.running: set[str] = set()
        """Ids of calls that have begun and not settled."""
        self._alone: ToolCall | None = None
        """The record of a call that was settled without a context."""
        self._around = around
        self._ctx: TurnContext | None = None
        self._buses: TurnBuses | None = None
        self._spool: TurnStore | None = None
        self._memory: TurnMemory | None = None

    @property
    def ctx(self) -> TurnContext:
        if self._ctx is None:
            self._ctx = self._made()
            if self._alone is not None:
                self._ctx.adopt_tool_call(self._alone)
        return self._ctx

    @property
    def buses(self) -> "TurnBuses":
        if self._buses is None:
            self._buses = TurnBuses(self._around.buses)
        return self._buses

    @property
    def spool(self) -> TurnStore:
        if self._spool is None:
            self._spool = self._around.spool.scoped(self.id, tenant=self.stored.principal.tenant)
        return self._spool

    @property
    def memory(self) -> TurnMemory:
        """Raises `MemoryUnreadable`: nothing may be allowed by what a turn no longer knows."""
        if self.implicit is not None:
            return self.implicit.memory
        if self._memory is None:
            self._memory = memory_of(self.stored.memory)
        return self._memory

    def goes_on_from(self, other: "Turn") -> None:
        """Be the same turn as another one, of which calls may still run: what those bring is remembered by both.

        Whoever follows it hears of both.
        """
        self.running = other.running
        self._buses = other._buses
        self._memory = other._memory

    def reads(self, stored: StoredCall) -> None:
        """Remember what was read of a call's result that may be of another turn."""
        artifact = next((piece.type for piece in stored.results), None)
        self.memory.reads(self.published.access.brought_by(stored.identity, artifact=artifact))

    @property
    def remembers(self) -> "Turn | ImplicitTurn":
        """What its calls are remembered by: itself, or the implicit turn of calls without a handle."""
        return self.implicit or self

    def to_write(self, fingerprint: str, *, tool: str, size: int) -> tuple[bytes, bytes | None]:
        """What is written of its memory with a call, and what is known to be stored; see `TurnMemory.to_write`."""
        if self.implicit is None:
            return self.memory.to_write()
        output_ran = bool(self.catalogue.turn_output)
        return self.implicit.memory.beginning_with(fingerprint, tool=tool, size=size, output_ran=output_ran), None

    def adopt(self, record: ToolCall) -> None:
        """Know a call that was settled without a context; another one may have settled meanwhile."""
        if self.is_untouched:
            self._alone = record
        else:
            self.ctx.adopt_tool_call(record)

    @property
    def is_untouched(self) -> bool:
        """Whether nobody has asked for its context yet, or called anything in it."""
        return self._ctx is None and self._alone is None

    @property
    def tools(self) -> ToolRegistry:
        return self.catalogue.registry if self._ctx is None else self._ctx.tools

    @property
    def turn_secret(self) -> bytes:
        return self.stored.secret

    def hears(self, kind: type[Event]) -> bool:
        return (self._buses or self._around.buses).hears(kind)

    def hears_any(self, names: frozenset[str]) -> bool:
        """Whether somebody hears one of these events."""
        return self._around.buses.hears_any(names) or (self._buses is not None and self._buses.hears_any(names))

    def emit(self, event: Event) -> None:
        (self._buses or self._around.buses).emit(event)

    def emit_warning(self, kind: str, message: str, error: BaseException | None = None) -> None:
        self.ctx.emit_warning(kind, message, error)

    def store(self, record: ToolCall) -> Awaitable[Any]:
        """Have a record kept that no context has."""
        kept: Awaitable[Any] = self._around.callbacks["store_tool_call"](None, record)
        return kept

    def _made(self) -> TurnContext:
        """A context ready for calls, as the turn was stored."""
        stored, catalogue = self.stored, self.catalogue
        ctx = TurnContext.named(
            stored.id,
            secret=stored.secret,
            system_prompt=catalogue.catalogue.instructions or f"Tools of the catalogue {stored.catalogue}.",
            stash=Registry(dict(stored.stash) or None),
            tools=catalogue.registry.copy(),
            callbacks=self._around.callbacks,
            buses=self.buses,
        )
        ctx.query_guard = self.published.guard.query
        return ctx

    def lives_on(self, since: int, retain: int) -> bool:
        """Live as long as what was kept then; whether that is longer than was stored.

        By a little more than needed, so that not every call of a busy turn writes it anew.
        """
        if since + retain <= self.stored.expires:
            return False
        self.stored = replace(self.stored, expires=since + longer(retain))
        return True

    def is_over(self, at: int) -> bool:
        return self.stored.ended is not None or at >= self.stored.expires

    def free_id(self, id: str | None) -> str:
        """The caller's id, unless a call of the turn or a piece of its result has it, settled or not."""
        if id is None:
            return new_id()
        names = calls_named_by(id)
        is_taken = not self.running.isdisjoint(names) or (
            not self.is_untouched and any(map(self.ctx.has_tool_call, names))
        )
        return f"{id}-{new_id()}" if is_taken else id

    def query_tools(self) -> list[Tool]:
        """Those for the artifacts of the turn. One that was acked has none any more."""
        return [] if self.stored.ending == "ack" else forged_tools(self.ctx).all()


class TurnBuses(Buses):
    """The buses of one turn; whatever they carry also reaches those of the whole gateway."""

    def __init__(self, everywhere: Buses) -> None:
        super().__init__()
        self._everywhere = everywhere

    def emit(self, event: Event) -> None:
        super().emit(event)
        self._everywhere.emit(event)

    def hears(self, kind: type[Event]) -> bool:
        own, every = (
            (self.functional, self._everywhere.functional)
            if kind.functional
            else (self.observability, self._everywhere.observability)
        )
        if own.is_quiet and every.is_quiet:
            return False
        return own.listens(kind.name) or every.listens(kind.name)


def longer(lives: int) -> int:
    """A little: whatever lives so long is there as long as that which it has to outlive."""
    return lives * 17 // 16


def new_turn(principal: Principal, catalogue: str, revision: str, at: int, lives: int) -> StoredTurn:
    id = f"turn_{new_token(HANDLE_BYTES)}"
    return StoredTurn(id, principal, catalogue, revision, new_secret(), at, at + lives)


class OpenTurns:
    """Turns in memory, the least recently used of them dropped first; what was dropped is found in the store again.

    Where other processes serve the same turns, `look` finds what is stored of one.
    """

    def __init__(self, limit: int, look: Look | None = None) -> None:
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

    async def current(self, id: str) -> Turn | None:
        """The same, unless another process has ended it."""
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
