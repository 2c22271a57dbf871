"""Run one dispatch: repeat input stages, executor and output stages until one of them signals.

There is no cap on iterations and no loop detector; bounds are middleware built on `ctx.iteration` and
`ctx.tool_call_count`. Each iteration forges the query tools for the artifacts of the turn again, and no other tool.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any, Literal

from gateway.artifacts import InMemoryReader, SpooledArtifact
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
from gateway.model import (
    CALLBACKS,
    RECORD_KINDS,
    Callback,
    CallContext,
    DispatchContext,
    DispatchEnd,
    DispatchStart,
    DispatchStatus,
    ErrorEvent,
    EventBuses,
    InMemoryMediaReader,
    IterationEnd,
    IterationStart,
    Listener,
    Middleware,
    RecordKind,
    RecordSet,
    Reporter,
    Tool,
    ToolRegistry,
    TurnContext,
    elapsed_milliseconds,
    is_abort,
    is_task_cancelled,
    now,
    record_kind_plural,
    run_pipeline,
)


def forge_into(ctx: CallContext) -> None:
    """Replace the query tools that an earlier iteration forged: their `callId` enums are stale.

    Every other ephemeral tool stays until the dispatch is acked. The context identifies its forged tools by identity,
    so a tool that took over one of their names stays, too.
    """
    for tool in ctx.forged:
        if ctx.tools.get(tool.name) is tool:
            ctx.tools.unregister(tool.name)
    ctx.forged = build_query_tools(ctx).all() if ctx.has_records else ()
    for tool in ctx.forged:
        ctx.tools.register(tool, overwrite=True)


def build_query_tools(ctx: Any) -> ToolRegistry:
    """Return the query tools of every artifact class among the results, in one registry."""
    classes = dict.fromkeys(type(artifact) for artifact in _artifacts(ctx))
    return ToolRegistry.merge([cls.forge_tools(ctx) for cls in classes])


def _artifacts(ctx: Any) -> Iterator[SpooledArtifact]:
    for call in ctx.turn_tool_calls:
        results = call.results if isinstance(call.results, list) else [call.results]
        yield from (result for result in results if isinstance(result, SpooledArtifact))
    for record in ctx.turn_retrievables:
        if isinstance(record.content, SpooledArtifact):
            yield record.content


Executor = Callable[[DispatchContext, Reporter], Any]
DispatchPhase = Literal["dispatch-input", "dispatch-output"]


async def dispatch(
    *,
    executor: Executor,
    source: CallContext | None = None,
    raw: Mapping[str, Any] | None = None,
    input_pipeline: Sequence[Middleware] = (),
    output_pipeline: Sequence[Middleware] = (),
    hooks: Mapping[str, Listener] | None = None,
    observers: Mapping[str, Listener] | None = None,
    buses: EventBuses | None = None,
) -> DispatchStatus:
    """Run one dispatch from a turn (`source`) or on its own (`raw`); return `"ack"` or `"aborted"`.

    `hooks` listen to the functional bus and `observers` to the observability bus while the dispatch runs. A nack and
    a failure raise; an abort does not.
    """
    if (source is None) == (raw is None):
        raise InvalidLlmDispatchInput()
    _check_parts(executor, (input_pipeline, output_pipeline), (hooks, observers))
    buses = EventBuses() if buses is None else buses
    turn = _turn_from(raw, buses) if source is None else source
    ctx = DispatchContext(turn, buses=buses)
    if not hooks and not observers:
        try:
            return await _DispatchRun(ctx, executor, tuple(input_pipeline), tuple(output_pipeline)).run()
        finally:
            ctx.release()
    with ExitStack() as afterwards:
        afterwards.callback(ctx.release)
        for name, listener in (hooks or {}).items():
            afterwards.callback(buses.functional.on(name, listener))
        for name, listener in (observers or {}).items():
            afterwards.callback(buses.observability.on(name, listener))
        return await _DispatchRun(ctx, executor, tuple(input_pipeline), tuple(output_pipeline)).run()


def to_executor_error(error: BaseException) -> GatewayError:
    """Return the error for an `error` event of a failed executor: a gateway error, with a foreign one as its cause."""
    if isinstance(error, GatewayError):
        return error
    return _wrap_error(error)


def is_list_of(value: Any, accepts: Callable[[Any], bool]) -> bool:
    """Whether the value is a list or tuple of accepted items. Iterators are refused: checking would consume them."""
    return isinstance(value, list | tuple) and all(map(accepts, value))


class _DispatchRun:
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
        if ctx.has_listener(DispatchStart):
            ctx.emit(DispatchStart(ctx.dispatch_id, started_at))
        ctx.prunes_on_ack = True
        try:
            await self._loop()
        except Exception as error:
            self._fail(to_executor_error(error))
        finally:
            # Also on cancellation: every start event is followed by an end event.
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
            ctx.flush()  # records stored between the ack and the end of that step
        if ctx.nack_error is not None:
            self._fail(ctx.nack_error)

    async def _iterate(self) -> bool:
        """Return whether the iteration completed. Records of one that did not never reach the turn, unless acked.

        Every iteration that starts emits its end event.
        """
        ctx = self._ctx
        started_at = now()
        if ctx.has_listener(IterationStart):
            ctx.emit(IterationStart(ctx.dispatch_id, ctx.iteration, started_at))
        try:
            return await self._take_steps()
        finally:
            if ctx.has_listener(IterationEnd):
                ended_at = now()
                took = elapsed_milliseconds(started_at, ended_at)
                ctx.emit(IterationEnd(ctx.dispatch_id, ctx.iteration, started_at, ended_at, took))

    async def _take_steps(self) -> bool:
        self._forge()
        await run_dispatch_stages(self._ctx, self._input, "dispatch-input")
        if not self._goes_on():
            return False
        await self._execute()
        if not self._goes_on():
            return False
        await run_dispatch_stages(self._ctx, self._output, "dispatch-output")
        self._ctx.flush()
        return True

    def _forge(self) -> None:
        try:
            forge_into(self._ctx)
        except GatewayError:
            raise
        except Exception as error:  # an artifact class may forge its own tools
            raise DispatchPipelineError(f"the query tools cannot be forged: {message_of(error)}") from error

    async def _execute(self) -> None:
        ctx = self._ctx
        try:
            answer = self._executor(ctx, self._reporter)
            if inspect.isawaitable(answer):
                await answer
        except asyncio.CancelledError as error:
            if is_task_cancelled():
                raise
            raise _wrap_error(error) from error
        except Exception as error:
            if not is_abort(error, ctx.aborted):
                raise _wrap_error(error) from error
            ctx.abort(error)

    def _goes_on(self) -> bool:
        return not self._ctx.aborted and not self._ctx.is_signalled

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._ctx.emit(ErrorEvent(to_executor_error(error)))

    def _status(self) -> DispatchStatus:
        if self._error is not None:
            return "nack"
        return "ack" if self._ctx.is_acked else "aborted"

    def _end(self, started_at: datetime, status: DispatchStatus) -> None:
        if not self._ctx.has_listener(DispatchEnd):
            return
        ended_at = now()
        took = elapsed_milliseconds(started_at, ended_at)
        self._ctx.emit(
            DispatchEnd(self._ctx.dispatch_id, status, self._iterations, started_at, ended_at, took, self._error)
        )


async def run_dispatch_stages(ctx: DispatchContext, middlewares: Sequence[Middleware], label: DispatchPhase) -> None:
    """Run the input or output stages of a dispatch. Raise their last error; an abort of one aborts the dispatch."""
    if not middlewares:
        return
    passage = await run_pipeline(ctx, middlewares, is_aborted=lambda: ctx.aborted)
    if passage.errors:
        error = passage.errors[-1]
        raise DispatchPipelineError(f"the {label} pipeline failed: {message_of(error)}") from error
    if passage.is_short_circuited and not ctx.is_signalled:
        raise PipelineShortCircuited(label)
    if passage.aborts:
        ctx.abort(passage.aborts[-1])


def _wrap_error(error: BaseException) -> LlmExecutionExecutorError:
    text = f"{LlmExecutionExecutorError.default_message}: {message_of(error)}"
    return LlmExecutionExecutorError(text, cause=error)


def _check_parts(executor: Any, pipelines: tuple[Any, ...], listeners: tuple[Any, ...]) -> None:
    if not callable(executor):
        raise InvalidLlmDispatchInput("'executor' must be a function of a context and a reporter")
    if not all(is_list_of(pipeline, callable) for pipeline in pipelines):
        raise InvalidLlmDispatchInput("'input_pipeline' and 'output_pipeline' must be lists of functions")
    if not all(given is None or _maps_to_functions(given) for given in listeners):
        raise InvalidLlmDispatchInput("'hooks' and 'observers' must map event names to functions")


def _maps_to_functions(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(callable, value.values()))


def _turn_from(raw: Any, buses: EventBuses) -> TurnContext:
    """Return the turn for a dispatch on its own: fields of `run()`, and `tools`, `callbacks`, `gates`.

    Missing callbacks keep everything in memory. There are no gates unless `raw` requests them.
    """
    if not isinstance(raw, Mapping):
        raise InvalidLlmDispatchInput(f"'raw' must be a mapping, not {type(raw).__name__}")
    fields = dict(raw)
    tools, callbacks, gates = fields.pop("tools", ()), fields.pop("callbacks", {}), fields.pop("gates", False)
    if not is_list_of(tools, Tool.is_tool):
        raise InvalidLlmExecutionContext("'tools' must be a list of tools")
    if not _maps_to_functions(callbacks) or not callbacks.keys() <= set(CALLBACKS):
        raise InvalidLlmExecutionContext("'callbacks' must map names of callbacks to functions")
    if not isinstance(gates, bool):
        raise InvalidLlmExecutionContext("'gates' must be true or false")
    known = {**in_memory_callbacks(), **callbacks}
    try:
        return TurnContext(fields, tools=ToolRegistry(tools), callbacks=known, buses=buses, gates=gates)
    except ProgramError as error:
        raise InvalidLlmExecutionContext(error.message) from error


def in_memory_callbacks() -> dict[str, Callback]:
    """Return callbacks that store everything in memory, for tests and for turns that need not outlive the process."""
    stored = {kind: RecordSet() for kind in RECORD_KINDS}
    callbacks: dict[str, Callback] = {
        "fetch_tools": lambda ctx: [],
        "store_media_bytes": lambda ctx, key, content: InMemoryMediaReader(content),
        "store_retrievable_bytes": lambda ctx, key, content: InMemoryReader(content),
    }
    for kind, records in stored.items():
        callbacks |= _record_callbacks(kind, records)
    return callbacks


def _record_callbacks(kind: RecordKind, records: RecordSet) -> Mapping[str, Callback]:
    return {
        f"store_{kind}": lambda ctx, record: records.add(record),
        f"mutate_{kind}": lambda ctx, record: records.replace(record),
        f"delete_{kind}": lambda ctx, key: records.remove(key),
        f"fetch_{record_kind_plural(kind)}": lambda ctx: list(records),
    }
