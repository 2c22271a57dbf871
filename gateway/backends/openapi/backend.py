"""Tools that are operations of an OpenAPI document: one request each, to the server that the Upstream document fixes.

The `servers` of the OpenAPI document are ignored, so it cannot choose where credentials go. If a `Link` header names a
next page on the same host and path, its arguments are reported to the caller; the gateway never follows it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, quote, urljoin, urlsplit

from gateway.backends.http.backend import (
    HttpBackend,
    HttpRequest,
    PreparedRequest,
    add_idempotency_header,
    check_headers,
)
from gateway.backends.http.credentials import CookieAuth, QueryAuth, reveal_secret
from gateway.backends.http.url_template import UrlTemplate
from gateway.backends.openapi.document import InvalidArgument
from gateway.backends.openapi.request_builder import Pair, SerializedRequest, cookie_header, serialize_request
from gateway.backends.openapi.request_template import RequestTemplate
from gateway.backends.result_conversion import BackendUnusable
from gateway.http_client import HttpConnections
from gateway.model import BackendError, Invocation, Principal

_MAX_HEADER: Final = 8192
_MAX_VALUE: Final = 500
_LINK: Final = re.compile(r'<([^<>"\s]{1,4096})>((?:\s*;\s*[A-Za-z*]+\s*=\s*(?:"[^"]{0,256}"|[^\s",;]{1,256}))*)')
_REL: Final = re.compile(r';\s*rel\s*=\s*(?:"([^"]*)"|([^\s",;]+))', re.IGNORECASE)


def find_next_arguments(headers: Mapping[str, str], address: str, request: RequestTemplate) -> dict[str, str]:
    """Return the arguments that the next page needs in addition; empty if there is no next page."""
    target = _find_next_link(headers.get("link", "")[:_MAX_HEADER])
    if target is None:
        return {}
    try:
        here, there = urlsplit(address), urlsplit(urljoin(address, target))
        same = (here.scheme, here.hostname, here.port, here.path) == (
            there.scheme,
            there.hostname,
            there.port,
            there.path,
        )
        pairs = parse_qsl(there.query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        return {}
    if not same or there.username is not None:
        return {}
    before = set(parse_qsl(here.query, keep_blank_values=True))
    arguments = {each.name: each.argument for each in request.parameters if each.place == "query"}
    return {
        arguments[name]: value
        for name, value in pairs
        if name in arguments and (name, value) not in before and len(value) <= _MAX_VALUE and value.isprintable()
    }


def _find_next_link(header: str) -> str | None:
    for link in _LINK.finditer(header):
        relation = _REL.search(link[2])
        if relation is not None and "next" in (relation[1] or relation[2] or "").lower().split():
            return link[1]
    return None


ReportNextPage = Callable[[Any], None]
"""Sends a log message to the caller."""


class TokenSource(Protocol):
    """Access tokens for upstreams, issued to the gateway or to a caller."""

    async def headers(self, principal: Principal, pool: HttpConnections, /) -> Mapping[str, str]: ...

    def renew(self, principal: Principal, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class OpenApiOperation:
    """An operation and its server. `http` has the server's address, fixed headers and limits."""

    http: HttpRequest
    request: RequestTemplate
    key: QueryAuth | CookieAuth | None = None
    proof: TokenSource | None = field(default=None, repr=False)
    tell: ReportNextPage | None = field(default=None, repr=False)


class OpenApiBackend:
    """A backend that sends one request per call. The caller closes the connections: other tools share them."""

    def __init__(self, operation: OpenApiOperation, connections: HttpConnections) -> None:
        self._operation = operation
        if "{" in operation.http.url or "?" in operation.http.url:
            raise BackendUnusable("the server's address has a placeholder or a query", help="write its plain address")
        self._connections = connections
        self._request = replace(operation.http, seen=self._report_next_page if operation.tell is not None else None)
        check_headers({each.name: "" for each in operation.request.parameters if each.place == "header"})
        self._http = HttpBackend(self._request, connections, write=self._build_request)

    async def run(self, call: Invocation) -> Any:
        proof = self._operation.proof
        return await (self._http.run(call) if proof is None else self._run_with_token(call, proof))

    async def close(self) -> None:
        """Do nothing: the connections are shared."""

    async def _run_with_token(self, call: Invocation, proof: TokenSource) -> Any:
        """Call with a token. A refused token is renewed; the call is not repeated because it may have had an effect."""
        tokens = await proof.headers(call.principal, self._connections)

        def write(http: HttpRequest, url: UrlTemplate, call: Invocation) -> PreparedRequest:
            outgoing = self._build_request(http, url, call)
            secrets = tuple(text for value in tokens.values() for text in (value, value.rpartition(" ")[2]))
            return replace(outgoing, headers={**outgoing.headers, **tokens}, secrets=(*outgoing.secrets, *secrets))

        try:
            return await self._http.run(call, write)
        except BackendError as error:
            if error.word == "not-permitted":
                proof.renew(call.principal)
            raise

    def _build_request(self, http: HttpRequest, url: UrlTemplate, call: Invocation) -> PreparedRequest:
        operation, key = self._operation.request, self._operation.key
        taken = (key.name,) if key is not None else ()
        try:
            parts = serialize_request(operation, call.args, taken=taken)
        except InvalidArgument as error:
            raise BackendError("invalid", str(error)) from error
        headers = {**parts.headers, **http.headers}
        add_idempotency_header(headers, call)
        query, secrets = _with_credentials(http, key, parts, headers)
        base = url.target({}, query=()).rstrip("/")
        return PreparedRequest(operation.method, f"{base}{parts.target(query)}", headers, parts.body, secrets)

    def _report_next_page(self, headers: Mapping[str, str], address: str) -> None:
        page = find_next_arguments(headers, address, self._operation.request)
        if page and self._operation.tell is not None:
            self._operation.tell({"message": "there is a next page: call again with these arguments", "next": page})


def _with_credentials(
    http: HttpRequest, key: QueryAuth | CookieAuth | None, parts: SerializedRequest, headers: dict[str, str]
) -> tuple[list[Pair], tuple[str, ...]]:
    """Add credentials to the headers; return the pairs they add to the query, and the secrets."""
    query: list[Pair] = []
    cookies = list(parts.cookies)
    secrets: tuple[str, ...] = ()
    if http.auth is not None:
        name, value, secret = http.auth.header()
        headers[name.lower()], secrets = value, (value, secret)
    if key is not None:
        secret = reveal_secret(key.value)
        pair = (quote(key.name, safe=""), quote(secret, safe=""))
        (query if isinstance(key, QueryAuth) else cookies).append(pair)
        secrets = (*secrets, secret, pair[1])
    if (line := cookie_header(cookies)) is not None:
        headers["cookie"] = line
    return query, secrets
