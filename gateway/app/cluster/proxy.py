"""Forward a request unchanged to the process that owns its session or turn, and stream the response back.

The URL names the process; the connector resolves the name. The caller controls only the path and the query.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

import aiohttp
from yarl import URL

from gateway.app.cluster.peer_connector import ChannelSilent
from gateway.http_client import HttpPolicy, HttpSession
from gateway.server import CALLER, Receive, Scope, Send, caller_header, problem_response

_ONE_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"expect"}
)
_OF_A_BODY: Final = frozenset({b"content-length", b"transfer-encoding"})
_PATH: Final = re.compile(rb"/[!-~]*")
_QUERY: Final = re.compile(rb"[!-~]*")
_POLICY: Final = HttpPolicy(connect=2.0, answer=None, idle=None, max_body=16 << 20, headers=None)
PEER_GONE: Final = problem_response(
    404, "the process that had this session has ended", code="E_SESSION_GONE", help="begin again with initialize"
)
_CUT_OFF: Final = problem_response(
    424,  # the request may have had an effect: a proxy that sees 502 would send it again
    "the process that worked on the request has ended",
    code="E_CUT_OFF",
    help="look at the records of your calls before you send it again",
)
_SILENT: Final = problem_response(
    503,
    "the process that owns this session or turn does not answer",
    code="E_OVERLOADED",
    help="wait as long as Retry-After says, then send the request again",
    headers={b"retry-after": b"2", b"cache-control": b"no-store"},
)


class PeerUnreachable(Exception):
    """The process cannot be reached; nothing was sent."""


def create_forwarding_session(connector: aiohttp.BaseConnector) -> HttpSession:
    """Return a client session that neither adds nor changes headers, cookies or bodies."""
    return HttpSession(_POLICY, connector=connector)


async def forward_request(carried: HttpSession, origin: URL, scope: Scope, receive: Receive, send: Send) -> None:
    """Forward a request to the process that `origin` names. Raises `PeerUnreachable`."""
    url = target_at(origin, scope)
    if url is None:
        raise PeerUnreachable
    has_body = any(name in _OF_A_BODY for name, _ in scope["headers"])
    try:
        body = _body(receive) if has_body else None
        answer = await carried.send(scope["method"], url, headers=build_forward_headers(scope), body=body)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise PeerUnreachable from error
    except ChannelSilent:
        await _SILENT(scope, receive, send)
        return
    except (aiohttp.ClientError, OSError):
        await _CUT_OFF(scope, receive, send)
        return
    async with answer:
        await _stream_response(answer, receive, send)


def target_at(origin: URL, scope: Scope) -> URL | None:
    """Return the URL of a request at another process; `None` if its target is not a valid path."""
    path, query = scope["raw_path"], scope["query_string"]
    if not _PATH.fullmatch(path) or not _QUERY.fullmatch(query) or b"#" in path + query or b"?" in path:
        return None
    return URL.build(
        scheme=origin.scheme,
        host=origin.raw_host or "",
        port=origin.explicit_port,
        path=path.decode("ascii"),
        query_string=query.decode("ascii"),
        encoded=True,
    )


def build_forward_headers(scope: Scope, *, without: frozenset[bytes] = frozenset()) -> list[tuple[str, str]]:
    """Return the headers of the request and the address of its caller, which a caller cannot set."""
    own = [
        (name, value) for name, value in end_to_end_headers(scope["headers"]) if name not in without and name != CALLER
    ]
    return [(_text(name), _text(value)) for name, value in [*own, *caller_header(scope)]]


def end_to_end_headers(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers without those of a single connection."""
    return [(name, value) for name, value in headers if name.lower() not in _ONE_HOP]


def _text(value: bytes) -> str:
    """Decode a header for aiohttp, which encodes as UTF-8, so that valid UTF-8 stays the same."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError("the client is gone")
        yield message.get("body", b"")
        more = message.get("more_body", False)


async def _stream_response(answer: aiohttp.ClientResponse, receive: Receive, send: Send) -> None:
    """Copy the response until it ends or the client disconnects, which then also ends the forwarded request."""

    async def copy() -> None:
        await send(
            {"type": "http.response.start", "status": answer.status, "headers": end_to_end_headers(answer.raw_headers)}
        )
        async for chunk in answer.content.iter_any():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    copying = asyncio.ensure_future(copy())
    leaving = asyncio.ensure_future(_wait_disconnect(receive))
    try:
        await asyncio.wait([copying, leaving], return_when=asyncio.FIRST_COMPLETED)
        if copying.done():
            with suppress(aiohttp.ClientError):  # the other process died: the response stays truncated
                copying.result()
    finally:
        for task in (copying, leaving):
            task.cancel()
        await asyncio.gather(copying, leaving, return_exceptions=True)


async def _wait_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
