"""The contexts of turns and dispatches, which middleware, executors and handlers receive.

A dispatch works on copies of the turn's stash, tools and record sets. Only records are copied
back to the turn, at the end of each iteration or on ack. Persistence callbacks belong to the
turn and are called at once.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from gateway.errors import (
    GatewayError,
    InvalidInitialRegistryValue,
    InvalidLlmExecutionContext,
    InvalidTurnContext,
    LlmExecutionAlreadySignalled,
    LlmExecutionGateNotSupported,
    ValidationException,
    problem,
)
from gateway.model.primitives.concurrency import AbortController, AbortSignal
from gateway.model.primitives.containers import DottedDict
from gateway.model.primitives.identifiers import new_id, new_secret
from gateway.model.tokenizer import Tokenizable
from gateway.model.tools.tool import Tool
from gateway.model.tools.tool_registry import ToolRegistry
from gateway.model.turns.conversation_records import Callback, Delta, TurnRecords, TurnRecordSets
from gateway.model.turns.events import EventBuses, TurnEvent, WarningEvent, now
from gateway.model.turns.turn_gate import open_gate

TextInput = str | Tokenizable
QueryGuard = Callable[[str, Mapping[str, Any]], Awaitable[None]]
"""Called with the name of a query tool and its arguments."""

_RAW_FIELDS: Final = frozenset({"turn_abort_controller", "stash", "system_prompt", "standing_instructions"})


class CallContext(TurnRecords):
    """The common part of turn and dispatch: records, stash, tools, abort, events and gates."""

    iteration: int | None = None
    """The current iteration of a dispatch, from 0; `None` for a turn."""
    forged: Sequence[Tool] = ()
    """The query tools that were created for the current iteration."""

    def __init__(
        self,
        *,
        turn_id: str,
        dispatch_id: str,
        system_prompt: TextInput,
        standing_instructions: Iterable[TextInput],
        stash: DottedDict,
        tools: ToolRegistry,
        records: TurnRecordSets,
        callbacks: Mapping[str, Callback],
        buses: EventBuses,
        secret: bytes,
        gates: bool = True,
        abort_controller: AbortController | None = None,
        parent: "CallContext | None" = None,
    ) -> None:
        super().__init__(records, callbacks)
        self.id = turn_id
        self.turn_id = turn_id
        self.dispatch_id = dispatch_id
        self.system_prompt = system_prompt
        self.standing_instructions = list(standing_instructions)
        self.stash = stash
        self.tools = tools
        self._controller = abort_controller
        self._parent = parent
        self._buses = buses
        self.has_listener: Callable[[type[TurnEvent]], bool] = buses.has_listener
        """Whether a listener receives events of that type."""
        self._gates = gates
        self.turn_secret = secret
        self.query_guard: QueryGuard | None = None if parent is None else parent.query_guard
        """Called by every query tool before it looks for an artifact; raises unless the query is allowed."""

    @property
    def abort_signal(self) -> AbortSignal:
        return self._abort_controller.signal

    @property
    def aborted(self) -> bool:
        if self._controller is not None:
            return self._controller.signal.aborted
        return self._parent is not None and self._parent.aborted

    def abort(self, reason: Any = None) -> None:
        """Abort on purpose. The current middleware or handler finishes; later ones are skipped."""
        self._abort_controller.abort(reason)

    @property
    def _abort_controller(self) -> AbortController:
        """Created on the first abort or `abort_signal`: most contexts need none."""
        if self._controller is None:
            self._controller = AbortController(None if self._parent is None else self._parent.abort_signal)
        return self._controller

    def emit(self, event: TurnEvent) -> None:
        self._buses.emit(event)

    def emit_warning(self, kind: str, message: str, error: BaseException | None = None) -> None:
        dispatch_id = self.dispatch_id or None
        self.emit(
            WarningEvent(now(), "context", kind, message, error, dispatch_id=dispatch_id, iteration=self.iteration)
        )

    async def wait_for(self, raw: Mapping[str, Any]) -> Any:
        """Open a gate and wait until it is settled; return the resolved value or raise."""
        if not self._gates:
            raise LlmExecutionGateNotSupported()
        return await open_gate(raw, self.turn_id, signal=self.abort_signal, emit=self.emit)


class TurnContext(CallContext):
    """The context of one `run()`. Its record sets start empty: nothing is loaded automatically."""

    def __init__(
        self, raw: Any, *, tools: ToolRegistry, callbacks: Mapping[str, Callback], buses: EventBuses, gates: bool = True
    ) -> None:
        _check_raw(raw)
        super().__init__(
            turn_id=new_id(),
            dispatch_id="",
            system_prompt=raw["system_prompt"],
            standing_instructions=raw.get("standing_instructions") or (),
            stash=DottedDict(raw.get("stash") or None),
            tools=tools,
            records=TurnRecordSets(),
            callbacks=callbacks,
            buses=buses,
            secret=new_secret(),
            gates=gates,
            abort_controller=raw.get("turn_abort_controller"),
        )

    @classmethod
    def from_fields(
        cls,
        id: str,
        *,
        secret: bytes,
        system_prompt: TextInput,
        stash: DottedDict,
        tools: ToolRegistry,
        callbacks: Mapping[str, Callback],
        buses: EventBuses,
        records: TurnRecordSets,
    ) -> "TurnContext":
        """Return the context of a turn that already has an id, from values that the caller has checked."""
        turn = cls.__new__(cls)
        CallContext.__init__(
            turn,
            turn_id=id,
            dispatch_id="",
            system_prompt=system_prompt,
            standing_instructions=(),
            stash=stash,
            tools=tools,
            records=records,
            callbacks=callbacks,
            buses=buses,
            secret=secret,
        )
        return turn


class DispatchContext(CallContext):
    """The context of one dispatch: copies of the turn's state, and its ack or nack."""

    iteration: int

    def __init__(self, turn: CallContext, *, buses: EventBuses) -> None:
        if not isinstance(turn, CallContext):
            raise InvalidLlmExecutionContext(f"a dispatch must start from a turn context, not {type(turn).__name__}")
        super().__init__(
            turn_id=turn.turn_id,
            dispatch_id=new_id(),
            system_prompt=turn.system_prompt,
            standing_instructions=turn.standing_instructions,
            stash=turn.stash.copy(),
            tools=turn.tools.copy(),
            records=turn._records.copy(),
            callbacks=turn._callbacks,
            buses=buses,
            secret=turn.turn_secret,
            gates=turn._gates,
            parent=turn,
        )
        self.iteration = 0
        self.forged = turn.forged
        self.prunes_on_ack = False
        """Whether ephemeral tools are removed on ack, before any ack handler runs."""
        self.is_acked = False
        self.nack_error: Exception | None = None
        self._turn = turn
        self._pending: list[Delta] = []
        self._ack_handlers: dict[object, Callable[[], object]] = {}

    @property
    def dispatch(self) -> "DispatchContext":
        """The context itself; a lazy placeholder for a dispatch creates the real one here."""
        return self

    @property
    def is_signalled(self) -> bool:
        return self.is_acked or self.nack_error is not None

    def ack(self) -> None:
        """End the dispatch successfully once the current step is over."""
        self._refuse_second_signal()
        self.is_acked = True
        self.flush()
        for handler in self._all_ack_handlers():
            try:
                handler()
            except Exception as error:  # the other handlers still run
                self.emit_warning("ack-handler-failed", "an ack handler raised", error)

    def _all_ack_handlers(self) -> list[Callable[[], object]]:
        # The current registry: middleware may have replaced it.
        first = [self.tools.prune_ephemeral] if self.prunes_on_ack else []
        return [*first, *self._ack_handlers.values()]

    def nack(self, error: Exception | None = None) -> None:
        """End the dispatch as failed once the current step is over."""
        self._refuse_second_signal()
        if error is not None and not isinstance(error, Exception):
            raise TypeError(f"a dispatch must be nacked with an exception, not {type(error).__name__}")
        self.nack_error = GatewayError("the dispatch was nacked") if error is None else error

    def on_ack(self, handler: Callable[[], object]) -> Callable[[], None]:
        """Run `handler` on ack, never on nack; return an unsubscribe function.

        Handlers are synchronous and run in the order of registration. An exception of one becomes a
        warning, and the others still run.
        """
        if not callable(handler) or inspect.iscoroutinefunction(handler):
            raise TypeError("an ack handler must be a synchronous function without arguments")
        key = object()
        self._ack_handlers[key] = handler

        def unsubscribe() -> None:
            self._ack_handlers.pop(key, None)

        return unsubscribe

    def flush(self) -> None:
        """Copy the records of this iteration to the turn."""
        pending, self._pending = self._pending, []
        for delta in pending:
            self._turn._change(delta)

    def release(self) -> None:
        """Unsubscribe from the turn's abort signal, which may outlive many dispatches."""
        if self._controller is not None:
            self._controller.release()

    def _change(self, delta: Delta) -> None:
        super()._change(delta)
        self._pending.append(delta)

    def _refuse_second_signal(self) -> None:
        if self.is_signalled:
            raise LlmExecutionAlreadySignalled()


