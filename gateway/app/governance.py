"""Opens the controls of calls in this process: approvals, limits, the kill switch and the decision log.

Their state is in the store or beside its file, so that all processes of a store apply the same.
"""

import asyncio
import logging
import platform
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from secrets import token_hex
from time import monotonic
from typing import Any, Final, TypeVar

from gateway.app.audit_settings import AuditSettings
from gateway.app.jobs.audit_anchors import AnchorWriter
from gateway.app.jobs.audit_retention import AuditRetention
from gateway.app.jobs.webhook_job import WebhookJob
from gateway.app.stores.databases import Database, DatabaseStore
from gateway.approvals import ApprovalEventRecord, ApprovalService, ApprovalSubject, WebhookTarget, webhooks_by_event
from gateway.audit import AuditOrigin, ContentKey, shard_name
from gateway.engine import Auditor, GuardDependencies, LiveRevision, Observer, SharedTurnState
from gateway.errors import StoreUnavailable
from gateway.model import Principal, now, now_microseconds
from gateway.policy import Access, GrantedRoles, GrantHook, GrantRights, GrantService, LimitStore, Validity, forward_now
from gateway.storage import (
    WINDOW,
    AuditBody,
    AuditHook,
    AuditLog,
    SqlApprovalStore,
    SqlGrantStore,
    SqlStopList,
    StoredCall,
    StoredSightings,
)

_SWEEP_EVERY: Final = 15.0
_MOST_PLACES: Final = 16
_START_SECONDS: Final = 5.0
_START_PAUSE: Final = 0.1

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)


