"""What may become of an approval: the rules, as functions of what is kept and nothing else.

Each function runs inside one transaction of the store, so what it reads is still so when it writes: two workers that
race are two transactions, one after the other. Refusals that are to be expected are returned, not raised: raising would
make the store repeat the work of everybody in the same commit.

    pending ─┬─ enough grants ──> granted ─┬─ taken ──────────────> used  (again while `reuse_until` lasts)
             ├─ one refusal ────> refused  ├─ approver lost role ─> void
             ├─ time is up ─────> expired <┼─ time is up
             └─ taken back ───> withdrawn <┴─ taken back
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal

from gateway.approvals.refusals import (
    AlreadyDecided,
    ApprovalClosed,
    ApprovalMismatch,
    OwnRequest,
    ShownOtherwise,
    TooManyPending,
    UnknownApproval,
)
from gateway.errors import GatewayError
from gateway.governance.approvals import Action, ApprovalEntry, ApprovalRecord, ApprovalRequest, ApprovalTable
from gateway.governance.principals import Principal

Holds = Callable[[Principal, str], bool]
"""Whether somebody is, or holds at this moment, one of the names that approvers go by."""

StandingState = Literal["taken", "pending", "refused", "expired", "used", "void", "withdrawn"]

_BOUND_TO: Final = ("principal", "catalogue", "tool", "definition", "arguments", "revision")


@dataclass(frozen=True, slots=True)
class Resembling:
    """Another call that is approved or waits for it, and what this one differs in."""

    id: str
    differs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """How a held call stands. `taken`: it may run now, this once. `pending`: people are asked.

    `approvals` has one for each rule that holds the call, or the one that decided against it. `expired`, `used` (by
    another call that is equal) and `void` are told once: whoever calls again then asks anew. `requested` and `ended`
    are the approvals that began and that ran out of time in this very step. `as_of` is the newest change there was.
    """

    state: StandingState
    approvals: tuple[ApprovalRecord, ...]
    requested: tuple[ApprovalRecord, ...] = ()
    ended: tuple[ApprovalRecord, ...] = ()
    resembling: Resembling | None = None
    as_of: int = 0


@dataclass(frozen=True, slots=True)
class Asking:
    """What asking needs besides the requests. `token` marks this taking, so that it can be undone.

    `named` is the approval that the caller says the call has.
    """

    at: datetime
    holds: Holds
    token: str
    new_id: Callable[[], str]
    most_pending: int
    named: str | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of an approval by one vote. `is_final` if that ended the asking."""

    approval: ApprovalRecord
    is_final: bool


def ask(table: ApprovalTable, requests: Sequence[ApprovalRequest], asking: Asking) -> Standing | GatewayError:
    """Take the approvals of a call if all of them are there; else ask for those that are missing.

    All requests are about one action, each by another rule. What is pending already is not asked for twice.
    """
    action = requests[0].action
    if asking.named is not None and (refusal := _misnamed(table, asking.named, action, asking)):
        return refusal
    rules = {each.rule for each in requests}
    about = [each for each in table.of_action(action.digest, asking.at) if each.request.rule in rules]
    current = [_kept_current(table, each, asking) for each in about]
    ended = tuple(each for each in current if each.state == "expired")
    live = {each.request.rule: each for each in reversed(current) if each.state != "expired"}  # the newest of each
    if against := _against(live.values(), asking.at):
        return replace(against, ended=ended)
    missing = [each for each in requests if each.rule not in live]
    if not missing and (taken := _taken(table, list(live.values()), asking)):
        return taken
    if missing and table.pending_of(action.principal, asking.at) + len(missing) > asking.most_pending:
        return TooManyPending(asking.most_pending)
    added = tuple(table.add(_new(each, asking)) for each in missing)
    resembling = _resembling(table, missing[0]) if missing else None
    return Standing("pending", (*live.values(), *added), added, ended, resembling, table.latest_change())


def revisit(table: ApprovalTable, ids: Sequence[str], asking: Asking) -> Standing:
    """How a call stands that waits for these approvals; they are taken once all are granted. Nothing new is asked."""
    found = [each for each in map(table.find, ids) if each is not None]
    current = [_kept_current(table, each, asking) for each in found]
    if len(found) < len(ids):  # it was over so long ago that nobody remembers
        return Standing("expired", tuple(current))
    ended = tuple(new for old, new in zip(found, current, strict=True) if new.state == "expired" != old.state)
    if against := _against(current, asking.at):
        return replace(against, ended=ended)
    return _taken(table, current, asking) or Standing("pending", tuple(current), as_of=table.latest_change())


def withdraw(table: ApprovalTable, ids: Sequence[str], asking: Asking) -> list[ApprovalRecord]:
    """End the asking on behalf of whoever asked; what is over already stays as it is."""
    found = [renewed(each, asking.at, asking.holds) for each in map(table.find, ids) if each is not None]
    return [
        table.put(replace(each, state="withdrawn"), "withdrawn")
        for each in found
        if each.state in ("pending", "granted")
    ]


def give_back(table: ApprovalTable, ids: Sequence[str], token: str) -> None:
    """Undo a taking that nobody learned of, and so nobody acted on."""
    for id in ids:
        record = table.find(id)
        if record is not None and record.state == "used" and record.used_by == token:
            table.put(replace(record, state="granted", used_at=None, used_by=None), "returned")


