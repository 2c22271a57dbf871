"""The cache of results: equal calls run once, within bounds, in memory.

Idempotency keys, which outlive a process, and the replay of their outcomes are implemented in `records`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal

from gateway.artifacts import encode_utf8
from gateway.engine.stages.resilience import Clock
from gateway.model import CallPipeline, Invocation, Principal, exact_digest
from gateway.registries import CHANGES

CachePart = Literal["subject", "tenant", "catalogue", "arguments"]

NEVER_CACHED: Final = CHANGES
"""Flags of tools whose calls must always reach the backend."""

MAX_ENTRIES: Final = 4_096
MAX_BYTES: Final = 64 << 20
MAX_ANSWER_BYTES: Final = 256 << 10
_ENTRY_OVERHEAD: Final = 512


class IdempotencyHeaderStage:
    """Sends the call's idempotency key to the backend in a header of another name."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def __call__(self, call: Invocation, run: CallPipeline) -> Any:
        return await run(replace(call, idempotency_header=self._name))


def fingerprint(tool: str, args: Mapping[str, Any], principal: Principal) -> str:
    """Return a SHA-256 that is the same for the same call of the same subject and tenant; roles do not matter."""
    return _digest(tool, args, {"subject": principal.subject, "tenant": principal.tenant})


def _digest(tool: str, args: Mapping[str, Any], who: Mapping[str, str | None]) -> str:
    return exact_digest({"tool": tool, "args": args, "who": who})


@dataclass(frozen=True, slots=True)
class _Answer:
    result: str | bytes
    size: int
    until: float


class ResultCache:
    """Results by key, the least recently used dropped first. Shared by all tools of a snapshot, so that bounds hold."""

    def __init__(self, *, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def byte_length(self) -> int:
        return self._bytes

    def get(self, key: str, now: float) -> str | bytes | None:
        answer = self._answers.get(key)
        if answer is None:
            return None
        if answer.until <= now:
            self._drop(key)
            return None
        self._answers.move_to_end(key)
        return answer.result

    def put(self, key: str, result: str | bytes, *, until: float) -> None:
        self._drop(key)
        size = measure_bytes(result) + _ENTRY_OVERHEAD
        self._answers[key] = _Answer(result, size, until)
        self._bytes += size
        while len(self._answers) > self._max_entries or self._bytes > self._max_bytes:
            self._drop(next(iter(self._answers)))

    def _drop(self, key: str) -> None:
        if dropped := self._answers.pop(key, None):
            self._bytes -= dropped.size


@dataclass(slots=True, eq=False)
class _Flight:
    """A running call, and the number of callers that wait for it."""

    key: str
    task: "asyncio.Task[Any]"
    waiting: int = 0


class CacheStage:
    """Answers equal calls of one tool from memory; equal calls at the same time reach the backend once.

    Calls are equal if tool and arguments are, and the other parts listed in `by`. Only text and bytes of a moderate
    size are reused; failures, media and results in the spool are not. A running call continues as long as any caller
    waits for it.
    """

    def __init__(
        self,
        for_: timedelta,
        by: Collection[CachePart],
        *,
        tool: str,
        flags: Collection[str],
        answers: ResultCache,
        clock: Clock,
        catalogue: str | None = None,
        largest: int = MAX_ANSWER_BYTES,
    ) -> None:
        if refused := sorted(NEVER_CACHED.intersection(flags)):
            raise ValueError(f"calls of {tool} are never answered from memory: it has the flag {refused[0]!r}")
        if "catalogue" in by and catalogue is None:
            raise ValueError(f"results of {tool} are cached by catalogue, but none is given")
        self._for = for_.total_seconds()
        self._by = frozenset(by)
        self._tool = tool
        self._catalogue = catalogue
        self._answers = answers
        self._clock = clock
        self._largest = largest
        self._flights: dict[str, _Flight] = {}

    async def __call__(self, call: Invocation, run: CallPipeline) -> Any:
        key = self._key(call)
        if (known := self._answers.get(key, self._clock())) is not None:
            return known
        flight = self._flights.get(key)
        is_first = flight is None
        if flight is None:
            flight = self._flights[key] = _Flight(key, asyncio.create_task(self._run_and_store(key, call, run)))
            flight.task.add_done_callback(lambda task: self._forget(flight))
        result = await self._await_flight(flight)
        # A result bound to the first call, such as its place in the spool, cannot answer another call.
        return result if is_first or self._is_shareable(result) else await run(call)

    def _key(self, call: Invocation) -> str:
        parts = {"subject": call.principal.subject, "tenant": call.principal.tenant, "catalogue": self._catalogue}
        return _digest(self._tool, call.args, {name: parts[name] for name in parts if name in self._by})

    async def _run_and_store(self, key: str, call: Invocation, run: CallPipeline) -> Any:
        result = await run(call)
        if self._is_shareable(result):
            self._answers.put(key, result, until=self._clock() + self._for)
        return result

    async def _await_flight(self, flight: _Flight) -> Any:
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            if flight.waiting == 1 and not flight.task.done():
                self._forget(flight)  # at once: a new caller must not wait for a task that is being cancelled
                flight.task.cancel()
                await asyncio.wait({flight.task})
            raise
        finally:
            flight.waiting -= 1

    def _forget(self, flight: _Flight) -> None:
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]

    def _is_shareable(self, result: Any) -> bool:
        return isinstance(result, str | bytes) and measure_bytes(result) <= self._largest


def measure_bytes(content: str | bytes) -> int:
    return len(content) if isinstance(content, bytes) or content.isascii() else len(encode_utf8(content))
