"""TurnGate: a one-shot suspension point with exactly one settlement and four outcomes.

A gate belongs inside the handler that performs a side effect, before the effect. It lives in
memory; whoever makes it durable persists what the open event shows. Nobody settling it
means it waits until its timeout or the turn's abort: there is no default approver.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from gateway.core.abort import AbortSignal
from gateway.core.deadlines import current_deadline
from gateway.core.events import Event, GateResult, TurnGateClosed, TurnGateOpen, now
from gateway.core.immutable import Immutable
from gateway.core.registry import copy_containers
from gateway.errors import (
    InvalidInitialTurnGateValue,
    InvalidTurnGateResolution,
    TurnGateAborted,
    TurnGateTimeout,
    ValidationException,
    problem,
)

MAX_TIMEOUT_MS: Final = 10 * 365 * 24 * 60 * 60 * 1000
"""Ten years. What is longer is a mistake, and far beyond it a timer cannot be set at all."""

_FIELDS: Final = frozenset({"id", "reason", "payload", "schema", "timeout", "created_at"})
Coerce = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Settlement:
    result: GateResult
    at: datetime
    value: Any = None
    error: BaseException | None = None


class TurnGate(Immutable):
    """Made by `open_gate`, settled by `resolve`, `reject`, `abort` or its timer; later attempts do nothing.

    Settle it on the event loop it was opened on. `timeout` is in milliseconds.
    """

    __slots__ = (
        "_announced",
        "_cleanups",
        "_coerce",
        "_emit",
        "_payload",
        "_settlement",
        "created_at",
        "id",
        "reason",
        "schema",
        "timeout",
        "turn_id",
    )

    id: str
    turn_id: str
    reason: str
    schema: Any
    timeout: int | None
    created_at: datetime
    _payload: Any
    _emit: Callable[[Event], None]
    _coerce: Coerce
    _settlement: asyncio.Future[_Settlement]
    _cleanups: list[Callable[[], object]]
    _announced: bool

    def __init__(self, raw: Mapping[str, Any], turn_id: str, *, emit: Callable[[Event], None]) -> None:
        _check(raw)
        created_at = raw.get("created_at") or now()
        self._decide(
            id=raw["id"],
            turn_id=turn_id,
            reason=raw["reason"],
            schema=raw.get("schema"),
            timeout=raw.get("timeout"),
            created_at=created_at if created_at.tzinfo else created_at.replace(tzinfo=UTC),
            _payload=copy_containers(raw["payload"]),
            _emit=emit,
            _coerce=_coercer(raw.get("schema")) or _unchanged,
            _settlement=asyncio.get_running_loop().create_future(),
            _cleanups=[],
            _announced=False,
        )

    @property
    def payload(self) -> Any:
        """A copy: what one listener does to it, the next one does not see."""
        return copy_containers(self._payload)

    @property
    def is_settled(self) -> bool:
        return self._settlement.done()

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
        if self.schema is not None and inspect.isawaitable(accepted):
            _discard(accepted)
            raise InvalidTurnGateResolution("the gate's schema answers later; a gate is resolved at once")
        self._settle(_Settlement("resolved", now(), accepted))

    def reject(self, error: BaseException) -> None:
        """Raise `error` in the awaiter, as it is."""
        if not self.is_settled and not isinstance(error, BaseException):
            raise TypeError(f"a gate is rejected with an exception, not {type(error).__name__}")
        self._settle(_Settlement("rejected", now(), error=error))

    def abort(self) -> None:
        """Give up this gate only."""
        self._settle(_Settlement("aborted", now(), error=TurnGateAborted()))

    def open(self, signal: AbortSignal) -> None:
        """Announce the gate, then start its timer and follow the turn's abort signal."""
        self._emit(TurnGateOpen(self))
        self._decide(_announced=True)
        if self.is_settled:  # by a listener of the open event; the others hear of the end only now
            self._announce_end()
        else:
            self._watch(signal)

    async def wait(self) -> Any:
        """The value the gate is resolved with; a cancelled awaiter aborts the gate."""
        try:
            settlement = await asyncio.shield(self._settlement)
        except asyncio.CancelledError:
            self.abort()
            raise
        if settlement.error is not None:
            raise settlement.error
        return settlement.value

    async def wait_until_settled(self) -> None:
        """Wait for the end of the gate, whatever it is; a cancelled observer leaves it open."""
        await asyncio.wait([self._settlement])

    def describe(self) -> dict[str, Any]:
        """The gate as data; `schema` only where the schema can describe itself."""
        described = {
            "gate_id": self.id,
            "turn_id": self.turn_id,
            "reason": self.reason,
            "payload": self.payload,
            "created_at": self.created_at,
        }
        schema = _described(self.schema)
        return described if schema is None else {**described, "schema": schema}

    def _watch(self, signal: AbortSignal) -> None:
        if self.timeout is not None:
            loop = asyncio.get_running_loop()
            self._cleanups.append(loop.call_later(self.timeout / 1000, self._time_out).cancel)
        self._cleanups.append(signal.on_abort(self.abort))

    def _time_out(self) -> None:
        self._settle(_Settlement("timeout", now(), error=TurnGateTimeout()))

    def _settle(self, settlement: _Settlement) -> None:
        if self.is_settled:
            return
        self._settlement.set_result(settlement)
        for cleanup in self._cleanups:
            cleanup()
        if self._announced:
            self._announce_end()

    def _announce_end(self) -> None:
        settlement = self._settlement.result()
        self._emit(TurnGateClosed(self.id, self.turn_id, settlement.result, settlement.at))

    def __repr__(self) -> str:
        return f"TurnGate({self.id!r}, settled={self.is_settled})"


