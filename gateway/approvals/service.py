"""The approval service: handlers request approvals and wait, people view and decide, a job expires old ones.

`lifecycle` defines the allowed transitions; here they run in transactions, and webhooks and observers are notified.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from gateway.approvals import lifecycle
from gateway.approvals.approval_store import (
    ApprovalChange,
    ApprovalEvent,
    ApprovalFilter,
    ApprovalRecord,
    ApprovalRequest,
    ApprovalState,
    ApprovalStore,
    ApprovalSubject,
    ApprovalTransaction,
    ApprovalVote,
    Vote,
    WebhookDelivery,
)
from gateway.approvals.errors import (
    AlreadyDecided,
    ApprovalClosed,
    ApprovalExpired,
    ApprovalMismatch,
    ApprovalPending,
    ApprovalRefused,
    ApprovalUsed,
    ApprovalVoid,
    ApprovalWithdrawn,
    InvalidResolution,
    SelfApprovalRefused,
    StaleApproval,
    UnknownApproval,
)
from gateway.approvals.lifecycle import (
    ApprovalRequestContext,
    HoldStatus,
    VoteResult,
    diff_actions,
    is_requester,
    may_see,
    refresh_record,
)
from gateway.approvals.presentation import ApprovalView, excerpt, make_view
from gateway.approvals.watcher import ApprovalWatcher
from gateway.errors import GatewayError, NotPermitted, ValidationException
from gateway.model import Principal, Schema, exact_json, new_token, now

RolesOf = Callable[[Principal], frozenset[str]]
"""Returns the names a principal holds now: the subject, and every role that comes with it. It is also called from the
thread that writes, and must not block."""

MayApprove = Callable[[Principal, ApprovalSubject], bool]
"""Whether the policy lets a principal decide about an action. Rules name whom to ask, the policy who may decide."""

MAX_PENDING: Final = 100
"""Pending approvals of one requester: with more of them, people approve without reading.

