"""Tools that are one HTTP request to a host that the document fixes.

The response is streamed into the spool byte for byte. Redirects are followed only to the same scheme, host and port.
`STATUS_ERRORS` maps status codes to errors; every request ends with a result or a `BackendError` within its timeout.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final, Literal

from gateway.backends.http.credentials import Auth, HeaderAuth
from gateway.backends.http.url_template import UrlTemplate, parse_url_template, redirect_target
from gateway.backends.result_conversion import (
    EXCERPT,
    BackendUnusable,
    MediaTemplate,
    enforce_deadline,
    excerpt,
    json_text,
    parse_json_result,
    read_all,
    write_json,
)
from gateway.http_client import Http1Response, HttpConnections, Network, decode_body
from gateway.model import BackendError, BackendErrorKind, Invocation, OutboundRequest, current_deadline

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
    """A request ready to send, with header names in lower case. No message may quote its secrets."""

    method: str
    target: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)


class HttpBackend:
    """A backend that sends one request per call. The caller closes the connections: other tools share them."""

    def __init__(
        self, request: HttpRequest, connections: HttpConnections, *, write: "BuildRequest | None" = None
    ) -> None:
        """`write` builds the request of a call from `request`, whose header names are in lower case then.

        By default it is built from the query and body of `request`.
        """
        check_headers(request.headers)
        if isinstance(request.auth, HeaderAuth):
            check_headers({request.auth.name: ""})
        if request.body is not None and request.method in ("GET", "HEAD"):
            raise BackendUnusable(f"a {request.method} request has no body", help="use 'query' instead")
        fixed = {name.lower(): value for name, value in request.headers.items()}
        self._request = replace(request, headers=fixed)
        self._seconds = request.timeout.total_seconds()
        self._build = write or _build_request
        self._url = parse_url_template(request.url)
        self._pool = connections.pool(self._url.origin, request.networks)

    async def run(self, call: Invocation, write: "BuildRequest | None" = None) -> Any:
        """Send the request of a call; `write` builds this one request instead."""
        build = write or self._build
        if call.hops is None:
            return await self._send(build(self._request, self._url, call), call, None)
        origin = self._url.origin
        hop = call.hops.http(self._request.method, scheme=origin.scheme, host=origin.host, port=origin.port)
        try:
            outgoing = build(self._request, self._url, call)
            if hop is not None:
                outgoing = replace(outgoing, headers={**hop.fields, **outgoing.headers})
            return await self._send(outgoing, call, hop)
        except BaseException as error:
            if hop is not None:
                is_cancelled = isinstance(error, asyncio.CancelledError)
                hop.end(error=error.word if isinstance(error, BackendError) else ("failed", "cancelled")[is_cancelled])
            raise

    async def _send(self, outgoing: PreparedRequest, call: Invocation, hop: OutboundRequest | None) -> Any:
        outer = current_deadline()
        if outer is not None and outer.remaining_seconds <= self._seconds:  # the outer deadline ends the call earlier
            return await self._exchange(outgoing, call, hop)
        async with enforce_deadline(self._request.timeout):
            return await self._exchange(outgoing, call, hop)

    async def close(self) -> None:
        """Do nothing: the connections are shared."""

    async def _exchange(self, outgoing: PreparedRequest, call: Invocation, hop: OutboundRequest | None) -> Any:
        for _ in range(_MAX_REDIRECTS + 1):
            response = await self._pool.send(outgoing.method, outgoing.target, outgoing.headers, outgoing.body)
            try:
                location = response.headers.get("location")
                if response.status not in _REDIRECTS or location is None:
                    return await self._take_result(response, outgoing, call, hop)
            finally:
                response.close()
            target = redirect_target(self._url.origin, outgoing.target, location)
            outgoing = _redirect(outgoing, status=response.status, target=target)
        raise BackendError("failed", "the service redirects too often")

    async def _take_result(
        self, response: Http1Response, outgoing: PreparedRequest, call: Invocation, hop: OutboundRequest | None
    ) -> Any:
        if not 200 <= response.status < 300:
            failure = await self._to_error(response, outgoing.secrets)
            if hop is not None:
                hop.end(status=response.status)
            raise failure
        if self._request.seen is not None:
            self._request.seen(response.headers, f"{self._url.origin}{outgoing.target}")
        result = await self._read_result(response, call)
        if hop is not None:
            hop.end(status=response.status)
        return result

    async def _read_result(self, response: Http1Response, call: Invocation) -> Any:
        request = self._request
        is_raw = request.media is None and request.pick is None
        if is_raw and response.is_complete and "content-encoding" not in response.headers:  # a short one, most often
            return await call.keep(await response.read(limit=request.max_answer))
        async with aclosing(decode_body(response, limit=request.max_answer)) as content:
            if is_raw:
                return await call.keep(content)
            whole = await read_all(content, limit=request.max_json)
        if request.media is not None:
            return request.media.media(whole)
        value = await parse_json_result(whole)
        try:
            picked = value if request.pick is None else request.pick(value)
        except LookupError as error:
            raise BackendError("failed", "the answer has nothing where the result should be") from error
        text = picked if isinstance(picked, str) and not request.json_results else json_text(picked)
        return await call.keep(text.encode("utf-8", "replace"))

    async def _to_error(self, response: Http1Response, secrets: tuple[str, ...]) -> BackendError:
        status = response.status
        word = self._request.errors.get(status) or STATUS_ERRORS.get(status, "failed")
        body = excerpt(await self._read_error_body(response), secrets=secrets)
        message = f"the service answered {_status_phrase(status)}{': ' if body else ''}{body}"
        return BackendError(word, message, kind=str(status))

    async def _read_error_body(self, response: Http1Response) -> bytes:
        """Return the start of an error response to quote. Errors while reading it are ignored."""
        body = bytearray()
        try:
            async with (
                asyncio.timeout(_ERROR_BODY_SECONDS),
                aclosing(decode_body(response, limit=self._request.max_answer)) as content,
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
    headers, body = dict(request.headers), None
    secrets: tuple[str, ...] = ()
    if request.body is not None:
        body = _encode_json(request.body.select(call.args, used=url.names))
        headers.setdefault("content-type", "application/json")
    add_idempotency_header(headers, call)
    if request.auth is not None:
        name, value, secret = request.auth.header()
        headers[name.lower()], secrets = value, (value, secret)
    return PreparedRequest(request.method, target, headers, body, secrets)


def _encode_json(body: Mapping[str, Any]) -> bytes:
    try:
        return write_json(body).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BackendError("invalid", "the arguments cannot be written as JSON") from error


def _redirect(outgoing: PreparedRequest, *, status: int, target: str) -> PreparedRequest:
    """Return the redirected request: only the path may change, and a POST is repeated only for status 307 or 308."""
    is_see_other = status == 303 and outgoing.method != "HEAD"
    if is_see_other or (status in (301, 302) and outgoing.method == "POST"):
        headers = {name: value for name, value in outgoing.headers.items() if name != "content-type"}
        return replace(outgoing, method="GET", target=target, headers=headers, body=None)
    return replace(outgoing, target=target)


def _status_phrase(status: int) -> str:
    """Return the status with its standard phrase: the service's own phrase is untrusted."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