async def open_gate(raw: Mapping[str, Any], turn_id: str, *, signal: AbortSignal, emit: Callable[[Event], None]) -> Any:
    """Open a gate and wait for its settlement. The open event is seen before anybody can settle it.

    The time that the call has stands still until then.
    """
    gate = TurnGate(raw, turn_id, emit=emit)
    gate.open(signal)
    deadline = current_deadline()
    with nullcontext() if deadline is None else deadline.paused():
        return await gate.wait()


def _check(raw: Any) -> None:
    if not isinstance(raw, Mapping):
        raise InvalidInitialTurnGateValue(cause=ValidationException([problem("the gate input is a mapping")]))
    problems = [
        *_text_problems("id", raw.get("id")),
        *_text_problems("reason", raw.get("reason")),
        *_payload_problems(raw.get("payload")),
        *_timeout_problems(raw.get("timeout")),
        *_moment_problems(raw.get("created_at")),
        *_schema_problems(raw.get("schema")),
        *(problem(f"{key!r} is not a field of a gate", [key], "unknown") for key in raw if key not in _FIELDS),
    ]
    if problems:
        raise InvalidInitialTurnGateValue(cause=ValidationException(problems))


def _text_problems(field: str, value: Any) -> list[dict[str, Any]]:
    return [] if isinstance(value, str) and value else [problem(f"{field!r} is a non-empty string", [field])]


def _payload_problems(payload: Any) -> list[dict[str, Any]]:
    """Any value but `None` is a payload, also a falsy one."""
    if payload is None:
        return [problem("'payload' is required; pass {} if there is nothing to show", ["payload"], "required")]
    try:
        copy_containers(payload)
    except ValueError as error:
        return [problem(f"'payload' cannot be shown: {error}", ["payload"])]
    return []


def _timeout_problems(timeout: Any) -> list[dict[str, Any]]:
    if timeout is None or (type(timeout) is int and 1 <= timeout <= MAX_TIMEOUT_MS):
        return []
    return [problem(f"'timeout' is a whole number of milliseconds from 1 to {MAX_TIMEOUT_MS}", ["timeout"])]


def _moment_problems(moment: Any) -> list[dict[str, Any]]:
    if moment is None or isinstance(moment, datetime):
        return []
    return [problem("'created_at' is a datetime", ["created_at"])]


def _schema_problems(schema: Any) -> list[dict[str, Any]]:
    if schema is None:
        return []
    coercer = _coercer(schema)
    if coercer is None:
        return [problem("'schema' offers coerce(), model_validate() or is a function", ["schema"])]
    if inspect.iscoroutinefunction(coercer):
        return [problem("'schema' is async, but a gate is resolved at once", ["schema"])]
    return []


def _coercer(schema: Any) -> Coerce | None:
    """How to check a resolution: our `Schema`, a pydantic-like model class, or any function; else `None`."""
    for name in ("coerce", "model_validate"):
        method: Coerce | None = getattr(schema, name, None)
        if callable(method):
            return method
    return schema if callable(schema) else None


def _described(schema: Any) -> Any:
    for name in ("describe", "model_json_schema"):
        method = getattr(schema, name, None)
        if callable(method):
            return method()
    return None


def _discard(awaitable: Any) -> None:
    if inspect.iscoroutine(awaitable):
        awaitable.close()


def _unchanged(value: Any) -> Any:
    return value
