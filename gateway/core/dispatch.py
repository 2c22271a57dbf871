"""One dispatch: iterations of input pipeline, executor and output pipeline until somebody signals.

There is no cap on iterations and no loop detector; bounds are middleware built on
`ctx.iteration` and `ctx.tool_call_count`.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any, Literal

from gateway.core.callbacks import CALLBACKS, in_memory_callbacks
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
from gateway.core.pipeline import Middleware, is_abort, is_being_cancelled, run_pipeline
from gateway.core.reporting import Reporter
from gateway.core.tool_registry import ToolRegistry
from gateway.core.tools import Tool
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

    `hooks` listen to the functional bus and `observers` to the observability bus, for as long as
    the dispatch runs. A nack and a failure raise; an abort does not.
    """
    if (source is None) == (raw is None):
        raise InvalidLlmDispatchInput()
    _check_parts(executor, (input_pipeline, output_pipeline), (hooks, observers))
    buses = Buses() if buses is None else buses
    turn = _turn_from(raw, buses) if source is None else source
    ctx = DispatchContext(turn, buses=buses)
    if not hooks and not observers:
        try:
            return await _Run(ctx, executor, tuple(input_pipeline), tuple(output_pipeline)).run()
        finally:
            ctx.release()
    with ExitStack() as afterwards:
        afterwards.callback(ctx.release)
        for name, listener in (hooks or {}).items():
            afterwards.callback(buses.functional.on(name, listener))
        for name, listener in (observers or {}).items():
            afterwards.callback(buses.observability.on(name, listener))
        return await _Run(ctx, executor, tuple(input_pipeline), tuple(output_pipeline)).run()


def executor_error(error: BaseException) -> GatewayError:
    """What an `error` event carries of a failed executor: one of ours, with a foreign error as its cause."""
    if isinstance(error, GatewayError):
        return error
    return _wrapped(error)


def is_list_of(value: Any, accepts: Callable[[Any], bool]) -> bool:
    """Lists and tuples only: an iterator would be used up by looking."""
    return isinstance(value, list | tuple) and all(map(accepts, value))


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
        if ctx.hears(DispatchStart):
            ctx.emit(DispatchStart(ctx.dispatch_id, started_at))
        ctx.prunes_on_ack = True
        try:
            await self._loop()
        except Exception as error:
            self._fail(executor_error(error))
        finally:
            # Also on cancellation: what started must be seen to end.
            status = self._status()
            self._end(started_at, status)
        if self._error is not None:
            raise self._error
        return status

    async def _loop(self) -> None:
        ctx = self._ctx
        while self._goes_on() and await self._iterate():
            self._iterations += 1
            ctx.iteration = self._iterations
        if ctx.is_acked:
            ctx.flush()  # what was stored between the ack and the end of that step
        if ctx.nack_error is not None:
            self._fail(ctx.nack_error)

    async def _iterate(self) -> bool:
        """Whether the iteration came to its end. Records of one that did not never reach the turn, unless acked.

        Whatever happens in it, an iteration that starts is seen to end.
        """
        ctx = self._ctx
        started_at = now()
        if ctx.hears(IterationStart):
            ctx.emit(IterationStart(ctx.dispatch_id, ctx.iteration, started_at))
        try:
            return await self._take_steps()
        finally:
            if ctx.hears(IterationEnd):
                ended_at = now()
                took = milliseconds(started_at, ended_at)
                ctx.emit(IterationEnd(ctx.dispatch_id, ctx.iteration, started_at, ended_at, took))

    async def _take_steps(self) -> bool:
        self._forge()
        await self._pass(self._input, "dispatch-input")
        if not self._goes_on():
            return False
        await self._execute()
        if not self._goes_on():
            return False
        await self._pass(self._output, "dispatch-output")
        self._ctx.flush()
        return True

    def _forge(self) -> None:
        try:
            forge_into(self._ctx)
        except GatewayError:
            raise
        except Exception as error:  # an artifact class may forge tools of its own
            raise DispatchPipelineError(f"the query tools cannot be forged: {message_of(error)}") from error

    async def _pass(
        self, middlewares: Sequence[Middleware], label: Literal["dispatch-input", "dispatch-output"]
    ) -> None:
        if not middlewares:
            return
        ctx = self._ctx
        passage = await run_pipeline(ctx, middlewares, is_aborted=lambda: ctx.aborted)
        if passage.errors:
            error = passage.errors[-1]
            raise DispatchPipelineError(f"the {label} pipeline failed: {message_of(error)}") from error
        if passage.short_circuited and not ctx.is_signalled:
            raise PipelineShortCircuited(label)
        if passage.aborts:
            ctx.abort(passage.aborts[-1])

    async def _execute(self) -> None:
        ctx = self._ctx
        try:
            answer = self._executor(ctx, self._reporter)
            if inspect.isawaitable(answer):
                await answer
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            raise _wrapped(error) from error
        except Exception as error:
            if not is_abort(error, ctx.aborted):
                raise _wrapped(error) from error
            ctx.abort(error)

    def _goes_on(self) -> bool:
        return not self._ctx.aborted and not self._ctx.is_signalled

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._ctx.emit(ErrorEvent(executor_error(error)))

    def _status(self) -> DispatchStatus:
        if self._error is not None:
            return "nack"
        return "ack" if self._ctx.is_acked else "aborted"

    def _end(self, started_at: datetime, status: DispatchStatus) -> None:
        if not self._ctx.hears(DispatchEnd):
            return
        ended_at = now()
        took = milliseconds(started_at, ended_at)
        self._ctx.emit(
            DispatchEnd(self._ctx.dispatch_id, status, self._iterations, started_at, ended_at, took, self._error)
        )


