"""Tools of upstreams whose terms accept changes: taken as the servers define them when the gateway starts.

A server that does not answer in time brings what is locked of it. What would break the project is not taken at all.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from gateway.access import Access
from gateway.assembly import Assembled
from gateway.config.pins import is_wanted, upstreams_of
from gateway.config.specs.upstreams import UpstreamDocument
from gateway.governance.imports import BadDefinition, ImportedDefinition
from gateway.governance.ports import BackendFailed
from gateway.upstreams.connections import Connection
from gateway.upstreams.registry import Upstreams

ANSWER_WITHIN: Final = 5.0
"""Seconds that a start waits for each of them; all are asked at once."""

Again = Callable[[Collection[ImportedDefinition]], Assembled]
_log: Final = logging.getLogger(__name__)


async def accepted(
    assembled: Assembled, access: Access, upstreams: Upstreams, again: Again
) -> tuple[Assembled, Access]:
    """The project with what accepted upstreams bring now."""
    connections = [each for each in upstreams if _accepts(assembled, each.name)]
    if not connections:
        return assembled, access
    answers = await asyncio.gather(*(_brought(each, assembled) for each in connections))
    found = {name: definitions for name, definitions in answers if definitions is not None}
    kept = [each for each in assembled.imports if each.upstream not in found]
    imports = [*kept, *(each for definitions in found.values() for each in definitions)]
    if imports == list(assembled.imports):
        return assembled, access
    changed = await asyncio.to_thread(again, imports)
    if changed.access is None:
        problem = next(each for each in changed.diagnostics if each.is_error)
        _log.warning("what %s bring is not taken: %s: %s", ", ".join(sorted(found)), problem.code, problem.message)
        return assembled, access
    return changed, changed.access


def _accepts(assembled: Assembled, name: str) -> bool:
    checked = upstreams_of(assembled.loaded).get(name)
    spec = checked.spec if checked is not None else None
    return isinstance(spec, UpstreamDocument) and spec.spec.import_.on_change == "accept"


async def _brought(connection: Connection, assembled: Assembled) -> tuple[str, list[ImportedDefinition] | None]:
    """What a server has and documents ask for; `None` if it does not answer."""
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            listed = await connection.list("tools")
    except (BackendFailed, TimeoutError):
        return connection.name, None
    found: dict[str, ImportedDefinition] = {}
    checked = upstreams_of(assembled.loaded)[connection.name]
    for given in listed:
        try:
            definition = ImportedDefinition.read(connection.name, given)
        except BadDefinition as error:
            _log.warning("upstream %s: a tool is left out: %s", connection.name, error)
            continue
        locked = assembled.lock.find(connection.name, "tool", definition.name)
        if locked is not None and locked.digest == definition.digest:
            definition = next((each for each in assembled.imports if each == locked), definition)
        if is_wanted(definition, checked, assembled.loaded):
            found[definition.name] = definition
    return connection.name, list(found.values())
