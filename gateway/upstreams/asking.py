"""What a server asks of us while it works: answered by whoever the call is for, or refused."""

from collections.abc import Mapping
from typing import Any

from gateway.errors import GatewayError
from gateway.upstreams.connections import Exchange
from gateway.upstreams.messages import Json
from gateway.upstreams.slots import Slots
from gateway.web.mcp.protocol import INTERNAL_ERROR, METHOD_NOT_FOUND, ProtocolError


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
