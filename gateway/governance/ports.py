"""The protocols governance needs from outside, and the data that crosses them.

Who implements them, and with which library, is decided where the process is put together.
"""

from dataclasses import dataclass
from typing import Protocol

from gateway.governance.diagnostics import Position


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """One question: may whoever goes by these names do this, to this object of this tier, in this catalogue?

    `names` is everything the caller is at once, the subject and all its roles: asked one by one, a role without
    a deny row would overrule another role's deny.
    """

    names: frozenset[str]
    catalogue: str
    object: str
    action: str
    tier: str


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """The answer and why: `row` and `subject` are of the policy row that decided, `None` if no row did."""

    allowed: bool
    reason: str
    row: Position | None = None
    subject: str | None = None


class Authoriser(Protocol):
    def held_by(self, names: frozenset[str]) -> frozenset[str]:
        """The names and every role that comes with them."""
        ...

    def decide(self, request: AccessRequest) -> AccessDecision:
        """Always answers: whatever goes wrong on the way is a denial with a reason, never an exception."""
        ...
