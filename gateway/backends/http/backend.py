"""Tools that are one HTTP request to a host that the document fixes.

The response is streamed into the spool byte for byte. Redirects are followed only to the same scheme, host and port.
`STATUS_ERRORS` maps status codes to errors; every request ends with a result or a `BackendError` within its timeout.
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

from gateway.backends.http.addresses import Network, UrlTemplate, parse_url_template
from gateway.backends.http.connections import READ_BUFFER_BYTES, HttpConnections, decode_body, to_backend_error
from gateway.backends.http.credentials import Auth, HeaderAuth
from gateway.backends.results import (
    EXCERPT,
    BackendUnusable,
    MediaTemplate,
    enforce_deadline,
    excerpt,
    json_text,
    parse_json_result,
    read_all,
)
from gateway.model import BackendError, BackendErrorKind, Invocation, OutboundRequest

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]

STATUS_ERRORS: Final[Mapping[int, BackendErrorKind]] = {
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
"""Default meaning of each status; any other is `failed`. A document can override it."""

_REDIRECTS: Final = (301, 302, 303, 307, 308)
_MAX_REDIRECTS: Final = 5
_OWN_HEADERS: Final = frozenset({"accept-encoding", "connection", "content-length", "host", "te", "transfer-encoding"})
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
_ERROR_BODY: Final = 2 * EXCERPT
_ERROR_BODY_SECONDS: Final = 2


@dataclass(frozen=True, slots=True)
class ArgumentSelection:
    """These arguments; without `only`, all that the path does not use."""

    only: tuple[str, ...] | None = None

    def select(self, args: Mapping[str, Any], *, used: frozenset[str]) -> dict[str, Any]:
        if self.only is None:
            return {name: value for name, value in args.items() if name not in used}
        return {name: args[name] for name in self.only if name in args}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """The request that a call sends. `pick` extracts the result from a JSON response, or raises `LookupError`.

    `networks` are private networks that the host's name may resolve to.
    """

    method: Method
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    query: ArgumentSelection | None = None
    body: ArgumentSelection | None = None
    auth: Auth | None = None
    networks: tuple[Network, ...] = ()
    pick: Callable[[Any], Any] | None = None
    json_results: bool = False
    errors: Mapping[int, BackendErrorKind] = field(default_factory=dict)
    media: MediaTemplate | None = None
    timeout: timedelta = timedelta(seconds=60)
    max_json: int = 16 << 20
    max_answer: int = 4 << 30
    seen: Callable[[Mapping[str, str], str], None] | None = None
    """Called with the headers of a successful response and its URL."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request ready to send. No message may quote its secrets."""

    method: str
    url: URL
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)


