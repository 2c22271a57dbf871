"""How many calls one server works on at once; the rest wait in line, and a line that is too long is told so.

A call whose caller is being asked works on nothing: it gives its slot away meanwhile.
"""

import asyncio
from collections import deque
from typing import Final

from gateway.governance.ports import BackendFailed

AT_ONCE: Final = 32
IN_LINE: Final = 64


class Slots:
    def __init__(self, at_once: int = AT_ONCE, in_line: int = IN_LINE) -> None:
        self._free = at_once
        self._in_line = in_line
        self._line: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Raises `BackendFailed` if too many wait already."""
        if self._free > 0:
            self._free -= 1
            return
        if len(self._line) >= self._in_line:
            raise BackendFailed("unavailable", "too many calls wait for the upstream server already")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()  # it was given the slot, and has gone
            else:
                self._line.remove(turn)
            raise

    def give(self) -> None:
        while self._free >= 0 and self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def take_back(self) -> None:
        """Without waiting: whoever gave a slot away for a while goes on at once, even if there is one too many then."""
        self._free -= 1