A withdrawn approval counts until it would have expired, so that repeated requests and withdrawals do not fill the disk.
"""

MAX_NOTIFICATIONS: Final = 10_000
"""Deliveries that may wait for one webhook; further events are dropped and logged."""

MAX_NOTE: Final = 2_000
MAX_RESOLUTION: Final = 64 << 10

BY_POLICY: Final = "policy:approve"
"""Stands among the approvers for everyone the policy lets decide; a second entry names the catalogue and tool."""

_OF_POLICY: Final = f"{BY_POLICY}:"
_ID_BYTES: Final = 24
_SWEPT_AT_ONCE: Final = 200
_LARGE: Final = 64 << 10
_ROLE: Final = "role:"
_RETRY_AFTER: Final = range(5, 61)

_OVER: Final[Mapping[Literal["expired", "void", "used", "withdrawn"], Callable[[], GatewayError]]] = {
    "expired": ApprovalExpired,
    "void": ApprovalVoid,
    "used": ApprovalUsed,
    "withdrawn": ApprovalWithdrawn,
}

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ApprovalEventRecord:
    """A durable change of an approval, for observers."""

    kind: ApprovalChange
    approval: ApprovalRecord


class ApprovalService:
    """One per process. `subscribers` are the names of the webhooks that receive each event."""

    def __init__(
        self,
        store: ApprovalStore,
        *,
        held: RolesOf,
        served: Callable[[], str],
        may_approve: MayApprove = lambda approver, action: True,
        clock: Callable[[], datetime] = now,
        most_pending: int = MAX_PENDING,
        subscribers: Mapping[ApprovalEvent, Sequence[str]] | None = None,
        most_notices: int = MAX_NOTIFICATIONS,
        announce: Callable[[ApprovalEventRecord], None] = lambda record: None,
        look_every: float = 0.1,
    ) -> None:
        """`served` returns the revision under which calls are made now."""
        self._store = store
        self._names = held
        self.served = served
        self._may_approve = may_approve
        self._clock = clock
        self._most_pending = most_pending
        self._subscribers = dict(subscribers or {})
        self._most_notices = most_notices
        self._announce = announce
        self._watch = ApprovalWatcher(store.list_changes, every=look_every)

    async def ask(
        self,
        requests: Sequence[ApprovalRequest],
        *,
        hold_for: timedelta = timedelta(0),
        named: str | None = None,
        on_pending: Callable[[HoldStatus], None] = lambda status: None,
    ) -> HoldStatus:
        """Take the approvals of a call, or request them and wait up to `hold_for`. The call runs only if `taken`.

        There is one request for each rule that holds the call, all about one action. Raise `TooManyPending`, and if the
        caller names an approval that is not for this call, `ApprovalMismatch`, `ApprovalClosed` or `UnknownApproval`.
        """
        if not requests or len({each.action.digest for each in requests}) > 1:
            raise ValueError("a held call needs one or more requests, all about one action")
        status = await self._run_step(lambda table, context: lifecycle.ask(table, requests, context), named=named)
        if status.state == "pending" and hold_for:
            on_pending(status)
            return await self.wait_for_decision(status, hold_for)
        return status

    async def resume(self, ids: Sequence[str], action: ApprovalSubject, *, rules: Collection[str]) -> HoldStatus:
        """Take approvals that were requested before, or return their status; request nothing new.

        Raise `ApprovalMismatch` if they are not about exactly this action, or if another rule holds it by now.
        """
        found = [each for id in ids if (each := await self._store.find(id)) is not None]
        different = next((each for each in found if each.digest != action.digest), None)
        if different is not None:
            raise ApprovalMismatch(diff_actions(different.request.action, action))
        if not {each.request.rule for each in found}.issuperset(rules):
            raise ApprovalMismatch(("rules",))
        return await self._run_step(lambda table, context: lifecycle.check_pending(table, ids, context))

    async def find_requested(self, requester: Principal, ids: Sequence[str]) -> list[ApprovalRecord]:
        """Return the approvals of one call of exactly this requester, roles included. Raise `UnknownApproval`."""
        found = [each for id in ids if (each := await self._store.find(id)) is not None]
        is_one_call = len(found) == len(ids) > 0 and len({each.digest for each in found}) == 1
        if not is_one_call or any(each.requester != requester for each in found):
            raise UnknownApproval()
        at = self._clock()
        return [refresh_record(each, at, self.holds) for each in found]

    async def withdraw(self, requester: Principal, ids: Sequence[str]) -> None:
        """Withdraw a call that waits for these approvals. Raise `UnknownApproval`; ended approvals do not change."""
        await self.find_requested(requester, ids)

        def work(table: ApprovalTransaction) -> list[ApprovalRecord]:
            withdrawn = lifecycle.withdraw(table, ids, self._context())
            for record in withdrawn:
                self._notify(table, "decided", record)
            return withdrawn

        withdrawn = await self._store.transact(work)
        self._watch.wake(ids)
        for record in withdrawn:
            self._publish(ApprovalEventRecord("withdrawn", record))

    async def find(self, id: str, viewer: Principal) -> ApprovalRecord:
        """Raise `UnknownApproval`, also if the viewer neither requested the approval nor may decide it."""
        record = await self._store.find(id)
        if record is None or not may_see(record, viewer, self.holds):
            raise UnknownApproval()
        return refresh_record(record, self._clock(), self.holds)

    async def page(
        self,
        viewer: Principal,
        *,
        state: ApprovalState | None = None,
        tool: str | None = None,
        role: Literal["approver", "requester"] | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> tuple[list[ApprovalRecord], str | None]:
        """Return what the viewer may decide or requested, newest first, and the cursor of the next page."""
        at = self._clock()
        names = self._names_of(viewer) | {BY_POLICY}  # `may_see` asks the policy for each record
        wanted = ApprovalFilter(viewer, names, at, state=state, tool=tool, role=role)
        records, cursor = await self._store.list_page(wanted, limit=limit, before=before)
        return [refresh_record(each, at, self.holds) for each in records if may_see(each, viewer, self.holds)], cursor

    async def decide(
        self,
        id: str,
        approver: Principal,
        vote: Vote,
        *,
        resolution: Any = None,
        note: str | None = None,
        shown_digest: str | None = None,
        trace: str | None = None,
    ) -> ApprovalRecord:
        """Add one approver's vote. Without `shown_digest` the approver is taken to have seen the current view.

        Raise `UnknownApproval`, `SelfApprovalRefused`, `ApprovalClosed`, `StaleApproval`, `NotPermitted`,
        `AlreadyDecided`, `DisplayChanged`, or `InvalidResolution`; the approval then does not change.
        """
        record = await self.find(id, approver)
        if obstacle := self.vote_error(record, approver, vote):
            raise obstacle
        accepted = _check_resolution(record, resolution) if vote == "grant" else None
        seen = await present_approval(record)

        def work(table: ApprovalTransaction) -> VoteResult | GatewayError:
            entry = ApprovalVote(approver, vote, self._clock(), shown_digest or seen.digest, note, accepted, trace)
            decided = lifecycle.decide(table, id, entry, shown_digest=seen.digest, holds=self.holds)
            if isinstance(decided, VoteResult) and decided.is_final:
                self._notify(table, "decided", decided.approval)
            return decided

        decided = await self._store.transact(work)
        if isinstance(decided, GatewayError):
            raise decided
        self._watch.wake([id])
        self._publish(ApprovalEventRecord("decided" if decided.is_final else "voted", decided.approval))
        return decided.approval

    def may_decide(self, record: ApprovalRecord, viewer: Principal) -> bool:
        """Whether the viewer could still vote on it, at least to refuse."""
        return self.vote_error(record, viewer, "refuse") is None

    def vote_error(self, record: ApprovalRecord, viewer: Principal, vote: Vote) -> GatewayError | None:
        """Return why the viewer cannot cast this vote. A stale approval can be refused but not granted."""
        if not may_see(record, viewer, self.holds):
            return UnknownApproval()
        if is_requester(record, viewer):
            return SelfApprovalRefused()
        if record.state != "pending":
            return ApprovalClosed(record.state)
        if vote == "grant" and self.is_stale(record):
            return StaleApproval(record.request.action.revision, self.served())
        if not self._may_approve(viewer, record.request.action):
            return NotPermitted(
                "the policy does not let you decide about this call",
                help="a row has to allow approve on the tool",
            )
        has_voted = any(each.approver.subject == viewer.subject for each in record.entries)
        return AlreadyDecided() if has_voted else None

    def is_stale(self, record: ApprovalRecord) -> bool:
        """Whether no call can use it because it was requested under another revision than the one served now."""
        return lifecycle.is_stale(record, self.served(), self._clock())

    def holds(self, principal: Principal, name: str) -> bool:
        if name.startswith(_OF_POLICY):
            catalogue, _, tool = name.removeprefix(_OF_POLICY).partition(":")
            return self._may_approve(principal, ApprovalSubject(principal, catalogue, tool, "", "", "{}", ""))
        return name != BY_POLICY and name in self._names_of(principal)

    async def sweep(self) -> int:
        """Expire overdue approvals; return how many. Any process may do so at any time."""
        swept = 0
        while expired := await self._store.transact(self._expire_some):
            swept += len(expired)
            self._publish_expired(expired)
        return swept

    async def prune(self, kept: timedelta) -> int:
        """Remove approvals that were decided, or expired, longer than `kept` ago."""
        return await self._store.prune(self._clock(), kept=kept)

    async def close(self) -> None:
        await self._watch.close()

    def refresh(self) -> None:
        """Check at once for changes by another process, for calls that wait."""
        self._watch.poll_now()

    async def count_pending(self, at: datetime) -> Mapping[str, int]:
        """Return how many approvals are pending in all processes, by rule."""
        return await self._store.count_pending(at)

    @property
    def count_waiting(self) -> int:
        """The number of approvals that calls in this process wait for right now."""
        return self._watch.waited_for

    async def wait_for_decision(self, status: HoldStatus, hold_for: timedelta) -> HoldStatus:
        """Wait until the approvals are decided or ended, or the time is up; take them if possible."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + hold_for.total_seconds()
        ids = [each.id for each in status.approvals]
        while status.state == "pending":
            left = deadline - loop.time()
            ends = min(each.expires_at for each in status.approvals) - self._clock()
            within = min(left, ends.total_seconds())
            has_changed = await self._watch.wait_for_change(ids, since=status.as_of, within=max(within, 0.0))
            if not has_changed and within >= left:
                return status
            now = await self._run_step(lambda table, context: lifecycle.check_pending(table, ids, context))
            status = replace(now, resembling=status.resembling)
        return status

    async def _run_step(
        self,
        step: Callable[[ApprovalTransaction, ApprovalRequestContext], HoldStatus | GatewayError],
        *,
        named: str | None = None,
    ) -> HoldStatus:
        token = new_token(_ID_BYTES)
        taken: list[str] = []

        def work(table: ApprovalTransaction) -> HoldStatus | GatewayError:
            status = step(table, self._context(token, named))
            taken.clear()
            if isinstance(status, HoldStatus):
                taken.extend(each.id for each in status.approvals if status.state == "taken")
                for record in status.requested:
                    self._notify(table, "requested", record)
                for record in status.ended:
                    self._notify(table, "expired", record)
            return status

        status = await self._store.transact(work, undo=lambda table: lifecycle.undo_take(table, taken, token))
        if isinstance(status, GatewayError):
            raise status
        self._publish_expired(status.ended)
        for record in status.requested:
            self._publish(ApprovalEventRecord("requested", record))
        if status.state in ("taken", "void"):
            self._watch.wake(each.id for each in status.approvals)
            for record in status.approvals:
                self._publish(ApprovalEventRecord("taken" if status.state == "taken" else "void", record))
        return status

    def _context(self, token: str = "", named: str | None = None) -> ApprovalRequestContext:
        return ApprovalRequestContext(self._clock(), self.holds, token, _new_id, self._most_pending, named)

    def _expire_some(self, table: ApprovalTransaction) -> list[ApprovalRecord]:
        expired = lifecycle.expire(table, self._clock(), limit=_SWEPT_AT_ONCE)
        for record in expired:
            self._notify(table, "expired", record)
        return expired

    def _publish_expired(self, records: Sequence[ApprovalRecord]) -> None:
        self._watch.wake(each.id for each in records)
        for record in records:
            self._publish(ApprovalEventRecord("expired", record))

    def _publish(self, record: ApprovalEventRecord) -> None:
        try:
            self._announce(record)
        except Exception:  # the change is durable and must be reported to the caller, whatever an observer does
            _log.exception("an observer of approvals failed")

    def _notify(self, table: ApprovalTransaction, event: ApprovalEvent, record: ApprovalRecord) -> None:
        """Queue deliveries in the transaction of the change, so that they are stored if and only if it is."""
        for webhook in self._subscribers.get(event, ()):
            notice = WebhookDelivery(new_token(_ID_BYTES), webhook, event, record.id, record.state, self._clock())
            if not table.add_delivery(notice, most=self._most_notices):
                _log.warning("webhook %s misses an approval event: too many deliveries wait for it", webhook)

    def _names_of(self, principal: Principal) -> frozenset[str]:
        # A role without the prefix `role:` could be another principal's name and would grant that principal's rights.
        if not all(role.startswith(_ROLE) for role in principal.roles):
            return frozenset()
        return self._names(principal)


