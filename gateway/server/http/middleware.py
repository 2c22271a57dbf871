"""ASGI middleware: host, origin, header-size and credential checks, and CORS.

The checks read the path and headers of the scope, never a URL assembled from them.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from gateway.engine import set_request_origin
from gateway.errors import CredentialUnknown, Unauthenticated
from gateway.model import Principal
from gateway.server.http.asgi import (
    HEAD_SIZE,
    SCOPE_FIELDS,
    SCOPE_PRINCIPAL,
    AsgiApp,
    HeaderFields,
    RawHeaders,
    Receive,
    Response,
    Scope,
    Send,
    error_response,
    problem_response,
)
from gateway.server.http.served_response import IsStopped, ServedResponse, StreamWatch

Authenticate = Callable[[bytes | None], Awaitable[Principal]]
FindCachedPrincipal = Callable[[bytes | None], Principal | None]
"""Returns the recently authenticated principal of a credential without waiting; raises what `Authenticate` raises."""

MAX_HEADERS: Final = 32 << 10
_UNKNOWN_SIZE: Final = MAX_HEADERS + 1
_log: Final = logging.getLogger(__name__)
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, slots=True)
class EdgeRules:
    """Which requests may pass. Hosts are names without a port; origins are complete."""

    hosts: frozenset[str] = _LOOPBACK
    origins: frozenset[str] = frozenset()
    open_paths: Collection[str] = ("/livez", "/readyz")
    """Paths that need no credential, nor does any path below them."""
    challenge: Callable[[str, Unauthenticated], bytes] = field(default=lambda path, error: b"Bearer")
    """Returns the value of WWW-Authenticate for a path and an error."""


def no_cached_principal(_credential: bytes | None) -> None:
    """Return `None`: nothing is cached."""


class EdgeMiddleware:
    def __init__(
        self,
        app: AsgiApp,
        rules: EdgeRules,
        authenticate: Authenticate,
        recall: FindCachedPrincipal = no_cached_principal,
        *,
        is_stopped: IsStopped = lambda principal: False,
    ) -> None:
        """`recall` is tried first. `is_stopped` ends the event streams of a principal despite a valid credential."""
        self._watch = StreamWatch(authenticate, recall, is_stopped)
        self._app = app
        self._recall = recall
        self._rules = rules
        self._authenticate = authenticate
        self._open_paths = tuple(rules.open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":  # not supported
                await send({"type": "websocket.close", "code": 1008})
            else:
                await self._app(scope, receive, send)
            return
        fields = scope[SCOPE_FIELDS] = HeaderFields(scope["headers"])
        refusal = _refusal(fields, self._rules, scope.get(HEAD_SIZE, _UNKNOWN_SIZE))
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        path: str = scope["path"]
        if path.startswith(self._open_paths) and self._is_open(path):
            await self._app(scope, receive, send)
            return
        credential = fields.by_name.get(b"authorization")
        if fields.repeated and b"authorization" in fields.repeated:
            credential = b"\n".join(fields.all(b"authorization"))  # no authentication accepts both
        try:
            principal = self._recall(credential)
            if principal is None:
                principal = await self._authenticate(credential)
        except (Unauthenticated, CredentialUnknown) as error:
            await self._authentication_problem(error, scope)(scope, receive, send)
            return
        scope[SCOPE_PRINCIPAL] = principal
        set_request_origin(principal.credential, scope.get("client"))
        response = ServedResponse.of(send)
        response.authorize(self._watch, principal, credential, receive)
        try:
            await self._app(scope, response.receive, response.send)
        finally:
            if response.is_stream:
                response.leave()

    def _authentication_problem(self, error: Unauthenticated | CredentialUnknown, scope: Scope) -> Response:
        if isinstance(error, CredentialUnknown):
            return error_response(error)
        _log.debug("a credential was refused: %s", error.reason)
        challenge = self._rules.challenge(scope["path"], error)
        return problem_response(401, error.message, code=error.code, headers={b"www-authenticate": challenge})

    def _is_open(self, path: str) -> bool:
        return any(path == each or path.startswith(f"{each}/") for each in self._open_paths)


_HEADERS_TOO_LARGE: Final = problem_response(
    431,
    "the headers are too large",
    code="E_HEADERS_TOO_LARGE",
    help=f"send at most {MAX_HEADERS >> 10} KiB of headers",
)
_HOST_NOT_SERVED: Final = problem_response(
    421,
    "this host is not served here",
    code="E_HOST_NOT_SERVED",
    help="use the gateway's own address; its operator names others in GATEWAY_PUBLIC_URL or GATEWAY_ALLOWED_HOSTS",
)
_ORIGIN_NOT_ALLOWED: Final = problem_response(
    403,
    "this origin may not call",
    code="E_ORIGIN_NOT_ALLOWED",
    help="the gateway's operator names origins of web pages in GATEWAY_ALLOWED_ORIGINS",
)


def _refusal(fields: HeaderFields, rules: EdgeRules, at_most: int = _UNKNOWN_SIZE) -> Response | None:
    """Return the response to a request that any caller is refused, else `None`. `at_most` bounds its header bytes."""
    if at_most > MAX_HEADERS and fields.size > MAX_HEADERS:
        return _HEADERS_TOO_LARGE
    host = fields.by_name.get(b"host")
    if host is None or b"host" in fields.repeated or _host_name(host) not in rules.hosts:
        return _HOST_NOT_SERVED
    if b"origin" in fields.by_name and not all(_is_allowed(each, host, rules) for each in fields.all(b"origin")):
        return _ORIGIN_NOT_ALLOWED
    return None


def is_allowed_request(headers: RawHeaders, rules: EdgeRules) -> bool:
    """Whether a request passes all checks that do not depend on the caller."""
    return _refusal(HeaderFields(headers), rules) is None


@lru_cache(maxsize=256)
def _host_name(value: bytes) -> str:
    """Return the name before the port; "", which no list of hosts contains, if the value is invalid."""
    text = value.decode("latin-1").strip(" \t").lower()
    if text.startswith("["):
        name, bracket, rest = text.partition("]")
        return f"{name}]" if bracket and (not rest or (rest[0] == ":" and rest[1:].isdecimal())) else ""
    name, colon, port = text.partition(":")
    return name if not colon or port.isdecimal() else ""


def _is_allowed(origin: bytes, host: bytes, rules: EdgeRules) -> bool:
    """Whether it is the server's own origin or a listed one. `null` is neither."""
    text = origin.decode("latin-1").strip(" \t").lower()
    own = host.decode("latin-1").strip(" \t").lower()
    return text in (f"http://{own}", f"https://{own}") or text in rules.origins


