"""Web pages of other origins: what a browser has to be told before a page that may call can call, and read the answer.

Which origins may call is decided at the edge; a page of any other one is told nothing here.
"""

from typing import Any, Final

from gateway.web.edge import App, EdgeRules, Receive, Scope, Send, is_wanted

_METHODS: Final = b"GET, HEAD, POST, DELETE"
_ASKABLE: Final = frozenset(
    {
        *("accept", "authorization", "content-type", "if-none-match", "if-range", "range", "last-event-id"),
        *("idempotency-key", "traceparent", "tracestate", "baggage"),
        *("mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name"),
    }
)
_ASKABLE_PREFIX: Final = "mcp-param-"
_READABLE: Final = (
    b"content-disposition, content-range, etag, idempotency-replayed, location, mcp-session-id, retry-after, "
    b"www-authenticate"
)


class CrossOrigin:
    """Around the edge, and only where origins are listed. No cookies: pages send their credential themselves."""

    def __init__(self, app: App, rules: EdgeRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = self._listed_origin(scope) if scope["type"] == "http" else None
        if origin is None:
            await self._app(scope, receive, send)
        elif _is_preflight(scope) and is_wanted(scope["headers"], self._rules):
            await send({"type": "http.response.start", "status": 204, "headers": _leave(scope, origin)})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self._app(scope, receive, _readable(send, origin))

    def _listed_origin(self, scope: Scope) -> bytes | None:
        origin = _header(scope, b"origin")
        return origin if origin is not None and origin.decode("latin-1").lower() in self._rules.origins else None


def _is_preflight(scope: Scope) -> bool:
    return scope["method"] == "OPTIONS" and _header(scope, b"access-control-request-method") is not None


def _leave(scope: Scope, origin: bytes) -> list[tuple[bytes, bytes]]:
    """A browser asks before it sends what a form could not. It asks without a credential, so nothing else is told."""
    asked = (_header(scope, b"access-control-request-headers") or b"").decode("latin-1").lower().split(",")
    names = [name for each in asked if (name := each.strip(" \t")) in _ASKABLE or name.startswith(_ASKABLE_PREFIX)]
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-allow-headers", ", ".join(names).encode("latin-1")),
        (b"access-control-max-age", b"600"),
        (b"vary", b"origin, access-control-request-headers"),
    ]


def _readable(send: Send, origin: bytes) -> Send:
    ours = [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _READABLE),
        (b"vary", b"origin"),
    ]

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            others = [each for each in message["headers"] if each[0] != b"access-control-allow-origin"]
            message = {**message, "headers": [*others, *ours]}
        await send(message)

    return sending


def _header(scope: Scope, name: bytes) -> bytes | None:
    """A header that is there once."""
    found = [value.strip(b" \t") for key, value in scope["headers"] if key == name]
    return found[0] if len(found) == 1 else None
