"""Small answers that are no result: nothing, or a JSON-RPC error with an HTTP status of its own."""

from collections.abc import Sequence

from gateway.web.mcp.messages import RequestId, error_bytes
from gateway.web.mcp.protocol import ProtocolError
from gateway.web.mcp.streams import Send


async def empty(send: Send, status: int, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    length = [] if status == 204 else [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": status, "headers": [*length, *headers]})
    await send({"type": "http.response.body", "body": b""})


async def json_error(send: Send, status: int, code: int, message: str, *, id: RequestId | None = None) -> None:
    await refuse(send, status, ProtocolError(code, message), id=id)


async def refuse(
    send: Send,
    status: int,
    error: ProtocolError,
    *,
    id: RequestId | None = None,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    body = error_bytes(id, error)
    told = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body})
