"""The data plane and the admin plane as ASGI apps: which path leads where. What happens there is decided elsewhere."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from starlette.routing import Route, Router

from gateway.errors import UnknownCatalogue
from gateway.serving.published import Published
from gateway.serving.service import Service
from gateway.web.cross_origin import CrossOrigin
from gateway.web.edge import App, Authenticate, Edge, EdgeRules, Recall, Receive, Scope, Send, nobody_remembered
from gateway.web.problems import bytes_response, json_response, problem_response, refusal
from gateway.web.stream_watch import IsStopped

Ready = Callable[[], Mapping[str, Any]]
"""What `/readyz` says: `ready` is whether calls are taken, the rest why not."""

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
ISSUER_METADATA: Final = "/.well-known/oauth-authorization-server"
"""Where clients of 2025-03-26 look for the issuer's metadata: with the resource itself."""
_PROTOCOL: Final = "mcp"


def data_paths(
    service: Service,
    *,
    ready: Ready,
    metadata: Callable[[str], Mapping[str, Any] | None],
    mcp: Callable[[str], App],
    rest: Sequence[Any],
    issuer_metadata: Callable[[], str | None] = lambda: None,
) -> App:
    """MCP at `/mcp` and below each catalogue's path, REST below `/v1`, health, and who may be asked for a token.

    `mcp` gives the endpoint of a catalogue, `metadata` the protected resource metadata of a path, `issuer_metadata` the
    address of the issuer's, where there is one issuer. It belongs behind an edge.
    """
    others = Router(
        [Route(ISSUER_METADATA, _Elsewhere(issuer_metadata)), *rest], default=_nowhere, redirect_slashes=False
    )
    return _Front(service, ready=ready, metadata=metadata, mcp=mcp, rest=others)


def data_plane(
    paths: App,
    authenticate: Authenticate,
    recall: Recall = nobody_remembered,
    *,
    rules: EdgeRules,
    is_stopped: IsStopped = lambda principal: False,
) -> App:
    """What callers reach: the paths behind their edge, and what browsers have to be told."""
    edge = Edge(paths, rules, authenticate, recall, is_stopped=is_stopped)
    return CrossOrigin(edge, rules) if rules.origins else edge


def admin_plane(authenticate: Authenticate, *, rules: EdgeRules, ready: Ready, routes: Sequence[Any] = ()) -> App:
    """Health, and what only operators may see."""
    return Edge(_Health(Router(routes, default=_not_here, redirect_slashes=False), ready), rules, authenticate)


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    """Where no other path leads."""
    help = "REST is below /v1, with a reference at /v1/docs, MCP at the path of each catalogue with /mcp after it"
    await problem_response(404, "there is nothing here", help=help)(scope, receive, send)


async def _not_here(scope: Scope, receive: Receive, send: Send) -> None:
    """The same on the admin plane."""
    help = "this is the admin plane: /livez, /readyz, /status, /metrics, /admin/reload; MCP and REST have another port"
    await problem_response(404, "there is nothing here", help=help)(scope, receive, send)


class _Elsewhere:
    """A document that somebody else serves; an instance, because Starlette wraps plain functions."""

    def __init__(self, address: Callable[[], str | None]) -> None:
        self._address = address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        address = self._address()
        if address is None:
            await _nowhere(scope, receive, send)
            return
        headers = {b"location": address.encode("ascii"), b"access-control-allow-origin": b"*"}
        await bytes_response(b"", status=302, headers=headers)(scope, receive, send)


class _Health:
    """Whether the process lives, and whether it takes calls; everything else is the app's."""

    def __init__(self, app: App, ready: Ready) -> None:
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


class _Front:
    """The first look at a path. Calls come here thousands of times a second, so no list of patterns is tried."""

    def __init__(
        self,
        service: Service,
        *,
        ready: Ready,
        metadata: Callable[[str], Mapping[str, Any] | None],
        mcp: Callable[[str], App],
        rest: App,
    ) -> None:
        self._service = service
        self._metadata = metadata
        self._mcp = mcp
        self._endpoints: dict[str, App] = {}
        self._others = _Health(rest, ready)
        self._published: Published | None = None
        self._found: dict[str, App] = {}
        """Endpoints by the path that led there, under what is published."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        path: str = scope.get("path", "")
        published = self._service.published
        if published is not self._published:
            self._published, self._found = published, {}
        app = self._found.get(path)
        if app is not None:
            return app(scope, receive, send)
        if path.startswith(WELL_KNOWN):  # before the endpoints: that of one ends in its path
            return self._describe(path.removeprefix(WELL_KNOWN), scope, receive, send)
        if path.endswith("/mcp") and not self._is_of_rest(path):
            return self._to_catalogue(path, scope, receive, send)
        return self._others(scope, receive, send)

    def _is_of_rest(self, path: str) -> bool:
        """Whether it is a tool, a catalogue or a call of that name that REST is asked for."""
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
            await refusal(UnknownCatalogue())(scope, receive, send)
            return
        headers = {b"access-control-allow-origin": b"*", b"cache-control": b"max-age=300"}
        await json_response(found, headers=headers)(scope, receive, send)
