"""Refused calls as they are kept: an excerpt of what was asked for, one by one up to a number, and counted above it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.governance.principals import Principal
from gateway.governance.records import AuditBody, StoredCall, StoredTurn

WINDOW: Final = 60_000_000
"""Microseconds in which refusals are counted together; windows begin at whole minutes."""

MOST: Final = 60
"""Refusals of one caller for one reason that are kept one by one in a window, where nothing else is said."""

KEPT_FOR: Final = 24 * 60 * WINDOW
"""Microseconds for which counts are kept. The decision log has told of them long before."""


@dataclass(slots=True)
class Refusal:
    """A refusal to be written. `call` is its record; there is none for what does not exist for the caller.

    `is_started`: the start of the call is on record, by its idempotency key. `turn` is written with the call, `memory`
    is what the turn remembers from now on, as in `Store.settle_call`. `is_alone`: the turn is that of the call alone,
    and goes if the call is not kept.
    """

    principal: Principal
    reason: str
    most: int
    audit: Sequence[AuditBody] = ()
    call: StoredCall | None = None
    is_started: bool = False
    turn: StoredTurn | None = None
    is_alone: bool = False
    memory: bytes | None = None
    knowing: bytes | None = None


@dataclass(frozen=True, slots=True)
class RefusalCount:
    """Refusals of one caller for one reason that were counted and not kept one by one, since a moment and until one."""

    tenant: str | None
    subject: str
    reason: str
    since: int
    until: int
    number: int


class RefusalStore(Protocol):
    """Raises as `Store` does."""

    async def refuse(self, refusal: Refusal) -> bool:
        """Keep a refusal by itself, with its entry of the decision log, or count it if there were too many.

        Both are durable when this returns; whether it is kept. All processes that share the store count together.
        """
        ...

    async def tell_refusals(self, at: int) -> int:
        """Write an entry of the decision log for each window that is over and has counts; how many that were."""
        ...

    async def refusals_by_reason(self) -> dict[str, tuple[int, int]]:
        """How many were kept one by one and how many counted, by reason, as far as counts go back."""
        ...