def get_principal(scope: Mapping[str, Any]) -> Principal:
    principal: Principal = scope[SCOPE_PRINCIPAL]
    return principal


_METHODS: Final = b"GET, HEAD, POST, DELETE"
_ALLOWED: Final = frozenset(
    {
        *("accept", "authorization", "content-type", "if-none-match", "if-range", "range", "last-event-id"),
        *("idempotency-key", "traceparent", "tracestate", "baggage"),
        *("mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name"),
    }
)
_ALLOWED_PREFIX: Final = "mcp-param-"
_EXPOSED_HEADERS: Final = (
    b"content-disposition, content-range, etag, idempotency-replayed, location, mcp-session-id, retry-after, "
    b"www-authenticate"
)


class CorsMiddleware:
    """CORS for web pages of listed origins; others get no CORS headers. No cookies: pages send their own credential."""

    def __init__(self, app: AsgiApp, rules: EdgeRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = self._find_allowed_origin(scope) if scope["type"] == "http" else None
        if origin is None:
            await self._app(scope, receive, send)
        elif _is_preflight(scope) and is_allowed_request(scope["headers"], self._rules):
            await send({"type": "http.response.start", "status": 204, "headers": _preflight_headers(scope, origin)})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self._app(scope, receive, _with_cors_headers(send, origin))

    def _find_allowed_origin(self, scope: Scope) -> bytes | None:
        origin = _header(scope, b"origin")
        return origin if origin is not None and origin.decode("latin-1").lower() in self._rules.origins else None


def _is_preflight(scope: Scope) -> bool:
    return scope["method"] == "OPTIONS" and _header(scope, b"access-control-request-method") is not None


def _preflight_headers(scope: Scope, origin: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers of a preflight response. Browsers send no credential with it, so it reveals nothing else."""
    listed = (_header(scope, b"access-control-request-headers") or b"").decode("latin-1").lower().split(",")
    names = [name for each in listed if (name := each.strip(" \t")) in _ALLOWED or name.startswith(_ALLOWED_PREFIX)]
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-allow-headers", ", ".join(names).encode("latin-1")),
        (b"access-control-max-age", b"600"),
        (b"vary", b"origin, access-control-request-headers"),
    ]


def _with_cors_headers(send: Send, origin: bytes) -> Send:
    ours = [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _EXPOSED_HEADERS),
        (b"vary", b"origin"),
    ]

    async def send_with_cors(message: Any) -> None:
        if message["type"] == "http.response.start":
            others = [each for each in message["headers"] if each[0] != b"access-control-allow-origin"]
            message = {**message, "headers": [*others, *ours]}
        await send(message)

    return send_with_cors


def _header(scope: Scope, name: bytes) -> bytes | None:
    """Return the value of a header that occurs exactly once, else `None`."""
    found = [value.strip(b" \t") for key, value in scope["headers"] if key == name]
    return found[0] if len(found) == 1 else None
