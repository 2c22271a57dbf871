"""Policy cases: an access request and its expected result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from gateway.model import Principal
from gateway.policy import Decision
from gateway.registries.diagnostics import Position


@dataclass(frozen=True, slots=True)
class ExpectedReason:
    """The expected reason by name: the subject of a policy row, a gate rule, a tier or an artifact class."""

    kind: Literal["policy", "gate", "tier", "class"]
    name: str


@dataclass(frozen=True, slots=True)
class EarlierCall:
    """An earlier call of the turn. `tool` is the advertised name; `bytes` is the size of each result."""

    tool: str
    args: Mapping[str, Any] = field(default_factory=dict)
    times: int = 1
    ago: timedelta = timedelta(0)
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class PolicyCase:
    """One case: a call, or, without a tool, a listing of tools.

    `saw` has flags, `read` artifact classes, and `calls` the earlier calls of the turn. `expected` is a decision or the
    listed tools. The case includes the time, so its result never depends on the machine or the day.
    """

    suite: str
    name: str
    principal: Principal
    catalogue: str
    at: datetime
    position: Position
    expected: Decision | frozenset[str]
    tool: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    saw: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()
    calls: tuple[EarlierCall, ...] = ()
    because: ExpectedReason | None = None
    of: str | None = None
    """The tool whose result a query tool reads."""
