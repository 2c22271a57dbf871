"""`/metrics`: what this gateway counts, as text, for whoever scrapes it."""

from collections.abc import Awaitable, Callable

from starlette.routing import Route

from gateway.errors import GatewayError, NotPermitted
from gateway.governance.principals import Principal
from gateway.web.edge import PRINCIPAL, Receive, Scope, Send
from gateway.web.problems import bytes_response, problem_response, refusal

PATH = "/metrics"

Exposed = Callable[[str], Awaitable[tuple[bytes, str]]]
"""The text and its content type, for what the request accepts."""


def metrics_routes(exposed: Exposed, may: Callable[[Principal], bool] | None) -> list[Route]:
    """What to add to the admin plane. Without `may`, everybody who reaches it may read."""
    return [Route(PATH, _Endpoint(exposed, may))]


class _Endpoint:
    def __init__(self, exposed: Exposed, may: Callable[[Principal], bool] | None) -> None:
        self._exposed = exposed
        self._may = may

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._may is not None and not self._may(scope[PRINCIPAL]):
            response = refusal(NotPermitted(help="a policy row has to allow observe on config"))
        elif scope["method"] not in ("GET", "HEAD"):
            response = problem_response(405, "metrics are only read", headers={b"allow": b"GET, HEAD"})
        else:
            try:
                content, type = await self._exposed(_accepted(scope))
            except GatewayError as error:
                response = refusal(error)
            else:
                body = b"" if scope["method"] == "HEAD" else content
                response = bytes_response(body, type=type.encode(), headers={b"cache-control": b"no-store"})
        await response(scope, receive, send)


def _accepted(scope: Scope) -> str:
    return ",".join(value.decode("latin-1") for name, value in scope["headers"] if name == b"accept")
