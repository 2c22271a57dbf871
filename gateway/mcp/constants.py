"""Constants of MCP: revisions, keys of `_meta`, error codes and their HTTP statuses."""

from collections.abc import Mapping
from typing import Any, Final, Literal

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
