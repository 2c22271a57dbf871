"""What upstreams bring at this moment: asked of their servers, or read from their OpenAPI documents.

For the lock and for drift. Nothing is served from here, and nothing is written.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gateway.assembly import Assembled
from gateway.config.loader import Checked
from gateway.config.pins import is_wanted, source_of
from gateway.config.specs.upstreams import OpenApiTransport, UpstreamDocument
from gateway.governance.diagnostics import Diagnostic
from gateway.governance.imports import BadDefinition, DefinitionKind, ImportedDefinition
from gateway.governance.locks import ANYWHERE, LockedUpstream
from gateway.governance.ports import BackendFailed
from gateway.runtime.backends import Backends
from gateway.runtime.openapi_documents import openapi_definitions
from gateway.runtime.secrets import Secrets
from gateway.upstreams.connections import Connection, ListKind
from gateway.upstreams.messages import RemoteError

_LISTS: Final[Mapping[ListKind, tuple[str, DefinitionKind]]] = {
    "tools": ("tools", "tool"),
    "prompts": ("prompts", "prompt"),
    "resourceTemplates": ("resources", "resourceTemplate"),
}
"""Which capability tells that there is such a list, and what stands in it."""


@dataclass(frozen=True, slots=True)
class Brought:
    """What one upstream brings, as far as documents ask for it, and what of it could not be read."""

    upstream: LockedUpstream
    definitions: tuple[ImportedDefinition, ...]
    unreadable: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = field(default=())


async def brought(
    name: str, checked: Checked, assembled: Assembled, backends: Backends, *, folder: Path, environment: str | None
) -> Brought:
    """Raises `GatewayError` if the server, or the document, cannot be read."""
    spec = checked.spec
    assert isinstance(spec, UpstreamDocument), "asked about upstreams only"  # noqa: S101 - narrows a union
    known = assembled.lock.upstreams.get(name)
    sources = {**(known.sources if known else {}), environment or ANYWHERE: source_of(checked)}
    transport = spec.spec.transport
    if isinstance(transport, OpenApiTransport):
        found = await openapi_definitions(checked, assembled.loaded, folder=folder, connections=backends.connections)
        if any(each.is_error for each in found.diagnostics):
            raise BackendFailed("failed", found.diagnostics[0].message, help=found.diagnostics[0].help)
        return Brought(LockedUpstream(name, sources), found.definitions, diagnostics=found.diagnostics)
    connection = backends.upstreams.get(name)
    if connection is None:
        raise BackendFailed("unavailable", backends.upstreams.reason(name))
    definitions, unreadable = await _listed(connection, checked, assembled)
    upstream = LockedUpstream(name, sources, _introduced(connection))
    return Brought(upstream, tuple(definitions), tuple(unreadable))


async def _listed(
    connection: Connection, checked: Checked, assembled: Assembled
) -> tuple[list[ImportedDefinition], list[str]]:
    await connection.connect()
    definitions: dict[tuple[str, str], ImportedDefinition] = {}
    unreadable: list[str] = []
    repeated: dict[tuple[str, str], str] = {}
    for list_kind, (capability, kind) in _LISTS.items():
        if capability not in connection.capabilities:
            continue
        for given in await _items(connection, list_kind):
            try:
                found = ImportedDefinition.read(connection.name, given, kind=kind)
            except BadDefinition as error:
                unreadable.append(f"a {kind} is left out: {error}")
                continue
            if not is_wanted(found, checked, assembled.loaded):
                continue
            key = (kind, found.name)
            if key in definitions:
                repeated[key] = f"{kind} {found.name!r} is left out: the server has it more than once"
            definitions[key] = found
    kept = [each for key, each in definitions.items() if key not in repeated]
    return kept, [*unreadable, *repeated.values()]


async def _items(connection: Connection, kind: ListKind) -> list[dict[str, Any]]:
    """A server may declare resources and have no templates."""
    try:
        return await connection.list(kind)
    except RemoteError:
        if kind == "resourceTemplates":
            return []
        raise


def _introduced(connection: Connection) -> dict[str, str]:
    info = {key: connection.server_info.get(key) for key in ("name", "version")}
    return {key: value[:200] for key, value in info.items() if isinstance(value, str) and value.isprintable()}


@asynccontextmanager
async def reaching(assembled: Assembled, environ: Mapping[str, str], folder: Path) -> AsyncIterator[Backends]:
    """Ways to every upstream, closed again at the end."""
    backends = Backends(Secrets(environ, folder), ())
    try:
        backends.connect(each.spec for each in assembled.loaded.documents if isinstance(each.spec, UpstreamDocument))
        yield backends
    finally:
        await backends.close()
