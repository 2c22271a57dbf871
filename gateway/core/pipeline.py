"""Onion middleware: each one runs code, calls `next()`, and runs code on the way back.

An exception does not tear the onion: what was not entered yet is skipped, post-steps of the
middlewares around it still run, and the error is reported once at the end. Refusing on purpose
is an abort; a middleware that merely forgets `next()` is reported as a short circuit.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.errors import AbortError, TurnGateAborted

Next = Callable[[], Awaitable[None]]
Middleware = Callable[[Any, Next], Awaitable[None] | None]
Core = Callable[[], Awaitable[None] | None]


@dataclass(slots=True)
class Passage:
    """How one pass through a pipeline went. `aborts` are exceptions that count as an abort."""

    reached_core: bool = False
    aborted: bool = False
    errors: list[Exception] = field(default_factory=list)
    aborts: list[BaseException] = field(default_factory=list)

    @property
    def short_circuited(self) -> bool:
        return not (self.reached_core or self.aborted or self.errors)


async def run_pipeline(
    ctx: Any,
    middlewares: Sequence[Middleware],
    core: Core | None = None,
    *,
    is_aborted: Callable[[], bool] = lambda: False,
) -> Passage:
    """Pass through all middlewares, then the core. What they raise is in the passage, not raised.

    Once `is_aborted` says so, the bodies of later middlewares and the core are skipped.
    Cancellation is no error: it passes through at once.
    """
    passage = Passage()

    async def enter(index: int) -> None:
        if is_aborted():
            return
        if index < len(middlewares):
            await _done(middlewares[index](ctx, once(index + 1)))
            return
        passage.reached_core = True
        if core is not None:
            await _done(core())

    def once(index: int) -> Next:
        entered = False

        async def next() -> None:
            nonlocal entered
            if not entered:
                entered = True
                await guarded(index)

        return next

    async def guarded(index: int) -> None:
        try:
            await enter(index)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            passage.aborts.append(error)
        except Exception as error:
            if is_abort(error, is_aborted()):
                passage.aborts.append(error)
            else:
                passage.errors.append(error)

    await guarded(0)
    passage.aborted = bool(passage.aborts) or is_aborted()
    return passage


async def run_onion(
    ctx: Any,
    middlewares: Sequence[Middleware],
    core: Core,
    *,
    on_no_next: Callable[[], object],
) -> None:
    """Run middlewares around `core` and re-raise the last error unchanged.

    `on_no_next` is called when the core never ran although nothing was raised.
    """
    passage = await run_pipeline(ctx, middlewares, core)
    for raised in (passage.errors, passage.aborts):
        if raised:
            raise raised[-1]
    if not passage.reached_core:
        on_no_next()


def is_abort(error: Exception, aborted: bool) -> bool:
    """Whether an exception means "given up on purpose".

    A gate that was given up because the turn was is no failure of whoever waited for it.
    """
    return isinstance(error, AbortError) or (aborted and isinstance(error, TurnGateAborted))


def is_being_cancelled() -> bool:
    """Whether somebody cancels this task. A `CancelledError` without that comes from a cancelled future."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _done(answer: Awaitable[None] | None) -> None:
    if inspect.isawaitable(answer):
        await answer
