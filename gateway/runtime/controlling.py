"""What stands between calls and their tools in this process: people, limits, the kill switch, the decision log.

All of it lives in the store, or beside its file, so that every process that shares it goes by the same.
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

from gateway.approvals.approving import Announcement, Approvals
from gateway.approvals.webhooks import Webhook, subscribers
from gateway.audit.chain import shard_name
from gateway.audit.contents import ContentKey
from gateway.audit.entries import Place
from gateway.core.events import now
from gateway.core.moments import clock
from gateway.errors import StoreUnavailable
from gateway.governance.approvals import Action
from gateway.governance.limits import Limits
from gateway.governance.principals import Principal
from gateway.governance.records import AuditBody, StoredCall
from gateway.governance.refusals import WINDOW
from gateway.governance.validity import Validity
from gateway.runtime.auditing import Anchoring, Auditing
from gateway.runtime.engines import Engine, KeptStore
from gateway.runtime.notifying import Notifying
from gateway.runtime.shortening import Shortening
from gateway.serving.auditing import Auditor
from gateway.serving.gating import Controls
from gateway.serving.observing import Observer
from gateway.serving.published import Published
from gateway.serving.sharing import SharedTurns
from gateway.storage.approvals import Noted, SqliteApprovals
from gateway.storage.audit_log import AuditLog
from gateway.storage.quarantines import SqliteQuarantines
from gateway.storage.revocations import SqliteRevocations
from gateway.storage.sightings import StoredSightings

_SWEEP_EVERY: Final = 15.0
_MOST_PLACES: Final = 16
_START_SECONDS: Final = 5.0
_START_PAUSE: Final = 0.1

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """A start does not fail because others have the store for a moment. Raises `StoreUnavailable` after a few."""
    until = monotonic() + _START_SECONDS
    while True:
        try:
            return await work()
        except StoreUnavailable as error:
            if monotonic() > until:
                raise
            _log.warning("the start waits: %s", error.message)
        await asyncio.sleep(_START_PAUSE)


@dataclass(frozen=True, slots=True)
class Retained:
    """How long what is over is kept: approvals since their end, counts since that of their window; and the log."""

    approvals: timedelta = timedelta(days=90)
    quotas: timedelta | None = None
    audit: timedelta | None = None
    """For ever, unless it is said."""


@dataclass(frozen=True, slots=True)
class Controlling:
    """The controls of a process, and what is told of them."""

    engine: Engine
    controls: Controls
    auditor: Auditor
    approvals: Approvals
    quarantines: SqliteQuarantines
    revocations: SqliteRevocations
    limits: Limits
    notifying: Notifying
    validity: Validity
    """Until when what is served counts; set by whoever puts something in force."""
    anchoring: tuple[Anchoring, ...] = ()
    """One for each shard that this process writes."""
    retained: Retained = Retained()
    shortening: Shortening | None = None
    """Of the decision log, if it is not kept for ever."""

    @property
    def store(self) -> KeptStore:
        return self.engine.store

    async def begin(self, closing: AsyncExitStack) -> None:
        """Say that the gateway serves, and do what is done beside calls; the other way round at the end."""
        entries = [self.auditor.happened("gateway-started"), self.auditor.happened("config-published")]
        await patiently(lambda: self.store.note(entries))
        for anchoring in self.anchoring:
            anchoring.start()
            closing.push_async_callback(anchoring.close)
        closing.push_async_callback(self._end)
        self.notifying.start()
        closing.push_async_callback(self.notifying.close)
        closing.push_async_callback(_ended, asyncio.create_task(_swept(self)))
        if self.shortening is not None:
            closing.push_async_callback(_ended, asyncio.create_task(self.shortening.run()))

    async def sweep(self) -> None:
        """End approvals whose time is up, and forget what nobody needs."""
        await self.approvals.sweep()
        await self.approvals.prune(self.retained.approvals)
        await self.limits.prune(kept=self.retained.quotas)

    async def _end(self) -> None:
        try:
            await self.store.tell_refusals(clock() + WINDOW)  # those of this minute, too
            await self.store.note([self.auditor.happened("gateway-stopped")])
        except StoreUnavailable:
            _log.exception("the decision log does not say that the gateway has stopped")

    def status(self) -> Mapping[str, Any]:
        return {
            "webhooks": self.notifying.status(),
            "anchors": [each.status() for each in self.anchoring],
        }

    @property
    def problems(self) -> list[str]:
        """What an operator should look at, though calls are taken."""
        told = [self.validity.problem, self.notifying.problem, *(each.problem for each in self.anchoring)]
        told += [] if self.shortening is None else [self.shortening.problem]
        return [each for each in told if each is not None]


def controlling(
    engine: Engine,
    *,
    published: Callable[[], Published],
    auditing: Auditing,
    webhooks: Sequence[Webhook],
    base_url: str,
    closing: AsyncExitStack,
    announce: Callable[[Announcement], None] = lambda announcement: None,
    observer: Observer | None = None,
    validity: Validity | None = None,
    retained: Retained = Retained(),  # noqa: B008 - immutable
) -> Controlling:
    """Open everything. `published` is asked when there is a first call, and at every one after it."""
    store = engine.store
    notices = engine.notices()
    closing.callback(notices.close)
    quarantines = SqliteQuarantines(store.writer, notices, clock=now)
    closing.callback(quarantines.close)
    revocations = SqliteRevocations(store.writer, notices, clock=now)
    closing.callback(revocations.close)
    limits = engine.limits()
    closing.callback(limits.close)
    log = _log_of(engine, auditing.key)
    auditor = _auditor(published, auditing.key)
    abandoned = auditor.abandoned if observer is None else _also_told(auditor, observer)
    store.keep_audit(log, abandoned=abandoned, summed=auditor.summed)
    asked = SqliteApprovals(store.writer, store.reader, noted=engine.noted(_noting(log, auditor)))
    approvals = Approvals(
        asked,
        held=lambda principal: _held(published, principal),
        served=lambda: published().snapshot.revision,
        may_approve=lambda approver, action: _may_approve(published, approver, action),
        subscribers=subscribers(webhooks),
        announce=announce,
        look_every=engine.look_every,
    )
    engine.when_approvals_change(approvals.look_again)
    closing.push_async_callback(approvals.close)
    notifying = Notifying(asked, webhooks, base_url=base_url)
    shared = SharedTurns(store)
    validity = validity or Validity()
    sightings = StoredSightings(store.writer, store.reader, clock=now)
    controls = Controls(
        *(approvals, limits, quarantines, lambda: published().snapshot.revision),
        turns=shared,
        sightings=sightings,
        validity=validity,
    )
    place = (_node(), None, None, auditing.key.id)
    shard = shard_name(_node(), clock(), unique=token_hex(8))
    recording = engine.record_apart(place=place, shard=shard, key=auditing.key)
    heads = (log.durable_head, *(() if recording is None else (recording.durable_head,)))
    anchoring = () if auditing.anchors is None else tuple(Anchoring(auditing.anchors, head) for head in heads)
    shortening = None
    if retained.audit is not None:
        shortening = Shortening(store, auditor, anchoring[0] if anchoring else None, retain=retained.audit)
    return Controlling(
        *(engine, controls, auditor, approvals, quarantines, revocations, limits, notifying, validity),
        anchoring,
        retained,
        shortening,
    )


def _also_told(auditor: Auditor, observer: Observer) -> Callable[[StoredCall], AuditBody]:
    def abandoned(call: StoredCall) -> AuditBody:
        observer.abandoned(call)
        return auditor.abandoned(call)

    return abandoned


def _held(published: Callable[[], Published], principal: Principal) -> frozenset[str]:
    return published().access.held_by(principal)


def _may_approve(published: Callable[[], Published], approver: Principal, action: Action) -> bool:
    return published().access.approves(approver, catalogue=action.catalogue, tool=action.tool).allowed


def _log_of(engine: Engine, key: ContentKey) -> AuditLog:
    """A shard of this process alone."""
    return engine.log(
        lambda: shard_name(_node(), clock(), unique=token_hex(8)),
        Place(_node(), content_key=key.id),
        clock=clock,
        key=key,
    )


def _node() -> str:
    return platform.node() or "gateway"


def _auditor(published: Callable[[], Published], key: ContentKey) -> Auditor:
    node = _node()
    places: dict[str, Place] = {}

    def of_revision(revision: str) -> Place:
        """Asked from the thread that writes, too."""
        found = places.get(revision)
        if found is None:
            found = Place(node, revision, revision, key.id)
            if len(places) >= _MOST_PLACES:
                places.clear()
            places[revision] = found
        return found

    def place() -> Place:
        return of_revision(published().snapshot.revision)

    return Auditor(place, key, clock=clock, of_revision=of_revision)


def _noting(log: AuditLog, auditor: Auditor) -> Noted:
    """No approval changes without an entry, and no entry tells of a change that was not kept."""
    return lambda connection, change, record: log.append(connection, [auditor.approval(change, record)])


async def _swept(found: Controlling) -> None:
    while True:
        try:
            await found.sweep()
        except StoreUnavailable:
            _log.warning("approvals and quotas were not swept: the store is unavailable")
        await asyncio.sleep(_SWEEP_EVERY)


async def _ended(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.wait({task})