def decide(
    table: ApprovalTable, id: str, entry: ApprovalEntry, *, shown_digest: str, holds: Holds
) -> Decided | GatewayError:
    """Add what an approver says. `shown_digest` is of what there is to see, `entry` has that of what was seen."""
    record = table.find(id)
    if record is None or not is_about(record, entry.approver, holds):
        return UnknownApproval()
    if is_requester(record, entry.approver):
        return OwnRequest()
    now = renewed(record, entry.at, holds)
    if now.state != "pending":
        return ApprovalClosed(now.state)
    if any(each.approver.subject == entry.approver.subject for each in record.entries):
        return AlreadyDecided()
    if entry.shown_digest != shown_digest:
        return ShownOtherwise()
    with_entry = replace(record, entries=(*record.entries, entry))
    decided = _after(with_entry, entry, holds)
    is_final = decided.state != "pending"
    return Decided(table.put(decided, "decided" if is_final else "voted"), is_final)


def expire(table: ApprovalTable, at: datetime, *, limit: int) -> list[ApprovalRecord]:
    """End what ran out of time, some at once."""
    return [table.put(replace(each, state="expired"), "expired") for each in table.overdue(at, limit=limit)]


def is_about(record: ApprovalRecord, principal: Principal, holds: Holds) -> bool:
    """Whether somebody may know of an approval: whoever asked for it, and whoever may be asked, of the same tenant."""
    if principal.tenant != record.requester.tenant:
        return False
    return is_requester(record, principal) or is_approver(record, principal, holds)


def is_requester(record: ApprovalRecord, principal: Principal) -> bool:
    """By subject alone: another role or another token does not make another person."""
    return principal.subject == record.requester.subject


def is_approver(record: ApprovalRecord, principal: Principal, holds: Holds) -> bool:
    return any(holds(principal, name) for name in record.request.approvers)


def is_usable(record: ApprovalRecord, at: datetime) -> bool:
    if record.state == "used":
        return record.reuse_until is not None and at < record.reuse_until
    return record.state == "granted"


def is_stale(record: ApprovalRecord, served: str, at: datetime) -> bool:
    """Whether a call could use it now or later, were it not for the revision that is served by now."""
    is_open = record.state == "pending" or is_usable(record, at)
    return is_open and record.request.action.revision != served


def renewed(record: ApprovalRecord, at: datetime, holds: Holds) -> ApprovalRecord:
    """The record as it is now: time may have run out, and approvers may have lost what made them approvers."""
    if record.state in ("pending", "granted") and at >= record.expires_at:
        return replace(record, state="expired")
    if is_usable(record, at) and _counting(record, holds) < record.request.needed:
        return replace(record, state="void")
    return record


def differs(one: Action, other: Action) -> tuple[str, ...]:
    """What two actions differ in, by name."""
    return tuple(name for name in _BOUND_TO if getattr(one, name) != getattr(other, name))


def _kept_current(table: ApprovalTable, record: ApprovalRecord, asking: Asking) -> ApprovalRecord:
    now = renewed(record, asking.at, asking.holds)
    return record if now is record else table.put(now, "void" if now.state == "void" else "expired")


def _against(records: Iterable[ApprovalRecord], at: datetime) -> Standing | None:
    for record in records:
        state = record.state
        if state in ("refused", "void", "expired", "withdrawn") or (state == "used" and not is_usable(record, at)):
            return Standing(state, (record,))
    return None


def _taken(table: ApprovalTable, records: Sequence[ApprovalRecord], asking: Asking) -> Standing | None:
    """All or none: an approval must not be spent while another one of the same call is missing."""
    if not all(is_usable(each, asking.at) for each in records):
        return None
    used = [replace(each, state="used", used_at=asking.at, used_by=asking.token) for each in records]
    return Standing("taken", tuple(table.put(each, "taken") for each in used))


def _new(request: ApprovalRequest, asking: Asking) -> ApprovalRecord:
    return ApprovalRecord(asking.new_id(), request, asking.at, asking.at + request.timeout)


def _after(record: ApprovalRecord, entry: ApprovalEntry, holds: Holds) -> ApprovalRecord:
    if entry.decision == "refuse":
        return replace(record, state="refused", decided_at=entry.at)
    if _counting(record, holds) < record.request.needed:
        return record
    reuse = record.request.reuse_for
    return replace(
        record, state="granted", decided_at=entry.at, reuse_until=None if reuse is None else entry.at + reuse
    )


def _counting(record: ApprovalRecord, holds: Holds) -> int:
    """Grants by those who are still approvers."""
    grants = (each for each in record.entries if each.decision == "grant")
    return sum(is_approver(record, each.approver, holds) for each in grants)


def _misnamed(table: ApprovalTable, id: str, action: Action, asking: Asking) -> GatewayError | None:
    """Why the approval that a caller names is not one for this call."""
    record = table.find(id)
    if (
        record is None
        or record.requester.tenant != action.principal.tenant
        or not is_requester(record, action.principal)
    ):
        return UnknownApproval()
    if record.digest != action.digest:
        return ApprovalMismatch(differs(record.request.action, action))
    now = renewed(record, asking.at, asking.holds)
    if now.state == "expired":
        return ApprovalMismatch(("expiry",))
    is_over = now.state in ("void", "withdrawn") or (now.state == "used" and not is_usable(now, asking.at))
    return ApprovalClosed(now.state) if is_over else None


def _resembling(table: ApprovalTable, request: ApprovalRequest) -> Resembling | None:
    other = table.resembling(request)
    return None if other is None else Resembling(other.id, differs(other.request.action, request.action))
