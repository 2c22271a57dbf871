"""Revisions of a running gateway: the next one is built beside the current one and replaces it in one step.

Calls that run on an earlier revision end on it; then its own resources are closed. While a revision is served, change
notifications of its upstreams are relayed to clients. How a project is read, and whether it may be served, is decided
elsewhere.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Final

from gateway.app.backend_factory import BackendFactory
from gateway.app.governance import Governance
from gateway.app.metrics_collector import MetricsCollector
from gateway.app.project import LoadedProject
from gateway.app.revisions.builder import UnavailableTool, build_live_revision
from gateway.app.revisions.definition_refresh import (
    AcceptedChangePoller,
    Reassemble,
    accept_definitions,
    diff_definitions,
)
from gateway.app.revisions.drift_monitor import LIST_CHANGED, LIST_NOTIFICATIONS, DriftMonitor, start_drift_monitor
from gateway.app.secrets import Secrets
from gateway.app.upstream_discovery import Rounds, find_remote_documents
from gateway.backends import UpstreamConnection, Upstreams
from gateway.config import UpstreamDocument
from gateway.engine import ChangeNotification, DefinitionGuard, Journal, LiveRevision, Service, StageState
from gateway.errors import StoreUnavailable
from gateway.identity import Authenticator, IdentityProvider
from gateway.policy import Access
from gateway.review import CaseResult, run_cases

CLOSE_DELAY: Final = 5.0
"""Seconds before an earlier revision is closed: a request may have found its turn but not started its call."""

REVISION_COMPARE_TIMEOUT: Final = 5.0
"""Seconds that a new revision waits for the first comparison of its new servers before it is activated."""

_RESOURCE_UPDATED: Final = "notifications/resources/updated"
_LONGEST_URI: Final = 8192
_POLL: Final = 0.25
_COLLECTED_WITHIN: Final = 60.0
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RevisionInputs:
    """A project that may be served, from which a revision is built."""

    assembled: LoadedProject
    access: Access
    identities: Authenticator
    providers: tuple[IdentityProvider, ...]
    secrets: Secrets
    folder: Path
    """The folder of the documents and of the files that they name."""
    again: Reassemble
    """Load the same project with other definitions of upstreams."""
    release: Callable[[], None]
    """Called when the folder is no longer read."""
    warning: str | None = None
    """Shown for as long as the project is served."""


@dataclass(slots=True)
class Revision:
    """Everything of one revision in this process."""

    assembled: LoadedProject
    access: Access
    identities: Authenticator
    providers: tuple[IdentityProvider, ...]
    backends: BackendFactory
    published: LiveRevision
    unavailable_tools: tuple[UnavailableTool, ...]
    shared: StageState
    folder: Path
    release: Callable[[], None]
    draft: RevisionInputs
    warning: str | None = None
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    watching: DriftMonitor | None = None
    renewing: AcceptedChangePoller | None = None
    hearing: list[Callable[[], None]] = field(default_factory=list)

    def find_failed_policy_tests(self) -> list[CaseResult]:
        return [each for each in run_cases(self.access.without_grants(), self.access.snapshot.cases) if not each.passed]

    async def stop_monitors(self) -> None:
        """Stop comparing, polling and probing upstreams; running calls continue."""
        for end in self.hearing:
            end()
        self.hearing.clear()
        if self.watching is not None:
            await self.watching.close()
        if self.renewing is not None:
            await self.renewing.close()
        await self.backends.upstreams.stop_probes()


def requires_policy_tests(assembled: LoadedProject) -> bool:
    """Whether the Gateway has policy tests run before a revision is activated."""
    reload = assembled.gateway_spec.reload
    return reload is not None and reload.run_policy_tests


class RevisionManager:
    """The current revision, and earlier ones on which calls still run."""

    def __init__(
        self, controlled: Governance, *, journal: Journal, packages: Collection[str], rounds: Rounds = nullcontext
    ) -> None:
        self._controlled = controlled
        self._journal = journal
        self._packages = packages
        self._rounds = rounds
        self._current: Revision | None = None
        self._service: Service | None = None
        self._metering: MetricsCollector | None = None
        self._earlier: dict[asyncio.Task[None], Revision] = {}
        self._renewals: set[asyncio.Task[None]] = set()
        self.changing = asyncio.Lock()
        """Held while the next revision is built."""

    @property
    def current(self) -> Revision:
        assert self._current is not None, "used after the start only"  # noqa: S101 - set by the start
        return self._current

    @property
    def draining(self) -> int:
        """Earlier revisions that are not closed yet."""
        return len(self._earlier)

    async def activate_first(self, draft: RevisionInputs) -> LiveRevision:
        self._current = await self._build(draft)
        return self._current.published

    def start(self, service: Service, metering: MetricsCollector) -> None:
        """Start the monitors of the first revision."""
        self._service, self._metering = service, metering
        self.current.watching = self._start_monitor(self.current)
        self._start_observers(self.current)

    async def prepare(self, draft: RevisionInputs) -> Revision:
        """Build the next revision without touching the current one."""
        revision = await self._build(draft)
        revision.watching = self._start_monitor(revision)
        with suppress(TimeoutError):
            async with asyncio.timeout(REVISION_COMPARE_TIMEOUT):
                await _guard_of(revision).wait_all_compared()
        return revision

    async def discard(self, revision: Revision) -> None:
        """Close a revision that is not activated."""
        await revision.stop_monitors()
        await self._close(revision)

    def activate(self, revision: Revision) -> None:
        """Serve the revision from now on. Running calls end on the earlier one."""
        assert self._service is not None, "used after the start only"  # noqa: S101 - set by `start`
        earlier, self._current = self.current, revision
        revision.since = datetime.now(UTC)
        revision.backends.activate()
        self._service.publish(revision.published)
        self._start_observers(revision)
        task = asyncio.create_task(self._retire(earlier))
        self._earlier[task] = earlier
        task.add_done_callback(self._forget)

    async def close(self) -> None:
        """Close all revisions. No call may be running."""
        for task in (*self._earlier, *self._renewals):
            task.cancel()
        if self._renewals:
            await asyncio.wait(tuple(self._renewals))
        remaining = [*self._earlier.values(), *([self._current] if self._current is not None else [])]
        if self._earlier:
            await asyncio.wait(tuple(self._earlier))
        self._earlier.clear()
        for revision in remaining:
            await revision.stop_monitors()
            await revision.published.close()
        for revision in remaining:
            await revision.backends.close()
            await revision.identities.close()
            revision.release()

    async def _build(self, draft: RevisionInputs) -> Revision:
        before = self._current
        backends = (
            BackendFactory(draft.secrets, self._packages) if before is None else before.backends.for_next_revision()
        )
        is_same = before is not None and before.providers == draft.providers
        identities = before.identities if before is not None and is_same else draft.identities
        try:
            if not is_same:
                identities.set_revocations(self._controlled.stops)
            if before is not None and not is_same:  # `start_app` has started those of the first revision
                await identities.start()
            declared = (each.spec for each in draft.assembled.loaded.documents)
            backends.connect(each for each in declared if isinstance(each, UpstreamDocument))
            served = () if before is None else before.assembled.imports
            assembled, access = await accept_definitions(
                *(draft.assembled, draft.access, backends.upstreams, draft.again), before=served, rounds=self._rounds
            )
            access = self._controlled.add_grants(access)
            shared = StageState() if before is None else before.shared.for_next_revision()
            definition_guard = (
                DefinitionGuard() if before is None else _guard_of(before).inherit(_same_upstreams(before, backends))
            )
            published, unavailable_tools = await asyncio.to_thread(
                build_live_revision,
                assembled,
                access,
                backends=backends,
                journal=self._journal,
                shared=shared,
                controls=replace(self._controlled.controls, definition_guard=definition_guard),
            )
        except BaseException:
            await backends.upstreams.close(keeping=self._list_connections())
            if before is None:
                await backends.close()
            if not is_same:
                await identities.close()
            raise
        return Revision(
            *(assembled, access, identities, draft.providers, backends, published),
            tuple(unavailable_tools),
            shared,
            draft.folder,
            draft.release,
            draft,
            draft.warning,
        )

    def _start_monitor(self, revision: Revision) -> DriftMonitor:
        assert self._service is not None, "used after the start only"  # noqa: S101 - set by `start`
        documents = find_remote_documents(
            revision.assembled.loaded, folder=revision.folder, connections=revision.backends.connections
        )
        return start_drift_monitor(
            revision.assembled,
            self._service,
            revision.backends.upstreams,
            self._controlled,
            published=revision.published,
            documents=documents,
            rounds=self._rounds,
        )

    def _start_observers(self, revision: Revision) -> None:
        assert self._service is not None, "used after the start only"  # noqa: S101 - set by `start`
        revision.hearing = _relay_notifications(self._service, revision.backends.upstreams)
        revision.backends.upstreams.start_probes(self._rounds)
        if self._metering is not None:
            self._metering.observe_connections(revision.backends.upstreams)
        revision.renewing = AcceptedChangePoller(
            revision.assembled, lambda: self._request_renewal(revision), self._rounds
        )
        revision.renewing.start(revision.backends.upstreams)

    def _request_renewal(self, revision: Revision) -> None:
        task = asyncio.create_task(self._renew(revision))
        self._renewals.add(task)
        task.add_done_callback(self._renewals.discard)

    async def _renew(self, revision: Revision) -> None:
        """Serve the same documents with the current definitions of upstreams whose changes are accepted."""
        async with self.changing:
            if self._current is not revision:
                return
            try:
                renewed = await self.prepare(revision.draft)
            except Exception:
                _log.exception("upstream changes are not served")
                return
            release, renewed.release = renewed.release, lambda: None  # the folder is the same one
            is_tested = requires_policy_tests(renewed.assembled)
            failed = await asyncio.to_thread(renewed.find_failed_policy_tests) if is_tested else []
            if failed or renewed.access.snapshot.revision == revision.access.snapshot.revision:
                if failed:
                    _log.warning("upstream changes are not served: policy tests fail: %s", _list_names(failed))
                await self.discard(renewed)
                return
            revision.release, renewed.release = renewed.release, release
            self.activate(renewed)
            await self._report_changes(revision, renewed)

    async def _report_changes(self, before: Revision, after: Revision) -> None:
        assert self._service is not None, "used after the start only"  # noqa: S101 - set by `start`
        changes = list(diff_definitions(before.assembled.imports, after.assembled.imports))
        auditor, changed = self._controlled.auditor, _guard_of(after).changes
        for each in changes:
            _log.warning("%r of upstream %s is %s, which its terms accept", each.definition, each.upstream, each.what)
            changed[each.upstream] += 1
            self._service.buses.emit(each)
        for upstream, kind in sorted({(each.upstream, each.kind) for each in changes if each.kind in LIST_CHANGED}):
            self._service.notify(ChangeNotification(upstream, LIST_CHANGED[kind]))
        entries = [
            auditor.event_entry("config-published"),
            *(auditor.accepted_definition_entry(each) for each in changes),
        ]
        try:
            await self._controlled.store.note(entries)
        except StoreUnavailable:
            _log.exception("accepted changes of upstreams could not be recorded in the decision log")

    async def _retire(self, revision: Revision) -> None:
        """Close the revision once no call runs on it. A held call keeps it open for as long as it waits."""
        assert self._service is not None, "used after the start only"  # noqa: S101 - set by `start`
        await revision.stop_monitors()
        await asyncio.sleep(CLOSE_DELAY)
        while self._service.running.has_calls_on(revision.access):
            await asyncio.sleep(_POLL)
        await self._close(revision)
        if len(self._earlier) == 1:
            await self._wait_until_idle(self._service)
            gc.collect()

    async def _wait_until_idle(self, service: Service) -> None:
        """Wait until no call runs: a full garbage collection stops the whole process."""
        until = monotonic() + _COLLECTED_WITHIN
        while len(service.running) and monotonic() < until:
            await asyncio.sleep(_POLL)

    async def _close(self, revision: Revision) -> None:
        others = [each for each in self._open_revisions() if each is not revision]
        await revision.published.close()
        await revision.backends.upstreams.close(keeping=self._list_connections(besides=revision))
        if all(each.identities is not revision.identities for each in others):
            await revision.identities.close()
        revision.release()

    def _open_revisions(self) -> Iterator[Revision]:
        yield from self._earlier.values()
        if self._current is not None:
            yield self._current

    def _list_connections(self, *, besides: Revision | None = None) -> list[UpstreamConnection]:
        return [each for one in self._open_revisions() if one is not besides for each in one.backends.upstreams]

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._earlier.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("closing an earlier revision failed", exc_info=error)


def _relay_notifications(service: Service, upstreams: Upstreams) -> list[Callable[[], None]]:
    """Relay change notifications of the served upstreams to clients, until the returned functions are called."""
    snapshot = service.published.snapshot
    served = {each.upstream for each in snapshot.tools.values()} | {each.upstream for each in snapshot.offers.values()}
    return [_relay(service, connection) for connection in upstreams if connection.name in served]


def _relay(service: Service, connection: UpstreamConnection) -> Callable[[], None]:
    def on_notified(method: str, params: Mapping[str, Any]) -> None:
        if method in LIST_NOTIFICATIONS:
            service.notify(ChangeNotification(connection.name, method))
        elif method == _RESOURCE_UPDATED and isinstance(uri := params.get("uri"), str) and len(uri) <= _LONGEST_URI:
            service.notify(ChangeNotification(connection.name, method, uri))

    return connection.on_notification(on_notified)


def _list_names(results: Iterable[CaseResult]) -> str:
    return "; ".join(f"{each.case.suite}: {each.case.name}" for each in results)


def _guard_of(revision: Revision) -> DefinitionGuard:
    definition_guard = revision.published.definition_guard
    assert definition_guard is not None, "every revision has one"  # noqa: S101 - set when it is built
    return definition_guard


def _same_upstreams(before: Revision, backends: BackendFactory) -> list[str]:
    """Return the names of upstreams that keep their connection."""
    return [each.name for each in backends.upstreams if before.backends.upstreams.get(each.name) is each]
