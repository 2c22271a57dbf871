"""The call that is being served: who makes it, under which record, and what was decided about it on the way.

It travels with the task, so that a generated handler finds it whatever stands between the wire and the handler.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.governance.principals import Principal
from gateway.governance.rules import Decision

if TYPE_CHECKING:
    from gateway.serving.turns import Turn

Progress = Callable[[float, float | None, str | None], None]
"""Told how far a call is: progress, total if known, and a message."""


@dataclass(slots=True)
class ServedCall:
    """One call on its way. The decision fields are filled in by the handler."""

    id: str
    tool: str
    args: Mapping[str, Any]
    principal: Principal
    catalogue: str
    revision: str
    idempotency_key: str | None = None
    progress: Progress | None = None
    turn: "Turn | None" = None
    decision: Decision | None = None
    because: str | None = None
    identity: str | None = None
    is_started: bool = False
    """Whether a start record is durable: from then on the outcome is unknown until it settles."""


_CURRENT: Final[ContextVar[ServedCall | None]] = ContextVar("served_call", default=None)


def current_call() -> ServedCall:
    """Raises `LookupError` outside of a served call: no backend is reached from anywhere else."""
    call = _CURRENT.get()
    if call is None:
        raise LookupError("no call is being served")
    return call


class serving:  # noqa: N801 - reads as a statement: `with serving(call):`
    """Makes a call the current one for as long as the block runs."""

    __slots__ = ("_call", "_token")

    def __init__(self, call: ServedCall) -> None:
        self._call = call
        self._token: Any = None

    def __enter__(self) -> ServedCall:
        self._token = _CURRENT.set(self._call)
        return self._call

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._token)
