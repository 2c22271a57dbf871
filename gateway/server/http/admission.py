"""Admission control: limits concurrent requests, queues further ones fairly and refuses the rest.

While the process is below its limit, admission costs one comparison. Above it, requests queue per tenant or credential,
and the queues are served round-robin, so one caller cannot fill them. The limit shrinks while the event loop is late:
lateness means the process itself is busy, not that it waits for another service.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping
from time import monotonic
from typing import Any, Final, Protocol

from gateway.server.http.asgi import SCOPE_PRINCIPAL, Scope

MIN_LIMIT: Final = 32
"""The limit never shrinks below this, however late the loop is: so many requests keep a core busy."""
BEAT: Final = 0.02
MAX_LOOP_LAG: Final = 0.02
"""Seconds by which the loop may be late before the limit shrinks."""
_SHRINK: Final = 0.7
_GROW: Final = 1.1
_MAX_TENANTS: Final = 4096


class AdmissionMeter(Protocol):
    def record_admission_wait(self, seconds: float) -> None: ...

    def record_loop_lag(self, seconds: float) -> None: ...


class AdmissionControl:
    """Admission of one process. `active` counts admitted requests, `limit` is how many may be active at present."""

    __slots__ = (
        *("_deadlines", "_lines", "_meter", "_queue", "_tenants", "_wait"),
        *("active", "limit", "most", "queued", "refused"),
    )

    def __init__(self, most: int, *, queue: int, wait: float, meter: AdmissionMeter | None = None) -> None:
        """At most `queue` requests wait to be admitted, each for little more than `wait` seconds."""
        self.active = self.queued = self.refused = 0
        self.most = self.limit = most
        self._queue = queue
        self._wait = wait
        self._meter = meter
        self._lines: OrderedDict[Hashable, deque[asyncio.Future[bool]]] = OrderedDict()
        self._deadlines: dict[asyncio.Future[bool], tuple[float, Hashable]] = {}
        """Deadline and caller of every waiting request of all queues, oldest first."""
        self._tenants: OrderedDict[bytes, str] = OrderedDict()

    async def acquire(self, scope: Scope) -> bool:
        """Wait to be admitted; return whether the request was. If so, the caller has to `release` it."""
        if self.active < self.limit and not self.queued:
            self.active += 1
            return True
        caller = self._caller(scope)
        if not self._has_room_for(caller):
            self.refused += 1
            return False
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(caller, deque()).append(turn)
        began = monotonic()
        self._deadlines[turn] = (began + self._wait, caller)
        self.queued += 1
        try:
            return await turn
        except asyncio.CancelledError:
            if turn in self._deadlines:
                self._end(caller, turn)
            elif not turn.cancelled() and turn.result():
                self.release()
            raise
        finally:
            if self._meter is not None:
                self._meter.record_admission_wait(monotonic() - began)

    def release(self) -> None:
        self.active -= 1
        if self.queued:
            self._admit_next()

    def set_tenant(self, scope: Scope) -> None:
        """Remember the tenant of the request's credential, so that its next request joins the queue of that tenant."""
        principal = scope.get(SCOPE_PRINCIPAL)
        if principal is None or principal.tenant is None:
            return
        credential = _credential(scope)
        if credential is not None:
            self._tenants[credential] = principal.tenant
            if len(self._tenants) > _MAX_TENANTS:
                self._tenants.popitem(last=False)

    def adapt(self, lateness: float) -> None:
        """Shrink the limit if the loop is late, else let it grow back; then admit waiting requests."""
        if self._meter is not None:
            self._meter.record_loop_lag(lateness)
        if lateness > MAX_LOOP_LAG:
            self.limit = max(min(MIN_LIMIT, self.most), int(min(self.limit, self.active) * _SHRINK))
        elif self.limit < self.most:
            self.limit = min(self.most, int(self.limit * _GROW) + 1)
        while self.queued and self.active < self.limit:
            self._admit_next()

    def expire_waiters(self, now: float) -> None:
        """Refuse requests whose deadline has passed."""
        while self._deadlines:
            turn, (deadline, caller) = next(iter(self._deadlines.items()))
            if deadline > now:
                return
            self.refused += 1
            self._end(caller, turn)

    def reject_waiters(self) -> None:
        """Refuse all waiting requests."""
        while self._lines:
            caller, line = next(iter(self._lines.items()))
            self._end(caller, line[-1])

    def status(self) -> Mapping[str, Any]:
        return {"active": self.active, "places": self.limit, "waiting": self.queued, "refused": self.refused}

    def _has_room_for(self, caller: Hashable) -> bool:
        """Whether the caller may queue. One with less than an equal share displaces the last of the longest queue."""
        if self.queued < self._queue:
            return True
        line = self._lines.get(caller, ())
        if len(line) >= self._queue // (len(self._lines) + (not line)):
            return False
        longest = max(self._lines, key=lambda each: len(self._lines[each]))
        self.refused += 1
        return self._end(longest, self._lines[longest][-1])

    def _admit_next(self) -> None:
        """Admit the first request of the next queue, and move that queue to the end."""
        while self.queued and self.active < self.limit:
            caller, line = next(iter(self._lines.items()))
            turn = line.popleft()
            del self._deadlines[turn]
            self.queued -= 1
            if line:
                self._lines.move_to_end(caller)
            else:
                del self._lines[caller]
            if not turn.cancelled():  # its task may not have run yet since it was cancelled
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


class LoopMonitor:
    """Periodic task that measures how late the loop is, adapts the limit and expires waiting requests."""

    def __init__(self, admission: AdmissionControl) -> None:
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
            self._admission.expire_waiters(now)
            self._admission.adapt(now - due)


def _credential(scope: Scope) -> bytes | None:
    for name, value in scope["headers"]:
        if name == b"authorization":
            return bytes(value)
    return None
