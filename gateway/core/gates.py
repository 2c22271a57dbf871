"""TurnGate: a one-shot suspension point with exactly one settlement and four outcomes.

A gate belongs inside the handler that performs a side effect, before the effect. It lives in
memory; whoever makes it durable persists what the open event shows. Nobody settling it
means it waits until its timeout or the turn's abort: there is no default approver.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from gateway.core.abort import AbortSignal
from gateway.core.events import Event, GateResult, TurnGateClosed, TurnGateOpen, now
from gateway.core.registry import copy_containers
from gateway.errors import (
    InvalidInitialTurnGateValue,
    InvalidTurnGateResolution,
    TurnGateAborted,
    TurnGateTimeout,
    ValidationException,
    problem,
)

_FIELDS: Final = frozenset({"id", "reason", "payload", "schema", "timeout", "created_at"})
Coerce = Callable[[Any], Any]


class TurnGate:
    """Made by `open_gate`, settled by `resolve`, `reject`, `abort` or its timer; later attempts do nothing."""

    def __init__(self, raw: Mapping[str, Any], turn_id: str, *, emit: Callable[[Event], None]) -> None:
        _check(raw)
        self.id: str = raw["id"]
        self.turn_id = turn_id
        self.reason: str = raw["reason"]
        self.payload: Any = copy_containers(raw["payload"])
        self.schema: Any = raw.get("schema")
        self.timeout: int | None = raw.get("timeout")
        self.created_at: datetime = raw.get("created_at") or now()
        self._emit = emit
        self._coerce = _coercer(self.schema) or _unchanged
        self._outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._cleanups: list[Callable[[], object]] = []

    @property
    def is_settled(self) -> bool:
        return self._outcome.done()

    def resolve(self, value: Any = None) -> None:
        """Let the awaiter go on with the validated and coerced value.

        A value that fails the schema raises here, in the resolver's call; the gate stays open.
        """
        if self.is_settled:
            return
        try:
            accepted = self._coerce(value)
        except Exception as error:  # whatever a schema raises, the value was not accepted
            raise InvalidTurnGateResolution() from error
        self._settle("resolved", lambda: self._outcome.set_result(accepted))

    def reject(self, error: BaseException) -> None:
        """Raise `error` in the awaiter, as it is."""
        self._fail("rejected", error)

    def abort(self) -> None:
        """Give up this gate only."""
        self._fail("aborted", TurnGateAborted())

    def watch(self, signal: AbortSignal) -> None:
        """Start the timer and follow the turn's abort signal."""
        if self.is_settled:  # a listener of the open event was faster
            return
        if self.timeout is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(self.timeout / 1000, lambda: self._fail("timeout", TurnGateTimeout()))
            self._cleanups.append(timer.cancel)
        self._cleanups.append(signal.on_abort(self.abort))

    async def wait(self) -> Any:
        """The value the gate is resolved with; a cancelled awaiter aborts the gate."""
        try:
            return await asyncio.shield(self._outcome)
        except asyncio.CancelledError:
            self.abort()
            raise

    def _fail(self, result: GateResult, error: BaseException) -> None:
        def settle() -> None:
            self._outcome.set_exception(error)
            self._outcome.exception()  # an awaiter that is gone must not cause a "never retrieved" report

        self._settle(result, settle)

    def _settle(self, result: GateResult, settle: Callable[[], None]) -> None:
        if self.is_settled:
            return
        settle()
        for cleanup in self._cleanups:
            cleanup()
        self._emit(TurnGateClosed(self.id, self.turn_id, result, now()))

    def __repr__(self) -> str:
        return f"TurnGate({self.id!r}, settled={self.is_settled})"


async def open_gate(raw: Mapping[str, Any], turn_id: str, *, signal: AbortSignal, emit: Callable[[Event], None]) -> Any:
    """Open a gate and wait for its settlement. The open event is seen before anybody can settle it."""
    gate = TurnGate(raw, turn_id, emit=emit)
    emit(TurnGateOpen(gate))
    gate.watch(signal)
    return await gate.wait()


def _check(raw: Any) -> None:
    if not isinstance(raw, Mapping):
        raise InvalidInitialTurnGateValue(cause=ValidationException([problem("the gate input is a mapping")]))
    problems = [
        problem(f"{field!r} is a non-empty string", [field])
        for field in ("id", "reason")
        if not isinstance(raw.get(field), str) or not raw[field]
    ]
    if raw.get("payload") is None:
        problems.append(problem("'payload' is required; pass {} if there is nothing to show", ["payload"], "required"))
    timeout = raw.get("timeout")
    if timeout is not None and (type(timeout) is not int or timeout < 1):
        problems.append(problem("'timeout' is a whole number of milliseconds, at least 1", ["timeout"]))
    if not isinstance(raw.get("created_at") or now(), datetime):
        problems.append(problem("'created_at' is a datetime", ["created_at"]))
    if raw.get("schema") is not None and _coercer(raw["schema"]) is None:
        problems.append(problem("'schema' offers coerce(), model_validate() or is a function", ["schema"]))
    problems += [problem(f"{key!r} is not a field of a gate", [key], "unknown") for key in raw.keys() - _FIELDS]
    if problems:
        raise InvalidInitialTurnGateValue(cause=ValidationException(problems))


def _coercer(schema: Any) -> Coerce | None:
    """How to check a resolution: our `Schema`, a pydantic-like model class, or any function; else `None`."""
    for name in ("coerce", "model_validate"):
        method: Coerce | None = getattr(schema, name, None)
        if callable(method):
            return method
    return schema if callable(schema) else None


def _unchanged(value: Any) -> Any:
    return value
