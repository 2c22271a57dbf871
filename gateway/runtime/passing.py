"""Passing a request on to the process that has what it is about, as it came, and its answer back, as it comes.

The process is named, never addressed: the connector knows where it is. What the caller wrote is the path and the query.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

import aiohttp
from yarl import URL

from gateway.runtime.peer_channel import ChannelSilent
from gateway.runtime.peer_listener import CALLER, caller_header
from gateway.web.edge import Receive, Scope, Send
from gateway.web.problems import problem_response

_ONE_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"expect"}
)
_OF_A_BODY: Final = frozenset({b"content-length", b"transfer-encoding"})
_PATH: Final = re.compile(rb"/[!-~]*")
_QUERY: Final = re.compile(rb"[!-~]*")
_AUTOMATIC: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_NO_LIMIT: Final = aiohttp.ClientTimeout(total=None, sock_connect=2)
GONE: Final = problem_response(
    404, "the process that had this session has ended", code="E_SESSION_GONE", help="begin again with initialize"
)
_CUT_OFF: Final = problem_response(
    424,  # it may have had an effect: a proxy that sees 502 would send it again
    "the process that worked on the request has ended",
    code="E_CUT_OFF",
    help="look at the records of your calls before you send it again",
)
_SILENT: Final = problem_response(
    503,
    "the process that has what the request is about does not answer",
    code="E_OVERLOADED",
    help="wait as long as Retry-After says, then send the request again",
    headers={b"retry-after": b"2", b"cache-control": b"no-store"},
)


class NobodyThere(Exception):
    """Nothing was sent."""


def carrier(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
    """Adds nothing to what it carries, and takes nothing away."""
    return aiohttp.ClientSession(
        connector=connector,
        timeout=_NO_LIMIT,
        auto_decompress=False,
        skip_auto_headers=_AUTOMATIC,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


async def passed_on(carried: aiohttp.ClientSession, origin: URL, scope: Scope, receive: Receive, send: Send) -> None:
    """Send a request to the process that `origin` names, and answer it. Raises `NobodyThere`."""
    url = target_at(origin, scope)
    if url is None:
        raise NobodyThere
    has_body = any(name in _OF_A_BODY for name, _ in scope["headers"])
    try:
        answer = await carried.request(
            scope["method"],
            url,
            headers=forwarded_headers(scope),
            data=_body(receive) if has_body else None,
            allow_redirects=False,
        )
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise NobodyThere from error
    except ChannelSilent:
        await _SILENT(scope, receive, send)
        return
    except (aiohttp.ClientError, OSError):
        await _CUT_OFF(scope, receive, send)
        return
    async with answer:
        await _streamed(answer, receive, send)


def target_at(origin: URL, scope: Scope) -> URL | None:
    """The URL of a request at another process, from its parts; `None` for a request that is not about a path."""
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


def forwarded_headers(scope: Scope, *, without: frozenset[bytes] = frozenset()) -> list[tuple[str, str]]:
    """Those of the request, and where it comes from. What a caller says about that is left out."""
    own = [(name, value) for name, value in kept_headers(scope["headers"]) if name not in without and name != CALLER]
    return [(_text(name), _text(value)) for name, value in [*own, *caller_header(scope)]]


def kept_headers(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Without those that are about one connection only."""
    return [(name, value) for name, value in headers if name.lower() not in _ONE_HOP]


def _text(value: bytes) -> str:
    """The client library writes UTF-8, so what is UTF-8 stays as it is."""
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


async def _streamed(answer: aiohttp.ClientResponse, receive: Receive, send: Send) -> None:
    """Until the answer ends or its client goes, who then is gone for the other process, too."""

    async def copy() -> None:
        await send(
            {"type": "http.response.start", "status": answer.status, "headers": kept_headers(answer.raw_headers)}
        )
        async for chunk in answer.content.iter_any():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    copying = asyncio.ensure_future(copy())
    leaving = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait([copying, leaving], return_when=asyncio.FIRST_COMPLETED)
        if copying.done():
            with suppress(aiohttp.ClientError):  # the other process died: the answer stays cut short
                copying.result()
    finally:
        for task in (copying, leaving):
            task.cancel()
        await asyncio.gather(copying, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
