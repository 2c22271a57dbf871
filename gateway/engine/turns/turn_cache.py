"""Turns in memory, bounded in number, per caller and in time; the others are read from the store when needed."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, NamedTuple

from gateway.engine.turns.turn import Turn
from gateway.model import Principal, now_microseconds
from gateway.storage import StoredTurn

FindStoredTurn = Callable[[str, Principal], Awaitable[StoredTurn | None]]

IDLE_SECONDS: Final = 600.0
"""After that time without a call, a turn is in the store only."""

SHARE: Final = 10
"""One caller has at most one in so many of the turns in memory."""

_AT_ONCE: Final = 16
"""Turns that are dropped at most when one is added: a caller does not wait for those of others."""


class _CachedTurn(NamedTuple):
    turn: Turn
    used: float


class TurnCache:
    """Drops turns that have expired or are idle, and the least recently used if there are too many.

    If other processes serve the same turns, `look` returns the stored row of one.
    """

    def __init__(
        self, limit: int, look: FindStoredTurn | None = None, *, clock: Callable[[], float] = monotonic
    ) -> None:
        self._limit = limit
        self._look = look
        self._clock = clock
        self._entries: OrderedDict[str, _CachedTurn] = OrderedDict()
        self._of_caller: dict[tuple[str | None, str], OrderedDict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, turn: Turn) -> None:
        self._use(turn)
        mine = self._of_caller[_caller(turn)]
        if len(mine) > max(1, self._limit // SHARE):
            self.drop(next(iter(mine)))
        if len(self._entries) > self._limit:
            self.drop(next(iter(self._entries)))
        self._sweep()

    def get(self, id: str) -> Turn | None:
        entry = self._entries.get(id)
        if entry is None:
            return None
        self._use(entry.turn)
        return entry.turn

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
        entry = self._entries.pop(id, None)
        if entry is not None:
            caller = _caller(entry.turn)
            mine = self._of_caller[caller]
            del mine[id]
            if not mine:
                del self._of_caller[caller]

    def _use(self, turn: Turn) -> None:
        self._entries[turn.id] = _CachedTurn(turn, self._clock())
        self._entries.move_to_end(turn.id)
        mine = self._of_caller.setdefault(_caller(turn), OrderedDict())
        mine[turn.id] = None
        mine.move_to_end(turn.id)

    def _sweep(self) -> None:
        """Drop idle turns, the least recently used first. One that only memory has is looked at again later."""
        before, at = self._clock() - IDLE_SECONDS, now_microseconds()
        for _ in range(_AT_ONCE):
            turn, used = next(iter(self._entries.values()))
            if used > before:
                return
            if turn.is_restorable or turn.is_over(at):
                self.drop(turn.id)
            else:
                self._use(turn)


def _caller(turn: Turn) -> tuple[str | None, str]:
    return turn.principal.tenant, turn.principal.subject
