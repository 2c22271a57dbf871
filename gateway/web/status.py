"""The status of a gateway, for those who may administer it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.routing import Route

from gateway.errors import GatewayError, NotPermitted
from gateway.governance.principals import Principal
from gateway.web.edge import Receive, Scope, Send, principal_of
from gateway.web.problems import json_response, problem_response, refusal

MayAdminister = Callable[[Principal], bool]
Status = Callable[[], Awaitable[Mapping[str, Any]]]


def status_routes(may: MayAdminister, status: Status) -> list[Route]:
    """What to add to the admin plane."""
    return [Route("/status", _Endpoint(may, status))]


class _Endpoint:
    """A raw ASGI application: Starlette leaves methods to it."""

    def __init__(self, may: MayAdminister, status: Status) -> None:
        self._may = may
        self._status = status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._may(principal_of(scope)):
            response = refusal(NotPermitted(help="a policy row has to allow administer on config"))
        elif scope["method"] != "GET":
            response = problem_response(405, "the status is only read", headers={b"allow": b"GET"})
        else:
            response = await self._told()
        await response(scope, receive, send)

    async def _told(self) -> Any:
        try:
            return json_response(await self._status(), headers={b"cache-control": b"no-store"})
        except GatewayError as error:
            return refusal(error)
