"""The edge: what every request passes before anything is revealed. Host and Origin, sizes, and who is calling.

A plain ASGI wrapper. Decisions read the scope's path and headers, never a URL put together from them.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from gateway.errors import CredentialUnknown, Unauthenticated
from gateway.governance.principals import Principal
from gateway.serving.origins import comes_from
from gateway.web.problems import problem_response, refusal

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Authenticate = Callable[[bytes | None], Awaitable[Principal]]

PRINCIPAL: Final = "gateway.principal"
"""Where the scope of an authenticated request has its principal."""

MAX_HEADERS: Final = 32 << 10
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


class Edge:
    def __init__(self, app: App, rules: EdgeRules, authenticate: Authenticate) -> None:
        self._app = app
        self._rules = rules
        self._authenticate = authenticate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # nothing here speaks it, so nobody may begin
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        unwanted, credential = _looked_at(scope["headers"], self._rules)
        if unwanted is not None:
            status, message = unwanted
            await problem_response(status, message)(scope, receive, send)
            return
        if not _is_below(scope["path"], self._rules.open_paths):
            try:
                principal = scope[PRINCIPAL] = await self._authenticate(credential)
            except Unauthenticated as error:
                challenge = self._rules.challenge(scope["path"], error)
                response = problem_response(
                    401, error.message, code=error.code, headers={b"www-authenticate": challenge}
                )
                await response(scope, receive, send)
                return
            except CredentialUnknown as error:
                await refusal(error)(scope, receive, send)
                return
            comes_from(principal.credential, scope.get("client"))
        await self._app(scope, receive, send)


def _is_below(path: str, open_paths: Collection[str]) -> bool:
    for open_path in open_paths:
        if path.startswith(open_path) and path[len(open_path) : len(open_path) + 1] in ("", "/"):
            return True
    return False


def _looked_at(headers: list[tuple[bytes, bytes]], rules: EdgeRules) -> tuple[tuple[int, str] | None, bytes | None]:
    """Why a request is not wanted, and its Authorization header: two of them are as good as a wrong one."""
    size = 0
    hosts: list[bytes] = []
    origins: list[bytes] = []
    credential: bytes | None = None
    for name, value in headers:
        size += len(name) + len(value)
        if name == b"host":
            hosts.append(value)
        elif name == b"authorization":
            credential = value if credential is None else b"\n".join((credential, value))
        elif name == b"origin":
            origins.append(value)
    if size > MAX_HEADERS:
        return (431, "the headers are too large"), None
    if len(hosts) != 1 or _host_name(hosts[0]) not in rules.hosts:
        return (421, "this host is not served here"), None
    for origin in origins:
        if not _is_allowed(origin, hosts[0], rules):
            return (403, "this origin may not call"), None
    return None, credential


def is_wanted(headers: list[tuple[bytes, bytes]], rules: EdgeRules) -> bool:
    """Whether a request is let in, as far as that is not about who calls."""
    return _looked_at(headers, rules)[0] is None


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
