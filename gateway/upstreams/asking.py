"""What a server asks of us while it works: answered by whoever the call is for, or refused, until it is taken back."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from gateway.errors import GatewayError
from gateway.upstreams.connections import Exchange
from gateway.upstreams.messages import Json
from gateway.upstreams.slots import Slots
from gateway.web.mcp.protocol import INTERNAL_ERROR, METHOD_NOT_FOUND, ProtocolError

WITHDRAWN: Final = "notifications/cancelled"


def begin(asking: set["asyncio.Task[Any]"], message: Mapping[str, Any], reply: Coroutine[Any, Any, None]) -> None:
    """Answer in a task of its own, which is among `asking` for as long as it takes."""
    task = asyncio.create_task(reply, name=_name(message.get("id")))
    asking.add(task)
    task.add_done_callback(asking.discard)


def withdraw(asking: set["asyncio.Task[Any]"], params: Any) -> None:
    """The server does not want to know any more."""
    id = params.get("requestId") if isinstance(params, dict) else None
    for task in tuple(asking):
        if task.get_name() == _name(id):
            task.cancel()


def _name(id: Any) -> str:
    return f"asked as {id!r}"[:200]


async def answer_to(message: Mapping[str, Any], exchange: Exchange | None, slots: Slots) -> Json:
    """The response to a request of the server. It is always one."""
    id, method, params = message.get("id"), message.get("method"), message.get("params")
    if method == "ping":
        return {"jsonrpc": "2.0", "id": id, "result": {}}
    try:
        if exchange is None or not isinstance(method, str) or not isinstance(params, dict | None):
            raise ProtocolError(METHOD_NOT_FOUND, "nobody here can answer that")
        slots.give()  # nobody works while somebody thinks
        try:
            return {"jsonrpc": "2.0", "id": id, "result": await exchange.asked(method, params or {})}
        finally:
            slots.take_back()
    except ProtocolError as error:
        refused = error
    except GatewayError as error:
        refused = ProtocolError(INTERNAL_ERROR, error.message)
    return {"jsonrpc": "2.0", "id": id, "error": {"code": refused.code, "message": refused.message}}
