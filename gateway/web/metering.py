"""Counting requests: how each was answered, and how long that took. It looks at statuses, never at contents."""

from collections.abc import Awaitable
from time import perf_counter
from typing import Any, Final

from gateway.serving.metering import Meter
from gateway.web.edge import App, Receive, Scope, Send

ROUTE: Final = "gateway.route"
"""Where the scope of a REST request has the path of its operation, with its parameters unfilled."""


class Metered:
    """A plain ASGI wrapper around the data plane."""

    def __init__(self, app: App, meter: Meter) -> None:
        self._app = app
        self._meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0

        def seen(message: Any) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            return send(message)

        began = perf_counter()
        try:
            await self._app(scope, receive, seen)
        finally:
            route = scope.get(ROUTE)
            if status >= 400 or route is not None:
                self._meter.responded(scope["method"], route=route, status=status, seconds=perf_counter() - began)
