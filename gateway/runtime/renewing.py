"""Upstreams whose changes are accepted, looked at again and again: what they bring by then is asked to be served.

Whether it can be, and how it comes into force, is decided where revisions are made.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.access import Access
from gateway.assembly import Assembled
from gateway.config.pins import upstreams_of
from gateway.config.specs.gateway import GatewayDocument
from gateway.config.specs.upstreams import Health, UpstreamDocument
from gateway.governance.imports import ImportedDefinition
from gateway.review.policy_tests import run_cases
from gateway.runtime.accepting import accepts, brought_now
from gateway.serving.withholding import DefinitionTaken
from gateway.upstreams.connections import Connection

AT_MOST_EVERY: Final = 1.0
"""Seconds between two looks at least, however often a server says that something has changed."""

_LISTS: Final = frozenset(f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources"))

Signs = Mapping[tuple[str, str], str]
"""The digest of each definition by its kind and name."""


@dataclass(slots=True)
class Renewing:
    """One per revision. `renew` is called when an upstream brings something else than the revision was made of."""

    assembled: Assembled
    renew: Callable[[], None]
    _tasks: list["asyncio.Task[None]"] = field(default_factory=list)
    _hearing: list[Callable[[], None]] = field(default_factory=list)

    def start(self, connections: Iterable[Connection]) -> None:
        for connection in connections:
            if accepts(self.assembled, connection.name):
                self._tasks.append(asyncio.create_task(self._watched(connection, _every(self.assembled, connection))))

    async def close(self) -> None:
        for end in self._hearing:
            end()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _watched(self, connection: Connection, every: float) -> None:
        woken = asyncio.Event()

        def heard(method: str, params: Mapping[str, Any]) -> None:
            if method in _LISTS:
                woken.set()

        self._hearing.append(connection.on_notification(heard))
        known = signs(each for each in self.assembled.imports if each.upstream == connection.name)
        pause = every if known else min(every, AT_MOST_EVERY)  # whoever was not there yet is asked again soon
        while True:
            await asyncio.sleep(min(every, AT_MOST_EVERY))
            await _woken(woken, within=pause - AT_MOST_EVERY)
            woken.clear()
            found = await brought_now(connection, self.assembled, level=logging.DEBUG)
            pause = every if found is not None else min(2 * pause, every)
            if found is not None and signs(found) != known:
                known = signs(found)  # what could not be taken once is not tried again until it is something else
                self.renew()


def signs(definitions: Iterable[ImportedDefinition]) -> Signs:
    return {(each.kind, each.name): each.digest for each in definitions}


def taken(before: Sequence[ImportedDefinition], after: Sequence[ImportedDefinition]) -> Iterator[DefinitionTaken]:
    """What is another definition, or there or not there, in the order of upstreams and names."""
    old = {(each.upstream, each.name, each.kind): each.digest for each in before}
    new = {(each.upstream, each.name, each.kind): each.digest for each in after}
    for key in sorted({*old, *new}):
        digest = new.get(key)
        if key not in old:
            yield DefinitionTaken(*key, "added", digest)
        elif digest != old[key]:
            yield DefinitionTaken(*key, "removed" if digest is None else "changed", digest)


def failed_tests(assembled: Assembled, access: Access) -> list[str]:
    """Policy tests that what is brought would break, where the Gateway has them run before a revision is served."""
    gateway = next(each.spec for each in assembled.loaded.documents if isinstance(each.spec, GatewayDocument))
    if gateway.spec.reload is None or not gateway.spec.reload.run_policy_tests:
        return []
    results = run_cases(access, access.snapshot.cases)
    return [f"{each.case.suite}: {each.case.name}" for each in results if not each.passed]


async def _woken(event: asyncio.Event, *, within: float) -> None:
    try:
        async with asyncio.timeout(max(within, 0)):
            await event.wait()
    except TimeoutError:
        return


def _every(assembled: Assembled, connection: Connection) -> float:
    spec = upstreams_of(assembled.loaded)[connection.name].spec
    health = spec.spec.health if isinstance(spec, UpstreamDocument) else None
    return (health or Health.model_construct()).every.total_seconds()
