"""Discover the current definitions of upstreams: from their servers, or from OpenAPI documents in files or at URLs.

`gateway lock` and `gateway drift` use it. A document is fetched over TLS or from this host, bounded in size and time,
without credentials, and no redirect is followed: it would lead to a source that was not reviewed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final

from gateway.app.backend_factory import BackendFactory
from gateway.app.project import LoadedProject
from gateway.app.secrets import Secrets
from gateway.backends import (
    MAX_BYTES,
    BackendUnusable,
    ListKind,
    RemoteError,
    UpstreamConnection,
    enforce_deadline,
    parse_url_template,
    read_all,
)
from gateway.config import (
    ANY_SOURCE,
    CheckedDocument,
    ConfigDocuments,
    LockedUpstream,
    OpenApiDefinitions,
    OpenApiTransport,
    UpstreamDocument,
    is_selected,
    is_url,
    list_upstreams,
    lock_source,
    openapi_transport,
    read_bounded,
    select_definitions,
)
from gateway.engine import Observer
from gateway.errors import GatewayError, ProgramError
from gateway.http_client import HttpConnections, Network, decode_body, is_loopback
from gateway.model import CURRENT_REFRESH, BackendError
from gateway.registries import DefinitionKind, Diagnostic, InvalidDefinition, UpstreamDefinition

_LONGEST: Final = timedelta(seconds=60)
_ACCEPTED: Final = "application/json, application/yaml;q=0.9, */*;q=0.5"


Rounds = Callable[[str], AbstractContextManager[Any]]
"""Returns a context for a round in which the gateway asks the upstream of that name by itself."""


@contextmanager
def observe_refresh(observer: Observer | None, upstream: str) -> Iterator[None]:
    """Trace the requests to an upstream within the context as one round."""
    tracer = None if observer is None else observer.start_refresh(upstream)
    if tracer is None:
        yield
        return
    token, failure = CURRENT_REFRESH.set(tracer), None
    try:
        yield
    except BackendError as error:
        failure = error.word
        raise
    finally:
        CURRENT_REFRESH.reset(token)
        tracer.end(failure)


async def fetch_document(
    address: str,
    connections: HttpConnections,
    *,
    limit: int,
    networks: tuple[Network, ...] = (),
    timeout: timedelta = _LONGEST,
) -> bytes:
    """Fetch a document. Raises `BackendError`, or `BackendUnusable` for a URL that must not be requested."""
    url = parse_url_template(address)
    if url.origin.scheme != "https" and not is_loopback(url.origin.host):
        raise BackendUnusable(
            "a document is only fetched over https", help="write its https URL, or store a copy in the project"
        )
    service = connections.pool(url.origin, networks)
    tracer, origin = CURRENT_REFRESH.get(), url.origin
    hop = None if tracer is None else tracer.http("GET", scheme=origin.scheme, host=origin.host, port=origin.port)
    headers = {"accept": _ACCEPTED, **({} if hop is None else hop.fields)}
    async with enforce_deadline(timeout):
        try:
            response = await service.send("GET", url.target({}, query=()), headers, None)
        except BaseException as error:
            if hop is not None:
                hop.end(error=type(error).__name__)
            raise
        if hop is not None:
            hop.end(status=response.status)
        with closing(response):
            if response.status != 200:
                raise BackendError("failed", f"the server of the document responded with {response.status}")
            async with aclosing(decode_body(response, limit=limit)) as content:
                return await read_all(content, limit=limit)


async def load_openapi_definitions(
    upstream: CheckedDocument, loaded: ConfigDocuments, *, folder: Path, connections: HttpConnections
) -> OpenApiDefinitions:
    """Return the current definitions of an OpenAPI upstream. Raises `GatewayError` if its document cannot be read."""
    transport = openapi_transport(upstream)
    if transport is None:
        raise ProgramError("this upstream has no OpenAPI document")
    if is_url(transport.document):
        networks = tuple(map(ip_network, transport.networks))
        data = await fetch_document(transport.document, connections, limit=MAX_BYTES, networks=networks)
    else:
        try:
            data = read_bounded(folder / transport.document)
        except OSError as error:
            raise ProgramError("the OpenAPI document cannot be read", help="correct its path") from error
    return await asyncio.to_thread(select_definitions, upstream, data, loaded)  # a large one takes seconds


@dataclass(slots=True)
class RemoteDocument:
    """An OpenAPI document at a URL, which a monitor compares with the lock."""

    name: str
    upstream: CheckedDocument
    loaded: ConfigDocuments
    folder: Path
    connections: HttpConnections

    def on_notification(self, hearer: Callable[[str, Mapping[str, Any]], None]) -> Callable[[], None]:
        """Do nothing: a document sends no notifications."""
        return lambda: None

    async def list(self, kind: str) -> list[dict[str, Any]]:
        """Return the current definitions. Raises `BackendError` if the document cannot be read or is invalid."""
        try:
            found = await load_openapi_definitions(
                self.upstream, self.loaded, folder=self.folder, connections=self.connections
            )
        except BackendError:
            raise
        except GatewayError as error:
            raise BackendError("failed", error.message, help=error.help) from error
        for each in found.diagnostics:
            if each.is_error:
                raise BackendError("failed", each.message, help=each.help)
        return [dict(each.given) for each in found.definitions]


def find_remote_documents(
    loaded: ConfigDocuments, *, folder: Path, connections: HttpConnections
) -> Iterator[RemoteDocument]:
    for name, upstream in list_upstreams(loaded).items():
        transport = openapi_transport(upstream)
        if transport is not None and is_url(transport.document):
            yield RemoteDocument(name, upstream, loaded, folder, connections)


_LISTS: Final[Mapping[ListKind, tuple[str, DefinitionKind]]] = {
    "tools": ("tools", "tool"),
    "prompts": ("prompts", "prompt"),
    "resourceTemplates": ("resources", "resourceTemplate"),
}
"""The capability that announces each list, and the kind of its items."""


@dataclass(frozen=True, slots=True)
class UpstreamDefinitions:
    """The definitions of one upstream that documents select, and those that are invalid."""

    upstream: LockedUpstream
    definitions: tuple[UpstreamDefinition, ...]
    unreadable: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = field(default=())


async def discover(
    name: str,
    checked: CheckedDocument,
    assembled: LoadedProject,
    backends: BackendFactory,
    *,
    folder: Path,
    environment: str | None,
) -> UpstreamDefinitions:
    """Discover the definitions of an upstream. Raises `GatewayError` if its server or document cannot be read."""
    spec = checked.spec
    assert isinstance(spec, UpstreamDocument), "only upstreams are discovered"  # noqa: S101 - narrows a union
    known = assembled.lock.upstreams.get(name)
    sources = {**(known.sources if known else {}), environment or ANY_SOURCE: lock_source(checked)}
    transport = spec.spec.transport
    if isinstance(transport, OpenApiTransport):
        found = await load_openapi_definitions(
            checked, assembled.loaded, folder=folder, connections=backends.connections
        )
        if any(each.is_error for each in found.diagnostics):
            raise BackendError("failed", found.diagnostics[0].message, help=found.diagnostics[0].help)
        return UpstreamDefinitions(LockedUpstream(name, sources), found.definitions, diagnostics=found.diagnostics)
    connection = backends.upstreams.get(name)
    if connection is None:
        raise BackendError("unavailable", backends.upstreams.get_unavailable_reason(name))
    definitions, unreadable = await _list_definitions(connection, checked, assembled)
    upstream = LockedUpstream(name, sources, _server_info(connection))
    return UpstreamDefinitions(upstream, tuple(definitions), tuple(unreadable))


async def _list_definitions(
    connection: UpstreamConnection, checked: CheckedDocument, assembled: LoadedProject
) -> tuple[list[UpstreamDefinition], list[str]]:
    await connection.connect()
    definitions: dict[tuple[str, str], UpstreamDefinition] = {}
    unreadable: list[str] = []
    repeated: dict[tuple[str, str], str] = {}
    for list_kind, (capability, kind) in _LISTS.items():
        if capability not in connection.capabilities:
            continue
        for given in await _items(connection, list_kind):
            try:
                found = UpstreamDefinition.read(connection.name, given, kind=kind)
            except InvalidDefinition as error:
                unreadable.append(f"a {kind} is left out: {error}")
                continue
            if not is_selected(found, checked, assembled.loaded):
                continue
            key = (kind, found.name)
            if key in definitions:
                repeated[key] = f"{kind} {found.name!r} is left out: the server lists it more than once"
            definitions[key] = found
    unique = [each for key, each in definitions.items() if key not in repeated]
    return unique, [*unreadable, *repeated.values()]


async def _items(connection: UpstreamConnection, kind: ListKind) -> list[dict[str, Any]]:
    """Return the items of a list. A server may declare resources and have no templates."""
    try:
        return await connection.list(kind)
    except RemoteError:
        if kind == "resourceTemplates":
            return []
        raise


def _server_info(connection: UpstreamConnection) -> dict[str, str]:
    info = {key: connection.server_info.get(key) for key in ("name", "version")}
    return {key: value[:200] for key, value in info.items() if isinstance(value, str) and value.isprintable()}


@asynccontextmanager
async def open_connections(
    assembled: LoadedProject, environ: Mapping[str, str], folder: Path
) -> AsyncIterator[BackendFactory]:
    """Open connections to all upstreams, and close them at the end."""
    backends = BackendFactory(Secrets(environ, folder), ())
    try:
        backends.connect(each.spec for each in assembled.loaded.documents if isinstance(each.spec, UpstreamDocument))
        yield backends
    finally:
        await backends.close()
