"""TurnRunner: one turn is an input pipeline, a dispatch and an output pipeline, all observable through events.

`run()` always returns normally, whatever fails inside; only bad input to `run` itself and cancellation raise. The
configured tools are an immutable baseline: every run gets its own registry.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.engine.turn_pipeline.dispatch_loop import Executor, dispatch, is_list_of, to_executor_error
from gateway.errors import (
    GatewayError,
    InputPipelineError,
    InvalidTurnRunnerConfig,
    OutputPipelineError,
    PipelineShortCircuited,
    ToolAlreadyRegistered,
    ValidationException,
    message_of,
    problem,
)
from gateway.model import (
    CALLBACKS,
    Callback,
    ErrorEvent,
    EventBuses,
    GenerationStats,
    Middleware,
    Tool,
    ToolRegistry,
    TurnContext,
    TurnEnd,
    TurnEvent,
    TurnStart,
    elapsed_milliseconds,
    now,
    run_pipeline,
)

PIPELINE_NAMES: Final = (
    "turn_input_pipeline",
    "turn_output_pipeline",
    "dispatch_input_pipeline",
    "dispatch_output_pipeline",
)
_KEPT_ON_DISPATCH_BUS: Final = (ErrorEvent, GenerationStats)


class TurnRunner:
    """Runs turns. Listeners are registered on `functional`, `observability` and `dispatch_observability`.

    Events of a dispatch reach the turn's buses as well, except `error` (the turn reports what
    its dispatch raised, once) and `generationStats`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        _check_config(config)
        self._executor: Executor = config["executor"]
        self._callbacks: dict[str, Callback] = {name: config[name] for name in CALLBACKS}
        self._tools: tuple[Tool, ...] = tuple(config.get("tools") or ())
        self._pipelines: dict[str, tuple[Middleware, ...]] = {
            name: tuple(config.get(name) or ()) for name in PIPELINE_NAMES
        }
        self._buses = EventBuses()
        self._dispatch_buses = EventBuses()
        self.functional = self._buses.functional
        self.observability = self._buses.observability
        self.dispatch_observability = self._dispatch_buses.observability

    async def run(self, raw: Mapping[str, Any]) -> None:
        """Run one turn; all output is events. Raise `InvalidTurnContext` only for bad input."""
        ctx = TurnContext(raw, tools=ToolRegistry(self._tools), callbacks=self._callbacks, buses=self._buses)
        started_at = now()
        ctx.emit(TurnStart(ctx.turn_id, started_at))
        try:
            await self._run(ctx)
        except Exception as error:
            ctx.emit(ErrorEvent(to_executor_error(error)))
        finally:
            ended_at = now()
            ctx.emit(TurnEnd(ctx.turn_id, started_at, ended_at, elapsed_milliseconds(started_at, ended_at)))

    async def _run(self, ctx: TurnContext) -> None:
        if not await self._pass(ctx, "turn_input_pipeline", InputPipelineError):
            return
        status = await dispatch(
            source=ctx,
            executor=self._executor,
            input_pipeline=self._pipelines["dispatch_input_pipeline"],
            output_pipeline=self._pipelines["dispatch_output_pipeline"],
            buses=_ForwardingBuses(self._dispatch_buses, self._buses),
        )
        if status == "ack" and not ctx.aborted:
            await self._pass(ctx, "turn_output_pipeline", OutputPipelineError)

    async def _pass(self, ctx: TurnContext, name: str, wrapper: type[GatewayError]) -> bool:
        """Run a pipeline; return whether the turn may go on."""
        passage = await run_pipeline(ctx, self._pipelines[name], is_aborted=lambda: ctx.aborted)
        for error in passage.errors:
            ctx.emit(ErrorEvent(wrapper(f"{wrapper.default_message}: {message_of(error)}", cause=error)))
        if passage.is_short_circuited:
            ctx.emit(ErrorEvent(PipelineShortCircuited(name.removesuffix("_pipeline").replace("_", "-"))))
        if passage.aborts:
            ctx.abort(passage.aborts[-1])
        return passage.reached_core and not passage.errors and not passage.aborted


class _ForwardingBuses(EventBuses):
    """The buses of one dispatch, which forward their events to the turn."""

    def __init__(self, own: EventBuses, turn: EventBuses) -> None:
        super().__init__(turn.functional, own.observability)
        self._turn = turn

    def emit(self, event: TurnEvent) -> None:
        super().emit(event)
        if not event.functional and not isinstance(event, _KEPT_ON_DISPATCH_BUS):
            self._turn.emit(event)

    def has_listener(self, kind: type[TurnEvent]) -> bool:
        return super().has_listener(kind) or self._turn.has_listener(kind)


def _check_config(config: Any) -> None:
    if not isinstance(config, Mapping):
        raise InvalidTurnRunnerConfig(f"the configuration must be a mapping, not {type(config).__name__}")
    known = {"executor", "tools", *CALLBACKS, *PIPELINE_NAMES}
    problems = [
        problem(f"{name!r} must be a function", [name], "required" if name not in config else "type")
        for name in ("executor", *CALLBACKS)
        if not callable(config.get(name))
    ]
    problems += [
        problem(f"{name!r} must be a list of functions", [name], "type")
        for name in PIPELINE_NAMES
        if config.get(name) is not None and not is_list_of(config[name], callable)
    ]
    problems += _tool_problems(config.get("tools"))
    problems += [problem(f"{name!r} is not a field", [str(name)], "unknown") for name in config if name not in known]
    if problems:
        fields = ", ".join(str(found["path"][0]) for found in problems)
        raise InvalidTurnRunnerConfig(
            f"the turn runner's configuration is invalid: {fields}", cause=ValidationException(problems)
        )


def _tool_problems(tools: Any) -> Sequence[dict[str, Any]]:
    if tools is None:
        return []
    if not is_list_of(tools, Tool.is_tool):
        return [problem("'tools' must be a list of tools", ["tools"], "type")]
    try:
        ToolRegistry(tools)
    except ToolAlreadyRegistered as error:
        return [problem(error.message, ["tools"], "unique")]
    return []
