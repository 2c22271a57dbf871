"""Counting requests that are answered with an error. It looks at statuses, never at contents."""

from collections.abc import Awaitable
from time import perf_counter
from typing import Any, Final

from gateway.serving.metering import Meter
from gateway.web.edge import App, Receive, Scope, Send

BEGAN: Final = "gateway.began"
"""Where the scope of a request says when it came, for whoever measures how long it took."""


class Metered:
    """A plain ASGI wrapper around the data plane."""

    def __init__(self, app: App, meter: Meter) -> None:
        self._app = app
        self._meter = meter

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        scope[BEGAN] = perf_counter()

        def seen(message: Any) -> Awaitable[None]:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                self._meter.turned_away(message["status"])
            return send(message)

        return self._app(scope, receive, seen)
