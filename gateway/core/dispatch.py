"""One dispatch: iterations of input pipeline, executor and output pipeline until somebody signals.

There is no cap on iterations and no loop detector; bounds are middleware built on
`ctx.iteration` and `ctx.tool_call_count`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from gateway.core.callbacks import in_memory_callbacks
from gateway.core.context import Context, DispatchContext, TurnContext
from gateway.core.events import (
    Buses,
    DispatchEnd,
    DispatchStart,
    DispatchStatus,
    ErrorEvent,
    IterationEnd,
    IterationStart,
    Listener,
    milliseconds,
    now,
)
from gateway.core.forging import forge_into
from gateway.core.pipeline import Middleware, Passage, run_pipeline
from gateway.core.reporting import Reporter
from gateway.core.tool_registry import ToolRegistry
from gateway.errors import (
    DispatchPipelineError,
    GatewayError,
    InvalidLlmDispatchInput,
    InvalidLlmExecutionContext,
    LlmExecutionExecutorError,
    PipelineShortCircuited,
    ProgramError,
    message_of,
)

Executor = Callable[[DispatchContext, Reporter], Any]


async def dispatch(
    *,
    executor: Executor,
    source: Context | None = None,
    raw: Mapping[str, Any] | None = None,
    input_pipeline: Sequence[Middleware] = (),
    output_pipeline: Sequence[Middleware] = (),
    hooks: Mapping[str, Listener] | None = None,
    observers: Mapping[str, Listener] | None = None,
    buses: Buses | None = None,
) -> DispatchStatus:
    """Run one dispatch from a turn (`source`) or on its own (`raw`); answers `"ack"` or `"aborted"`.

    `hooks` listen to the functional bus and `observers` to the observability bus. A nack and a
    failure raise; an abort does not.
    """
    if (source is None) == (raw is None):
        raise InvalidLlmDispatchInput()
    if not callable(executor):
        raise InvalidLlmDispatchInput("'executor' is a function of a context and a reporter")
    buses = buses or Buses()
    for name, listener in (hooks or {}).items():
        buses.functional.on(name, listener)
    for name, listener in (observers or {}).items():
        buses.observability.on(name, listener)
    turn = source if source is not None else _turn_from(raw, buses)
    ctx = DispatchContext(turn, buses=buses)
    try:
        return await _Run(ctx, executor, input_pipeline, output_pipeline).run()
    finally:
        ctx.release()


def _turn_from(raw: Any, buses: Buses) -> TurnContext:
    """The turn that a dispatch on its own starts from. It has no gates unless `raw` asks for them."""
    if not isinstance(raw, Mapping):
        raise InvalidLlmDispatchInput(f"'raw' is a mapping, not {type(raw).__name__}")
    fields = dict(raw)
    tools, gates = fields.pop("tools", ()), fields.pop("gates", False)
    callbacks = {**in_memory_callbacks(), **fields.pop("callbacks", {})}
    try:
        return TurnContext(fields, tools=ToolRegistry(tools), callbacks=callbacks, buses=buses, gates=bool(gates))
    except ProgramError as error:
        raise InvalidLlmExecutionContext(error.message) from error


class _Run:
    def __init__(
        self,
        ctx: DispatchContext,
        executor: Executor,
        input_pipeline: Sequence[Middleware],
        output_pipeline: Sequence[Middleware],
    ) -> None:
        self._ctx = ctx
        self._executor = executor
        self._input = input_pipeline
        self._output = output_pipeline
        self._reporter = Reporter(ctx)
        self._iterations = 0
        self._error: Exception | None = None

    async def run(self) -> DispatchStatus:
        ctx = self._ctx
        started_at = now()
        ctx.emit(DispatchStart(ctx.dispatch_id, started_at))
        ctx.tools.bind_context(ctx)
        try:
            await self._loop()
        except Exception as error:
            self._fail(error if isinstance(error, GatewayError) else _executor_error(error))
        finally:
            # Also on cancellation: what started must be seen to end.
            status = self._status()
            self._end(started_at, status)
        if self._error is not None:
            raise self._error
        return status

    async def _loop(self) -> None:
        ctx = self._ctx
        try:
            while self._goes_on():
                await self._iterate()
                self._iterations += 1
                ctx.iteration = self._iterations
        except _Stop:
            if ctx.is_acked:
                ctx.flush()
        if ctx.nack_error is not None:
            self._fail(ctx.nack_error)

    async def _iterate(self) -> None:
        ctx = self._ctx
        started_at = now()
        ctx.emit(IterationStart(ctx.dispatch_id, ctx.iteration, started_at))
        forge_into(ctx)
        await self._pipeline(self._input, "dispatch-input")
        self._stop_if_over()
        await self._execute()
        self._stop_if_over()
        await self._pipeline(self._output, "dispatch-output")
        ctx.flush()
        ended_at = now()
        took = milliseconds(started_at, ended_at)
        ctx.emit(IterationEnd(ctx.dispatch_id, ctx.iteration, started_at, ended_at, took))

    async def _pipeline(
        self, middlewares: Sequence[Middleware], label: Literal["dispatch-input", "dispatch-output"]
    ) -> None:
        passage: Passage = await run_pipeline(self._ctx, middlewares, is_aborted=lambda: self._ctx.aborted)
        if passage.errors:
            error = passage.errors[-1]
            raise DispatchPipelineError(f"the {label} pipeline failed: {message_of(error)}") from error
        if passage.short_circuited and not self._ctx.is_signalled:
            raise PipelineShortCircuited(label)
        if passage.aborted and not self._ctx.aborted:
            self._ctx.abort("a middleware raised an abort")

    async def _execute(self) -> None:
        try:
            answer = self._executor(self._ctx, self._reporter)
            if inspect.isawaitable(answer):
                await answer
        except Exception as error:
            raise _executor_error(error) from error

    def _goes_on(self) -> bool:
        return not self._ctx.aborted and not self._ctx.is_signalled

    def _stop_if_over(self) -> None:
        if not self._goes_on():
            raise _Stop

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._ctx.emit(ErrorEvent(error if isinstance(error, GatewayError) else _executor_error(error)))

    def _status(self) -> DispatchStatus:
        if self._error is not None:
            return "nack"
        return "ack" if self._ctx.is_acked else "aborted"

    def _end(self, started_at: datetime, status: DispatchStatus) -> None:
        ended_at = now()
        took = milliseconds(started_at, ended_at)
        self._ctx.emit(
            DispatchEnd(self._ctx.dispatch_id, status, self._iterations, started_at, ended_at, took, self._error)
        )


class _Stop(Exception):
    """Leaves the loop between two steps of an iteration."""


def _executor_error(error: Exception) -> LlmExecutionExecutorError:
    text = f"{LlmExecutionExecutorError.default_message}: {message_of(error)}"
    return LlmExecutionExecutorError(text, cause=error)
