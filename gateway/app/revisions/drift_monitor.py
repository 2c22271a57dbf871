"""Compare the definitions of upstreams with the lock, and withhold those that differ.

A server is compared when it connects, at an interval, and when it announces a change. A definition that differs from
the lock is withheld, recorded in the decision log and emitted as an event. Upstreams whose terms accept changes are not
compared.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from gateway.app.governance import Governance
from gateway.app.project import LoadedProject
from gateway.app.upstream_discovery import Rounds
from gateway.backends import Upstreams
from gateway.config import HealthSpec, UpstreamDocument
from gateway.engine import (
    Auditor,
    ChangeNotification,
    DefinitionGuard,
    DefinitionStatusChanged,
    LiveRevision,
    PinnedDefinition,
    PinnedTemplate,
    Service,
    format_definition_key,
)
from gateway.errors import StoreUnavailable
from gateway.model import BackendError
from gateway.registries import (
    DeclaredDefinition,
    DeclaredTool,
    DefinitionKind,
    InvalidDefinition,
    Snapshot,
    UpstreamDefinition,
    hash_definition,
)
from gateway.storage import AuditBody

LIST_CHANGED: Final[Mapping[DefinitionKind, str]] = {
    "prompt": "notifications/prompts/list_changed",
    "resourceTemplate": "notifications/resources/list_changed",
}
"""Notifications of changed lists. The one of tools is sent with every publication, so it is not here."""

LIST_NOTIFICATIONS: Final = frozenset(
    f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")
)
"""Notifications by which an upstream announces a changed list."""

FIRST_TRY_AGAIN: Final = 0.5
"""Seconds until a server that did not answer is asked again; doubled each time, up to its own interval."""

DOCUMENTS_EVERY: Final = 60.0
"""Least seconds between two reads of an OpenAPI document, which may have megabytes."""

UNREADABLE: Final = "unreadable"
"""Digest of an invalid or repeated definition; it never matches."""
_OTHER_LISTS: Final[Mapping[DefinitionKind, str]] = {"prompt": "prompts", "resourceTemplate": "resourceTemplates"}
"""The kinds that are compared besides tools, and their lists."""

_log: Final = logging.getLogger(__name__)


class DefinitionLister(Protocol):
    """A connection that lists definitions."""

    name: str

    def on_notification(self, hearer: Callable[[str, Mapping[str, Any]], None]) -> Callable[[], None]: ...

    async def list(self, kind: Any) -> list[dict[str, Any]]: ...


class AuditWriter(Protocol):
    """The store of the decision log."""

    async def note(self, entries: Sequence[AuditBody]) -> None: ...


@dataclass(slots=True)
class DriftMonitor:
    """Monitor of one revision. `every` has the interval in seconds by upstream; others are not compared."""

    service: Service
    snapshot: Snapshot
    definition_guard: DefinitionGuard
    notes: AuditWriter
    auditor: Auditor
    every: Mapping[str, float]
    confirmed: Mapping[str, str | None] = field(default_factory=dict)
    """When the lock of an upstream was last confirmed."""
    rounds: Rounds = nullcontext
    _tasks: list["asyncio.Task[None]"] = field(default_factory=list)
    _woken: dict[str, asyncio.Event] = field(default_factory=dict)
    _noting: set["asyncio.Task[None]"] = field(default_factory=set)
    _hearing: list[Callable[[], None]] = field(default_factory=list)

    def start(self, connections: Iterable[DefinitionLister], documents: Iterable[DefinitionLister] = ()) -> None:
        """Start comparing. Calls wait for the first comparison of their server; those of `documents` do not."""
        self.definition_guard.on_change = self._publish_changes
        for upstream in self.every:
            self.definition_guard.block_unlocked(
                upstream, self._list_pinned(upstream), confirmed=self.confirmed.get(upstream)
            )
        for connection in connections:
            if connection.name in self.every:
                self.definition_guard.expect(connection.name)
                self._start_polling(connection)
        for document in documents:
            if document.name in self.every:
                self._start_polling(document)

    def _start_polling(self, connection: DefinitionLister) -> None:
        woken = self._woken[connection.name] = asyncio.Event()

        def on_notified(method: str, params: Mapping[str, Any]) -> None:
            if method in LIST_NOTIFICATIONS:
                woken.set()

        self._hearing.append(connection.on_notification(on_notified))
        self._tasks.append(asyncio.create_task(self._poll(connection, woken)))

    async def close(self) -> None:
        for end in self._hearing:
            end()
        for task in self._tasks:
            task.cancel()
        pending = [*self._tasks, *self._noting]
        if pending:
            await asyncio.wait(pending)

    async def compare(self, connection: DefinitionLister) -> list[DefinitionStatusChanged]:
        """Compare now. Raises `BackendError` if the server does not answer.

        Definitions on a list that the server refuses count as removed; the other lists are still compared.
        """
        name = connection.name
        found = compute_digests(name, await connection.list("tools"))
        served = self._list_pinned(name)
        failed: BackendError | None = None
        for kind, list in _OTHER_LISTS.items():
            if not any(_kind(each) == kind for each in served):
                continue
            try:
                listed = compute_digests(name, await connection.list(list), kind=kind)
            except BackendError as error:
                failed = failed or error
                continue
            found |= {format_definition_key(each, kind): digest for each, digest in listed.items()}
        changes = self.definition_guard.compare(name, served, found)
        if failed is not None:
            raise failed
        return changes

    def _list_pinned(self, upstream: str) -> Collection[PinnedDefinition]:
        """Return the served definitions of the upstream: tools, prompts and templates."""
        offers = [each for each in self.snapshot.offers.values() if each.upstream == upstream]
        templates = {
            each["name"]: PinnedTemplate(each["name"], hash_definition("resourceTemplate", each))
            for group in offers
            for each in group.templates
        }
        tools = (tool for tool in self.snapshot.tools.values() if tool.upstream == upstream)
        return [*tools, *(each for each in offers if each.kind == "prompt"), *templates.values()]

    async def _poll(self, connection: DefinitionLister, woken: asyncio.Event) -> None:
        every = self.every[connection.name]
        wait = FIRST_TRY_AGAIN
        while True:
            woken.clear()
            try:
                with self.rounds(connection.name):
                    await self.compare(connection)
                wait, pause = FIRST_TRY_AGAIN, every
            except BackendError as error:
                _log.debug("upstream %s could not be compared with its lock: %s", connection.name, error.message)
                wait, pause = min(wait * 2, every), wait
            try:
                async with asyncio.timeout(pause):
                    await woken.wait()
            except TimeoutError:
                continue

    def _publish_changes(self, changes: list[DefinitionStatusChanged]) -> None:
        for each in changes:
            withheld = each.withheld
            what = "is served again: it matches the lock" if each.lifted else f"is withheld: {withheld.words}"
            _log.warning("%r of upstream %s %s", withheld.tool, withheld.upstream, what)
            self.service.buses.emit(each)
        # A new object drops caches, continues turns with the new list, and notifies clients.
        if (
            self.service.published.definition_guard is self.definition_guard
        ):  # clients have no list of an inactive revision
            self.service.publish(replace(self.service.published))
            for upstream, kind in sorted({(each.withheld.upstream, each.withheld.kind) for each in changes}):
                if kind in LIST_CHANGED:
                    self.service.notify(ChangeNotification(upstream, LIST_CHANGED[kind]))
        task = asyncio.create_task(self._record([self.auditor.blocked_definition_entry(each) for each in changes]))
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    async def _record(self, entries: list[AuditBody]) -> None:
        try:
            await self.notes.note(entries)
        except StoreUnavailable:
            _log.exception("changed definitions of an upstream could not be recorded in the decision log")


def start_drift_monitor(
    assembled: LoadedProject,
    service: Service,
    upstreams: Upstreams,
    controlled: Governance,
    *,
    published: LiveRevision,
    documents: Iterable[DefinitionLister] = (),
    rounds: Rounds = nullcontext,
) -> DriftMonitor:
    """Start a monitor of all upstreams whose terms do not accept changes. Unlocked definitions are withheld at once."""
    definition_guard = published.definition_guard
    assert definition_guard is not None, "a running gateway has one"  # noqa: S101 - every revision gets one
    declared = (each.spec for each in assembled.loaded.documents if isinstance(each.spec, UpstreamDocument))
    terms = {each.metadata.name: each.spec for each in declared if each.spec.import_.on_change == "quarantine"}
    every = {name: (spec.health or HealthSpec.model_construct()).every.total_seconds() for name, spec in terms.items()}
    documents = list(documents)
    every |= {each.name: max(every[each.name], DOCUMENTS_EVERY) for each in documents if each.name in every}
    confirmed = {name: each.confirmed for name, each in assembled.lock.upstreams.items()}
    monitor = DriftMonitor(
        service, published.snapshot, definition_guard, controlled.store, controlled.auditor, every, confirmed, rounds
    )
    monitor.start(upstreams, documents)
    return monitor


def _kind(pinned: PinnedDefinition) -> DefinitionKind:
    if isinstance(pinned, DeclaredTool):
        return "tool"
    return "prompt" if isinstance(pinned, DeclaredDefinition) else "resourceTemplate"


def compute_digests(upstream: str, listed: Iterable[Any], *, kind: DefinitionKind = "tool") -> dict[str, str]:
    """Return the digest of each definition by its name; an invalid or repeated one gets `UNREADABLE`."""
    found: dict[str, str] = {}
    for given in listed:
        try:
            definition = UpstreamDefinition.read(upstream, given, kind=kind)
        except InvalidDefinition:
            name = given.get("name") if isinstance(given, Mapping) else None
            if isinstance(name, str):
                found[name] = UNREADABLE
            continue
        found[definition.name] = UNREADABLE if definition.name in found else definition.digest
    return found