def approvers_by_policy(catalogue: str, tool: str) -> tuple[str, ...]:
    """Return the approvers of a call if no rule names any: everyone the policy lets `approve` calls of the tool."""
    return BY_POLICY, f"{_OF_POLICY}{catalogue}:{tool}"


async def present_approval(record: ApprovalRecord) -> ApprovalView:
    """Return the approvers' view; large arguments are processed in a thread so as not to block the event loop."""
    if len(record.request.action.arguments) < _LARGE:
        return make_view(record)
    return await asyncio.to_thread(make_view, record)


async def summarize_approvals(records: Sequence[ApprovalRecord]) -> list[str]:
    """Return a short summary of each approval; large arguments are processed in a thread."""
    if sum(len(each.request.action.arguments) for each in records) < _LARGE:
        return list(map(excerpt, records))
    return await asyncio.to_thread(lambda: list(map(excerpt, records)))


def outcome_error(status: HoldStatus, at: datetime) -> GatewayError | None:
    """Return the error for the caller of a call that does not run; `None` if it runs."""
    if status.state == "taken":
        return None
    if status.state == "pending":
        return ApprovalPending(status.approvals, retry_after=_retry_after(status.approvals, at))
    if status.state == "refused":
        return ApprovalRefused(status.approvals[0])
    return _OVER[status.state]()


def _retry_after(approvals: Sequence[ApprovalRecord], at: datetime) -> int:
    """Return seconds: a tenth of the time left, between five seconds and a minute."""
    left = min(each.expires_at for each in approvals) - at
    tenth = int(left.total_seconds() / 10)
    return min(max(tenth, _RETRY_AFTER.start), _RETRY_AFTER.stop - 1)


def _new_id() -> str:
    return new_token(_ID_BYTES)


def _check_resolution(record: ApprovalRecord, resolution: Any) -> str | None:
    """Return the resolution as stored. It is coerced like any gate's; `InvalidResolution` lists its defects."""
    schema = record.request.resolution
    if schema is None:
        if resolution is not None:
            raise InvalidResolution("this approval takes no resolution", help="leave the resolution out")
        return None
    try:
        text = exact_json(Schema(dict(schema)).coerce({} if resolution is None else resolution))
    except ValidationException as error:
        raise InvalidResolution(error.message, details=error.details) from error
    if len(text) > MAX_RESOLUTION:
        raise InvalidResolution(f"the resolution is larger than {MAX_RESOLUTION} bytes", help="send a smaller one")
    return text
