"""Policy cases: a question about access and the answer it must get, written down by people."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from gateway.governance.diagnostics import Position
from gateway.governance.principals import Principal
from gateway.governance.rules import Decision


@dataclass(frozen=True, slots=True)
class Because:
    """What must have decided: the subject of a policy row, a gate rule or a tier, by name."""

    kind: Literal["policy", "gate", "tier"]
    name: str


@dataclass(frozen=True, slots=True)
class PolicyCase:
    """One case. It asks about a call, or, without a tool, which tools are listed.

    `saw` are the flags of tools called earlier in the turn. `expected` is a decision or the tools listed. Everything
    is given, the moment too, so a case holds or fails on every machine and on every day.
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
    because: Because | None = None
