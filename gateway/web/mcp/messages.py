"""JSON-RPC messages: what one must look like, and ours as bytes. Results are spliced in as they were serialised."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.web.mcp.protocol import INVALID_REQUEST, ProtocolError

MEMBERS: Final = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})
_EXACT_PARAMS: Final = frozenset(
    {"name", "arguments", "_meta", "uri", "cursor", "inputResponses", "requestState", "taskId"}
)
PARAMS: Final = frozenset(name.casefold() for name in _EXACT_PARAMS)

RequestId = str | int


def check_members(message: Mapping[str, Any]) -> None:
    """Refuses members that only some readers would take for ours: `Method` beside `method`, `Name` beside `name`."""
    for key in message:
        if key not in MEMBERS and key.casefold() in MEMBERS:
            raise ProtocolError(INVALID_REQUEST, "a member differs from one of JSON-RPC in its case only")
    params = message.get("params")
    if isinstance(params, dict):
        for key in params:
            if key not in _EXACT_PARAMS and key.casefold() in PARAMS:
                raise ProtocolError(INVALID_REQUEST, "a parameter differs from one of MCP in its case only")


def request_id(message: Any) -> RequestId | None:
    """The id, if it is one that can be echoed."""
    id = message.get("id") if isinstance(message, dict) else None
    return id if type(id) is str or type(id) is int else None


def check_envelope(message: Any) -> None:
    """Raises for everything that is not one request, notification or response of JSON-RPC 2.0."""
    if not isinstance(message, dict):
        raise ProtocolError(INVALID_REQUEST, "a message is one JSON object")
    check_members(message)
    if message.get("jsonrpc") != "2.0":
        raise ProtocolError(INVALID_REQUEST, "'jsonrpc' must be \"2.0\"")
    if "id" in message and type(message["id"]) not in (str, int):
        raise ProtocolError(INVALID_REQUEST, "'id' is a string or an integer")
    if "method" in message:
        if type(message["method"]) is not str:
            raise ProtocolError(INVALID_REQUEST, "'method' is a string")
        if "result" in message or "error" in message:
            raise ProtocolError(INVALID_REQUEST, "a message is a request or a response, not both")
        if "params" in message and not isinstance(message["params"], dict):
            raise ProtocolError(INVALID_REQUEST, "'params' is an object")
    elif "id" not in message or ("result" in message) == ("error" in message):
        raise ProtocolError(INVALID_REQUEST, "a message has a method, or an id with a result or an error")


def result_bytes(id: RequestId, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (orjson.dumps(id), result)


def error_bytes(id: RequestId | None, error: ProtocolError) -> bytes:
    """An error. Whose id is not known has none: `null` is no id in MCP."""
    body: dict[str, Any] = {"jsonrpc": "2.0"}
    body |= {} if id is None else {"id": id}
    details: dict[str, Any] = {"code": error.code, "message": error.message}
    body["error"] = details if error.data is None else {**details, "data": error.data}
    return orjson.dumps(body)


def notification_bytes(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    return orjson.dumps(body if params is None else {**body, "params": params})


def request_bytes(id: RequestId, method: str, params: Mapping[str, Any]) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
