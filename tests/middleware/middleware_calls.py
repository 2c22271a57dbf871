"""Calls, backends and clocks for tests of stages."""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import Any

from gateway.core.callbacks import in_memory_callbacks
from gateway.core.calls import ToolCall
from gateway.core.context import DispatchContext, TurnContext
from gateway.core.events import Buses, now
from gateway.core.registry import Registry
from gateway.core.spool import InMemoryStore, SpoolReader
from gateway.core.tool_registry import ToolRegistry
from gateway.governance.ports import Invocation
from gateway.governance.principals import Principal

ALICE = Principal("user:alice", tenant="acme")


class Clock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def a_turn(*, buses: Buses | None = None) -> TurnContext:
    callbacks = in_memory_callbacks()
    return TurnContext(
        {"system_prompt": "Test."}, tools=ToolRegistry(), callbacks=callbacks, buses=Buses() if buses is None else buses
    )


def a_dispatch(*, buses: Buses | None = None) -> DispatchContext:
    buses = Buses() if buses is None else buses
    return DispatchContext(a_turn(buses=buses), buses=buses)


def a_record(results: Any, *, tool: str = "look", args: dict[str, Any] | None = None, **fields: Any) -> ToolCall:
    moment = now()
    given: dict[str, Any] = {"id": "c", "is_complete": True, "is_error": False, **fields}
    given |= {"created_at": moment, "updated_at": moment, "completed_at": moment}
    return ToolCall(tool=tool, args=args or {}, results=results, **given)


async def passed() -> None:
    """What follows a middleware that is tested by itself."""


def a_call(
    args: dict[str, Any] | None = None, *, principal: Principal = ALICE, spool: InMemoryStore | None = None
) -> Invocation:
    store = spool or InMemoryStore()

    async def keep(content: AsyncIterable[bytes] | Iterable[bytes]) -> SpoolReader:
        return await store.write("c", content)

    return Invocation("look", args or {}, principal, a_dispatch(), Registry(), "c", keep)


class Backend:
    """Answers what it is given, one after the other; the last answer for good. Functions are called and awaited."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.calls: list[Invocation] = []

    async def run(self, call: Invocation) -> Any:
        self.calls.append(call)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return await answer(call) if callable(answer) else answer

    async def close(self) -> None: ...


class Hanging(Backend):
    """Answers once it is released, and knows how many calls it holds and how many were taken away."""

    def __init__(self, answer: Any = "done") -> None:
        super().__init__(self._hang)
        self.release = asyncio.Event()
        self.running = 0
        self.cancelled = 0
        self.answer = answer

    async def _hang(self, call: Invocation) -> Any:
        self.running += 1
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return self.answer


async def settled(times: int = 20) -> None:
    """Let everything that can run go as far as it can."""
    for _ in range(times):
        await asyncio.sleep(0)


def started(run: Callable[[Invocation], Awaitable[Any]], call: Invocation) -> "asyncio.Task[Any]":
    return asyncio.ensure_future(run(call))
