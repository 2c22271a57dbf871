"""The life of an approval: its transitions, as pure functions of the stored records.

Each function runs inside one transaction of the store, so what it reads still holds when it writes: two workers that
race are two transactions, one after the other. Expected refusals are returned, not raised: raising would make the store
repeat the work of all callers in the same commit.

    pending ─┬─ enough grants ──> granted ─┬─ taken ──────────────> used  (again while `reuse_until` lasts)
             ├─ one refusal ────> refused  ├─ approver lost role ─> void
             ├─ time is up ─────> expired <┼─ time is up
             └─ taken back ───> withdrawn <┴─ taken back
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal

from gateway.approvals.approval_store import (
    ApprovalRecord,
    ApprovalRequest,
    ApprovalSubject,
    ApprovalTransaction,
    ApprovalVote,
)
from gateway.approvals.errors import (
    AlreadyDecided,
    ApprovalClosed,
    ApprovalMismatch,
    DisplayChanged,
    SelfApprovalRefused,
    TooManyPending,
    UnknownApproval,
)
from gateway.errors import GatewayError
from gateway.model import Principal

Holds = Callable[[Principal, str], bool]
"""Whether a principal is, or holds at this moment, a name that approvers are given by."""

HoldState = Literal["taken", "pending", "refused", "expired", "used", "void", "withdrawn"]

_BOUND_TO: Final = ("principal", "catalogue", "tool", "definition", "arguments", "revision")


@dataclass(frozen=True, slots=True)
class SimilarCall:
    """Another call that is approved or pending, and what this one differs in."""

    id: str
    differs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HoldStatus:
    """The status of a held call. `taken`: it may run now, once. `pending`: approvers are asked.

    `approvals` has one for each rule that holds the call, or the one that decided against it. `expired`, `used` (by
    another equal call) and `void` are reported once: the next call requests approval again. `requested` and `ended`
    are the approvals that started and that expired in this step. `as_of` is the newest change at that time.
    """

    state: HoldState
    approvals: tuple[ApprovalRecord, ...]
    requested: tuple[ApprovalRecord, ...] = ()
    ended: tuple[ApprovalRecord, ...] = ()
    resembling: SimilarCall | None = None
    as_of: int = 0


@dataclass(frozen=True, slots=True)
class ApprovalRequestContext:
    """What a request needs besides its data. `token` identifies this taking, so that it can be undone.

    `named` is the approval that the caller names for the call.
    """

    at: datetime
    holds: Holds
    token: str
    new_id: Callable[[], str]
    most_pending: int
    named: str | None = None


@dataclass(frozen=True, slots=True)
class VoteResult:
    """The effect of one vote on an approval. `is_final` if it ended the request."""

    approval: ApprovalRecord
    is_final: bool


def ask(
    table: ApprovalTransaction, requests: Sequence[ApprovalRequest], context: ApprovalRequestContext
) -> HoldStatus | GatewayError:
    """Take the approvals of a call if all of them are granted; otherwise request the missing ones.

    All requests are about one action, each by another rule. Pending approvals are not requested twice.
    """
    action = requests[0].action
    if context.named is not None and (refusal := _check_named(table, context.named, action, context)):
        return refusal
    rules = {each.rule for each in requests}
    about = [each for each in table.find_by_digest(action.digest, context.at) if each.request.rule in rules]
    current = [_refresh(table, each, context) for each in about]
    ended = tuple(each for each in current if each.state == "expired")
    live = {each.request.rule: each for each in reversed(current) if each.state != "expired"}  # the newest of each
    if against := _against(live.values(), context.at):
        return replace(against, ended=ended)
    missing = [each for each in requests if each.rule not in live]
    if not missing and (taken := _take_all(table, list(live.values()), context)):
        return taken
    if missing and table.count_pending(action.principal, context.at) + len(missing) > context.most_pending:
        return TooManyPending(context.most_pending)
    added = tuple(table.add(_new(each, context)) for each in missing)
    resembling = _find_resembling(table, missing[0]) if missing else None
    return HoldStatus("pending", (*live.values(), *added), added, ended, resembling, table.latest_change())


def check_pending(table: ApprovalTransaction, ids: Sequence[str], context: ApprovalRequestContext) -> HoldStatus:
    """Return the status of a call that waits for these approvals; take them once all are granted. Request nothing."""
    found = [each for each in map(table.find, ids) if each is not None]
    current = [_refresh(table, each, context) for each in found]
    if len(found) < len(ids):  # an approval ended so long ago that it was pruned
        return HoldStatus("expired", tuple(current))
    ended = tuple(new for old, new in zip(found, current, strict=True) if new.state == "expired" != old.state)
    if against := _against(current, context.at):
        return replace(against, ended=ended)
    return _take_all(table, current, context) or HoldStatus("pending", tuple(current), as_of=table.latest_change())


def withdraw(table: ApprovalTransaction, ids: Sequence[str], context: ApprovalRequestContext) -> list[ApprovalRecord]:
    """Withdraw pending and granted approvals for their requester; ended ones do not change."""
    found = [refresh_record(each, context.at, context.holds) for each in map(table.find, ids) if each is not None]
    return [
        table.update(replace(each, state="withdrawn"), "withdrawn")
        for each in found
        if each.state in ("pending", "granted")
    ]


def undo_take(table: ApprovalTransaction, ids: Sequence[str], token: str) -> None:
    """Undo a taking whose caller was cancelled before it could act on it."""
    for id in ids:
        record = table.find(id)
        if record is not None and record.state == "used" and record.used_by == token:
            table.update(replace(record, state="granted", used_at=None, used_by=None), "returned")


def decide(
    table: ApprovalTransaction, id: str, entry: ApprovalVote, *, shown_digest: str, holds: Holds
) -> VoteResult | GatewayError:
    """Add an approver's vote. `shown_digest` is of the current view; `entry` has that of the view they saw."""
    record = table.find(id)
    if record is None or not may_see(record, entry.approver, holds):
        return UnknownApproval()
    if is_requester(record, entry.approver):
        return SelfApprovalRefused()
    now = refresh_record(record, entry.at, holds)
    if now.state != "pending":
        return ApprovalClosed(now.state)
    if any(each.approver.subject == entry.approver.subject for each in record.entries):
        return AlreadyDecided()
    if entry.shown_digest != shown_digest:
        return DisplayChanged()
    with_entry = replace(record, entries=(*record.entries, entry))
    decided = _after(with_entry, entry, holds)
    is_final = decided.state != "pending"
    return VoteResult(table.update(decided, "decided" if is_final else "voted"), is_final)


