"""Approvals as everybody else sees them: handlers ask and wait, people look and decide, somebody sweeps.

What may follow what is in `deciding`; here it is put into transactions, and whoever has to know of it is told.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from gateway.approvals import deciding
from gateway.approvals.deciding import Asking, Decided, Standing, differs, is_about, is_requester, renewed
from gateway.approvals.refusals import (
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
    OwnRequest,
    StaleApproval,
    UnknownApproval,
)
from gateway.approvals.showing import Shown, excerpt, shown
from gateway.approvals.waiting import Watch
from gateway.core.events import now
from gateway.core.exact_json import exact_json
from gateway.core.ids import new_token
from gateway.core.schemas import Schema
from gateway.errors import GatewayError, NotPermitted, ValidationException
from gateway.governance.approvals import (
    Action,
    ApprovalChange,
    ApprovalEntry,
    ApprovalEvent,
    ApprovalFilter,
    ApprovalRecord,
    ApprovalRequest,
    ApprovalState,
    ApprovalStore,
    ApprovalTable,
    Notice,
    Vote,
)
from gateway.governance.principals import Principal

Held = Callable[[Principal], frozenset[str]]
"""Everything somebody is and holds at this moment: the subject, and every role that comes with it. It is asked from the
thread that writes, too, and must not wait."""

MayApprove = Callable[[Principal, Action], bool]
"""Whether the policy lets somebody decide about an action. Rules say who is asked, the policy who may answer."""

MOST_PENDING: Final = 100
"""Approvals one requester may wait for: more is noise that makes people agree without looking.

