"""Calls, backends and clocks for tests of stages."""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import Any

from gateway.artifacts.spool_stores import InMemoryStore
from gateway.engine.turn_pipeline.dispatch_loop import in_memory_callbacks
from gateway.model.caller import Principal
from gateway.model.primitives.containers import DottedDict
from gateway.model.tools.artifact import SpoolReader
from gateway.model.tools.backend import Invocation
from gateway.model.tools.tool_call import ToolCall
from gateway.model.tools.tool_registry import ToolRegistry
from gateway.model.turns.context import DispatchContext, TurnContext
from gateway.model.turns.events import EventBuses, now

ALICE = Principal("user:alice", tenant="acme")


class Clock:
    """Stands still until a test advances it."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def a_turn(*, buses: EventBuses | None = None) -> TurnContext:
    callbacks = in_memory_callbacks()
    return TurnContext(
        {"system_prompt": "Test."},
        tools=ToolRegistry(),
        callbacks=callbacks,
        buses=EventBuses() if buses is None else buses,
    )


def a_dispatch(*, buses: EventBuses | None = None) -> DispatchContext:
    buses = EventBuses() if buses is None else buses
    return DispatchContext(a_turn(buses=buses), buses=buses)


def a_record(results: Any, *, tool: str = "look", args: dict[str, Any] | None = None, **fields: Any) -> ToolCall:
    moment = now()
    given: dict[str, Any] = {"id": "c", "is_complete": True, "is_error": False, **fields}
    given |= {"created_at": moment, "updated_at": moment, "completed_at": moment}
    return ToolCall(tool=tool, args=args or {}, results=results, **given)


async def run_stage() -> None:
    """Run a middleware on its own, with this as the next step."""


def a_call(
    args: dict[str, Any] | None = None, *, principal: Principal = ALICE, spool: InMemoryStore | None = None
) -> Invocation:
    store = spool or InMemoryStore()

    async def keep(content: AsyncIterable[bytes] | Iterable[bytes] | bytes) -> SpoolReader:
        return await store.write("c", content)

    return Invocation("look", args or {}, principal, a_dispatch(), DottedDict(), "c", keep)


class Backend:
    """Gives its answers one after the other, and repeats the last. Functions are called and awaited."""

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


class HangingBackend(Backend):
    """Answers once it is released; counts the calls it holds and the calls that were cancelled."""

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
    """Let everything that can run proceed as far as it can."""
    for _ in range(times):
        await asyncio.sleep(0)


def started(run: Callable[[Invocation], Awaitable[Any]], call: Invocation) -> "asyncio.Task[Any]":
    return asyncio.ensure_future(run(call))
