"""Tools that are operations of an OpenAPI document: one request each, to the server that the Upstream document fixes.

What the document says about servers is not read, so it cannot choose where credentials go.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from yarl import URL

from gateway.backends.connections import Connections
from gateway.backends.credentials import CookieAuth, QueryAuth, revealed
from gateway.backends.http import HttpBackend, HttpRequest, Outgoing, check_headers, with_idempotency
from gateway.backends.refusals import BackendUnusable
from gateway.backends.urls import UrlTemplate
from gateway.governance.ports import BackendFailed, Invocation
from gateway.openapi.paging import next_arguments
from gateway.openapi.refusals import NotWritable
from gateway.openapi.requests import Request
from gateway.openapi.styles import Pair
from gateway.openapi.writing import Written, cookie_header, written

Tell = Callable[[Any], None]
"""Sends a log message to whoever called."""


@dataclass(frozen=True, slots=True)
class OpenApiOperation:
    """An operation and the server that has it. `http` names the server's address, fixed headers and limits."""

    http: HttpRequest
    request: Request
    key: QueryAuth | CookieAuth | None = None
    tell: Tell | None = field(default=None, repr=False)


class OpenApiBackend:
    """The connections are the caller's to close: other tools of the same service use them, too."""

    def __init__(self, operation: OpenApiOperation, connections: Connections) -> None:
        self._operation = operation
        if "{" in operation.http.url or "?" in operation.http.url:
            raise BackendUnusable("the server's address has a placeholder or a query", help="write its plain address")
        http = replace(operation.http, seen=self._seen if operation.tell is not None else None)
        check_headers({each.name: "" for each in operation.request.parameters if each.place == "header"})
        self._http = HttpBackend(http, connections, write=self._outgoing)

    async def run(self, call: Invocation) -> Any:
        return await self._http.run(call)

    async def close(self) -> None:
        """Nothing is held that others do not use."""

    def _outgoing(self, http: HttpRequest, url: UrlTemplate, call: Invocation) -> Outgoing:
        operation, key = self._operation.request, self._operation.key
        taken = (key.name,) if key is not None else ()
        try:
            parts = written(operation, call.args, taken=taken)
        except NotWritable as error:
            raise BackendFailed("invalid", str(error)) from error
        headers = {**parts.headers, **{name.lower(): value for name, value in http.headers.items()}}
        with_idempotency(headers, call)
        query, secrets = _with_credentials(http, key, parts, headers)
        base = url.target({}, query=()).rstrip("/")
        address = URL(f"{url.origin}{base}{parts.target(query)}", encoded=True)
        return Outgoing(operation.method, address, headers, parts.body, secrets)

    def _seen(self, headers: Mapping[str, str], address: str) -> None:
        further = next_arguments(headers, address, self._operation.request)
        if further and self._operation.tell is not None:
            self._operation.tell({"message": "there is a next page: call again with these arguments", "next": further})


def _with_credentials(
    http: HttpRequest, key: QueryAuth | CookieAuth | None, parts: Written, headers: dict[str, str]
) -> tuple[list[Pair], tuple[str, ...]]:
    """Sets the headers that credentials need; what they add to the query, and what no message may quote."""
    query: list[Pair] = []
    cookies = list(parts.cookies)
    secrets: tuple[str, ...] = ()
    if http.auth is not None:
        name, value, secret = http.auth.header()
        headers[name.lower()], secrets = value, (value, secret)
    if key is not None:
        secret = revealed(key.value)
        pair = (quote(key.name, safe=""), quote(secret, safe=""))
        (query if isinstance(key, QueryAuth) else cookies).append(pair)
        secrets = (*secrets, secret, pair[1])
    if (line := cookie_header(cookies)) is not None:
        headers["cookie"] = line
    return query, secrets
