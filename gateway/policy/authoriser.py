"""The question of authorisation: may a caller do this? Casbin answers it, below `casbin/`."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol, runtime_checkable

from gateway.registries import Position


class AccessRequest(NamedTuple):
    """May a caller with these names perform this action on this object of this tier, in this catalogue?

    `names` holds the subject and all its roles, because Casbin must see them together: if each were asked by itself,
    a role without a deny row would overrule the deny row of another. A tuple, because every call creates one.
    """

    names: frozenset[str]
    catalogue: str
    object: str
    action: str
    tier: str


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """The answer and its reason. `row` and `subject` name the policy row that decided; `None` if no row did."""

    allowed: bool
    reason: str
    row: Position | None = None
    subject: str | None = None
    is_unanswered: bool = field(default=False, compare=False)
    """Whether the policy could not be evaluated. The caller of `decide` must then not try another object."""
    is_cached: bool = field(default=False, compare=False)
    """Whether it was made for an earlier request."""
    grants: tuple[str, ...] = ()
    """Ids of the grants without which it would be a denial."""


class Authoriser(Protocol):
    def roles_of(self, names: frozenset[str]) -> frozenset[str]:
        """Return the names and every role that they inherit."""
        ...

    def decide(self, request: AccessRequest) -> AccessDecision:
        """Decide. Never raises: if something goes wrong, the answer is a denial with a reason."""
        ...


@runtime_checkable
class TimedAuthoriser(Authoriser, Protocol):
    """An authoriser whose decisions depend on the time, because rows end."""

    def at(self, moment: datetime) -> Authoriser:
        """Return the authoriser as of a moment, in the past or the future."""
        ...
