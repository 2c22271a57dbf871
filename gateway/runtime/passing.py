"""Passing a request on to the process that has what it is about, as it came, and its answer back, as it comes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

import aiohttp
from yarl import URL

from gateway.web.edge import Receive, Scope, Send
from gateway.web.problems import problem_response

_ONE_HOP: Final = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade"})
_AUTOMATIC: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_NO_LIMIT: Final = aiohttp.ClientTimeout(total=None, sock_connect=2)
GONE: Final = problem_response(
    404, "the process that had this session has ended", code="E_SESSION_GONE", help="begin again with initialize"
)
_CUT_OFF: Final = problem_response(
    502,
    "the process that worked on the request has ended",
    code="E_CUT_OFF",
    help="look at the records of your calls before you send it again",
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


async def passed_on(
    carried: aiohttp.ClientSession,
    base: str,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    more: Sequence[tuple[str, str]] = (),
) -> None:
    """Send a request to `base` with `more` headers, and answer it. Raises `NobodyThere`."""
    query = scope["query_string"]
    target = scope["raw_path"] + (b"?" + query if query else b"")
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in kept_headers(scope["headers"])]
    has_body = scope["method"] not in ("GET", "HEAD", "DELETE")
    try:
        answer = await carried.request(
            scope["method"],
            URL(f"{base}{target.decode('latin-1')}", encoded=True),
            headers=[*headers, *more],
            data=_body(receive) if has_body else None,
            allow_redirects=False,
        )
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise NobodyThere from error
    except (aiohttp.ClientError, OSError):
        await _CUT_OFF(scope, receive, send)
        return
    async with answer:
        await _streamed(answer, receive, send)


def kept_headers(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Without those that are about one connection only."""
    return [(name, value) for name, value in headers if name.lower() not in _ONE_HOP]


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