def _check_raw(raw: Any) -> None:
    if not isinstance(raw, Mapping):
        raise InvalidTurnContext(f"run() needs a mapping, not {type(raw).__name__}")
    problems = [
        *(problem(f"{key!r} is not a field of run()", [key], "unknown") for key in raw if key not in _RAW_FIELDS),
        *_prompt_problems(raw.get("system_prompt")),
        *_instruction_problems(raw.get("standing_instructions")),
        *_stash_problems(raw.get("stash")),
        *_controller_problems(raw.get("turn_abort_controller")),
    ]
    if problems:
        joined = " and ".join(found["message"] for found in problems)
        raise InvalidTurnContext(joined, cause=ValidationException(problems))


def _prompt_problems(prompt: Any) -> list[dict[str, Any]]:
    return [] if _is_text(prompt) else [problem("'system_prompt' must be a non-empty text", ["system_prompt"])]


def _instruction_problems(instructions: Any) -> list[dict[str, Any]]:
    if instructions is None or (isinstance(instructions, list | tuple) and all(map(_is_text, instructions))):
        return []
    return [problem("'standing_instructions' must be a list of non-empty texts", ["standing_instructions"])]


def _stash_problems(stash: Any) -> list[dict[str, Any]]:
    try:
        DottedDict(stash)
    except InvalidInitialRegistryValue as error:
        return [problem(f"'stash' is invalid: {error.message}", ["stash"])]
    return []


def _controller_problems(controller: Any) -> list[dict[str, Any]]:
    if controller is None or isinstance(controller, AbortController):
        return []
    return [problem("'turn_abort_controller' must be an AbortController", ["turn_abort_controller"])]


def _is_text(value: Any) -> bool:
    if isinstance(value, Tokenizable):
        return value.is_dynamic or bool(value.render())
    return isinstance(value, str) and bool(value)
