"""OpenAPI documents wherever they are, for whoever looks at them anew: files of the project, and addresses."""

from ipaddress import ip_network
from pathlib import Path

from gateway.backends.connections import Connections
from gateway.backends.documents import fetched
from gateway.config.loader import Checked, Loaded
from gateway.config.openapi_imports import Brought, brought_by, content_of, is_address, openapi_transport
from gateway.errors import ProgramError
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
    return brought_by(upstream, data, loaded)
