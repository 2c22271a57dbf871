"""OpenAPI documents wherever they are, for whoever looks at them anew: files of the project, and addresses."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from gateway.backends.connections import Connections
from gateway.backends.documents import fetched
from gateway.config.loader import Checked, Loaded
from gateway.config.openapi_imports import Brought, brought_by, content_of, openapi_transport
from gateway.config.pins import is_address, upstreams_of
from gateway.errors import GatewayError, ProgramError
from gateway.governance.ports import BackendFailed
from gateway.openapi.reading import MAX_BYTES


async def openapi_definitions(upstream: Checked, loaded: Loaded, *, folder: Path, connections: Connections) -> Brought:
    """What an OpenAPI upstream brings now. Raises `GatewayError` if its document cannot be had."""
    transport = openapi_transport(upstream)
    if transport is None:
        raise ProgramError("this upstream has no OpenAPI document")
    if is_address(transport.document):
        networks = tuple(map(ip_network, transport.networks))
        data = await fetched(transport.document, connections, limit=MAX_BYTES, networks=networks)
    else:
        try:
            data = content_of(folder / transport.document)
        except OSError as error:
            raise ProgramError("the OpenAPI document cannot be read", help="correct its path") from error
    return await asyncio.to_thread(brought_by, upstream, data, loaded)  # a large one takes seconds


@dataclass(slots=True)
class AddressedDocument:
    """A document at an address, for whoever compares it with the lock while it is served."""

    name: str
    upstream: Checked
    loaded: Loaded
    folder: Path
    connections: Connections

    def on_notification(self, hearer: Callable[[str, Mapping[str, Any]], None]) -> Callable[[], None]:
        """A document announces nothing."""
        return lambda: None

    async def list(self, kind: str) -> list[dict[str, Any]]:
        """Its definitions now. Raises `BackendFailed` if it cannot be had, or is none."""
        try:
            found = await openapi_definitions(
                self.upstream, self.loaded, folder=self.folder, connections=self.connections
            )
        except BackendFailed:
            raise
        except GatewayError as error:
            raise BackendFailed("failed", error.message, help=error.help) from error
        for each in found.diagnostics:
            if each.is_error:
                raise BackendFailed("failed", each.message, help=each.help)
        return [dict(each.given) for each in found.definitions]


def addressed_documents(loaded: Loaded, *, folder: Path, connections: Connections) -> Iterator[AddressedDocument]:
    for name, upstream in upstreams_of(loaded).items():
        transport = openapi_transport(upstream)
        if transport is not None and is_address(transport.document):
            yield AddressedDocument(name, upstream, loaded, folder, connections)
