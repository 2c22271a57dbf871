"""TurnRunner: one turn is an input pipeline, a dispatch and an output pipeline, all seen through events.

`run()` always returns normally, whatever fails inside; only bad input to `run` itself and
cancellation leave it as exceptions. The configured tools are an immutable baseline: every run
gets a registry of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.core.callbacks import CALLBACKS, Callback
from gateway.core.context import TurnContext
from gateway.core.dispatch import Executor, dispatch, executor_error, is_list_of
from gateway.core.events import Buses, ErrorEvent, Event, GenerationStats, TurnEnd, TurnStart, milliseconds, now
from gateway.core.pipeline import Middleware, run_pipeline
from gateway.core.tool_registry import ToolRegistry
from gateway.core.tools import Tool
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

PIPELINES: Final = (
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
        self._pipelines: dict[str, tuple[Middleware, ...]] = {name: tuple(config.get(name) or ()) for name in PIPELINES}
        self._buses = Buses()
        self._dispatch_buses = Buses()
        self.functional = self._buses.functional
        self.observability = self._buses.observability
        self.dispatch_observability = self._dispatch_buses.observability

    async def run(self, raw: Mapping[str, Any]) -> None:
        """Run one turn; everything leaves through events. Raises `InvalidTurnContext` for bad input only."""
        ctx = TurnContext(raw, tools=ToolRegistry(self._tools), callbacks=self._callbacks, buses=self._buses)
        started_at = now()
        ctx.emit(TurnStart(ctx.turn_id, started_at))
        try:
            await self._run(ctx)
        except Exception as error:
            ctx.emit(ErrorEvent(executor_error(error)))
        finally:
            ended_at = now()
            ctx.emit(TurnEnd(ctx.turn_id, started_at, ended_at, milliseconds(started_at, ended_at)))

    async def _run(self, ctx: TurnContext) -> None:
        if not await self._pass(ctx, "turn_input_pipeline", InputPipelineError):
            return
        status = await dispatch(
            source=ctx,
            executor=self._executor,
            input_pipeline=self._pipelines["dispatch_input_pipeline"],
            output_pipeline=self._pipelines["dispatch_output_pipeline"],
            buses=_Forwarding(self._dispatch_buses, self._buses),
        )
        if status == "ack" and not ctx.aborted:
            await self._pass(ctx, "turn_output_pipeline", OutputPipelineError)

    async def _pass(self, ctx: TurnContext, name: str, wrapper: type[GatewayError]) -> bool:
        """Whether the turn may go on after this pipeline."""
        passage = await run_pipeline(ctx, self._pipelines[name], is_aborted=lambda: ctx.aborted)
        for error in passage.errors:
            ctx.emit(ErrorEvent(wrapper(f"{wrapper.default_message}: {message_of(error)}", cause=error)))
        if passage.short_circuited:
            ctx.emit(ErrorEvent(PipelineShortCircuited(name.removesuffix("_pipeline").replace("_", "-"))))
        if passage.aborts:
            ctx.abort(passage.aborts[-1])
        return passage.reached_core and not passage.errors and not passage.aborted


class _Forwarding(Buses):
    """The buses of one dispatch: what they carry also reaches the turn."""

    def __init__(self, own: Buses, turn: Buses) -> None:
        super().__init__(turn.functional, own.observability)
        self._turn = turn

    def emit(self, event: Event) -> None:
        super().emit(event)
        if not event.functional and not isinstance(event, _KEPT_ON_DISPATCH_BUS):
            self._turn.emit(event)

    def hears(self, kind: type[Event]) -> bool:
        return super().hears(kind) or self._turn.hears(kind)


def _check_config(config: Any) -> None:
    if not isinstance(config, Mapping):
        raise InvalidTurnRunnerConfig(f"the configuration is a mapping, not {type(config).__name__}")
    known = {"executor", "tools", *CALLBACKS, *PIPELINES}
    problems = [
        problem(f"{name!r} is a function", [name], "required" if name not in config else "type")
        for name in ("executor", *CALLBACKS)
        if not callable(config.get(name))
    ]
    problems += [
        problem(f"{name!r} is a list of functions", [name], "type")
        for name in PIPELINES
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
        return [problem("'tools' is a list of tools", ["tools"], "type")]
    try:
        ToolRegistry(tools)
    except ToolAlreadyRegistered as error:
        return [problem(error.message, ["tools"], "unique")]
    return []
