"""TurnGate: a one-shot suspension point that is settled exactly once, with one of four results.

A handler opens a gate right before it performs a side effect. A gate lives in memory; to make
it durable, persist the data of the open event. There is no default approver: a gate that is not
settled waits until its timeout or the turn's abort.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from gateway.errors import (
    InvalidInitialTurnGateValue,
    InvalidTurnGateResolution,
    TurnGateAborted,
    TurnGateTimeout,
    ValidationException,
    problem,
)
from gateway.model.primitives.concurrency import AbortSignal
from gateway.model.primitives.containers import Immutable, deep_copy_containers
from gateway.model.primitives.deadline import current_deadline
from gateway.model.turns.events import GateResult, TurnEvent, TurnGateClosed, TurnGateOpen, now

MAX_TIMEOUT_MS: Final = 10 * 365 * 24 * 60 * 60 * 1000
"""Ten years. A longer timeout is a mistake, and a far longer one overflows the timer."""

_FIELDS: Final = frozenset({"id", "reason", "payload", "schema", "timeout", "created_at"})
ResolutionCoercion = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Settlement:
    result: GateResult
    at: datetime
    value: Any = None
    error: BaseException | None = None


class TurnGate(Immutable):
    """A gate, settled by `resolve`, `reject`, `abort` or its timer; later attempts have no effect.

    Use `open_gate` to create one, and settle it on the same event loop. `timeout` is in milliseconds.
    """

    __slots__ = (
        "_cleanups",
        "_coerce",
        "_emit",
        "_is_announced",
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
    _emit: Callable[[TurnEvent], None]
    _coerce: ResolutionCoercion
    _settlement: asyncio.Future[_Settlement]
    _cleanups: list[Callable[[], object]]
    _is_announced: bool

    def __init__(self, raw: Mapping[str, Any], turn_id: str, *, emit: Callable[[TurnEvent], None]) -> None:
        _check(raw)
        created_at = raw.get("created_at") or now()
        self._decide(
            id=raw["id"],
            turn_id=turn_id,
            reason=raw["reason"],
            schema=raw.get("schema"),
            timeout=raw.get("timeout"),
            created_at=created_at if created_at.tzinfo else created_at.replace(tzinfo=UTC),
            _payload=deep_copy_containers(raw["payload"]),
            _emit=emit,
            _coerce=_coercer(raw.get("schema")) or _identity,
            _settlement=asyncio.get_running_loop().create_future(),
            _cleanups=[],
            _is_announced=False,
        )

    @property
    def payload(self) -> Any:
        """A copy, so that the changes of one listener are invisible to the next."""
        return deep_copy_containers(self._payload)

    @property
    def is_settled(self) -> bool:
        return self._settlement.done()

    def resolve(self, value: Any = None) -> None:
        """Return the validated and coerced value to the awaiter.

        Raises `InvalidTurnGateResolution` if the value violates the schema; the gate stays open.
        """
        if self.is_settled:
            return
        try:
            accepted = self._coerce(value)
        except Exception as error:  # any exception of the schema means that it refuses the value
            raise InvalidTurnGateResolution() from error
        if self.schema is not None and inspect.isawaitable(accepted):
            _discard(accepted)
            raise InvalidTurnGateResolution("the gate's schema is async, but a gate is resolved at once")
        self._settle(_Settlement("resolved", now(), accepted))

    def reject(self, error: BaseException) -> None:
        """Raise `error`, unchanged, in the awaiter."""
        if not self.is_settled and not isinstance(error, BaseException):
            raise TypeError(f"a gate must be rejected with an exception, not {type(error).__name__}")
        self._settle(_Settlement("rejected", now(), error=error))

    def abort(self) -> None:
        """Abort this gate, but not its turn."""
        self._settle(_Settlement("aborted", now(), error=TurnGateAborted()))

    def open(self, signal: AbortSignal) -> None:
        """Emit the open event, then start the timer and subscribe to the turn's abort signal."""
        self._emit(TurnGateOpen(self))
        self._decide(_is_announced=True)
        if self.is_settled:  # by a listener of the open event: all listeners get that event first
            self._emit_end()
        else:
            self._watch(signal)

    async def wait(self) -> Any:
        """Wait for the value that the gate is resolved with; a cancelled awaiter aborts the gate."""
        try:
            settlement = await asyncio.shield(self._settlement)
        except asyncio.CancelledError:
            self.abort()
            raise
        if settlement.error is not None:
            raise settlement.error
        return settlement.value

    async def wait_until_settled(self) -> None:
        """Wait until the gate is settled in any way; a cancelled observer leaves it open."""
        await asyncio.wait([self._settlement])

    def describe(self) -> dict[str, Any]:
        """Return the gate as data; with `schema` only if the schema can describe itself."""
        described = {
            "gate_id": self.id,
            "turn_id": self.turn_id,
            "reason": self.reason,
            "payload": self.payload,
            "created_at": self.created_at,
        }
        schema = _describe_schema(self.schema)
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
        if self._is_announced:
            self._emit_end()

    def _emit_end(self) -> None:
        settlement = self._settlement.result()
        self._emit(TurnGateClosed(self.id, self.turn_id, settlement.result, settlement.at))

    def __repr__(self) -> str:
        return f"TurnGate({self.id!r}, settled={self.is_settled})"


