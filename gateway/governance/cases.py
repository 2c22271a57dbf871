"""Policy cases: a question about access and the answer it must get, written down by people."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from gateway.governance.diagnostics import Position
from gateway.governance.principals import Principal
from gateway.governance.rules import Decision


@dataclass(frozen=True, slots=True)
class Because:
    """What must have decided: the subject of a policy row, a gate rule, a tier or an artifact class, by name."""

    kind: Literal["policy", "gate", "tier", "class"]
    name: str


@dataclass(frozen=True, slots=True)
class EarlierCall:
    """A call that was made before in the turn: by the name the catalogue gives the tool, so long ago, so many times.

    `bytes` is what each of them returned.
    """

    tool: str
    args: Mapping[str, Any] = field(default_factory=dict)
    times: int = 1
    ago: timedelta = timedelta(0)
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class PolicyCase:
    """One case. It asks about a call, or, without a tool, which tools are listed.

    `saw` are flags, `read` artifact classes and `calls` the calls of the turn before this one. `expected` is a decision
    or the tools listed. Everything is given, the moment too, so a case holds or fails on every machine and every day.
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
    because: Because | None = None
    of: str | None = None
    """The tool whose result a query tool reads."""