class HttpBackend:
    """A backend that sends one request per call. The caller closes the connections: other tools share them."""

    def __init__(
        self, request: HttpRequest, connections: HttpConnections, *, write: "BuildRequest | None" = None
    ) -> None:
        """`write` builds the request of a call; by default it is built from the query and body of `request`."""
        self._request = request
        self._build = write or _build_request
        self._url = parse_url_template(request.url)
        self._connections = connections
        check_headers(request.headers)
        if isinstance(request.auth, HeaderAuth):
            check_headers({request.auth.name: ""})
        if request.body is not None and request.method in ("GET", "HEAD"):
            raise BackendUnusable(f"a {request.method} request has no body", help="use 'query' instead")

    async def run(self, call: Invocation) -> Any:
        if call.hops is None:
            return await self._send_call(call, None)
        origin = self._url.origin
        hop = call.hops.http(self._request.method, scheme=origin.scheme, host=origin.host, port=origin.port)
        try:
            return await self._send_call(call, hop)
        except BaseException as error:
            if hop is not None:
                is_cancelled = isinstance(error, asyncio.CancelledError)
                hop.end(error=error.word if isinstance(error, BackendError) else ("failed", "cancelled")[is_cancelled])
            raise

    async def _send_call(self, call: Invocation, hop: OutboundRequest | None) -> Any:
        outgoing = self._build(self._request, self._url, call)
        if hop is not None:
            outgoing = replace(outgoing, headers={**hop.fields, **outgoing.headers})
        async with enforce_deadline(self._request.timeout), self._open_response(outgoing) as response:
            if not 200 <= response.status < 300:
                failure = await self._to_error(response, outgoing.secrets)
                if hop is not None:
                    hop.end(status=response.status)
                raise failure
            if self._request.seen is not None:
                self._request.seen(response.headers, str(response.url))
            async with aclosing(self._decode_content(response, limit=self._request.max_answer)) as content:
                result = await self._read_result(content, call)
            if hop is not None:
                hop.end(status=response.status)
            return result

    async def close(self) -> None:
        """Do nothing: the connections are shared."""

    @asynccontextmanager
    async def _open_response(self, outgoing: PreparedRequest) -> AsyncIterator[aiohttp.ClientResponse]:
        response = await self._follow_redirects(outgoing)
        try:
            yield response
        finally:
            response.close()

    async def _follow_redirects(self, outgoing: PreparedRequest) -> aiohttp.ClientResponse:
        for _ in range(_MAX_REDIRECTS + 1):
            response = await self._send(outgoing)
            location = response.headers.get("Location")
            if response.status not in _REDIRECTS or location is None:
                return response
            response.close()
            outgoing = _redirect(outgoing, status=response.status, location=location)
        raise BackendError("failed", "the service redirects too often")

    async def _send(self, outgoing: PreparedRequest) -> aiohttp.ClientResponse:
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
            raise to_backend_error(error) from error

    async def _decode_content(self, response: aiohttp.ClientResponse, *, limit: int) -> AsyncGenerator[bytes, None]:
        encoding = response.headers.get("Content-Encoding", "")
        async with (
            aclosing(_read_chunks(response)) as received,
            aclosing(decode_body(received, encoding, limit=limit)) as out,
        ):
            async for chunk in out:
                yield chunk

    async def _read_result(self, content: AsyncGenerator[bytes, None], call: Invocation) -> Any:
        request = self._request
        if request.media is not None:
            return request.media.media(await read_all(content, limit=request.max_json))
        if request.pick is None:
            return await call.keep(content)
        value = await parse_json_result(await read_all(content, limit=request.max_json))
        try:
            picked = request.pick(value)
        except LookupError as error:
            raise BackendError("failed", "the answer has nothing where the result should be") from error
        text = picked if isinstance(picked, str) and not request.json_results else json_text(picked)
        return await call.keep([text.encode("utf-8", "replace")])

    async def _to_error(self, response: aiohttp.ClientResponse, secrets: tuple[str, ...]) -> BackendError:
        status = response.status
        word = self._request.errors.get(status) or STATUS_ERRORS.get(status, "failed")
        body = excerpt(await self._read_error_body(response), secrets=secrets)
        return BackendError(word, f"the service answered {_status_phrase(status)}{': ' if body else ''}{body}")

    async def _read_error_body(self, response: aiohttp.ClientResponse) -> bytes:
        """Return the start of an error response to quote. Errors while reading it are ignored."""
        body = bytearray()
        try:
            async with (
                asyncio.timeout(_ERROR_BODY_SECONDS),
                aclosing(self._decode_content(response, limit=self._request.max_answer)) as content,
            ):
                async for chunk in content:
                    body += chunk
                    if len(body) >= _ERROR_BODY:
                        break
        except (BackendError, TimeoutError):
            pass
        return bytes(body[:_ERROR_BODY])


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise `BackendUnusable` for a header that a document must not set."""
    for name, value in headers.items():
        if name.lower() in _OWN_HEADERS or not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise BackendUnusable(f"the header {name!r} cannot be set", help="leave it out, or correct it")


BuildRequest = Callable[[HttpRequest, UrlTemplate, Invocation], PreparedRequest]


def add_idempotency_header(headers: dict[str, str], call: Invocation) -> None:
    if call.idempotency_key is not None and _HEADER_VALUE.fullmatch(call.idempotency_key):
        headers.setdefault(call.idempotency_header, call.idempotency_key)


def _build_request(request: HttpRequest, url: UrlTemplate, call: Invocation) -> PreparedRequest:
    query = request.query.select(call.args, used=url.names) if request.query else {}
    target = url.target(call.args, query=query.items())
    headers, body = {name.lower(): value for name, value in request.headers.items()}, None
    secrets: tuple[str, ...] = ()
    if request.body is not None:
        body = _encode_json(request.body.select(call.args, used=url.names))
        headers.setdefault("content-type", "application/json")
    add_idempotency_header(headers, call)
    if request.auth is not None:
        name, value, secret = request.auth.header()
        headers[name.lower()], secrets = value, (value, secret)
    return PreparedRequest(request.method, URL(f"{url.origin}{target}", encoded=True), headers, body, secrets)


def _encode_json(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BackendError("invalid", "the arguments cannot be written as JSON") from error


def _redirect(outgoing: PreparedRequest, *, status: int, location: str) -> PreparedRequest:
    """Return the redirected request: only the path may change, and a POST is repeated only for status 307 or 308."""
    try:
        url = outgoing.url.join(URL(location)).with_fragment(None)
        same = (url.scheme, url.host, url.port) == (outgoing.url.scheme, outgoing.url.host, outgoing.url.port)
    except ValueError as error:
        raise BackendError("failed", "the service redirects to an invalid URL") from error
    if not same or url.user is not None or url.password is not None:
        raise BackendError("failed", "the service redirects to another host, which is not followed")
    is_see_other = status == 303 and outgoing.method != "HEAD"
    if is_see_other or (status in (301, 302) and outgoing.method == "POST"):
        headers = {name: value for name, value in outgoing.headers.items() if name != "content-type"}
        return replace(outgoing, method="GET", url=url, headers=headers, body=None)
    return replace(outgoing, url=url)


async def _read_chunks(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in response.content.iter_chunked(READ_BUFFER_BYTES):
            yield chunk
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise to_backend_error(error) from error


def _status_phrase(status: int) -> str:
    """Return the status with its standard phrase: the service's own phrase is untrusted."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