async def retry_store(work: Callable[[], Awaitable[T]]) -> T:
    """Retry while other processes block the store. Raises `StoreUnavailable` after a few seconds."""
    until = monotonic() + _START_SECONDS
    while True:
        try:
            return await work()
        except StoreUnavailable as error:
            if monotonic() > until:
                raise
            _log.warning("the start waits for the store: %s", error.message)
        await asyncio.sleep(_START_PAUSE)


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How long ended approvals, counts of past windows and the decision log are retained."""

    approvals: timedelta = timedelta(days=90)
    quotas: timedelta | None = None
    audit: timedelta | None = None  # for ever


@dataclass(frozen=True, slots=True)
class Governance:
    """The controls of a process, and their background jobs."""

    engine: Database
    controls: GuardDependencies
    auditor: Auditor
    approvals: ApprovalService
    stops: SqlStopList
    grant_store: SqlGrantStore
    grants: GrantService
    limits: LimitStore
    notifying: WebhookJob
    validity: Validity
    """Until when the served bundle is valid; every publication sets it."""
    anchoring: tuple[AnchorWriter, ...] = ()
    """One for each audit shard that this process writes."""
    retained: RetentionPolicy = RetentionPolicy()
    shortening: AuditRetention | None = None
    """Shortens the decision log, unless it is retained for ever."""

    @property
    def store(self) -> DatabaseStore:
        return self.engine.store

    async def start(self, closing: AsyncExitStack) -> None:
        """Record the start and run the background jobs; `closing` ends them in reverse order."""
        entries = [self.auditor.event_entry("gateway-started"), self.auditor.event_entry("config-published")]
        await retry_store(lambda: self.store.note(entries))
        for anchoring in self.anchoring:
            anchoring.start()
            closing.push_async_callback(anchoring.close)
        closing.push_async_callback(self._end)
        self.notifying.start()
        closing.push_async_callback(self.notifying.close)
        closing.push_async_callback(_cancel, asyncio.create_task(_sweep_forever(self)))
        if self.shortening is not None:
            closing.push_async_callback(_cancel, asyncio.create_task(self.shortening.run()))

    def add_grants(self, access: Access) -> Access:
        """Return the access with the roles of grants, as far as the policies of its own snapshot allow them."""
        policies = access.snapshot.grants
        if not policies:
            return access
        return access.with_grants(GrantedRoles(policies, self.grant_store, access.authoriser.roles_of).find)

    async def sweep(self) -> None:
        """Expire approvals, and delete those and the counts whose retention is over."""
        await self.approvals.sweep()
        await self.approvals.prune(self.retained.approvals)
        await self.limits.prune(kept=self.retained.quotas)

    async def _end(self) -> None:
        try:
            await self.store.audit_refusal_counts(now_microseconds() + WINDOW)  # including those of the current minute
            await self.store.note([self.auditor.event_entry("gateway-stopped")])
        except StoreUnavailable:
            _log.exception("the stop of the gateway could not be recorded in the decision log")

    def status(self) -> Mapping[str, Any]:
        return {
            "webhooks": self.notifying.status(),
            "anchors": [each.status() for each in self.anchoring],
        }

    @property
    def problems(self) -> list[str]:
        """Problems for the operator that do not stop calls."""
        grants = self.grant_store.problem
        found = [
            self.validity.problem,
            self.notifying.problem,
            grants and f"no grant is in force: {grants}",
            *(each.problem for each in self.anchoring),
        ]
        found += [] if self.shortening is None else [self.shortening.problem]
        return [each for each in found if each is not None]


def open_controls(
    engine: Database,
    *,
    published: Callable[[], LiveRevision],
    auditing: AuditSettings,
    webhooks: Sequence[WebhookTarget],
    base_url: str,
    closing: AsyncExitStack,
    announce: Callable[[ApprovalEventRecord], None] = lambda announcement: None,
    observer: Observer | None = None,
    validity: Validity | None = None,
    retained: RetentionPolicy = RetentionPolicy(),  # noqa: B008 - immutable
) -> Governance:
    """Open all controls. `published` returns the live revision; it is first called with the first call."""
    store = engine.store
    notices = engine.notices()
    closing.callback(notices.close)
    stops = SqlStopList(store.writer, notices, clock=now)
    closing.callback(stops.close)
    limits = engine.limits()
    closing.callback(limits.close)
    log = _open_log(engine, auditing.key)
    auditor = _build_auditor(published, auditing.key)
    abandoned = auditor.abandoned_call_entry if observer is None else _report_abandoned(auditor, observer)
    store.use_audit_log(log, abandoned=abandoned, summed=auditor.refusal_count_entry)
    hook = engine.audit_approval_changes(_audit_hook(log, auditor))
    grant_store = SqlGrantStore(store.writer, notices, clock=forward_now, also=_grant_hook(log, auditor))
    closing.callback(grant_store.close)
    rights = GrantRights(
        lambda: published().snapshot.grants,
        lambda names: published().access.authoriser.roles_of(names),
        lambda principal: published().access.without_grants().can_administer(principal),
    )
    approval_store = SqlApprovalStore(store.writer, store.reader, noted=hook)
    approvals = ApprovalService(
        approval_store,
        held=lambda principal: _roles_of(published, principal),
        served=lambda: published().snapshot.revision,
        may_approve=lambda approver, action: _may_approve(published, approver, action),
        subscribers=webhooks_by_event(webhooks),
        announce=announce,
        look_every=engine.look_every,
    )
    engine.on_approvals_change(approvals.refresh)
    closing.push_async_callback(approvals.close)
    notifying = WebhookJob(approval_store, webhooks, base_url=base_url)
    shared = SharedTurnState(store, engine.alone_since)
    validity = validity or Validity()
    sightings = StoredSightings(store.writer, store.reader, clock=now)
    controls = GuardDependencies(
        *(approvals, limits, stops, lambda: published().snapshot.revision),
        turns=shared,
        sightings=sightings,
        validity=validity,
    )
    place = (_node(), None, None, auditing.key.id)
    shard = shard_name(_node(), now_microseconds(), unique=token_hex(8))
    recording = engine.start_writer_process(place=place, shard=shard, key=auditing.key)
    heads = (log.durable_head, *(() if recording is None else (recording.durable_head,)))
    anchoring = () if auditing.anchors is None else tuple(AnchorWriter(auditing.anchors, head) for head in heads)
    shortening = None
    if retained.audit is not None:
        shortening = AuditRetention(store, auditor, anchoring[0] if anchoring else None, retain=retained.audit)
    return Governance(
        *(engine, controls, auditor, approvals, stops, grant_store, GrantService(grant_store, rights)),
        *(limits, notifying, validity),
        anchoring,
        retained,
        shortening,
    )


def _report_abandoned(auditor: Auditor, observer: Observer) -> Callable[[StoredCall], AuditBody]:
    def record(call: StoredCall) -> AuditBody:
        observer.report_abandoned(call)
        return auditor.abandoned_call_entry(call)

    return record


def _roles_of(published: Callable[[], LiveRevision], principal: Principal) -> frozenset[str]:
    return published().access.roles_of(principal)


def _may_approve(published: Callable[[], LiveRevision], approver: Principal, action: ApprovalSubject) -> bool:
    return published().access.decide_approval(approver, catalogue=action.catalogue, tool=action.tool).allowed


def _open_log(engine: Database, key: ContentKey) -> AuditLog:
    """Open the audit log with a new shard, which only this process writes."""
    return engine.log(
        lambda: shard_name(_node(), now_microseconds(), unique=token_hex(8)),
        AuditOrigin(_node(), content_key=key.id),
        clock=now_microseconds,
        key=key,
    )


def _node() -> str:
    return platform.node() or "gateway"


def _build_auditor(published: Callable[[], LiveRevision], key: ContentKey) -> Auditor:
    node = _node()
    places: dict[str, AuditOrigin] = {}

    def of_revision(revision: str) -> AuditOrigin:
        """Return the origin of entries of a revision. The writer thread calls this, too."""
        found = places.get(revision)
        if found is None:
            found = AuditOrigin(node, revision, revision, key.id)
            if len(places) >= _MOST_PLACES:
                places.clear()
            places[revision] = found
        return found

    def place() -> AuditOrigin:
        return of_revision(published().snapshot.revision)

    return Auditor(place, key, clock=now_microseconds, of_revision=of_revision)


def _audit_hook(log: AuditLog, auditor: Auditor) -> AuditHook:
    """Return a hook that records an approval change in the transaction that makes it."""
    return lambda connection, change, record: log.append(connection, [auditor.approval_entry(change, record)])


def _grant_hook(log: AuditLog, auditor: Auditor) -> GrantHook:
    """Return a hook that records a change of a grant in the transaction that makes it."""
    return lambda connection, change: log.append(connection, [auditor.grant_entry(change)])


async def _sweep_forever(controls: Governance) -> None:
    while True:
        try:
            await controls.sweep()
        except StoreUnavailable:
            _log.warning("approvals and quotas were not swept: the store is unavailable")
        await asyncio.sleep(_SWEEP_EVERY)


async def _cancel(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.wait({task})
