"""Tools that are operations of an OpenAPI document: one request each, to the server that the Upstream document fixes.

What the document says about servers is not read, so it cannot choose where credentials go.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from urllib.parse import quote

from yarl import URL

from gateway.backends.connections import Connections
from gateway.backends.credentials import CookieAuth, QueryAuth, revealed
from gateway.backends.http import HttpBackend, HttpRequest, Outgoing, check_headers, with_idempotency
from gateway.backends.refusals import BackendUnusable
from gateway.backends.urls import UrlTemplate
from gateway.governance.ports import BackendFailed, Invocation
from gateway.governance.principals import Principal
from gateway.openapi.paging import next_arguments
from gateway.openapi.refusals import NotWritable
from gateway.openapi.requests import Request
from gateway.openapi.styles import Pair
from gateway.openapi.writing import Written, cookie_header, written

Tell = Callable[[Any], None]
"""Sends a log message to whoever called."""


class Proof(Protocol):
    """Tokens that somebody grants to the gateway, for a caller or for itself."""

    async def headers(self, principal: Principal, pool: Connections, /) -> Mapping[str, str]: ...

    def renew(self, principal: Principal, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class OpenApiOperation:
    """An operation and the server that has it. `http` names the server's address, fixed headers and limits."""

    http: HttpRequest
    request: Request
    key: QueryAuth | CookieAuth | None = None
    proof: Proof | None = field(default=None, repr=False)
    tell: Tell | None = field(default=None, repr=False)


class OpenApiBackend:
    """The connections are the caller's to close: other tools of the same service use them, too."""

    def __init__(self, operation: OpenApiOperation, connections: Connections) -> None:
        self._operation = operation
        if "{" in operation.http.url or "?" in operation.http.url:
            raise BackendUnusable("the server's address has a placeholder or a query", help="write its plain address")
        self._connections = connections
        self._request = replace(operation.http, seen=self._seen if operation.tell is not None else None)
        check_headers({each.name: "" for each in operation.request.parameters if each.place == "header"})
        self._http = HttpBackend(self._request, connections, write=self._outgoing)

    async def run(self, call: Invocation) -> Any:
        proof = self._operation.proof
        return await (self._http.run(call) if proof is None else self._proven(call, proof))

    async def close(self) -> None:
        """Nothing is held that others do not use."""

    async def _proven(self, call: Invocation, proof: Proof) -> Any:
        """A token that is refused is not used again; the call is not tried again, for it may have had an effect."""
        granted = await proof.headers(call.principal, self._connections)

        def write(http: HttpRequest, url: UrlTemplate, call: Invocation) -> Outgoing:
            outgoing = self._outgoing(http, url, call)
            secrets = tuple(text for value in granted.values() for text in (value, value.rpartition(" ")[2]))
            return replace(outgoing, headers={**outgoing.headers, **granted}, secrets=(*outgoing.secrets, *secrets))

        try:
            return await HttpBackend(self._request, self._connections, write=write).run(call)
        except BackendFailed as error:
            if error.word == "not-permitted":
                proof.renew(call.principal)
            raise

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
