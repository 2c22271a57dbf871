"""The scope of each request on a connection, however its bytes are split."""

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.server.http.asgi import HEAD_SIZE, SCOPE_TASK
from gateway.server.http.http1_protocol import BoundedHttpProtocol

pytestmark = pytest.mark.anyio

FIRST = b"POST /first HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\nbody"
SECOND = b"GET /second HTTP/1.1\r\nhost: localhost\r\nx-filler: " + b"x" * 90 + b"\r\n\r\n"


async def read_scopes(*pieces: bytes) -> list[Any]:
    """The scopes of two requests."""
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope[SCOPE_TASK] is asyncio.current_task()
        scopes.append(scope)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(
        app, http=BoundedHttpProtocol, ws="none", lifespan="off", log_config=None, proxy_headers=False
    )
    config.load()
    transport = Mock(**{"get_extra_info.return_value": None, "is_closing.return_value": False})
    connection = BoundedHttpProtocol(config=config, server_state=ServerState(), app_state={})
    connection.connection_made(transport)
    for piece in pieces:
        connection.data_received(piece)
        await asyncio.sleep(0)
    while len(scopes) < 2:
        await asyncio.sleep(0)
    connection.connection_lost(None)
    return scopes


@pytest.mark.parametrize("cut", range(0, len(FIRST + SECOND), 7))
async def test_no_head_is_larger_than_its_reported_size(cut: int) -> None:
    both = FIRST + SECOND

    for scope in await read_scopes(both[:cut], both[cut:]):
        assert sum(len(name) + len(value) for name, value in scope["headers"]) <= scope[HEAD_SIZE] <= len(both)


async def test_requests_of_a_connection_share_nothing_that_they_could_change() -> None:
    first, second = await read_scopes(FIRST, SECOND)

    assert (first["method"], first["path"]) == ("POST", "/first")
    assert (second["method"], second["path"]) == ("GET", "/second")
    assert first["headers"] is not second["headers"]
    assert first["state"] is not second["state"]
