"""Marks before the ids of MCP sessions: they tell which process has the session. The process itself never sees them."""

from collections.abc import Awaitable
from typing import Any, Final

from gateway.web.edge import App, Receive, Scope, Send
from gateway.web.fields import FIELDS, Fields

SESSION: Final = b"mcp-session-id"


def session_of(scope: Scope) -> bytes | None:
    """The id that a request names, with its marks; `None` for one that names none, or several."""
    fields = _fields(scope)
    return None if SESSION in fields.repeated else fields.by_name.get(SESSION)


def is_of_a_session(scope: Scope) -> bool:
    return SESSION in _fields(scope).by_name


def answered_here(app: App, mark: bytes, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
    """Have `app` answer: it sees its sessions without the mark, and its answers name them with it."""
    session = session_of(scope)
    if session is not None and session.startswith(mark):
        headers = [(name, value.removeprefix(mark) if name == SESSION else value) for name, value in scope["headers"]]
        scope["headers"], scope[FIELDS] = headers, Fields(headers)

    def marked(message: Any) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            headers = [(name, mark + value if name == SESSION else value) for name, value in message["headers"]]
            message = {**message, "headers": headers}
        return send(message)

    return app(scope, receive, marked)


def _fields(scope: Scope) -> Fields:
    fields: Fields | None = scope.get(FIELDS)
    if fields is None:
        fields = scope[FIELDS] = Fields(scope["headers"])
    return fields
