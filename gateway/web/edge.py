"""The edge: what every request passes before anything is revealed. Host and Origin, sizes, and who is calling.

A plain ASGI wrapper. Decisions read the scope's path and headers, never a URL put together from them.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from gateway.errors import CredentialUnknown, Unauthenticated
from gateway.governance.principals import Principal
from gateway.serving.origins import comes_from
from gateway.web.fields import FIELDS, Fields, RawHeaders
from gateway.web.problems import Response, problem_response, refusal
from gateway.web.stream_watch import IsStopped, StreamWatch, WatchedAnswer

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Authenticate = Callable[[bytes | None], Awaitable[Principal]]
Recall = Callable[[bytes | None], Principal | None]
"""Who was authenticated a moment ago, without waiting; raises as authenticating does."""

PRINCIPAL: Final = "gateway.principal"
"""Where the scope of an authenticated request has its principal."""

TASK: Final = "gateway.task"
"""Where the scope of a request has the task that answers it, if the server tells: asking for it takes longer."""

HEAD_SIZE: Final = "gateway.head_size"
"""Where the scope has a number of bytes that its headers do not exceed, if the server knows one: counting is slow."""

MAX_HEADERS: Final = 32 << 10
_UNKNOWN_SIZE: Final = MAX_HEADERS + 1
_log: Final = logging.getLogger(__name__)
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, slots=True)
class EdgeRules:
    """Which requests are let in. Hosts are names without a port; origins are whole."""

    hosts: frozenset[str] = _LOOPBACK
    origins: frozenset[str] = frozenset()
    open_paths: Collection[str] = ("/livez", "/readyz")
    """Paths that need no credential, with everything below them."""
    challenge: Callable[[str, Unauthenticated], bytes] = field(default=lambda path, error: b"Bearer")
    """What WWW-Authenticate says for a path."""


def nobody_remembered(_credential: bytes | None) -> None:
    """Nobody is remembered."""


class Edge:
    def __init__(
        self,
        app: App,
        rules: EdgeRules,
        authenticate: Authenticate,
        recall: Recall = nobody_remembered,
        *,
        is_stopped: IsStopped = lambda principal: False,
    ) -> None:
        """`recall` is asked first. `is_stopped` tells whose event streams end although their credential is good."""
        self._watch = StreamWatch(authenticate, recall, is_stopped)
        self._app = app
        self._recall = recall
        self._rules = rules
        self._authenticate = authenticate
        self._open_paths = tuple(rules.open_paths)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "websocket":  # nothing here speaks it, so nobody may begin
            return send({"type": "websocket.close", "code": 1008})
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        fields = scope[FIELDS] = Fields(scope["headers"])
        unwanted = _unwanted(fields, self._rules, scope.get(HEAD_SIZE, _UNKNOWN_SIZE))
        if unwanted is not None:
            return unwanted(scope, receive, send)
        path: str = scope["path"]
        if path.startswith(self._open_paths) and self._is_open(path):
            return self._app(scope, receive, send)
        credential = _credential(fields)
        try:
            principal = self._recall(credential)
        except (Unauthenticated, CredentialUnknown) as error:
            return self._refused(error, scope)(scope, receive, send)
        if principal is None:
            return self._once_known(credential, scope, receive, send)
        return self._let_in(principal, credential, scope, receive, send)

    async def _once_known(self, credential: bytes | None, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            principal = await self._authenticate(credential)
        except (Unauthenticated, CredentialUnknown) as error:
            await self._refused(error, scope)(scope, receive, send)
        else:
            await self._let_in(principal, credential, scope, receive, send)

    async def _let_in(
        self, principal: Principal, credential: bytes | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        scope[PRINCIPAL] = principal
        comes_from(principal.credential, scope.get("client"))
        answer = WatchedAnswer(self._watch, principal, credential, receive, send)
        try:
            await self._app(scope, answer.receive, answer.send)
        finally:
            answer.leave()

    def _refused(self, error: Unauthenticated | CredentialUnknown, scope: Scope) -> Response:
        if isinstance(error, CredentialUnknown):
            return refusal(error)
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


def _unwanted(fields: Fields, rules: EdgeRules, at_most: int = _UNKNOWN_SIZE) -> Response | None:
    """How a request is turned away, whoever calls; `None` if it is not. `at_most` bounds the bytes of its headers."""
    if at_most > MAX_HEADERS and fields.size > MAX_HEADERS:
        return _HEADERS_TOO_LARGE
    host = fields.by_name.get(b"host")
    if host is None or b"host" in fields.repeated or _host_name(host) not in rules.hosts:
        return _HOST_NOT_SERVED
    if b"origin" in fields.by_name and not all(_is_allowed(each, host, rules) for each in fields.all(b"origin")):
        return _ORIGIN_NOT_ALLOWED
    return None


def _credential(fields: Fields) -> bytes | None:
    """The Authorization header: two of them are as good as a wrong one."""
    if b"authorization" in fields.repeated:
        return b"\n".join(fields.all(b"authorization"))
    return fields.by_name.get(b"authorization")


def is_wanted(headers: RawHeaders, rules: EdgeRules) -> bool:
    """Whether a request is let in, as far as that is not about who calls."""
    return _unwanted(Fields(headers), rules) is None


@lru_cache(maxsize=256)
def _host_name(value: bytes) -> str:
    """The name before the port; what is not one comes out as something that no list contains."""
    text = value.decode("latin-1").strip(" \t").lower()
    if text.startswith("["):
        name, bracket, rest = text.partition("]")
        return f"{name}]" if bracket and (not rest or (rest[0] == ":" and rest[1:].isdecimal())) else ""
    name, colon, port = text.partition(":")
    return name if not colon or port.isdecimal() else ""


def _is_allowed(origin: bytes, host: bytes, rules: EdgeRules) -> bool:
    """The server's own origin, or one that is listed. `null` is neither."""
    text = origin.decode("latin-1").strip(" \t").lower()
    own = host.decode("latin-1").strip(" \t").lower()
    return text in (f"http://{own}", f"https://{own}") or text in rules.origins


def principal_of(scope: Mapping[str, Any]) -> Principal:
    principal: Principal = scope[PRINCIPAL]
    return principal
