"""ASGI routers of the data plane and the admin plane: they map paths to apps."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from starlette.routing import Route, Router

from gateway.engine import LiveRevision, Service
from gateway.errors import UnknownCatalogue
from gateway.server.http.asgi import (
    AsgiApp,
    Receive,
    Scope,
    Send,
    bytes_response,
    error_response,
    json_response,
    problem_response,
)
from gateway.server.http.middleware import (
    Authenticate,
    CorsMiddleware,
    EdgeMiddleware,
    EdgeRules,
    FindCachedPrincipal,
    no_cached_principal,
)
from gateway.server.http.served_response import IsStopped

Ready = Callable[[], Mapping[str, Any]]
"""Returns the body of `/readyz`: `ready` is whether the process takes calls, the rest explains why not."""

PROTECTED_RESOURCE_PATH: Final = "/.well-known/oauth-protected-resource"
ISSUER_METADATA_PATH: Final = "/.well-known/oauth-authorization-server"
"""Where clients of MCP 2025-03-26 look for the issuer's metadata: at the resource itself."""
_PROTOCOL: Final = "mcp"


def build_data_app(
    service: Service,
    *,
    ready: Ready,
    metadata: Callable[[str], Mapping[str, Any] | None],
    mcp: Callable[[str], AsgiApp],
    rest: Sequence[Route],
    issuer_metadata: Callable[[], str | None] = lambda: None,
) -> AsgiApp:
    """Return the app for MCP at `/mcp` and below each catalogue's path, REST below `/v1`, health and OAuth metadata.

    `mcp` returns the endpoint of a catalogue, `metadata` the protected resource metadata of a path, `issuer_metadata`
    the address of the issuer's metadata if there is exactly one issuer. The app needs the edge middleware around it.
    """
    others = _PathRouter([*rest, Route(ISSUER_METADATA_PATH, _Redirect(issuer_metadata))], default=_not_found)
    return _DataRouter(service, ready=ready, metadata=metadata, mcp=mcp, rest=others)


def build_data_router(
    paths: AsgiApp,
    authenticate: Authenticate,
    recall: FindCachedPrincipal = no_cached_principal,
    *,
    rules: EdgeRules,
    is_stopped: IsStopped = lambda principal: False,
) -> AsgiApp:
    """Return the app that callers reach: the paths behind the edge middleware, with CORS if origins are listed."""
    edge = EdgeMiddleware(paths, rules, authenticate, recall, is_stopped=is_stopped)
    return CorsMiddleware(edge, rules) if rules.origins else edge


def build_admin_router(
    authenticate: Authenticate, *, rules: EdgeRules, ready: Ready, routes: Sequence[Any] = ()
) -> AsgiApp:
    """Return the app for health and the routes for operators."""
    return EdgeMiddleware(
        _Health(Router(routes, default=_not_found_admin, redirect_slashes=False), ready), rules, authenticate
    )


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 404 on the data plane."""
    help = "REST is below /v1, with a reference at /v1/docs, MCP at the path of each catalogue with /mcp after it"
    await problem_response(404, "nothing is served at this path", help=help)(scope, receive, send)


async def _not_found_admin(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 404 on the admin plane."""
    help = "this is the admin plane: /livez, /readyz, /status, /metrics, /admin/reload; MCP and REST have another port"
    await problem_response(404, "nothing is served at this path", help=help)(scope, receive, send)


class _Redirect:
    """Redirect to the issuer's metadata; a class, because Starlette wraps plain functions."""

    def __init__(self, address: Callable[[], str | None]) -> None:
        self._address = address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        address = self._address()
        if address is None:
            await _not_found(scope, receive, send)
            return
        headers = {b"location": address.encode("ascii"), b"access-control-allow-origin": b"*"}
        await bytes_response(b"", status=302, headers=headers)(scope, receive, send)


class _Health:
    """`/livez` and `/readyz`; all other paths go to the app."""

    def __init__(self, app: AsgiApp, ready: Ready) -> None:
        self._app = app
        self._ready = ready

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        path = scope.get("path")
        if path == "/livez":
            return json_response({"live": True})(scope, receive, send)
        if path == "/readyz":
            state = self._ready()
            return json_response(state, status=200 if state["ready"] else 503)(scope, receive, send)
        return self._app(scope, receive, send)


class _PathRouter:
    """Finds the app of a path among routes, in their order; methods are the business of the apps.

    Starlette's own router takes as long for one request as all checks of the edge together.
    """

    def __init__(self, routes: Sequence[Route], *, default: AsgiApp) -> None:
        self._table = [(route.path_regex.match, route.app) for route in routes]
        self._default = default

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        path = scope["path"]
        for match, app in self._table:
            found = match(path)
            if found is not None:
                scope["path_params"] = found.groupdict()
                return app(scope, receive, send)
        return self._default(scope, receive, send)


class _DataRouter:
    """Finds the app of a path by dict lookup: it runs thousands of times a second, so it tries no list of patterns."""

    def __init__(
        self,
        service: Service,
        *,
        ready: Ready,
        metadata: Callable[[str], Mapping[str, Any] | None],
        mcp: Callable[[str], AsgiApp],
        rest: AsgiApp,
    ) -> None:
        self._service = service
        self._metadata = metadata
        self._mcp = mcp
        self._endpoints: dict[str, AsgiApp] = {}
        self._others = _Health(rest, ready)
        self._published: LiveRevision | None = None
        self._found: dict[str, AsgiApp] = {}
        """MCP endpoints by path, for the live revision."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        path: str = scope.get("path", "")
        published = self._service.published
        if published is not self._published:
            self._published, self._found = published, {}
        app = self._found.get(path)
        if app is not None:
            return app(scope, receive, send)
        if path.startswith(PROTECTED_RESOURCE_PATH):  # first: the metadata path of an endpoint ends in /mcp, too
            return self._describe(path.removeprefix(PROTECTED_RESOURCE_PATH), scope, receive, send)
        if path.endswith("/mcp") and not self._is_of_rest(path):
            return self._to_catalogue(path, scope, receive, send)
        return self._others(scope, receive, send)

    def _is_of_rest(self, path: str) -> bool:
        """Whether the path is a REST path of a tool, catalogue or call that is named mcp."""
        return path.startswith("/v1/") and self._service.published.catalogue_at(path.removesuffix("/mcp")) is None

    def _to_catalogue(self, path: str, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        snapshot = self._service.published.snapshot
        at = path.removesuffix("/mcp")
        name = self._service.published.catalogue_at(at) if at else snapshot.default_catalogue
        if name is None or _PROTOCOL not in snapshot.catalogues[name].protocols:
            error = UnknownCatalogue()
            return problem_response(404, error.message, code=error.code)(scope, receive, send)
        if name not in self._endpoints:
            self._endpoints[name] = self._mcp(name)
        self._found[path] = app = self._endpoints[name]
        return app(scope, receive, send)

    async def _describe(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._metadata(path)
        if found is None:
            await error_response(UnknownCatalogue())(scope, receive, send)
            return
        headers = {b"access-control-allow-origin": b"*", b"cache-control": b"max-age=300"}
        await json_response(found, headers=headers)(scope, receive, send)
