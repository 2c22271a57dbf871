"""Outcomes of calls that ran while the store failed, and the protocol of a store that keeps them until it recovers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.governance.records import AuditBody, Store, StoredCall, StoredTurn
from gateway.governance.refusals import Refusal, RefusalStore


@dataclass(frozen=True, slots=True)
class HeldKey:
    """The idempotency key of a call. `until` is in microseconds since 1970."""

    key: str
    digest: str
    until: int


@dataclass(slots=True, eq=False)
class LateOutcome:
    """Everything that recording an outcome needs, also in a store that lost the turn, the start and the key.

    `memory` and `knowing` are as in `Store.settle_call`. `refusal` is set for a call that was started and then refused.
    `on_drop` is called if the outcome will not be written.
    """

    call: StoredCall
    turn: StoredTurn
    memory: bytes | None = None
    knowing: bytes | None = None
    audit: Sequence[AuditBody] = ()
    is_started: bool = True
    held: HeldKey | None = None
    refusal: Refusal | None = None
    on_drop: Callable[[], None] | None = field(default=None, repr=False)


class RecordStore(Store, RefusalStore, Protocol):
    """Keeps turns and calls, and counts refusals.

    Outcomes that could not be written stay in bounded memory until the store recovers. A late outcome is found by its
    call id and by its idempotency key as if it were written.
    """

    def postpone(self, late: LateOutcome) -> None: ...

    def postpone_audit(self, audit: Sequence[AuditBody]) -> None:
        """Keep entries of the decision log that could not be written with what they are about."""
        ...

    def leave(self, turn_id: str, call_id: str) -> None:
        """Note that this process no longer runs the call. Without an outcome it becomes `unknown` on recovery."""
        ...
