"""Turn and dispatch contexts: what middleware, executors and handlers work on.

A dispatch works on copies: its stash, tools and record sets start from the turn's, and only
records flow back, at the end of each iteration or on ack. Persistence callbacks are called at
once; they belong to the turn.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from secrets import token_bytes
from typing import Any, Final
from uuid import uuid4

from gateway.core.abort import AbortController, AbortSignal
from gateway.core.callbacks import Callback, call
from gateway.core.calls import ToolCall
from gateway.core.events import Buses, Event, WarningEvent, now
from gateway.core.gates import open_gate
from gateway.core.media import MediaReader
from gateway.core.records import RECORD_KINDS, RecordKind, RecordSet
from gateway.core.registry import Registry
from gateway.core.spool import SpoolReader
from gateway.core.tokens import Tokenizable
from gateway.core.tool_registry import ToolRegistry
from gateway.errors import (
    GatewayError,
    InvalidInitialToolCallValue,
    InvalidLlmExecutionContext,
    InvalidTurnContext,
    LlmExecutionAlreadySignalled,
    LlmExecutionGateNotSupported,
    ValidationException,
    problem,
)

Text = str | Tokenizable
Delta = Callable[[Mapping[RecordKind, RecordSet]], None]

_RAW_FIELDS: Final = frozenset({"turn_abort_controller", "stash", "system_prompt", "standing_instructions"})


class Context:
    """What turn and dispatch have in common: records, stash, tools, abort, events and gates."""

    def __init__(
        self,
        *,
        turn_id: str,
        dispatch_id: str,
        system_prompt: Text,
        standing_instructions: Iterable[Text],
        stash: dict[str, Any],
        tools: ToolRegistry,
        records: Mapping[RecordKind, RecordSet],
        callbacks: Mapping[str, Callback],
        abort_controller: AbortController,
        buses: Buses,
        secret: bytes,
        gates: bool = True,
    ) -> None:
        self.id = turn_id
        self.turn_id = turn_id
        self.dispatch_id = dispatch_id
        self.system_prompt = system_prompt
        self.standing_instructions = list(standing_instructions)
        self.stash = Registry(stash)
        self.tools = tools
        self._records = dict(records)
        self._callbacks = callbacks
        self._abort_controller = abort_controller
        self._buses = buses
        self._gates = gates
        self.turn_secret = secret

    @property
    def turn_messages(self) -> list[Any]:
        return list(self._records["message"])

    @property
    def turn_memories(self) -> list[Any]:
        return list(self._records["memory"])

    @property
    def turn_retrievables(self) -> list[Any]:
        return list(self._records["retrievable"])

    @property
    def turn_thoughts(self) -> list[Any]:
        return list(self._records["thought"])

    @property
    def turn_tool_calls(self) -> list[ToolCall]:
        return list(self._records["tool_call"])

    @property
    def abort_signal(self) -> AbortSignal:
        return self._abort_controller.signal

    @property
    def aborted(self) -> bool:
        return self._abort_controller.signal.aborted

    def abort(self, reason: Any = None) -> None:
        """Give up on purpose. The current middleware or handler finishes; later ones are skipped."""
        self._abort_controller.abort(reason)

    def emit(self, event: Event) -> None:
        self._buses.emit(event)

    def emit_warning(self, kind: str, message: str, error: BaseException | None = None) -> None:
        self.emit(WarningEvent(now(), "context", kind, message, error, dispatch_id=self.dispatch_id or None))

    async def wait_for(self, raw: Mapping[str, Any]) -> Any:
        """Open a gate and wait until it is settled; answers the resolved value or raises."""
        if not self._gates:
            raise LlmExecutionGateNotSupported()
        return await open_gate(raw, self.turn_id, signal=self.abort_signal, emit=self.emit)

    async def fetch_tools(self) -> list[Any]:
        """Tools from the dynamic source. Never called by itself: middleware registers the answer."""
        return list(await call(self._callbacks["fetch_tools"], self))

    async def store_media_bytes(self, id: str, content: bytes) -> MediaReader:
        """Persist bytes and get a reader for them; adds nothing to the turn."""
        reader: MediaReader = await call(self._callbacks["store_media_bytes"], self, id, content)
        return reader

    async def store_retrievable_bytes(self, id: str, content: bytes) -> SpoolReader:
        """Persist bytes and get a reader for them; adds nothing to the turn."""
        reader: SpoolReader = await call(self._callbacks["store_retrievable_bytes"], self, id, content)
        return reader

    async def store_message(self, record: Any) -> None:
        await self._store("message", record)

    async def mutate_message(self, record: Any) -> None:
        await self._mutate("message", record)

    async def delete_message(self, id: str) -> None:
        await self._delete("message", id)

    async def store_memory(self, record: Any) -> None:
        await self._store("memory", record)

    async def mutate_memory(self, record: Any) -> None:
        await self._mutate("memory", record)

    async def delete_memory(self, id: str) -> None:
        await self._delete("memory", id)

    async def store_retrievable(self, record: Any) -> None:
        await self._store("retrievable", record)

    async def mutate_retrievable(self, record: Any) -> None:
        await self._mutate("retrievable", record)

    async def delete_retrievable(self, id: str) -> None:
        await self._delete("retrievable", id)

    async def store_thought(self, record: Any) -> None:
        await self._store("thought", record)

    async def mutate_thought(self, record: Any) -> None:
        await self._mutate("thought", record)

    async def delete_thought(self, id: str) -> None:
        await self._delete("thought", id)

    async def store_tool_call(self, record: ToolCall) -> None:
        """Keep a settled record. An id already used in this turn is refused: it names another artifact."""
        if self._records["tool_call"].find(record.id) is not None:
            found = problem(f"the id {record.id!r} is already used in this turn", ["id"], "unique")
            raise InvalidInitialToolCallValue(cause=ValidationException([found]))
        await self._store("tool_call", record)

    async def mutate_tool_call(self, record: ToolCall) -> None:
        await self._mutate("tool_call", record)

    async def delete_tool_call(self, id: str) -> None:
        await self._delete("tool_call", id)

    async def _store(self, kind: RecordKind, record: Any) -> None:
        await call(self._callbacks[f"store_{kind}"], self, record)
        self._change(lambda records: records[kind].add(record))

    async def _mutate(self, kind: RecordKind, record: Any) -> None:
        await call(self._callbacks[f"mutate_{kind}"], self, record)
        self._change(lambda records: records[kind].replace(record))

    async def _delete(self, kind: RecordKind, id: str) -> None:
        await call(self._callbacks[f"delete_{kind}"], self, id)
        self._change(lambda records: records[kind].remove(id))

    def _change(self, delta: Delta) -> None:
        delta(self._records)


class TurnContext(Context):
    """The context of one `run()`. Its record sets start empty: nothing is loaded by itself."""

    def __init__(
        self, raw: Any, *, tools: ToolRegistry, callbacks: Mapping[str, Callback], buses: Buses, gates: bool = True
    ) -> None:
        _check_raw(raw)
        super().__init__(
            turn_id=str(uuid4()),
            dispatch_id="",
            system_prompt=raw["system_prompt"],
            standing_instructions=raw.get("standing_instructions", ()),
            stash=raw.get("stash") or {},
            tools=tools,
            records={kind: RecordSet() for kind in RECORD_KINDS},
            callbacks=callbacks,
            abort_controller=raw.get("turn_abort_controller") or AbortController(),
            buses=buses,
            secret=token_bytes(32),
            gates=gates,
        )


class DispatchContext(Context):
    """The context of one dispatch: copies of the turn's state, and the ack / nack signal."""

    def __init__(self, turn: Context, *, buses: Buses) -> None:
        if not isinstance(turn, Context):
            raise InvalidLlmExecutionContext(f"a dispatch starts from a turn context, not {type(turn).__name__}")
        super().__init__(
            turn_id=turn.turn_id,
            dispatch_id=str(uuid4()),
            system_prompt=turn.system_prompt,
            standing_instructions=turn.standing_instructions,
            stash=turn.stash.all(),
            tools=turn.tools.copy(),
            records={kind: RecordSet(records) for kind, records in turn._records.items()},
            callbacks=turn._callbacks,
            abort_controller=AbortController(turn.abort_signal),
            buses=buses,
            secret=turn.turn_secret,
            gates=turn._gates,
        )
        self.iteration = 0
        self.is_acked = False
        self.nack_error: Exception | None = None
        self._turn = turn
        self._pending: list[Delta] = []
        self._ack_handlers: dict[object, Callable[[], object]] = {}
        self._counts = Counter(record.checksum for record in self.turn_tool_calls)

    @property
    def is_signalled(self) -> bool:
        return self.is_acked or self.nack_error is not None

    def ack(self) -> None:
        """End the dispatch successfully once the current step is over."""
        self._refuse_second_signal()
        self.is_acked = True
        self.flush()
        for handler in list(self._ack_handlers.values()):
            try:
                handler()
            except Exception as error:  # one handler must not keep the others from running
                self.emit_warning("ack-handler-failed", "an ack handler raised", error)

    def nack(self, error: Exception | None = None) -> None:
        """End the dispatch as failed once the current step is over."""
        self._refuse_second_signal()
        self.nack_error = GatewayError("the dispatch was nacked") if error is None else error

    def on_ack(self, handler: Callable[[], object]) -> Callable[[], None]:
        """Run `handler` synchronously on ack, never on nack; returns an unsubscribe function."""
        key = object()
        self._ack_handlers[key] = handler

        def unsubscribe() -> None:
            self._ack_handlers.pop(key, None)

        return unsubscribe

    def tool_call_count(self, checksum: str) -> int:
        """How many stored calls of this execution have that checksum."""
        return self._counts[checksum]

    async def store_tool_call(self, record: ToolCall) -> None:
        await super().store_tool_call(record)
        self._counts[record.checksum] += 1

    async def mutate_tool_call(self, record: ToolCall) -> None:
        before = self._records["tool_call"].find(record.id)
        await super().mutate_tool_call(record)
        self._recount(before, record)

    async def delete_tool_call(self, id: str) -> None:
        before = self._records["tool_call"].find(id)
        await super().delete_tool_call(id)
        self._recount(before, None)

    def flush(self) -> None:
        """Let the records of this iteration reach the turn."""
        pending, self._pending = self._pending, []
        for delta in pending:
            delta(self._turn._records)

    def release(self) -> None:
        self._abort_controller.release()

    def _change(self, delta: Delta) -> None:
        delta(self._records)
        self._pending.append(delta)

    def _recount(self, before: ToolCall | None, after: ToolCall | None) -> None:
        if before is not None:
            self._counts[before.checksum] -= 1
        if after is not None:
            self._counts[after.checksum] += 1

    def _refuse_second_signal(self) -> None:
        if self.is_signalled:
            raise LlmExecutionAlreadySignalled()


