"""Nested middleware: each one runs code, calls `next()`, and runs code after it returns.

After an exception, the inner middlewares are skipped, the outer ones still run the code after their
`next()`, and the error is reported once at the end. A middleware refuses a call by an abort; one that
returns without calling `next()` is reported as a short circuit.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.errors import AbortError, TurnGateAborted

Next = Callable[[], Awaitable[None]]
Middleware = Callable[[Any, Next], Awaitable[None] | None]
InnermostHandler = Callable[[], Awaitable[None] | None]


@dataclass(slots=True)
class PipelineRun:
    """The outcome of one pass through a pipeline. `aborts` are exceptions that mean an abort."""

    reached_core: bool = False
    aborted: bool = False
    errors: list[Exception] = field(default_factory=list)
    aborts: list[BaseException] = field(default_factory=list)

    @property
    def is_short_circuited(self) -> bool:
        return not (self.reached_core or self.aborted or self.errors)


async def run_pipeline(
    ctx: Any,
    middlewares: Sequence[Middleware],
    core: InnermostHandler | None = None,
    *,
    is_aborted: Callable[[], bool] = lambda: False,
) -> PipelineRun:
    """Run all middlewares, then the core. Their exceptions are collected in the result, not raised.

    Once `is_aborted` returns true, later middlewares and the core are skipped.
    Cancellation is not an error: it is raised at once.
    """
    run = PipelineRun()

    async def enter(index: int) -> None:
        if is_aborted():
            return
        if index < len(middlewares):
            await _resolve(middlewares[index](ctx, once(index + 1)))
            return
        run.reached_core = True
        if core is not None:
            await _resolve(core())

    def once(index: int) -> Next:
        was_called = False

        async def next() -> None:
            nonlocal was_called
            if not was_called:
                was_called = True
                await collect_errors(index)

        return next

    async def collect_errors(index: int) -> None:
        try:
            await enter(index)
        except asyncio.CancelledError as error:
            if is_task_cancelled():
                raise
            run.aborts.append(error)
        except Exception as error:
            if is_abort(error, is_aborted()):
                run.aborts.append(error)
            else:
                run.errors.append(error)

    await collect_errors(0)
    run.aborted = bool(run.aborts) or is_aborted()
    return run


async def run_middleware(
    ctx: Any,
    middlewares: Sequence[Middleware],
    core: InnermostHandler,
    *,
    on_no_next: Callable[[], object],
) -> None:
    """Run middlewares around `core` and re-raise the last error unchanged.

    `on_no_next` is called if the core did not run although nothing was raised.
    """
    run = await run_pipeline(ctx, middlewares, core)
    for raised in (run.errors, run.aborts):
        if raised:
            raise raised[-1]
    if not run.reached_core:
        on_no_next()


def is_abort(error: Exception, aborted: bool) -> bool:
    """Whether an exception means an abort on purpose; so does a gate that was aborted together with its turn."""
    return isinstance(error, AbortError) or (aborted and isinstance(error, TurnGateAborted))


def is_task_cancelled() -> bool:
    """Whether this task is being cancelled. If not, a `CancelledError` comes from a cancelled future."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _resolve(answer: Awaitable[None] | None) -> None:
    if inspect.isawaitable(answer):
        await answer
