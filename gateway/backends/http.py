"""Tools that are one HTTP request: to a host that the document fixes, with nothing of a call outside its place.

The answer is streamed into the spool byte for byte. Redirects are followed on the same scheme, host and port only;
what a status means is said by a table; whatever a service does, it ends in a result or a `BackendFailed` in time.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final, Literal

import aiohttp
from yarl import URL

from gateway.backends.addresses import Network
from gateway.backends.connections import BUFFER, Connections, told
from gateway.backends.credentials import Auth, HeaderAuth
from gateway.backends.decoding import decoded
from gateway.backends.refusals import EXCERPT, BackendUnusable, excerpt, within
from gateway.backends.results import MediaTemplate, collected, json_text, parsed_json
from gateway.backends.urls import UrlTemplate, parsed
from gateway.governance.ports import BackendFailed, ErrorWord, Hop, Invocation

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]

WORDS: Final[Mapping[int, ErrorWord]] = {
    400: "invalid",
    401: "not-permitted",
    403: "not-permitted",
    404: "not-found",
    408: "unavailable",
    409: "conflict",
    410: "not-found",
    422: "invalid",
    425: "unavailable",
    429: "unavailable",
    502: "unavailable",
    503: "unavailable",
    504: "unavailable",
}
"""What a status means unless the document says otherwise; any other is `failed`."""

_REDIRECTS: Final = (301, 302, 303, 307, 308)
_MAX_REDIRECTS: Final = 5
_OURS: Final = frozenset({"accept-encoding", "connection", "content-length", "host", "te", "transfer-encoding"})
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
_ERROR_BODY: Final = 2 * EXCERPT
_ERROR_BODY_SECONDS: Final = 2


@dataclass(frozen=True, slots=True)
class FromArguments:
    """These arguments; without `only`, all that the path does not use."""

    only: tuple[str, ...] | None = None

    def of(self, args: Mapping[str, Any], *, used: frozenset[str]) -> dict[str, Any]:
        if self.only is None:
            return {name: value for name, value in args.items() if name not in used}
        return {name: args[name] for name in self.only if name in args}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What a call becomes. `pick` takes the result out of a JSON answer and raises `LookupError` if it is not there.

    `networks` are private ones that the host's name may lead to.
    """

    method: Method
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    query: FromArguments | None = None
    body: FromArguments | None = None
    auth: Auth | None = None
    networks: tuple[Network, ...] = ()
    pick: Callable[[Any], Any] | None = None
    json_results: bool = False
    errors: Mapping[int, ErrorWord] = field(default_factory=dict)
    media: MediaTemplate | None = None
    timeout: timedelta = timedelta(seconds=60)
    max_json: int = 16 << 20
    max_answer: int = 4 << 30
    seen: Callable[[Mapping[str, str], str], None] | None = None
    """Is told the headers of a successful answer and the address that gave it."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request as it is sent. No message may quote its secrets."""

    method: str
    url: URL
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)


