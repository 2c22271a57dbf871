"""Approvals as plain data, and the protocol of their store.

An approval is about one action, to the last digit of its arguments. A rule requests it, people other than the requester
decide it, and it is used once. `lifecycle` defines the allowed transitions; this module defines what is stored.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final, Literal, Protocol, TypeVar

from gateway.model import Principal, exact_json

T = TypeVar("T")

ApprovalState = Literal["pending", "granted", "refused", "expired", "used", "void", "withdrawn"]
Vote = Literal["grant", "refuse"]
ApprovalEvent = Literal["requested", "decided", "expired"]
ApprovalChange = Literal["requested", "voted", "decided", "expired", "taken", "returned", "void", "withdrawn"]
"""Changes of an approval. `returned`: it was taken for a call that did not run after all."""

APPROVAL_STATES: Final[tuple[ApprovalState, ...]] = (
    *("pending", "granted", "refused", "expired", "used", "void", "withdrawn"),
)
APPROVAL_EVENTS: Final[tuple[ApprovalEvent, ...]] = ("requested", "decided", "expired")


@dataclass(frozen=True, slots=True)
class ApprovalSubject:
    """What would be done, and by whom: everything an approval is bound to, and its digest.

    `tool` is its name in policies. `arguments` is JSON that spells every number in full.
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
    """What a rule requests, and from which approvers. `advertised` is the name in the call.

    `approvers` are subjects and roles; without `show`, approvers see every argument. `reuse_for` starts at the grant.
    `trace` belongs to the requesting call, as a W3C traceparent, if it is traced.
    """

    action: ApprovalSubject
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
class ApprovalVote:
    """The vote of one approver, and the digest of the view they saw. `resolution` is JSON."""

    approver: Principal
    decision: Vote
    at: datetime
    shown_digest: str
    note: str | None = None
    resolution: str | None = field(default=None, repr=False)
    trace: str | None = field(default=None, compare=False)
    """The trace of the decision, as a W3C traceparent."""


@dataclass(frozen=True, slots=True)
class ApprovalRecord:
    """One approval. Its id is unguessable, but knowing it grants no rights.

    `pending`: approvers are asked. `granted`: enough of them agreed, and it is not used yet. `used`: a call has used
    it; it is valid again only until `reuse_until`. `refused`: one approver refused; that stands until `expires_at`.
    `void`: it was granted, and an approver has lost the right since. `withdrawn`: the requester withdrew the call.
    `changed` grows with every change of any approval.
    """

    id: str
    request: ApprovalRequest
    created_at: datetime
    expires_at: datetime
    state: ApprovalState = "pending"
    entries: tuple[ApprovalVote, ...] = ()
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
class WebhookDelivery:
    """An event to be delivered to a webhook. `id` is the same for every attempt."""

    id: str
    webhook: str
    event: ApprovalEvent
    approval_id: str
    state: ApprovalState
    at: datetime
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class ApprovalFilter:
    """Which approvals to list: those that a holder of these names may decide, or that the viewer requested.

    Criteria that are `None` do not filter; the viewer always does.
    """

    viewer: Principal
    names: frozenset[str]
    at: datetime
    state: ApprovalState | None = None
    tool: str | None = None
    role: Literal["approver", "requester"] | None = None


class ApprovalTransaction(Protocol):
    """The stored approvals inside one transaction: no other change happens meanwhile."""

    def find(self, id: str) -> ApprovalRecord | None: ...

    def find_by_digest(self, digest: str, at: datetime) -> Sequence[ApprovalRecord]:
        """Return the approvals of exactly this action that still have an effect, newest first.

        These are pending and granted ones, used ones that may be used again, and refusals that still stand.
        """
        ...

    def find_similar(self, request: ApprovalRequest) -> ApprovalRecord | None:
        """Return the newest pending or granted approval of the same subject and tool whose action may be a variant of
        this one: with equal arguments, or in the same turn."""
        ...

    def count_pending(self, principal: Principal, at: datetime) -> int:
        """Return how many approvals the principal waits for, or withdrew before they would have expired."""
        ...

    def find_overdue(self, at: datetime, *, limit: int) -> Sequence[ApprovalRecord]:
        """Return pending and granted approvals whose time is up."""
        ...

    def latest_change(self) -> int:
        """Return the number of the newest change of any approval."""
        ...

    def add(self, record: ApprovalRecord) -> ApprovalRecord:
        """Store a new approval, with its audit entry in the same transaction; likewise `update`."""
        ...

    def update(self, record: ApprovalRecord, change: ApprovalChange) -> ApprovalRecord:
        """Write the mutable part of a record: its state with the related fields, and new entries."""
        ...

    def add_delivery(self, notice: WebhookDelivery, *, most: int) -> bool:
        """Return `False` without writing if `most` deliveries already wait for the webhook."""
        ...


class ApprovalStore(Protocol):
    """Stores approvals. Writes are durable when a method returns; it raises `StoreUnavailable` if they failed."""

    async def transact(
        self, work: Callable[[ApprovalTransaction], T], *, undo: Callable[[ApprovalTransaction], None] | None = None
    ) -> T:
        """Return the result of `work` once all of it is durable; if it raises, nothing is written. It may run twice.

        `undo` runs after work whose caller was cancelled, and so does not know that it succeeded.
        """
        ...

    async def find(self, id: str) -> ApprovalRecord | None: ...

    async def list_page(
        self, filter: ApprovalFilter, *, limit: int, before: str | None = None
    ) -> tuple[list[ApprovalRecord], str | None]:
        """Return a page, newest first, and the cursor of the next; raise `ValueError` for an invalid cursor."""
        ...

    async def count_pending(self, at: datetime) -> dict[str, int]:
        """Return how many approvals are pending, by rule."""
        ...

    async def list_changes(self, since: int) -> list[tuple[str, int]]:
        """Return which approvals changed after `since`, with the number of each one's last change, in that order.

        The number of results is limited: continue from the last number.
        """
        ...

    async def prune(self, at: datetime, *, kept: timedelta) -> int:
        """Remove approvals that were decided, or expired, longer than `kept` ago; return how many.

        An approval that still has an effect at `at` stays, and so does one whose delivery is still due.
        """
        ...

    async def lease_deliveries(
        self, webhook: str, *, at: datetime, until: datetime, limit: int
    ) -> list[tuple[WebhookDelivery, ApprovalRecord]]:
        """Return deliveries that are due, each leased to one caller only, until `until`."""
        ...

    async def postpone_delivery(self, id: str, *, until: datetime) -> None: ...

    async def delete_delivery(self, id: str) -> None: ...


def make_action(
    principal: Principal, *, catalogue: str, tool: str, definition: str, revision: str, arguments: Any
) -> ApprovalSubject:
    """Return the action with its digest. Raise `ValueError` or `TypeError` for arguments that are not JSON."""
    text = exact_json(arguments)
    named = {
        "principal": {"roles": sorted(principal.roles), "subject": principal.subject, "tenant": principal.tenant},
        "catalogue": catalogue,
        "tool": tool,
        "definition": definition,
        "revision": revision,
    }
    # Sorted like any other key, "arguments" comes first.
    digest = hash_text(f'{{"arguments":{text},{exact_json(named)[1:]}')
    return ApprovalSubject(principal, catalogue, tool, definition, revision, text, digest)


def hash_text(text: str) -> str:
    return sha256(text.encode()).hexdigest()
