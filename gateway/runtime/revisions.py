"""Revisions of a running gateway: the next one is made beside the one that is served, and takes its place in one step.

What runs on an earlier one ends on it; then whatever belonged to that one alone is closed. How a project is read, and
whether it may be served, is not decided here.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Final

from gateway.access import Access
from gateway.assembly import Assembled
from gateway.config.specs.upstreams import UpstreamDocument
from gateway.errors import StoreUnavailable
from gateway.identity.identities import Identities
from gateway.identity.providers import Provider
from gateway.middleware.build import SharedState
from gateway.runtime.accepting import Again, accepted
from gateway.runtime.announcing import LIST_CHANGED, relay_announcements
from gateway.runtime.backends import Backends
from gateway.runtime.controlling import Controlling
from gateway.runtime.metering import Metering
from gateway.runtime.openapi_documents import addressed_documents
from gateway.runtime.publishing import Unworkable, publish
from gateway.runtime.renewing import Renewing, failed_tests, taken
from gateway.runtime.secrets import Secrets
from gateway.runtime.watching import Watching, watched
from gateway.serving.handlers import Journal
from gateway.serving.offers import Announcement
from gateway.serving.published import Published
from gateway.serving.service import Service
from gateway.serving.withholding import Vigil
from gateway.upstreams.connections import Connection

LINGER: Final = 5.0
"""Seconds for which nothing of an earlier revision is closed: a request may have found its turn, and not begun yet."""

COMPARED_WITHIN: Final = 5.0
"""Seconds that a revision waits, before it comes into force, until servers that it brings have been compared."""

_POLL: Final = 0.25
_COLLECTED_WITHIN: Final = 60.0
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Draft:
    """A project that may be served: what a revision is made of."""

    assembled: Assembled
    access: Access
    identities: Identities
    providers: tuple[Provider, ...]
    secrets: Secrets
    folder: Path
    """Where its documents are, and what they name beside them."""
    again: Again
    """The same project with other imports."""
    release: Callable[[], None]
    """Told when nobody reads in the folder any more."""
    warning: str | None = None
    """What deserves attention as long as it is served."""


@dataclass(slots=True)
class Revision:
    """Everything of one revision in this process."""

    assembled: Assembled
    access: Access
    identities: Identities
    providers: tuple[Provider, ...]
    backends: Backends
    published: Published
    unworkable: tuple[Unworkable, ...]
    shared: SharedState
    folder: Path
    release: Callable[[], None]
    draft: Draft
    warning: str | None = None
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    watching: Watching | None = None
    renewing: Renewing | None = None
    hearing: list[Callable[[], None]] = field(default_factory=list)

    async def rest(self) -> None:
        """Look after nothing any more; calls that run go on."""
        for end in self.hearing:
            end()
        self.hearing.clear()
        if self.watching is not None:
            await self.watching.close()
        if self.renewing is not None:
            await self.renewing.close()
        await self.backends.upstreams.rest()


class Revisions:
    """The revision that is served, and those before it on which calls still run."""

    def __init__(self, controlled: Controlling, *, journal: Journal, packages: Collection[str]) -> None:
        self._controlled = controlled
        self._journal = journal
        self._packages = packages
        self._current: Revision | None = None
        self._service: Service | None = None
        self._metering: Metering | None = None
        self._earlier: dict[asyncio.Task[None], Revision] = {}
        self._renewals: set[asyncio.Task[None]] = set()
        self.changing = asyncio.Lock()
        """Held by whoever makes the next revision."""

    @property
    def current(self) -> Revision:
        assert self._current is not None, "asked once something is served"  # noqa: S101 - set by the start
        return self._current

    @property
    def draining(self) -> int:
        """Earlier revisions that are not closed yet."""
        return len(self._earlier)

    async def first(self, draft: Draft) -> Published:
        self._current = await self._made(draft)
        return self._current.published

    def begin(self, service: Service, metering: Metering) -> None:
        """Look after the first revision from now on, as after every other."""
        self._service, self._metering = service, metering
        self.current.watching = self._watched(self.current)
        self._look_after(self.current)

    async def made(self, draft: Draft) -> Revision:
        """The next revision, ready to come into force. Nothing of the current one is touched."""
        revision = await self._made(draft)
        revision.watching = self._watched(revision)
        with suppress(TimeoutError):
            async with asyncio.timeout(COMPARED_WITHIN):
                await _vigil(revision).all_seen()
        return revision

    async def discard(self, revision: Revision) -> None:
        """Close one that does not come into force."""
        await revision.rest()
        await self._close(revision)

    def put(self, revision: Revision) -> None:
        """Serve it from now on. Whatever began before ends on what it began with."""
        assert self._service is not None, "put is for what serves already"  # noqa: S101 - set by begin
        earlier, self._current = self.current, revision
        revision.since = datetime.now(UTC)
        revision.backends.come_into_force()
        self._service.publish(revision.published)
        self._look_after(revision)
        task = asyncio.create_task(self._retired(earlier))
        self._earlier[task] = earlier
        task.add_done_callback(self._forget)

    async def close(self) -> None:
        """At the end, when no call runs any more."""
        for task in (*self._earlier, *self._renewals):
            task.cancel()
        if self._renewals:
            await asyncio.wait(tuple(self._renewals))
        left = [*self._earlier.values(), *([self._current] if self._current is not None else [])]
        if self._earlier:
            await asyncio.wait(tuple(self._earlier))
        self._earlier.clear()
        for revision in left:
            await revision.rest()
            await revision.published.close()
        for revision in left:
            await revision.backends.close()
            await revision.identities.close()
            revision.release()

    async def _made(self, draft: Draft) -> Revision:
        before = self._current
        backends = Backends(draft.secrets, self._packages) if before is None else before.backends.renewed()
        is_same = before is not None and before.providers == draft.providers
        identities = before.identities if before is not None and is_same else draft.identities
        try:
            if not is_same:
                identities.heed(self._controlled.revocations)
            if before is not None and not is_same:  # those of the first are started before anything is opened here
                await identities.start()
            declared = (each.spec for each in draft.assembled.loaded.documents)
            backends.connect(each for each in declared if isinstance(each, UpstreamDocument))
            served = () if before is None else before.assembled.imports
            assembled, access = await accepted(
                draft.assembled, draft.access, backends.upstreams, draft.again, before=served
            )
            shared = SharedState() if before is None else before.shared.renewed()
            vigil = Vigil() if before is None else _vigil(before).heir(_kept(before, backends))
            published, unworkable = await asyncio.to_thread(
                publish,
                assembled,
                access,
                backends=backends,
                journal=self._journal,
                shared=shared,
                controls=replace(self._controlled.controls, vigil=vigil),
            )
        except BaseException:
            await backends.upstreams.close(keeping=self._used())
            if before is None:
                await backends.close()
            if not is_same:
                await identities.close()
            raise
        return Revision(
            *(assembled, access, identities, draft.providers, backends, published),
            tuple(unworkable),
            shared,
            draft.folder,
            draft.release,
            draft,
            draft.warning,
        )

    def _watched(self, revision: Revision) -> Watching:
        assert self._service is not None, "there is a service before anything is watched"  # noqa: S101 - see begin
        documents = addressed_documents(
            revision.assembled.loaded, folder=revision.folder, connections=revision.backends.connections
        )
        return watched(
            revision.assembled,
            self._service,
            revision.backends.upstreams,
            self._controlled,
            published=revision.published,
            documents=documents,
        )

    def _look_after(self, revision: Revision) -> None:
        assert self._service is not None, "there is a service by now"  # noqa: S101 - see begin
        revision.hearing = relay_announcements(self._service, revision.backends.upstreams)
        revision.backends.upstreams.watch()
        if self._metering is not None:
            self._metering.measure(revision.backends.upstreams)
        revision.renewing = Renewing(revision.assembled, lambda: self._ask_for_more(revision))
        revision.renewing.start(revision.backends.upstreams)

    def _ask_for_more(self, revision: Revision) -> None:
        task = asyncio.create_task(self._renewed(revision))
        self._renewals.add(task)
        task.add_done_callback(self._renewals.discard)

    async def _renewed(self, revision: Revision) -> None:
        """Serve the same documents with what upstreams bring by now, whose changes are accepted."""
        async with self.changing:
            if self._current is not revision:
                return
            try:
                renewed = await self.made(revision.draft)
            except Exception:
                _log.exception("what upstreams bring by now is not served")
                return
            release, renewed.release = renewed.release, lambda: None  # the folder is the same one
            failed = await asyncio.to_thread(failed_tests, renewed.assembled, renewed.access)
            if failed or renewed.access.snapshot.revision == revision.access.snapshot.revision:
                if failed:
                    _log.warning("what upstreams bring by now is not served: policy tests fail: %s", "; ".join(failed))
                await self.discard(renewed)
                return
            revision.release, renewed.release = renewed.release, release
            self.put(renewed)
            await self._told(revision, renewed)

    async def _told(self, before: Revision, after: Revision) -> None:
        assert self._service is not None, "there is a service by now"  # noqa: S101 - see begin
        changes = list(taken(before.assembled.imports, after.assembled.imports))
        auditor, changed = self._controlled.auditor, _vigil(after).changes
        for each in changes:
            _log.warning("%r of upstream %s is %s, which its terms accept", each.definition, each.upstream, each.what)
            changed[each.upstream] += 1
            self._service.buses.emit(each)
        for upstream, kind in sorted({(each.upstream, each.kind) for each in changes if each.kind in LIST_CHANGED}):
            self._service.announce(Announcement(upstream, LIST_CHANGED[kind]))
        entries = [auditor.happened("config-published"), *(auditor.taken(each) for each in changes)]
        try:
            await self._controlled.store.note(entries)
        except StoreUnavailable:
            _log.exception("the decision log does not say that changes of upstreams were taken")

    async def _retired(self, revision: Revision) -> None:
        """Once nothing runs on it. A call that waits for people keeps what it needs for as long as it waits."""
        assert self._service is not None, "there is a service by now"  # noqa: S101 - see begin
        await revision.rest()
        await asyncio.sleep(LINGER)
        while self._service.running.are_on(revision.access):
            await asyncio.sleep(_POLL)
        await self._close(revision)
        if len(self._earlier) == 1:
            await self._quiet(self._service)
            gc.collect()

    async def _quiet(self, service: Service) -> None:
        """Wait for a moment without calls: the collector, which hardly ever looks at what is old, stops everything."""
        until = monotonic() + _COLLECTED_WITHIN
        while len(service.running) and monotonic() < until:
            await asyncio.sleep(_POLL)

    async def _close(self, revision: Revision) -> None:
        others = [each for each in self._living() if each is not revision]
        await revision.published.close()
        await revision.backends.upstreams.close(keeping=self._used(besides=revision))
        if all(each.identities is not revision.identities for each in others):
            await revision.identities.close()
        revision.release()

    def _living(self) -> Iterator[Revision]:
        yield from self._earlier.values()
        if self._current is not None:
            yield self._current

    def _used(self, *, besides: Revision | None = None) -> list[Connection]:
        return [each for living in self._living() if living is not besides for each in living.backends.upstreams]

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._earlier.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("an earlier revision was not closed in order", exc_info=error)


def _vigil(revision: Revision) -> Vigil:
    vigil = revision.published.vigil
    assert vigil is not None, "every revision has one"  # noqa: S101 - given when it was made
    return vigil


def _kept(before: Revision, backends: Backends) -> list[str]:
    """Servers that stay connected as they were."""
    return [each.name for each in backends.upstreams if before.backends.upstreams.get(each.name) is each]