One that was taken back counts until it would have expired, so that asking and taking back fills no disk.
"""

MOST_NOTICES: Final = 10_000
"""Notices that may wait for one webhook; what happens while more wait is not told."""

MAX_NOTE: Final = 2_000
MAX_RESOLUTION: Final = 64 << 10

BY_POLICY: Final = "policy:approve"
"""Stands among approvers for everybody whom the policy lets decide; beside it stands about which calls."""

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
class Announcement:
    """Something that has happened and is durable, for whoever observes."""

    kind: ApprovalChange
    approval: ApprovalRecord


class Approvals:
    """One per process. `subscribers` are the names of the webhooks that are to be told of each event."""

    def __init__(
        self,
        store: ApprovalStore,
        *,
        held: Held,
        served: Callable[[], str],
        may_approve: MayApprove = lambda approver, action: True,
        clock: Callable[[], datetime] = now,
        most_pending: int = MOST_PENDING,
        subscribers: Mapping[ApprovalEvent, Sequence[str]] | None = None,
        most_notices: int = MOST_NOTICES,
        announce: Callable[[Announcement], None] = lambda announcement: None,
        look_every: float = 0.1,
    ) -> None:
        """`served` is the revision that calls are made under now."""
        self._store = store
        self._names = held
        self.served = served
        self._may_approve = may_approve
        self._clock = clock
        self._most_pending = most_pending
        self._subscribers = dict(subscribers or {})
        self._most_notices = most_notices
        self._announce = announce
        self._watch = Watch(store.changes, every=look_every)

    async def ask(
        self,
        requests: Sequence[ApprovalRequest],
        *,
        hold_for: timedelta = timedelta(0),
        named: str | None = None,
        on_pending: Callable[[Standing], None] = lambda standing: None,
    ) -> Standing:
        """Take the approvals of a call, or ask for them and wait up to `hold_for`.

        One request for each rule that holds the call, all about the same action; only `taken` lets it run. Raises
        `TooManyPending`, and for an approval that the caller names and that is not for this call `ApprovalMismatch`,
        `ApprovalClosed` or `UnknownApproval`.
        """
        if not requests or len({each.action.digest for each in requests}) > 1:
            raise ValueError("a call is held by one rule or several, and is one action")
        standing = await self._stand(lambda table, asking: deciding.ask(table, requests, asking), named=named)
        if standing.state == "pending" and hold_for:
            on_pending(standing)
            return await self.wait_for_decision(standing, hold_for)
        return standing

    async def pick_up(self, ids: Sequence[str], action: Action, *, rules: Collection[str]) -> Standing:
        """Take approvals that were asked for before, or tell how they stand; nothing new is asked.

        Raises `ApprovalMismatch` if they are not about this very action, or if another rule holds it by now.
        """
        found = [each for id in ids if (each := await self._store.find(id)) is not None]
        different = next((each for each in found if each.digest != action.digest), None)
        if different is not None:
            raise ApprovalMismatch(differs(different.request.action, action))
        if not {each.request.rule for each in found}.issuperset(rules):
            raise ApprovalMismatch(("rules",))
        return await self._stand(lambda table, asking: deciding.revisit(table, ids, asking))

    async def asked_by(self, requester: Principal, ids: Sequence[str]) -> list[ApprovalRecord]:
        """Approvals of one call of that very requester, roles included. Raises `UnknownApproval`."""
        found = [each for id in ids if (each := await self._store.find(id)) is not None]
        is_one_call = len(found) == len(ids) > 0 and len({each.digest for each in found}) == 1
        if not is_one_call or any(each.requester != requester for each in found):
            raise UnknownApproval()
        at = self._clock()
        return [renewed(each, at, self.holds) for each in found]

    async def withdraw(self, requester: Principal, ids: Sequence[str]) -> None:
        """Take a call back that waits for these. Raises `UnknownApproval`; what is over already stays so."""
        await self.asked_by(requester, ids)

        def work(table: ApprovalTable) -> list[ApprovalRecord]:
            withdrawn = deciding.withdraw(table, ids, self._asking())
            for record in withdrawn:
                self._notify(table, "decided", record)
            return withdrawn

        withdrawn = await self._store.transact(work)
        self._watch.wake(ids)
        for record in withdrawn:
            self._tell(Announcement("withdrawn", record))

    async def find(self, id: str, viewer: Principal) -> ApprovalRecord:
        """Raises `UnknownApproval`, also for one that the viewer neither asked for nor may decide."""
        record = await self._store.find(id)
        if record is None or not is_about(record, viewer, self.holds):
            raise UnknownApproval()
        return renewed(record, self._clock(), self.holds)

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
        """What the viewer may decide or asked for, newest first, and the cursor of the next page."""
        at = self._clock()
        names = self._names_of(viewer) | {BY_POLICY}  # who holds that one is asked of the policy, for each
        wanted = ApprovalFilter(viewer, names, at, state=state, tool=tool, role=role)
        records, cursor = await self._store.page(wanted, limit=limit, before=before)
        return [renewed(each, at, self.holds) for each in records if is_about(each, viewer, self.holds)], cursor

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
        """Add one approver's vote. Without `shown_digest` they were shown what there is.

        Raises `UnknownApproval`, `OwnRequest`, `ApprovalClosed`, `StaleApproval`, `NotPermitted`, `AlreadyDecided`,
        `ShownOtherwise`, and for a resolution that does not fit `InvalidResolution`; the approval then stays as it was.
        """
        record = await self.find(id, approver)
        if obstacle := self.obstacle(record, approver, vote):
            raise obstacle
        accepted = _accepted(record, resolution) if vote == "grant" else None
        seen = await shown_of(record)

        def work(table: ApprovalTable) -> Decided | GatewayError:
            entry = ApprovalEntry(approver, vote, self._clock(), shown_digest or seen.digest, note, accepted, trace)
            decided = deciding.decide(table, id, entry, shown_digest=seen.digest, holds=self.holds)
            if isinstance(decided, Decided) and decided.is_final:
                self._notify(table, "decided", decided.approval)
            return decided

        decided = await self._store.transact(work)
        if isinstance(decided, GatewayError):
            raise decided
        self._watch.wake([id])
        self._tell(Announcement("decided" if decided.is_final else "voted", decided.approval))
        return decided.approval

    def may_decide(self, record: ApprovalRecord, viewer: Principal) -> bool:
        """Whether the viewer could still vote on it, if only to refuse."""
        return self.obstacle(record, viewer, "refuse") is None

    def obstacle(self, record: ApprovalRecord, viewer: Principal, vote: Vote) -> GatewayError | None:
        """Why the viewer cannot vote so. What is stale cannot be granted, and can be refused."""
        if not is_about(record, viewer, self.holds):
            return UnknownApproval()
        if is_requester(record, viewer):
            return OwnRequest()
        if record.state != "pending":
            return ApprovalClosed(record.state)
        if vote == "grant" and self.is_stale(record):
            return StaleApproval(record.request.action.revision, self.served())
        if not self._may_approve(viewer, record.request.action):
            return NotPermitted(
                "the policy does not let you decide about this call", help="a row has to allow approve on the tool"
            )
        has_voted = any(each.approver.subject == viewer.subject for each in record.entries)
        return AlreadyDecided() if has_voted else None

    def is_stale(self, record: ApprovalRecord) -> bool:
        """Whether no call can use it because another revision is served than it was asked for under."""
        return deciding.is_stale(record, self.served(), self._clock())

    def holds(self, principal: Principal, name: str) -> bool:
        if name.startswith(_OF_POLICY):
            catalogue, _, tool = name.removeprefix(_OF_POLICY).partition(":")
            return self._may_approve(principal, Action(principal, catalogue, tool, "", "", "{}", ""))
        return name != BY_POLICY and name in self._names_of(principal)

    async def sweep(self) -> int:
        """End what ran out of time; how many did. Any process may do so at any time."""
        swept = 0
        while expired := await self._store.transact(self._expire_some):
            swept += len(expired)
            self._ended(expired)
        return swept

    async def prune(self, kept: timedelta) -> int:
        """Remove approvals that were decided, or ran out of time, longer than `kept` ago."""
        return await self._store.prune(self._clock(), kept=kept)

    async def close(self) -> None:
        await self._watch.close()

    def look_again(self) -> None:
        """Another process has changed some of them: whoever waits learns of it now."""
        self._watch.nudge()

    async def pending(self, at: datetime) -> Mapping[str, int]:
        """How many wait for people, by the rule that asks: those of every process."""
        return await self._store.pending(at)

    @property
    def waited_for(self) -> int:
        """How many approvals calls wait for right now, in this process."""
        return self._watch.waited_for

    async def wait_for_decision(self, standing: Standing, hold_for: timedelta) -> Standing:
        """How a call stands once its approvals are decided or over, or that time is up. They are taken if they can."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + hold_for.total_seconds()
        ids = [each.id for each in standing.approvals]
        while standing.state == "pending":
            left = deadline - loop.time()
            ends = min(each.expires_at for each in standing.approvals) - self._clock()
            within = min(left, ends.total_seconds())
            has_changed = await self._watch.changed(ids, since=standing.as_of, within=max(within, 0.0))
            if not has_changed and within >= left:
                return standing
            now = await self._stand(lambda table, asking: deciding.revisit(table, ids, asking))
            standing = replace(now, resembling=standing.resembling)
        return standing

    async def _stand(
        self,
        step: Callable[[ApprovalTable, Asking], Standing | GatewayError],
        *,
        named: str | None = None,
    ) -> Standing:
        token = new_token(_ID_BYTES)
        taken: list[str] = []

        def work(table: ApprovalTable) -> Standing | GatewayError:
            standing = step(table, self._asking(token, named))
            taken.clear()
            if isinstance(standing, Standing):
                taken.extend(each.id for each in standing.approvals if standing.state == "taken")
                for record in standing.requested:
                    self._notify(table, "requested", record)
                for record in standing.ended:
                    self._notify(table, "expired", record)
            return standing

        standing = await self._store.transact(work, undo=lambda table: deciding.give_back(table, taken, token))
        if isinstance(standing, GatewayError):
            raise standing
        self._ended(standing.ended)
        for record in standing.requested:
            self._tell(Announcement("requested", record))
        if standing.state in ("taken", "void"):
            self._watch.wake(each.id for each in standing.approvals)
            for record in standing.approvals:
                self._tell(Announcement("taken" if standing.state == "taken" else "void", record))
        return standing

    def _asking(self, token: str = "", named: str | None = None) -> Asking:
        return Asking(self._clock(), self.holds, token, _new_id, self._most_pending, named)

    def _expire_some(self, table: ApprovalTable) -> list[ApprovalRecord]:
        expired = deciding.expire(table, self._clock(), limit=_SWEPT_AT_ONCE)
        for record in expired:
            self._notify(table, "expired", record)
        return expired

    def _ended(self, records: Sequence[ApprovalRecord]) -> None:
        self._watch.wake(each.id for each in records)
        for record in records:
            self._tell(Announcement("expired", record))

    def _tell(self, announcement: Announcement) -> None:
        try:
            self._announce(announcement)
        except Exception:  # whatever an observer does, what is durable has happened and its caller has to know
            _log.exception("an observer of approvals failed")

    def _notify(self, table: ApprovalTable, event: ApprovalEvent, record: ApprovalRecord) -> None:
        """In the transaction of what happened: a notice is kept if and only if it did."""
        for webhook in self._subscribers.get(event, ()):
            notice = Notice(new_token(_ID_BYTES), webhook, event, record.id, record.state, self._clock())
            if not table.add_notice(notice, most=self._most_notices):
                _log.warning("webhook %s is not told of an approval: too many notices wait for it", webhook)

    def _names_of(self, principal: Principal) -> frozenset[str]:
        # A role that is none would be another person's name: whoever could choose it would be that person.
        if not all(role.startswith(_ROLE) for role in principal.roles):
            return frozenset()
        return self._names(principal)


