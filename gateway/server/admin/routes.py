"""Routes of the admin plane: `/metrics` for scrapers, `/status` and `/admin/reload` for administrators."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.routing import Route

from gateway.errors import GatewayError, NotPermitted
from gateway.model import Principal
from gateway.server.http.asgi import (
    PROBLEM_TYPE,
    SCOPE_PRINCIPAL,
    Receive,
    Response,
    Scope,
    Send,
    build_problem,
    bytes_response,
    error_response,
    json_response,
    problem_response,
)
from gateway.server.http.middleware import get_principal

METRICS_PATH = "/metrics"

RenderMetrics = Callable[[str], Awaitable[tuple[bytes, str]]]
"""Returns the text and its content type for an Accept header."""


def metrics_routes(exposed: RenderMetrics, may: Callable[[Principal], bool] | None) -> list[Route]:
    """Return the route of the metrics. Without `may`, every client that reaches it may read them."""
    return [Route(METRICS_PATH, _MetricsEndpoint(exposed, may))]


class _MetricsEndpoint:
    def __init__(self, exposed: RenderMetrics, may: Callable[[Principal], bool] | None) -> None:
        self._exposed = exposed
        self._may = may

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._may is not None and not self._may(scope[SCOPE_PRINCIPAL]):
            response = error_response(NotPermitted(help="a policy row must allow observe on config"))
        elif scope["method"] not in ("GET", "HEAD"):
            response = problem_response(405, "metrics can only be read", headers={b"allow": b"GET, HEAD"})
        else:
            try:
                content, type = await self._exposed(_accept_header(scope))
            except GatewayError as error:
                response = error_response(error)
            else:
                body = b"" if scope["method"] == "HEAD" else content
                response = bytes_response(body, type=type.encode(), headers={b"cache-control": b"no-store"})
        await response(scope, receive, send)


def _accept_header(scope: Scope) -> str:
    return ",".join(value.decode("latin-1") for name, value in scope["headers"] if name == b"accept")


RELOAD_PATH: Final = "/admin/reload"

MayAdminister = Callable[[Principal], bool]
Reload = Callable[[str | None], Awaitable[Mapping[str, Any]]]
"""Reloads if the given revision, if any, is the one in force; returns the outcome."""


def reload_routes(may: MayAdminister, reload: Reload) -> list[Route]:
    return [Route(RELOAD_PATH, _ReloadEndpoint(may, reload))]


class _ReloadEndpoint:
    """A raw ASGI application: Starlette does not check its methods."""

    def __init__(self, may: MayAdminister, reload: Reload) -> None:
        self._may = may
        self._reload = reload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._may(get_principal(scope)):
            response = error_response(NotPermitted(help="a policy row must allow administer on config"))
        elif scope["method"] != "POST":
            response = problem_response(405, "a reload needs POST", headers={b"allow": b"POST"})
        else:
            response = await self._reload_if_matches([value for name, value in scope["headers"] if name == b"if-match"])
        await response(scope, receive, send)

    async def _reload_if_matches(self, matches: list[bytes]) -> Response:
        """Reload if the quoted revision in If-Match is in force; `*` matches any."""
        named = matches[0].decode("latin-1").strip().strip('"') if matches else "*"
        if len(matches) > 1 or not named:
            return problem_response(
                400, "If-Match must name one revision", help='write If-Match: "REVISION", or omit it'
            )
        try:
            found = dict(await self._reload(None if named == "*" else named))
        except GatewayError as error:
            return error_response(error)
        headers = {b"cache-control": b"no-store", b"etag": f'"{found["revision"]}"'.encode()}
        if found["outcome"] != "refused":
            return json_response(found, headers=headers)
        problem = build_problem(
            422,
            "the new configuration is not served: the earlier one stays in force",
            code="E_RELOAD_REFUSED",
            help="correct the reported problems, then reload again",
        )
        return json_response({**problem, **found}, status=422, type=PROBLEM_TYPE, headers=headers)


Status = Callable[[], Awaitable[Mapping[str, Any]]]


def status_routes(may: MayAdminister, status: Status) -> list[Route]:
    return [Route("/status", _StatusEndpoint(may, status))]


class _StatusEndpoint:
    """A raw ASGI application: Starlette does not check its methods."""

    def __init__(self, may: MayAdminister, status: Status) -> None:
        self._may = may
        self._status = status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._may(get_principal(scope)):
            response = error_response(NotPermitted(help="a policy row must allow administer on config"))
        elif scope["method"] != "GET":
            response = problem_response(405, "the status can only be read", headers={b"allow": b"GET"})
        else:
            response = await self._respond()
        await response(scope, receive, send)

    async def _respond(self) -> Any:
        try:
            return json_response(await self._status(), headers={b"cache-control": b"no-store"})
        except GatewayError as error:
            return error_response(error)
