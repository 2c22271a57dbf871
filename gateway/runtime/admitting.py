"""How many requests are worked on at once, who waits for a place, and who is turned away at once instead.

As long as there are places, a request costs a comparison. Beyond that callers take turns, each tenant or credential as
often as every other, so that one of them cannot fill the line. The number of places shrinks while the event loop is
late: that is work, not waiting for somebody else's service.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping
from time import monotonic
from typing import Any, Final

from gateway.web.edge import PRINCIPAL, Scope

LEAST: Final = 32
"""Places that are left however late the loop is: they keep a core busy."""
BEAT: Final = 0.02
LATE: Final = 0.02
"""Seconds by which the loop may be late before places are taken away."""
_SHRINK: Final = 0.7
_GROW: Final = 1.1
_MOST_TENANTS: Final = 4096


class Admission:
    """One per process. `active` counts what is worked on, `limit` is how much that may be at present."""

    __slots__ = ("_deadlines", "_lines", "_queue", "_tenants", "_wait", "active", "limit", "most", "queued", "refused")

    def __init__(self, most: int, *, queue: int, wait: float) -> None:
        """`queue` requests wait for a place, each for hardly more than `wait` seconds."""
        self.active = self.queued = self.refused = 0
        self.most = self.limit = most
        self._queue = queue
        self._wait = wait
        self._lines: OrderedDict[Hashable, deque[asyncio.Future[bool]]] = OrderedDict()
        self._deadlines: dict[asyncio.Future[bool], tuple[float, Hashable]] = {}
        """Of everybody who waits, in whatever line, whoever has waited longest first."""
        self._tenants: OrderedDict[bytes, str] = OrderedDict()

    async def enter(self, scope: Scope) -> bool:
        """Wait for a place where there is none; whether there was one. Whoever got one says when they `leave` it."""
        if self.active < self.limit and not self.queued:
            self.active += 1
            return True
        caller = self._caller(scope)
        if not self._has_room_for(caller):
            self.refused += 1
            return False
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(caller, deque()).append(turn)
        self._deadlines[turn] = (monotonic() + self._wait, caller)
        self.queued += 1
        try:
            return await turn
        except asyncio.CancelledError:
            if turn in self._deadlines:
                self._end(caller, turn)
            elif not turn.cancelled() and turn.result():
                self.leave()
            raise

    def leave(self) -> None:
        self.active -= 1
        if self.queued:
            self._let_in()

    def learn(self, scope: Scope) -> None:
        """Whose tenant's a credential is, so that its next request stands in the line of that tenant."""
        principal = scope.get(PRINCIPAL)
        if principal is None or principal.tenant is None:
            return
        credential = _credential(scope)
        if credential is not None:
            self._tenants[credential] = principal.tenant
            if len(self._tenants) > _MOST_TENANTS:
                self._tenants.popitem(last=False)

    def feel(self, lateness: float) -> None:
        """Adapt to how late the loop is."""
        if lateness > LATE:
            self.limit = max(min(LEAST, self.most), int(min(self.limit, self.active) * _SHRINK))
        elif self.limit < self.most:
            self.limit = min(self.most, int(self.limit * _GROW) + 1)
        while self.queued and self.active < self.limit:
            self._let_in()

    def give_up_late(self, now: float) -> None:
        """Refuse whoever has waited for too long."""
        while self._deadlines:
            turn, (deadline, caller) = next(iter(self._deadlines.items()))
            if deadline > now:
                return
            self.refused += 1
            self._end(caller, turn)

    def turn_away(self) -> None:
        """Refuse everybody who waits."""
        while self._lines:
            caller, line = next(iter(self._lines.items()))
            self._end(caller, line[-1])

    def status(self) -> Mapping[str, Any]:
        return {"active": self.active, "places": self.limit, "waiting": self.queued, "refused": self.refused}

    def _has_room_for(self, caller: Hashable) -> bool:
        """In a full line, whoever has less than an equal part of it takes the last place of whoever has most."""
        if self.queued < self._queue:
            return True
        line = self._lines.get(caller, ())
        if len(line) >= self._queue // (len(self._lines) + (not line)):
            return False
        longest = max(self._lines, key=lambda each: len(self._lines[each]))
        self.refused += 1
        return self._end(longest, self._lines[longest][-1])

    def _let_in(self) -> None:
        """Whoever is first in the line whose turn it is; the next turn is another line's."""
        while self.queued and self.active < self.limit:
            caller, line = next(iter(self._lines.items()))
            turn = line.popleft()
            del self._deadlines[turn]
            self.queued -= 1
            if line:
                self._lines.move_to_end(caller)
            else:
                del self._lines[caller]
            if not turn.cancelled():  # and has not had the time to say so
                self.active += 1
                turn.set_result(True)
                return

    def _end(self, caller: Hashable, turn: "asyncio.Future[bool]") -> bool:
        line = self._lines[caller]
        line.remove(turn)
        del self._deadlines[turn]
        self.queued -= 1
        if not line:
            del self._lines[caller]
        if not turn.done():
            turn.set_result(False)
        return True

    def _caller(self, scope: Scope) -> Hashable:
        credential = _credential(scope)
        if credential is None:
            return (scope.get("client") or ("",))[0]
        return self._tenants.get(credential, credential)


class Pulse:
    """Tells an admission again and again what time it is, and how late the loop is."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._beat())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _beat(self) -> None:
        while True:
            due = monotonic() + BEAT
            await asyncio.sleep(BEAT)
            now = monotonic()
            self._admission.give_up_late(now)
            self._admission.feel(now - due)


def _credential(scope: Scope) -> bytes | None:
    for name, value in scope["headers"]:
        if name == b"authorization":
            return bytes(value)
    return None