def _check_raw(raw: Any) -> None:
    if not isinstance(raw, Mapping):
        raise InvalidTurnContext(f"run() takes a mapping, not {type(raw).__name__}")
    problems = [problem(f"{key!r} is not a field of run()", [key], "unknown") for key in raw.keys() - _RAW_FIELDS]
    if not _is_text(raw.get("system_prompt")):
        problems.append(problem("'system_prompt' is a non-empty text", ["system_prompt"]))
    instructions = raw.get("standing_instructions", ())
    if not isinstance(instructions, list | tuple) or not all(_is_text(text) for text in instructions):
        problems.append(problem("'standing_instructions' is a list of non-empty texts", ["standing_instructions"]))
    stash = raw.get("stash")
    if stash is not None and (not isinstance(stash, dict) or not all(isinstance(key, str) for key in stash)):
        problems.append(problem("'stash' is a dict with string keys", ["stash"]))
    if not isinstance(raw.get("turn_abort_controller") or AbortController(), AbortController):
        problems.append(problem("'turn_abort_controller' is an AbortController", ["turn_abort_controller"]))
    if problems:
        joined = " and ".join(found["message"] for found in problems)
        raise InvalidTurnContext(joined, cause=ValidationException(problems))


def _is_text(value: Any) -> bool:
    if isinstance(value, Tokenizable):
        return value.is_dynamic or bool(value.render())
    return isinstance(value, str) and bool(value)
