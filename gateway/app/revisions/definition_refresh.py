"""Definitions of upstreams with `onChange: accept`: the current ones are used without review, and polled for changes.

For a server that does not answer in time, the served definitions are used, at the start the locked ones. Definitions
that would break the project are not used. The servers are polled, and a new revision is requested after a change.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.app.project import LoadedProject
from gateway.app.revisions.drift_monitor import LIST_NOTIFICATIONS
from gateway.app.upstream_discovery import Rounds
from gateway.backends import Definitions, ListKind, RemoteError, UpstreamConnection, Upstreams
from gateway.config import HealthSpec, ImportSpec, UpstreamDocument, is_selected, list_upstreams
from gateway.engine import DefinitionAccepted
from gateway.mcp import Json
from gateway.model import BackendError
from gateway.policy import Access
from gateway.registries import DefinitionKind, InvalidDefinition, UpstreamDefinition

DISCOVERY_TIMEOUT: Final = 5.0
"""Seconds that a start waits for each server; all are asked at once."""

_KINDS: Final[Mapping[ListKind, DefinitionKind]] = {"prompts": "prompt", "resourceTemplates": "resourceTemplate"}

Reassemble = Callable[[Collection[UpstreamDefinition]], LoadedProject]
_log: Final = logging.getLogger(__name__)


async def accept_definitions(
    assembled: LoadedProject,
    access: Access,
    upstreams: Upstreams,
    again: Reassemble,
    *,
    before: Sequence[UpstreamDefinition] = (),
    rounds: Rounds = nullcontext,
) -> tuple[LoadedProject, Access]:
    """Return the project with the current definitions of such upstreams. `before` are the served ones."""
    connections = [each for each in upstreams if accepts_changes(assembled, each.name)]
    if not connections:
        return assembled, access
    known = _by_upstream(before, assembled, [each.name for each in connections])
    answers = await asyncio.gather(*(discover_current(each, assembled, rounds=rounds) for each in connections))
    found = {each.name: answer for each, answer in zip(connections, answers, strict=True) if answer is not None}
    for candidate in ({**known, **found}, known):
        others = [each for each in assembled.imports if each.upstream not in candidate]
        imports = [*others, *(each for definitions in candidate.values() for each in definitions)]
        if imports == list(assembled.imports):
            break
        changed = await asyncio.to_thread(again, imports)
        if changed.access is not None:
            return changed, changed.access
        problem = next(each for each in changed.diagnostics if each.is_error)
        names = ", ".join(sorted(candidate))
        _log.warning("definitions of %s are not used: %s: %s", names, problem.code, problem.message)
    return assembled, access


def _by_upstream(
    definitions: Sequence[UpstreamDefinition], assembled: LoadedProject, names: Sequence[str]
) -> dict[str, list[UpstreamDefinition]]:
    """Return the definitions that documents still select, by upstream."""
    found: dict[str, list[UpstreamDefinition]] = {}
    declared = list_upstreams(assembled.loaded)
    for each in definitions:
        if each.upstream in names and is_selected(each, declared[each.upstream], assembled.loaded):
            found.setdefault(each.upstream, []).append(each)
    return found


def accepts_changes(assembled: LoadedProject, name: str) -> bool:
    checked = list_upstreams(assembled.loaded).get(name)
    spec = checked.spec if checked is not None else None
    return isinstance(spec, UpstreamDocument) and spec.spec.import_.on_change == "accept"


def _other_lists(terms: ImportSpec) -> Sequence[ListKind]:
    return [*(["prompts"] if terms.prompts else ()), *(["resourceTemplates"] if terms.resources else ())]


def _terms(spec: object) -> ImportSpec:
    assert isinstance(spec, UpstreamDocument), "only upstreams have terms"  # noqa: S101 - narrows a union
    return spec.spec.import_


async def discover_current(
    connection: UpstreamConnection,
    assembled: LoadedProject,
    *,
    level: int = logging.WARNING,
    rounds: Rounds = nullcontext,
) -> list[UpstreamDefinition] | None:
    """Return the definitions that documents select; `None` if the server does not answer. Invalid ones are logged."""
    checked = list_upstreams(assembled.loaded)[connection.name]
    terms = _terms(checked.spec)
    listed: list[tuple[DefinitionKind, Json]]
    try:
        with rounds(connection.name):
            async with asyncio.timeout(DISCOVERY_TIMEOUT):
                listed = [("tool", given) for given in await connection.list("tools")]
                for each in _other_lists(terms):
                    listed += [(_KINDS[each], given) for given in await _list_definitions(connection, each)]
    except (BackendError, TimeoutError):
        return None
    found: dict[tuple[str, str], UpstreamDefinition] = {}
    for kind, given in listed:
        try:
            definition = UpstreamDefinition.read(connection.name, given, kind=kind)
        except InvalidDefinition as error:
            _log.log(level, "upstream %s: a %s is left out: %s", connection.name, kind, error)
            continue
        locked = assembled.lock.find(connection.name, kind, definition.name)
        if locked is not None and locked.digest == definition.digest:
            definition = next((each for each in assembled.imports if each == locked), definition)
        if is_selected(definition, checked, assembled.loaded):
            found[kind, definition.name] = definition
    return list(found.values())


async def _list_definitions(connection: UpstreamConnection, kind: ListKind) -> Definitions:
    """Return a list of definitions; empty if the server does not have the capability or the list."""
    if ("prompts" if kind == "prompts" else "resources") not in connection.capabilities:
        return []
    try:
        return await connection.list(kind)
    except RemoteError:
        return []


MIN_RENEWAL_SECONDS: Final = 1.0
"""Least seconds between two polls, however often a server announces a change."""

Signs = Mapping[tuple[str, str], str]
"""The digest of each definition by its kind and name."""


@dataclass(slots=True)
class AcceptedChangePoller:
    """Poller of one revision. `renew` is called when definitions differ from those of the revision."""

    assembled: LoadedProject
    renew: Callable[[], None]
    rounds: Rounds = nullcontext
    _tasks: list["asyncio.Task[None]"] = field(default_factory=list)
    _hearing: list[Callable[[], None]] = field(default_factory=list)

    def start(self, connections: Iterable[UpstreamConnection]) -> None:
        for connection in connections:
            if accepts_changes(self.assembled, connection.name):
                self._tasks.append(asyncio.create_task(self._poll(connection, _every(self.assembled, connection))))

    async def close(self) -> None:
        for end in self._hearing:
            end()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _poll(self, connection: UpstreamConnection, every: float) -> None:
        woken = asyncio.Event()

        def on_notified(method: str, params: Mapping[str, Any]) -> None:
            if method in LIST_NOTIFICATIONS:
                woken.set()

        self._hearing.append(connection.on_notification(on_notified))
        known = fingerprint_definitions(each for each in self.assembled.imports if each.upstream == connection.name)
        pause = every if known else min(every, MIN_RENEWAL_SECONDS)  # a server that did not answer is asked again soon
        while True:
            await asyncio.sleep(min(every, MIN_RENEWAL_SECONDS))
            await _wait_for(woken, within=pause - MIN_RENEWAL_SECONDS)
            woken.clear()
            found = await discover_current(connection, self.assembled, level=logging.DEBUG, rounds=self.rounds)
            pause = every if found is not None else min(2 * pause, every)
            if found is not None and fingerprint_definitions(found) != known:
                known = fingerprint_definitions(found)  # definitions that could not be used are not tried again
                self.renew()


def fingerprint_definitions(definitions: Iterable[UpstreamDefinition]) -> Signs:
    return {(each.kind, each.name): each.digest for each in definitions}


def diff_definitions(
    before: Sequence[UpstreamDefinition], after: Sequence[UpstreamDefinition]
) -> Iterator[DefinitionAccepted]:
    """Yield added, changed and removed definitions, sorted by upstream and name."""
    old = {(each.upstream, each.name, each.kind): each.digest for each in before}
    new = {(each.upstream, each.name, each.kind): each.digest for each in after}
    for key in sorted({*old, *new}):
        digest = new.get(key)
        if key not in old:
            yield DefinitionAccepted(*key, "added", digest)
        elif digest != old[key]:
            yield DefinitionAccepted(*key, "removed" if digest is None else "changed", digest)


async def _wait_for(event: asyncio.Event, *, within: float) -> None:
    try:
        async with asyncio.timeout(max(within, 0)):
            await event.wait()
    except TimeoutError:
        return


def _every(assembled: LoadedProject, connection: UpstreamConnection) -> float:
    spec = list_upstreams(assembled.loaded)[connection.name].spec
    health = spec.spec.health if isinstance(spec, UpstreamDocument) else None
    return (health or HealthSpec.model_construct()).every.total_seconds()
