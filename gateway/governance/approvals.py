"""Approvals as plain data, and the protocol of whoever keeps them.

An approval is about one action, to the last digit of its arguments. It is asked for by a rule, decided by people who
are not the one who asked, and used once. What may follow what is decided elsewhere; here is what is written down.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Protocol, TypeVar

from gateway.governance.principals import Principal

T = TypeVar("T")

ApprovalState = Literal["pending", "granted", "refused", "expired", "used", "void", "withdrawn"]
Vote = Literal["grant", "refuse"]
ApprovalEvent = Literal["requested", "decided", "expired"]
ApprovalChange = Literal["requested", "voted", "decided", "expired", "taken", "returned", "void", "withdrawn"]
"""What happens to an approval. `returned`: it was taken for a call that did not run after all."""

APPROVAL_STATES: Final[tuple[ApprovalState, ...]] = (
    *("pending", "granted", "refused", "expired", "used", "void", "withdrawn"),
)
APPROVAL_EVENTS: Final[tuple[ApprovalEvent, ...]] = ("requested", "decided", "expired")


@dataclass(frozen=True, slots=True)
class Action:
    """What would be done, by whom: everything an approval is bound to, and the digest of it.

    `tool` is what policies call it. `arguments` is JSON that says every number in full.
    """

    principal: Principal
    catalogue: str
    tool: str
    definition: str
    revision: str
    arguments: str = field(repr=False)
    digest: str


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What a rule asks of whom. `advertised` is the name the tool was called by.

    `approvers` are subjects and roles; without `show`, approvers see every argument. `reuse_for` counts from the grant.
    `trace` is of the call that asked, as a W3C traceparent, if somebody observed it.
    """

    action: Action
    advertised: str
    rule: str
    rule_at: str
    reason: str
    approvers: tuple[str, ...]
    timeout: timedelta
    needed: int = 1
    show: tuple[str, ...] = ()
    resolution: Mapping[str, Any] | None = None
    reuse_for: timedelta | None = None
    turn_id: str | None = None
    call_id: str | None = None
    trace: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ApprovalEntry:
    """What one approver said, and the digest of what they were shown. `resolution` is JSON."""

    approver: Principal
    decision: Vote
    at: datetime
    shown_digest: str
    note: str | None = None
    resolution: str | None = field(default=None, repr=False)
    trace: str | None = field(default=None, compare=False)
    """Of the decision, as a W3C traceparent."""


@dataclass(frozen=True, slots=True)
class ApprovalRecord:
    """One approval. Its id is unguessable, and still nothing more than a name.

    `pending`: people are asked. `granted`: enough of them agreed, and nobody has used it. `used`: it was, and counts
    again only until `reuse_until`. `refused`: one of them said no; that stands until `expires_at`. `void`: it was
    granted, and an approver has lost the right to since. `withdrawn`: whoever asked took the call back. `changed` grows
    with every change of any approval.
    """

    id: str
    request: ApprovalRequest
    created_at: datetime
    expires_at: datetime
    state: ApprovalState = "pending"
    entries: tuple[ApprovalEntry, ...] = ()
    decided_at: datetime | None = None
    reuse_until: datetime | None = None
    used_at: datetime | None = None
    used_by: str | None = None
    changed: int = field(default=0, compare=False)

    @property
    def requester(self) -> Principal:
        return self.request.action.principal

    @property
    def digest(self) -> str:
        return self.request.action.digest


@dataclass(frozen=True, slots=True)
class Notice:
    """That a webhook is to be told of an event. `id` is the same however often it is told."""

    id: str
    webhook: str
    event: ApprovalEvent
    approval_id: str
    state: ApprovalState
    at: datetime
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class ApprovalFilter:
    """Which approvals to list: those that somebody of these names may decide, or asked for.

    What is `None` does not matter, but for the viewer, who always does.
    """

    viewer: Principal
    names: frozenset[str]
    at: datetime
    state: ApprovalState | None = None
    tool: str | None = None
    role: Literal["approver", "requester"] | None = None


class ApprovalTable(Protocol):
    """What is kept, inside one transaction: nobody else changes anything meanwhile."""

    def find(self, id: str) -> ApprovalRecord | None: ...

    def of_action(self, digest: str, at: datetime) -> Sequence[ApprovalRecord]:
        """Those about exactly this action that can still matter, newest first.

        That is all pending and granted ones, used ones that may be used again, and refusals that still stand.
        """
        ...

    def resembling(self, request: ApprovalRequest) -> ApprovalRecord | None:
        """The newest pending or granted one of the same subject and tool about another action that this one could
        have been meant to be: with equal arguments, or in the same turn."""
        ...

    def pending_of(self, principal: Principal, at: datetime) -> int:
        """How many the principal waits for, or has taken back before they would have expired."""
        ...

    def overdue(self, at: datetime, *, limit: int) -> Sequence[ApprovalRecord]:
        """Pending and granted ones whose time is up."""
        ...

    def latest_change(self) -> int:
        """The number of the newest change of any approval."""
        ...

    def add(self, record: ApprovalRecord) -> ApprovalRecord:
        """Keep a new one. The decision log says so in the same transaction; likewise `put`."""
        ...

    def put(self, record: ApprovalRecord, change: ApprovalChange) -> ApprovalRecord:
        """Write what may change of a record: its state and what goes with it, and entries it did not have."""
        ...

    def add_notice(self, notice: Notice, *, most: int) -> bool:
        """`False` if as many wait for that webhook already, and nothing was written."""
        ...


class ApprovalStore(Protocol):
    """Keeps approvals. What was written is durable when the method returns; `StoreUnavailable` if it could not be."""

    async def transact(
        self, work: Callable[[ApprovalTable], T], *, undo: Callable[[ApprovalTable], None] | None = None
    ) -> T:
        """What `work` gives, once all of it is durable; nothing of it if it raises. It may be run twice.

        `undo` runs after work whose caller was cancelled, and so does not know that it succeeded.
        """
        ...

    async def find(self, id: str) -> ApprovalRecord | None: ...

    async def page(
        self, filter: ApprovalFilter, *, limit: int, before: str | None = None
    ) -> tuple[list[ApprovalRecord], str | None]:
        """A page, newest first, and the cursor of the next page; `ValueError` for a cursor that is none."""
        ...

    async def pending(self, at: datetime) -> dict[str, int]:
        """How many wait for people, by the rule that asks."""
        ...

    async def changes(self, since: int) -> list[tuple[str, int]]:
        """Which approvals changed after `since`, and the number of each one's last change, in the order of those.

        Not more than some at once: the last number is where the next question begins.
        """
        ...

    async def prune(self, at: datetime, *, kept: timedelta) -> int:
        """Remove approvals that were decided, or ran out of time, longer than `kept` ago; return how many.

        An approval that still has an effect at `at` stays, and so does one whose notice was not sent yet.
        """
        ...

    async def lease_notices(
        self, webhook: str, *, at: datetime, until: datetime, limit: int
    ) -> list[tuple[Notice, ApprovalRecord]]:
        """Notices that are due, each given to one caller only, until `until`."""
        ...

    async def delay_notice(self, id: str, *, until: datetime) -> None: ...

    async def drop_notice(self, id: str) -> None: ...
