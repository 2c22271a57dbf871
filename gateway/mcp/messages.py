"""JSON-RPC messages and the constants of MCP: revisions, keys of `_meta`, error codes and their HTTP statuses.

Messages are validated and encoded here; serialised results are spliced in unchanged. Messages of upstream servers stay
plain JSON, so unknown fields are preserved. Metadata beside a result does not determine trust; it is for programs and
is not stored in the record.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import orjson

from gateway.model import LARGE, BackendError, TooManyValues, read_json, reads_exactly, run_in_json_thread

STATELESS_VERSION: Final = "2026-07-28"
"""The revision without handshake and sessions."""
STATELESS_VERSIONS: Final = (STATELESS_VERSION,)
SESSION_VERSIONS: Final = ("2025-03-26", "2025-06-18", "2025-11-25")
"""Revisions that begin with `initialize`, oldest first."""
HANDSHAKE_DATES: Final = frozenset({"2024-11-05", *SESSION_VERSIONS})
"""Values of the version header that denote the legacy era."""
DEFAULT_SESSION_VERSION: Final = "2025-03-26"
NEWEST_SESSION_VERSION: Final = SESSION_VERSIONS[-1]

_PREFIX: Final = "io.modelcontextprotocol/"
META_VERSION: Final = f"{_PREFIX}protocolVersion"
META_CAPABILITIES: Final = f"{_PREFIX}clientCapabilities"
META_CLIENT_INFO: Final = f"{_PREFIX}clientInfo"
META_LOG_LEVEL: Final = f"{_PREFIX}logLevel"
META_SERVER_INFO: Final = f"{_PREFIX}serverInfo"
META_SUBSCRIPTION: Final = f"{_PREFIX}subscriptionId"
META_TURN: Final = "gateway/turn"
META_CALL: Final = "gateway/call"
META_PENDING: Final = "gateway/pending"
META_LIMITED: Final = "gateway/limited"
META_NOT_RECORDED: Final = "gateway/notRecorded"
META_KEY: Final = "gateway/idempotencyKey"

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022
RESOURCE_NOT_FOUND: Final = -32002
"""Legacy revisions only."""

HTTP_STATUS: Final[Mapping[int, int]] = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}
"""The HTTP status of an error without sessions; every other code is sent with 200."""

LOG_LEVELS: Final[Mapping[str, int]] = {
    level: rank
    for rank, level in enumerate(("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"))
}


class ProtocolError(Exception):
    """An error that is answered as a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


Era = Literal["modern", "legacy"]