class HttpBackend:
    """The connections are the caller's to close: other tools of the same service use them, too."""

    def __init__(self, request: HttpRequest, connections: Connections, *, write: "Writer | None" = None) -> None:
        """`write` says what a call becomes; without it, the request's own query and body do."""
        self._request = request
        self._write = write or _outgoing
        self._url = parsed(request.url)
        self._connections = connections
        check_headers(request.headers)
        if isinstance(request.auth, HeaderAuth):
            check_headers({request.auth.name: ""})
        if request.body is not None and request.method in ("GET", "HEAD"):
            raise BackendUnusable(f"a {request.method} request has no body", help="use 'query' instead")

    async def run(self, call: Invocation) -> Any:
        if call.hops is None:
            return await self._ran(call, None)
        origin = self._url.origin
        hop = call.hops.http(self._request.method, scheme=origin.scheme, host=origin.host, port=origin.port)
        try:
            return await self._ran(call, hop)
        except BaseException as error:
            if hop is not None:
                is_cancelled = isinstance(error, asyncio.CancelledError)
                hop.end(error=error.word if isinstance(error, BackendFailed) else ("failed", "cancelled")[is_cancelled])
            raise

    async def _ran(self, call: Invocation, hop: Hop | None) -> Any:
        outgoing = self._write(self._request, self._url, call)
        if hop is not None:
            outgoing = replace(outgoing, headers={**hop.fields, **outgoing.headers})
        async with within(self._request.timeout), self._answer(outgoing) as response:
            if not 200 <= response.status < 300:
                failure = await self._failure(response, outgoing.secrets)
                if hop is not None:
                    hop.end(status=response.status)
                raise failure
            if self._request.seen is not None:
                self._request.seen(response.headers, str(response.url))
            async with aclosing(self._content(response, limit=self._request.max_answer)) as content:
                result = await self._result(content, call)
            if hop is not None:
                hop.end(status=response.status)
            return result

    async def close(self) -> None:
        """Nothing is held that others do not use."""

    @asynccontextmanager
    async def _answer(self, outgoing: Outgoing) -> AsyncIterator[aiohttp.ClientResponse]:
        response = await self._followed(outgoing)
        try:
            yield response
        finally:
            response.close()

    async def _followed(self, outgoing: Outgoing) -> aiohttp.ClientResponse:
        for _ in range(_MAX_REDIRECTS + 1):
            response = await self._sent(outgoing)
            location = response.headers.get("Location")
            if response.status not in _REDIRECTS or location is None:
                return response
            response.close()
            outgoing = _redirected(outgoing, status=response.status, location=location)
        raise BackendFailed("failed", "the service redirects too often")

    async def _sent(self, outgoing: Outgoing) -> aiohttp.ClientResponse:
        limits = self._connections.limits
        session = self._connections.session(self._url.origin, self._request.networks)
        try:
            async with asyncio.timeout((limits.connect + limits.answer).total_seconds()):
                return await session.request(
                    outgoing.method,
                    outgoing.url,
                    headers=outgoing.headers,
                    data=outgoing.body,
                    allow_redirects=False,
                )
        except (aiohttp.ClientError, OSError, ValueError) as error:  # a timeout is an OSError
            raise told(error) from error

    async def _content(self, response: aiohttp.ClientResponse, *, limit: int) -> AsyncGenerator[bytes, None]:
        encoding = response.headers.get("Content-Encoding", "")
        async with aclosing(_received(response)) as received, aclosing(decoded(received, encoding, limit=limit)) as out:
            async for chunk in out:
                yield chunk

    async def _result(self, content: AsyncGenerator[bytes, None], call: Invocation) -> Any:
        request = self._request
        if request.media is not None:
            return request.media.media(await collected(content, limit=request.max_json))
        if request.pick is None:
            return await call.keep(content)
        value = await parsed_json(await collected(content, limit=request.max_json))
        try:
            picked = request.pick(value)
        except LookupError as error:
            raise BackendFailed("failed", "the answer has nothing where the result should be") from error
        text = picked if isinstance(picked, str) and not request.json_results else json_text(picked)
        return await call.keep([text.encode("utf-8", "replace")])

    async def _failure(self, response: aiohttp.ClientResponse, secrets: tuple[str, ...]) -> BackendFailed:
        status = response.status
        word = self._request.errors.get(status) or WORDS.get(status, "failed")
        body = excerpt(await self._beginning(response), secrets=secrets)
        return BackendFailed(word, f"the service answered {_phrase(status)}{': ' if body else ''}{body}")

    async def _beginning(self, response: aiohttp.ClientResponse) -> bytes:
        """As much of an error as a message can quote; that it cannot be read is no second error."""
        body = bytearray()
        try:
            async with (
                asyncio.timeout(_ERROR_BODY_SECONDS),
                aclosing(self._content(response, limit=self._request.max_answer)) as content,
            ):
                async for chunk in content:
                    body += chunk
                    if len(body) >= _ERROR_BODY:
                        break
        except (BackendFailed, TimeoutError):
            pass
        return bytes(body[:_ERROR_BODY])


def check_headers(headers: Mapping[str, str]) -> None:
    """Raises `BackendUnusable` for a header that a document must not set."""
    for name, value in headers.items():
        if name.lower() in _OURS or not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise BackendUnusable(f"the header {name!r} cannot be set", help="leave it out, or correct it")


Writer = Callable[[HttpRequest, UrlTemplate, Invocation], Outgoing]


def with_idempotency(headers: dict[str, str], call: Invocation) -> None:
    if call.idempotency_key is not None and _HEADER_VALUE.fullmatch(call.idempotency_key):
        headers.setdefault(call.idempotency_header, call.idempotency_key)


def _outgoing(request: HttpRequest, url: UrlTemplate, call: Invocation) -> Outgoing:
    query = request.query.of(call.args, used=url.names) if request.query else {}
    target = url.target(call.args, query=query.items())
    headers, body = {name.lower(): value for name, value in request.headers.items()}, None
    secrets: tuple[str, ...] = ()
    if request.body is not None:
        body = _encoded(request.body.of(call.args, used=url.names))
        headers.setdefault("content-type", "application/json")
    with_idempotency(headers, call)
    if request.auth is not None:
        name, value, secret = request.auth.header()
        headers[name.lower()], secrets = value, (value, secret)
    return Outgoing(request.method, URL(f"{url.origin}{target}", encoded=True), headers, body, secrets)


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BackendFailed("invalid", "the arguments cannot be written as JSON") from error


def _redirected(outgoing: Outgoing, *, status: int, location: str) -> Outgoing:
    """Only the path may change. What was posted is not posted again unless the status says so."""
    try:
        url = outgoing.url.join(URL(location)).with_fragment(None)
        same = (url.scheme, url.host, url.port) == (outgoing.url.scheme, outgoing.url.host, outgoing.url.port)
    except ValueError as error:
        raise BackendFailed("failed", "the service redirects to something that is no URL") from error
    if not same or url.user is not None or url.password is not None:
        raise BackendFailed("failed", "the service redirects to another host, which is not followed")
    is_seen_elsewhere = status == 303 and outgoing.method != "HEAD"
    if is_seen_elsewhere or (status in (301, 302) and outgoing.method == "POST"):
        headers = {name: value for name, value in outgoing.headers.items() if name != "content-type"}
        return replace(outgoing, method="GET", url=url, headers=headers, body=None)
    return replace(outgoing, url=url)


async def _received(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in response.content.iter_chunked(BUFFER):
            yield chunk
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise told(error) from error


def _phrase(status: int) -> str:
    """Our own words: a service could write anything after the number."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
