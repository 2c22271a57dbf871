"""Asking a gateway to serve what its folder holds now, for those who may administer it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.routing import Route

from gateway.errors import GatewayError, NotPermitted
from gateway.governance.principals import Principal
from gateway.web.edge import Receive, Scope, Send, principal_of
from gateway.web.problems import PROBLEM_TYPE, Response, json_response, problem, problem_response, refusal

PATH: Final = "/admin/reload"

MayAdminister = Callable[[Principal], bool]
Reload = Callable[[str | None], Awaitable[Mapping[str, Any]]]
"""Reloads if the revision that is named, if any, is the one in force; tells what became of it."""


def reload_routes(may: MayAdminister, reload: Reload) -> list[Route]:
    """What to add to the admin plane."""
    return [Route(PATH, _Endpoint(may, reload))]


class _Endpoint:
    """A raw ASGI application: Starlette leaves methods to it."""

    def __init__(self, may: MayAdminister, reload: Reload) -> None:
        self._may = may
        self._reload = reload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._may(principal_of(scope)):
            response = refusal(NotPermitted(help="a policy row has to allow administer on config"))
        elif scope["method"] != "POST":
            response = problem_response(405, "a reload is asked for with POST", headers={b"allow": b"POST"})
        else:
            response = await self._told([value for name, value in scope["headers"] if name == b"if-match"])
        await response(scope, receive, send)

    async def _told(self, matches: list[bytes]) -> Response:
        """The revision after If-Match stands in quotes, as tags do; `*` is any."""
        named = matches[0].decode("latin-1").strip().strip('"') if matches else "*"
        if len(matches) > 1 or not named:
            return problem_response(
                400, "If-Match names one revision", help='write If-Match: "REVISION", or leave it out'
            )
        try:
            found = dict(await self._reload(None if named == "*" else named))
        except GatewayError as error:
            return refusal(error)
        headers = {b"cache-control": b"no-store", b"etag": f'"{found["revision"]}"'.encode()}
        if found["outcome"] != "refused":
            return json_response(found, headers=headers)
        told = problem(
            422,
            "the configuration is not served: an earlier one stays in force",
            code="E_RELOAD_REFUSED",
            help="correct what problems says, then reload again",
        )
        return json_response({**told, **found}, status=422, type=PROBLEM_TYPE, headers=headers)