def approvers_by_policy(catalogue: str, tool: str) -> tuple[str, ...]:
    """The approvers of a call that no rule names any for: whoever the policy lets `approve` calls of the tool."""
    return BY_POLICY, f"{_OF_POLICY}{catalogue}:{tool}"


async def shown_of(record: ApprovalRecord) -> Shown:
    """What approvers see of it; large arguments are looked through without holding up everybody else."""
    if len(record.request.action.arguments) < _LARGE:
        return shown(record)
    return await asyncio.to_thread(shown, record)


async def excerpts_of(records: Sequence[ApprovalRecord]) -> list[str]:
    """What each is about, in few words; large arguments hold up nobody here either."""
    if sum(len(each.request.action.arguments) for each in records) < _LARGE:
        return list(map(excerpt, records))
    return await asyncio.to_thread(lambda: list(map(excerpt, records)))


def refusal_of(standing: Standing, at: datetime) -> GatewayError | None:
    """What a caller is told whose call does not run; `None` if it does."""
    if standing.state == "taken":
        return None
    if standing.state == "pending":
        return ApprovalPending(standing.approvals, retry_after=_retry_after(standing.approvals, at))
    if standing.state == "refused":
        return ApprovalRefused(standing.approvals[0])
    return _OVER[standing.state]()


def _retry_after(approvals: Sequence[ApprovalRecord], at: datetime) -> int:
    """Seconds: a tenth of the time there is, between five seconds and a minute."""
    left = min(each.expires_at for each in approvals) - at
    tenth = int(left.total_seconds() / 10)
    return min(max(tenth, _RETRY_AFTER.start), _RETRY_AFTER.stop - 1)


def _new_id() -> str:
    return new_token(_ID_BYTES)


def _accepted(record: ApprovalRecord, resolution: Any) -> str | None:
    """The resolution as it is kept. Like any gate's it is coerced; a wrong one says what is wrong."""
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