def expire(table: ApprovalTransaction, at: datetime, *, limit: int) -> list[ApprovalRecord]:
    """Expire overdue approvals, a limited number at a time."""
    return [table.update(replace(each, state="expired"), "expired") for each in table.find_overdue(at, limit=limit)]


def may_see(record: ApprovalRecord, principal: Principal, holds: Holds) -> bool:
    """Whether a principal may know of an approval: its requester, or a possible approver, of the same tenant."""
    if principal.tenant != record.requester.tenant:
        return False
    return is_requester(record, principal) or is_approver(record, principal, holds)


def is_requester(record: ApprovalRecord, principal: Principal) -> bool:
    """Compare subjects only: another role or another token does not make another person."""
    return principal.subject == record.requester.subject


def is_approver(record: ApprovalRecord, principal: Principal, holds: Holds) -> bool:
    return any(holds(principal, name) for name in record.request.approvers)


def is_usable(record: ApprovalRecord, at: datetime) -> bool:
    if record.state == "used":
        return record.reuse_until is not None and at < record.reuse_until
    return record.state == "granted"


def is_stale(record: ApprovalRecord, served: str, at: datetime) -> bool:
    """Whether a call could use the approval now or later if the served revision had not changed."""
    is_open = record.state == "pending" or is_usable(record, at)
    return is_open and record.request.action.revision != served


def refresh_record(record: ApprovalRecord, at: datetime, holds: Holds) -> ApprovalRecord:
    """Return the record as of now: it may have expired, and approvers may have lost the role to approve."""
    if record.state in ("pending", "granted") and at >= record.expires_at:
        return replace(record, state="expired")
    if is_usable(record, at) and _count_grants(record, holds) < record.request.needed:
        return replace(record, state="void")
    return record


def diff_actions(one: ApprovalSubject, other: ApprovalSubject) -> tuple[str, ...]:
    """Return the names of the fields in which two actions differ."""
    return tuple(name for name in _BOUND_TO if getattr(one, name) != getattr(other, name))


def _refresh(table: ApprovalTransaction, record: ApprovalRecord, context: ApprovalRequestContext) -> ApprovalRecord:
    now = refresh_record(record, context.at, context.holds)
    return record if now is record else table.update(now, "void" if now.state == "void" else "expired")


def _against(records: Iterable[ApprovalRecord], at: datetime) -> HoldStatus | None:
    for record in records:
        state = record.state
        if state in ("refused", "void", "expired", "withdrawn") or (state == "used" and not is_usable(record, at)):
            return HoldStatus(state, (record,))
    return None


def _take_all(
    table: ApprovalTransaction, records: Sequence[ApprovalRecord], context: ApprovalRequestContext
) -> HoldStatus | None:
    """Take all or none: an approval must not be spent while another one of the same call is missing."""
    if not all(is_usable(each, context.at) for each in records):
        return None
    used = [replace(each, state="used", used_at=context.at, used_by=context.token) for each in records]
    return HoldStatus("taken", tuple(table.update(each, "taken") for each in used))


def _new(request: ApprovalRequest, context: ApprovalRequestContext) -> ApprovalRecord:
    return ApprovalRecord(context.new_id(), request, context.at, context.at + request.timeout)


def _after(record: ApprovalRecord, entry: ApprovalVote, holds: Holds) -> ApprovalRecord:
    if entry.decision == "refuse":
        return replace(record, state="refused", decided_at=entry.at)
    if _count_grants(record, holds) < record.request.needed:
        return record
    reuse = record.request.reuse_for
    return replace(
        record, state="granted", decided_at=entry.at, reuse_until=None if reuse is None else entry.at + reuse
    )


def _count_grants(record: ApprovalRecord, holds: Holds) -> int:
    """Return the number of grants by principals who are still approvers."""
    grants = (each for each in record.entries if each.decision == "grant")
    return sum(is_approver(record, each.approver, holds) for each in grants)


def _check_named(
    table: ApprovalTransaction, id: str, action: ApprovalSubject, context: ApprovalRequestContext
) -> GatewayError | None:
    """Return why the approval that a caller names is not one for this call; `None` if it is."""
    record = table.find(id)
    if (
        record is None
        or record.requester.tenant != action.principal.tenant
        or not is_requester(record, action.principal)
    ):
        return UnknownApproval()
    if record.digest != action.digest:
        return ApprovalMismatch(diff_actions(record.request.action, action))
    now = refresh_record(record, context.at, context.holds)
    if now.state == "expired":
        return ApprovalMismatch(("expiry",))
    is_over = now.state in ("void", "withdrawn") or (now.state == "used" and not is_usable(now, context.at))
    return ApprovalClosed(now.state) if is_over else None


def _find_resembling(table: ApprovalTransaction, request: ApprovalRequest) -> SimilarCall | None:
    other = table.find_similar(request)
    return None if other is None else SimilarCall(other.id, diff_actions(other.request.action, request.action))