async def open_gate(
    raw: Mapping[str, Any], turn_id: str, *, signal: AbortSignal, emit: Callable[[TurnEvent], None]
) -> Any:
    """Open a gate and wait until it is settled. Listeners get the open event before the gate can be settled.

    The call's deadline is paused meanwhile.
    """
    gate = TurnGate(raw, turn_id, emit=emit)
    gate.open(signal)
    deadline = current_deadline()
    with nullcontext() if deadline is None else deadline.pause():
        return await gate.wait()


def _check(raw: Any) -> None:
    if not isinstance(raw, Mapping):
        raise InvalidInitialTurnGateValue(cause=ValidationException([problem("the gate input must be a mapping")]))
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
    return [] if isinstance(value, str) and value else [problem(f"{field!r} must be a non-empty string", [field])]


def _payload_problems(payload: Any) -> list[dict[str, Any]]:
    """Return the problems of a payload. Any value but `None` is a payload, even a falsy one."""
    if payload is None:
        return [problem("'payload' is required; pass {} if there is nothing to show", ["payload"], "required")]
    try:
        deep_copy_containers(payload)
    except ValueError as error:
        return [problem(f"'payload' cannot be shown: {error}", ["payload"])]
    return []


def _timeout_problems(timeout: Any) -> list[dict[str, Any]]:
    if timeout is None or (type(timeout) is int and 1 <= timeout <= MAX_TIMEOUT_MS):
        return []
    return [problem(f"'timeout' must be a whole number of milliseconds from 1 to {MAX_TIMEOUT_MS}", ["timeout"])]


def _moment_problems(moment: Any) -> list[dict[str, Any]]:
    if moment is None or isinstance(moment, datetime):
        return []
    return [problem("'created_at' must be a datetime", ["created_at"])]


def _schema_problems(schema: Any) -> list[dict[str, Any]]:
    if schema is None:
        return []
    coercer = _coercer(schema)
    if coercer is None:
        return [problem("'schema' must have coerce() or model_validate(), or be a function", ["schema"])]
    if inspect.iscoroutinefunction(coercer):
        return [problem("'schema' is async, but a gate is resolved at once", ["schema"])]
    return []


def _coercer(schema: Any) -> ResolutionCoercion | None:
    """Return the function that checks a resolution: a method of a `Schema` or model class, or the function itself."""
    for name in ("coerce", "model_validate"):
        method: ResolutionCoercion | None = getattr(schema, name, None)
        if callable(method):
            return method
    return schema if callable(schema) else None


def _describe_schema(schema: Any) -> Any:
    for name in ("describe", "model_json_schema"):
        method = getattr(schema, name, None)
        if callable(method):
            return method()
    return None


def _discard(awaitable: Any) -> None:
    if inspect.iscoroutine(awaitable):
        awaitable.close()


def _identity(value: Any) -> Any:
    return value