NAMED_METHODS: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""The parameter that the `Mcp-Name` header repeats."""

TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"


TEXT_BLOCK: Final = "mcp:text"
"""The source of media that are a text block among other blocks."""
RAW_BLOCK: Final = "mcp:block"
"""The source of media that are a block of another type, as JSON."""

NEXT_PAGE_META: Final = "gateway/next"
"""In `meta`: the arguments to add in order to get the next page."""

_RESERVED: Final = ("gateway/", "io.modelcontextprotocol/", "modelcontextprotocol")
_OWN_KEYS: Final = frozenset({"tier", "trusted", "hazard"})


def filter_foreign_meta(meta: Any) -> dict[str, Any]:
    """Return the `_meta` of another party without keys that are reserved for the gateway or the protocol."""
    if not isinstance(meta, dict):
        return {}
    return {key: value for key, value in meta.items() if key not in _OWN_KEYS and not key.lower().startswith(_RESERVED)}


Json = dict[str, Any]

MAX_MESSAGE: Final = 64 << 20
"""Maximum size in bytes of a message from a server, and of a response."""
NODE_CHECK_BYTES: Final = 16 << 20
"""Messages of a server larger than this many bytes are read one at a time."""


class MessageTooLarge(BackendError):
    """A server sent more than the limit. The message is dropped."""

    code = "E_UPSTREAM_TOO_LARGE"

    def __init__(self, message: str) -> None:
        super().__init__("failed", message, help="have the tool return less at a time, or a link to the rest")


class MessageTooManyValues(MessageTooLarge):
    """A server sent more JSON values than the limit."""

    def __init__(self, error: TooManyValues) -> None:
        super().__init__(f"the upstream server sent a message of more than {error.most} JSON values")


def message_too_large(limit: int) -> MessageTooLarge:
    return MessageTooLarge(f"the upstream server sent a message of more than {limit} bytes")


def encode_message(message: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(message)
    except (TypeError, ValueError, RecursionError) as error:
        raise BackendError("invalid", "the arguments cannot be written as JSON") from error


async def decode_message(content: bytes) -> Any:
    """Raise `BackendError` for text that is not JSON, or has too many values."""
    return decode_now(content) if len(content) < LARGE else await run_in_json_thread(decode_now, content)


def decode_now(content: bytes) -> Any:
    """Do the same in this thread."""
    try:
        message = read_json(content)
    except TooManyValues as error:
        raise MessageTooManyValues(error) from None
    except orjson.JSONDecodeError as error:
        raise BackendError("failed", "the upstream server sent something that is not JSON") from error
    if not reads_exactly(content):
        raise BackendError("failed", "the upstream server sent an integer of more than 64 bits")
    return message


def is_response_to(message: Any, id: int) -> bool:
    """Whether a message is the response to this request id; an id of another type differs."""
    if not isinstance(message, dict) or type(message.get("id")) is not int or message["id"] != id:
        return False
    return "method" not in message and ("result" in message or "error" in message)


MEMBERS: Final = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})
_EXACT_PARAMS: Final = frozenset(
    {"name", "arguments", "_meta", "uri", "cursor", "inputResponses", "requestState", "taskId"}
)
PARAMS: Final = frozenset(name.casefold() for name in _EXACT_PARAMS)

RequestId = str | int


def _check_members(message: Mapping[str, Any]) -> None:
    """Refuse members that differ only in case (`Method`, `Name`): readers could disagree about them."""
    for key in message:
        if key not in MEMBERS and key.casefold() in MEMBERS:
            raise ProtocolError(INVALID_REQUEST, "a member differs from one of JSON-RPC only in its case")
    params = message.get("params")
    if isinstance(params, dict):
        for key in params:
            if key not in _EXACT_PARAMS and key.casefold() in PARAMS:
                raise ProtocolError(INVALID_REQUEST, "a parameter differs from one of MCP only in its case")


def get_request_id(message: Any) -> RequestId | None:
    """Return the id if it can be echoed."""
    id = message.get("id") if isinstance(message, dict) else None
    return id if type(id) is str or type(id) is int else None


def check_envelope(message: Any) -> None:
    """Raise `ProtocolError` unless it is one request, notification or response of JSON-RPC 2.0."""
    if not isinstance(message, dict):
        raise ProtocolError(INVALID_REQUEST, "a message must be one JSON object")
    params = message.get("params")
    if not message.keys() <= MEMBERS or (isinstance(params, dict) and not params.keys() <= _EXACT_PARAMS):
        _check_members(message)
    if message.get("jsonrpc") != "2.0":
        raise ProtocolError(INVALID_REQUEST, "'jsonrpc' must be \"2.0\"")
    id_type = type(message.get("id"))
    if id_type is not int and id_type is not str and "id" in message:
        raise ProtocolError(INVALID_REQUEST, "'id' must be a string or an integer")
    if "method" in message:
        if type(message["method"]) is not str:
            raise ProtocolError(INVALID_REQUEST, "'method' must be a string")
        if "result" in message or "error" in message:
            raise ProtocolError(INVALID_REQUEST, "a message is a request or a response, not both")
        if not isinstance(params, dict) and "params" in message:
            raise ProtocolError(INVALID_REQUEST, "'params' must be an object")
    elif "id" not in message or ("result" in message) == ("error" in message):
        raise ProtocolError(INVALID_REQUEST, "a message has a method, or an id with a result or an error")


def encode_result(id: RequestId, result: bytes) -> bytes:
    return b"".join((b'{"jsonrpc":"2.0","id":', orjson.dumps(id), b',"result":', result, b"}"))


def encode_error(id: RequestId | None, error: ProtocolError) -> bytes:
    """Encode an error. An unknown id is omitted: `null` is not an id in MCP."""
    body: dict[str, Any] = {"jsonrpc": "2.0"}
    body |= {} if id is None else {"id": id}
    details: dict[str, Any] = {"code": error.code, "message": error.message}
    body["error"] = details if error.data is None else {**details, "data": error.data}
    return orjson.dumps(body)


def encode_notification(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    return orjson.dumps(body if params is None else {**body, "params": params})


def encode_request(id: RequestId, method: str, params: Mapping[str, Any]) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