def _wrapped(error: BaseException) -> LlmExecutionExecutorError:
    text = f"{LlmExecutionExecutorError.default_message}: {message_of(error)}"
    return LlmExecutionExecutorError(text, cause=error)


def _check_parts(executor: Any, pipelines: tuple[Any, ...], listeners: tuple[Any, ...]) -> None:
    if not callable(executor):
        raise InvalidLlmDispatchInput("'executor' is a function of a context and a reporter")
    if not all(is_list_of(pipeline, callable) for pipeline in pipelines):
        raise InvalidLlmDispatchInput("'input_pipeline' and 'output_pipeline' are lists of functions")
    if not all(given is None or _maps_to_functions(given) for given in listeners):
        raise InvalidLlmDispatchInput("'hooks' and 'observers' map event names to functions")


def _maps_to_functions(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(callable, value.values()))


def _turn_from(raw: Any, buses: Buses) -> TurnContext:
    """The turn that a dispatch on its own starts from: fields of `run()`, and `tools`, `callbacks`, `gates`.

    Callbacks that are left out keep everything in memory. There are no gates unless `raw` asks for them.
    """
    if not isinstance(raw, Mapping):
        raise InvalidLlmDispatchInput(f"'raw' is a mapping, not {type(raw).__name__}")
    fields = dict(raw)
    tools, callbacks, gates = fields.pop("tools", ()), fields.pop("callbacks", {}), fields.pop("gates", False)
    if not is_list_of(tools, Tool.is_tool):
        raise InvalidLlmExecutionContext("'tools' is a list of tools")
    if not _maps_to_functions(callbacks) or not callbacks.keys() <= set(CALLBACKS):
        raise InvalidLlmExecutionContext("'callbacks' maps names of callbacks to functions")
    if not isinstance(gates, bool):
        raise InvalidLlmExecutionContext("'gates' is true or false")
    known = {**in_memory_callbacks(), **callbacks}
    try:
        return TurnContext(fields, tools=ToolRegistry(tools), callbacks=known, buses=buses, gates=gates)
    except ProgramError as error:
        raise InvalidLlmExecutionContext(error.message) from error
