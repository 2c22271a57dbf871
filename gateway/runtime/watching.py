"""Watching what upstreams bring: compared when they are first met, from time to time, and when they say it changed.

What differs from the lock is withheld by the vigil, written to the decision log and told on the bus. Upstreams whose
terms accept changes are not compared.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from gateway.assembly import Assembled
from gateway.config.specs.upstreams import Health, UpstreamDocument
from gateway.errors import StoreUnavailable
from gateway.governance.imports import BadDefinition, DefinitionKind, ImportedDefinition, digest_of
from gateway.governance.ports import BackendFailed
from gateway.governance.records import AuditBody
from gateway.runtime.announcing import LIST_CHANGED
from gateway.runtime.controlling import Controlling
from gateway.serving.auditing import Auditor
from gateway.serving.offers import Announcement
from gateway.serving.published import Published
from gateway.serving.service import Service
from gateway.serving.withholding import DefinitionTurned, Pinned, PinnedTemplate, Vigil, known_name
from gateway.snapshot import DeclaredTool, Offer, Snapshot
from gateway.upstreams.registry import Upstreams

FIRST_TRY_AGAIN: Final = 0.5
"""Seconds until a server that could not be asked is asked again; each time twice as long, up to its own interval."""

DOCUMENTS_EVERY: Final = 60.0
"""Seconds between two looks at an OpenAPI document, at least: it may be megabytes."""

UNREADABLE: Final = "unreadable"
"""Stands for the digest of what is no definition, or of two under one name: it fits nothing."""

_LISTS: Final = frozenset(f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources"))
_BESIDE: Final[Mapping[DefinitionKind, str]] = {"prompt": "prompts", "resourceTemplate": "resourceTemplates"}
"""What is compared besides tools, and the list it is on."""

_log: Final = logging.getLogger(__name__)


class Lister(Protocol):
    """A connection, as far as it is asked what there is."""

    name: str

    def on_notification(self, hearer: Callable[[str, Mapping[str, Any]], None]) -> Callable[[], None]: ...

    async def list(self, kind: Any) -> list[dict[str, Any]]: ...


class Notes(Protocol):
    """Where the decision log is kept."""

    async def note(self, entries: Sequence[AuditBody]) -> None: ...


@dataclass(slots=True)
class Watching:
    """One per revision. `every` are seconds between two looks, by upstream; others are not compared."""

    service: Service
    snapshot: Snapshot
    vigil: Vigil
    notes: Notes
    auditor: Auditor
    every: Mapping[str, float]
    confirmed: Mapping[str, str | None] = field(default_factory=dict)
    """When what is locked of an upstream was last confirmed."""
    _tasks: list["asyncio.Task[None]"] = field(default_factory=list)
    _woken: dict[str, asyncio.Event] = field(default_factory=dict)
    _noting: set["asyncio.Task[None]"] = field(default_factory=set)
    _hearing: list[Callable[[], None]] = field(default_factory=list)

    def start(self, connections: Iterable[Lister], documents: Iterable[Lister] = ()) -> None:
        """Calls wait until their server was compared. Those of `documents` do not: the lock says what they become."""
        self.vigil.on_change = self._turned
        for upstream in self.every:
            self.vigil.begin(upstream, self._pinned(upstream), confirmed=self.confirmed.get(upstream))
        for connection in connections:
            if connection.name in self.every:
                self.vigil.expect(connection.name)
                self._watch(connection)
        for document in documents:
            if document.name in self.every:
                self._watch(document)

    def _watch(self, connection: Lister) -> None:
        woken = self._woken[connection.name] = asyncio.Event()

        def heard(method: str, params: Mapping[str, Any]) -> None:
            if method in _LISTS:
                woken.set()

        self._hearing.append(connection.on_notification(heard))
        self._tasks.append(asyncio.create_task(self._watched(connection, woken)))

    async def close(self) -> None:
        for end in self._hearing:
            end()
        for task in self._tasks:
            task.cancel()
        pending = [*self._tasks, *self._noting]
        if pending:
            await asyncio.wait(pending)

    async def look(self, connection: Lister) -> list[DefinitionTurned]:
        """Compare now. Raises `BackendFailed` if the server cannot be asked.

        What is on a list that it refuses is gone: nothing of the other lists stays uncompared for that.
        """
        name = connection.name
        found = digests(name, await connection.list("tools"))
        served = self._pinned(name)
        failed: BackendFailed | None = None
        for kind, list in _BESIDE.items():
            if not any(_kind(each) == kind for each in served):
                continue
            try:
                listed = digests(name, await connection.list(list), kind=kind)
            except BackendFailed as error:
                failed = failed or error
                continue
            found |= {known_name(each, kind): digest for each, digest in listed.items()}
        turned = self.vigil.see(name, served, found)
        if failed is not None:
            raise failed
        return turned

    def _pinned(self, upstream: str) -> Collection[Pinned]:
        """What of the upstream is served by its definition: tools, prompts and templates."""
        offers = [each for each in self.snapshot.offers.values() if each.upstream == upstream]
        templates = {
            each["name"]: PinnedTemplate(each["name"], digest_of("resourceTemplate", each))
            for group in offers
            for each in group.templates
        }
        tools = (tool for tool in self.snapshot.tools.values() if tool.upstream == upstream)
        return [*tools, *(each for each in offers if each.kind == "prompt"), *templates.values()]

    async def _watched(self, connection: Lister, woken: asyncio.Event) -> None:
        every = self.every[connection.name]
        wait = FIRST_TRY_AGAIN
        while True:
            woken.clear()
            try:
                await self.look(connection)
                wait, pause = FIRST_TRY_AGAIN, every
            except BackendFailed as error:
                _log.debug("upstream %s could not be compared with its lock: %s", connection.name, error.message)
                wait, pause = min(wait * 2, every), wait
            try:
                async with asyncio.timeout(pause):
                    await woken.wait()
            except TimeoutError:
                continue

    def _turned(self, turned: list[DefinitionTurned]) -> None:
        for each in turned:
            withheld = each.withheld
            what = "is served again: it is what was locked" if each.lifted else f"is withheld: {withheld.words}"
            _log.warning("%r of upstream %s %s", withheld.tool, withheld.upstream, what)
            self.service.buses.emit(each)
        # Another object is another list: caches are dropped, turns go on with it, and clients are told.
        if self.service.published.vigil is self.vigil:  # of a revision that is not in force, nobody has a list
            self.service.publish(replace(self.service.published))
            for upstream, kind in sorted({(each.withheld.upstream, each.withheld.kind) for each in turned}):
                if kind in LIST_CHANGED:
                    self.service.announce(Announcement(upstream, LIST_CHANGED[kind]))
        task = asyncio.create_task(self._noted([self.auditor.turned(each) for each in turned]))
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    async def _noted(self, entries: list[AuditBody]) -> None:
        try:
            await self.notes.note(entries)
        except StoreUnavailable:
            _log.exception("the decision log does not say that definitions of an upstream have changed")


def watched(
    assembled: Assembled,
    service: Service,
    upstreams: Upstreams,
    controlled: Controlling,
    *,
    published: Published,
    documents: Iterable[Lister] = (),
) -> Watching:
    """Compare from now on, but for upstreams whose terms accept changes. What nobody locked is withheld at once."""
    vigil = published.vigil
    assert vigil is not None, "a running gateway has one"  # noqa: S101 - made where revisions are
    declared = (each.spec for each in assembled.loaded.documents if isinstance(each.spec, UpstreamDocument))
    terms = {each.metadata.name: each.spec for each in declared if each.spec.import_.on_change == "quarantine"}
    every = {name: (spec.health or Health.model_construct()).every.total_seconds() for name, spec in terms.items()}
    documents = list(documents)
    every |= {each.name: max(every[each.name], DOCUMENTS_EVERY) for each in documents if each.name in every}
    confirmed = {name: each.confirmed for name, each in assembled.lock.upstreams.items()}
    watching = Watching(service, published.snapshot, vigil, controlled.store, controlled.auditor, every, confirmed)
    watching.start(upstreams, documents)
    return watching


def _kind(pinned: Pinned) -> DefinitionKind:
    if isinstance(pinned, DeclaredTool):
        return "tool"
    return "prompt" if isinstance(pinned, Offer) else "resourceTemplate"


def digests(upstream: str, listed: Iterable[Any], *, kind: DefinitionKind = "tool") -> dict[str, str]:
    """The digest of each definition by its name. What cannot be read, or comes twice, fits nothing."""
    found: dict[str, str] = {}
    for given in listed:
        try:
            definition = ImportedDefinition.read(upstream, given, kind=kind)
        except BadDefinition:
            name = given.get("name") if isinstance(given, Mapping) else None
            if isinstance(name, str):
                found[name] = UNREADABLE
            continue
        found[definition.name] = UNREADABLE if definition.name in found else definition.digest
    return found
