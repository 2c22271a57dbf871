"""Tools of upstreams whose terms accept changes: taken as the servers define them when a revision is made.

A server that does not answer in time brings what it brought before, at the start what is locked of it. What would break
the project is not taken at all.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from gateway.access import Access
from gateway.assembly import Assembled
from gateway.config.pins import is_wanted, upstreams_of
from gateway.config.specs.upstreams import Import, UpstreamDocument
from gateway.governance.imports import BadDefinition, DefinitionKind, ImportedDefinition
from gateway.governance.ports import BackendFailed
from gateway.upstreams.connections import Connection, Definitions, ListKind
from gateway.upstreams.messages import Json, RemoteError
from gateway.upstreams.registry import Upstreams

ANSWER_WITHIN: Final = 5.0
"""Seconds that a start waits for each of them; all are asked at once."""

_KINDS: Final[Mapping[ListKind, DefinitionKind]] = {"prompts": "prompt", "resourceTemplates": "resourceTemplate"}

Again = Callable[[Collection[ImportedDefinition]], Assembled]
_log: Final = logging.getLogger(__name__)


async def accepted(
    assembled: Assembled,
    access: Access,
    upstreams: Upstreams,
    again: Again,
    *,
    before: Sequence[ImportedDefinition] = (),
) -> tuple[Assembled, Access]:
    """The project with what accepted upstreams bring now. `before` is what is served of them."""
    connections = [each for each in upstreams if accepts(assembled, each.name)]
    if not connections:
        return assembled, access
    known = _by_upstream(before, assembled, [each.name for each in connections])
    answers = await asyncio.gather(*(brought_now(each, assembled) for each in connections))
    found = {each.name: brought for each, brought in zip(connections, answers, strict=True) if brought is not None}
    for brought in ({**known, **found}, known):
        kept = [each for each in assembled.imports if each.upstream not in brought]
        imports = [*kept, *(each for definitions in brought.values() for each in definitions)]
        if imports == list(assembled.imports):
            break
        changed = await asyncio.to_thread(again, imports)
        if changed.access is not None:
            return changed, changed.access
        problem = next(each for each in changed.diagnostics if each.is_error)
        _log.warning("what %s bring is not taken: %s: %s", ", ".join(sorted(brought)), problem.code, problem.message)
    return assembled, access


def _by_upstream(
    definitions: Sequence[ImportedDefinition], assembled: Assembled, names: Sequence[str]
) -> dict[str, list[ImportedDefinition]]:
    """Those that documents still ask for."""
    found: dict[str, list[ImportedDefinition]] = {}
    declared = upstreams_of(assembled.loaded)
    for each in definitions:
        if each.upstream in names and is_wanted(each, declared[each.upstream], assembled.loaded):
            found.setdefault(each.upstream, []).append(each)
    return found


def accepts(assembled: Assembled, name: str) -> bool:
    checked = upstreams_of(assembled.loaded).get(name)
    spec = checked.spec if checked is not None else None
    return isinstance(spec, UpstreamDocument) and spec.spec.import_.on_change == "accept"


def _wanted(terms: Import) -> Sequence[ListKind]:
    return [*(["prompts"] if terms.prompts else ()), *(["resourceTemplates"] if terms.resources else ())]


def _terms(spec: object) -> Import:
    assert isinstance(spec, UpstreamDocument), "asked about upstreams only"  # noqa: S101 - narrows a union
    return spec.spec.import_


async def brought_now(
    connection: Connection, assembled: Assembled, *, level: int = logging.WARNING
) -> list[ImportedDefinition] | None:
    """What a server has and documents ask for; `None` if it does not answer. What cannot be read is on the log."""
    checked = upstreams_of(assembled.loaded)[connection.name]
    terms = _terms(checked.spec)
    listed: list[tuple[DefinitionKind, Json]]
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            listed = [("tool", given) for given in await connection.list("tools")]
            for each in _wanted(terms):
                listed += [(_KINDS[each], given) for given in await _offered(connection, each)]
    except (BackendFailed, TimeoutError):
        return None
    found: dict[tuple[str, str], ImportedDefinition] = {}
    for kind, given in listed:
        try:
            definition = ImportedDefinition.read(connection.name, given, kind=kind)
        except BadDefinition as error:
            _log.log(level, "upstream %s: a %s is left out: %s", connection.name, kind, error)
            continue
        locked = assembled.lock.find(connection.name, kind, definition.name)
        if locked is not None and locked.digest == definition.digest:
            definition = next((each for each in assembled.imports if each == locked), definition)
        if is_wanted(definition, checked, assembled.loaded):
            found[kind, definition.name] = definition
    return list(found.values())


async def _offered(connection: Connection, kind: ListKind) -> Definitions:
    """A server that says that it has none is not asked, and one that has no list has nothing on it."""
    if ("prompts" if kind == "prompts" else "resources") not in connection.capabilities:
        return []
    try:
        return await connection.list(kind)
    except RemoteError:
        return []
