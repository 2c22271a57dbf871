"""Refused calls, and the protocol of the store that records or counts them.

Refusals are recorded one by one, with an excerpt of the arguments, up to a number per minute, and counted above it: in
memory, and written once a second.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from gateway.model import Principal
from gateway.policy import TurnStateWrite
from gateway.storage.call_store import AuditBody, CallStore, StoredCall, StoredTurn

if TYPE_CHECKING:
    from gateway.storage.unwritten_outcomes import LateOutcome

WINDOW: Final = 60_000_000
"""Microseconds in which refusals are counted together; windows begin at whole minutes."""

MAX_REFUSALS: Final = 60
"""Default number of refusals of one caller for one reason that are recorded one by one in a window."""

KEPT_FOR: Final = 24 * 60 * WINDOW
"""Microseconds for which counts are retained. The decision log has them long before that."""


@dataclass(slots=True)
class Refusal:
    """A refusal to be recorded. `call` is `None` if the tool does not exist for the caller.

    `is_started`: the start of the call is recorded, with its idempotency key. `turn` is written with the call, `memory`
    is the new turn state, as in `CallStore.record_call`. `is_alone`: the turn has no other call, and is dropped if the
    call is only counted. `implicit` is the new state of the caller's implicit turn.
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
    implicit: TurnStateWrite | None = None


@dataclass(frozen=True, slots=True)
class RefusalCount:
    """Number of refusals of one caller for one reason that were only counted, from `since` until `until`."""

    tenant: str | None
    subject: str
    reason: str
    since: int
    until: int
    number: int


class RefusalStore(Protocol):
    """Raises as `CallStore` does."""

    async def refuse(self, refusal: Refusal) -> bool:
        """Record a refusal with its entry of the decision log, or count it if there were too many.

        Return whether it is recorded. Durable when this returns. All processes that share the store count together.
        """
        ...

    def count_refusal(self, principal: Principal, reason: str) -> bool:
        """Count a refusal that would certainly not be recorded; false if `refuse` has to decide.

        It is written within a second.
        """
        ...

    async def audit_refusal_counts(self, at: int) -> int:
        """Write an entry of the decision log for each past window that has counts. Return how many."""
        ...

    async def refusals_by_reason(self) -> dict[str, tuple[int, int]]:
        """Return how many refusals were recorded and how many counted, by reason, as far as counts are retained."""
        ...


class RecordStore(CallStore, RefusalStore, Protocol):
    """Stores turns and calls, and counts refusals.

    Outcomes that could not be written stay in bounded memory until the store recovers. Late outcomes are found by
    call id and by idempotency key like stored ones.
    """

    def postpone(self, late: "LateOutcome") -> None: ...

    def postpone_audit(self, audit: Sequence[AuditBody]) -> None:
        """Hold entries of the decision log in memory that could not be written with their record."""
        ...

    def leave(self, turn_id: str, call_id: str) -> None:
        """Mark the call as no longer running in this process. Without an outcome it becomes `unknown` on recovery."""
        ...
