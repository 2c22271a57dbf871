"""Turns over the wire: the scope of artifacts, stash and memory, open from one request to the next.

A turn belongs to one principal and one catalogue, keeps the revision it was opened with, and is named by an id that
nobody can guess. Each call is a dispatch of its turn, so that calls may run side by side.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from gateway.core.callbacks import Callback
from gateway.core.context import TurnContext
from gateway.core.events import Buses, Event
from gateway.core.forging import forged_tools
from gateway.core.ids import new_id, new_token, random_bytes
from gateway.core.registry import Registry
from gateway.core.tools import Tool
from gateway.governance.principals import Principal
from gateway.governance.records import StoredTurn
from gateway.serving.keeping import TurnStore
from gateway.serving.published import Published, PublishedCatalogue

HANDLE_BYTES: Final = 24
"""192 bits: nobody finds a turn by trying."""


@dataclass(slots=True, eq=False)
class Turn:
    """An open turn. `is_stored` becomes true with the first call, or when somebody asked for the turn by name."""

    stored: StoredTurn
    published: Published
    ctx: TurnContext
    buses: "TurnBuses"
    spool: TurnStore
    is_stored: bool = False
    running: set[str] = field(default_factory=set)
    """Ids of calls that have begun and not settled."""

    @property
    def id(self) -> str:
        return self.stored.id

    @property
    def principal(self) -> Principal:
        return self.stored.principal

    @property
    def catalogue(self) -> PublishedCatalogue:
        return self.published.catalogues[self.stored.catalogue]

    def lives_on(self, since: datetime, retain: timedelta) -> bool:
        """Live as long as what was kept then; whether that is longer than was stored.

        By a little more than needed, so that not every call of a busy turn writes it anew.
        """
        if since + retain <= self.stored.expires_at:
            return False
        self.stored = replace(self.stored, expires_at=since + retain * 17 / 16)
        return True

    def is_over(self, at: datetime) -> bool:
        return self.stored.ended_at is not None or at >= self.stored.expires_at

    def free_id(self, id: str | None) -> str:
        """The caller's id, unless a call of the turn has it already, settled or not: that one keeps it."""
        if id is None:
            return new_id()
        is_taken = id in self.running or self.ctx.has_tool_call(id)
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
        return super().hears(kind) or self._everywhere.hears(kind)


def new_turn(principal: Principal, catalogue: str, *, revision: str, at: datetime, lives: timedelta) -> StoredTurn:
    id = f"turn_{new_token(HANDLE_BYTES)}"
    # A little longer than needed, so that its calls, which begin later, do not each make it live longer.
    return StoredTurn(id, principal, catalogue, revision, random_bytes(32), at, at + lives * 17 / 16)


def opened(
    stored: StoredTurn, published: Published, *, callbacks: Mapping[str, Callback], buses: TurnBuses, spool: TurnStore
) -> Turn:
    """A turn ready for calls, as it was stored."""
    catalogue = published.catalogues[stored.catalogue]
    ctx = TurnContext.named(
        stored.id,
        secret=stored.secret,
        system_prompt=catalogue.catalogue.instructions or f"Tools of the catalogue {stored.catalogue}.",
        stash=Registry(dict(stored.stash) or None),
        tools=catalogue.registry.copy(),
        callbacks=callbacks,
        buses=buses,
    )
    return Turn(stored, published, ctx, buses, spool)


class OpenTurns:
    """Turns in memory, the least recently used of them dropped first; what was dropped is found in the store again."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
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

    def drop(self, id: str) -> None:
        self._turns.pop(id, None)

    def __len__(self) -> int:
        return len(self._turns)
