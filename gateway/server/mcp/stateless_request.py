"""Requests that belong to no session, and the checks that they pass before a method runs.

The checks have a fixed order, and the first error is reported. Whether a tool, capability or argument exists for the
caller is checked later.
"""

from dataclasses import dataclass
from typing import Any, Final

from gateway.mcp import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    LOG_LEVELS,
    META_CAPABILITIES,
    META_LOG_LEVEL,
    META_VERSION,
    METHOD_NOT_FOUND,
    STATELESS_VERSIONS,
    UNSUPPORTED_VERSION,
    ProtocolError,
    RequestId,
)
from gateway.server.mcp.request_headers import McpHeaders

NAMED_METHODS: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""The parameter that `Mcp-Name` repeats, by method."""


@dataclass(slots=True)
class StatelessRequest:
    id: RequestId
    method: str
    params: dict[str, Any]
    meta: dict[str, Any]
    capabilities: dict[str, Any]
    headers: McpHeaders


def validate_request(
    message: dict[str, Any], headers: McpHeaders, methods: frozenset[str] | dict[str, Any]
) -> StatelessRequest:
    """Return the request if it passes all checks. Raises `ProtocolError`."""
    if headers.repeated and (twice := headers.duplicate_routing_header):
        raise ProtocolError(HEADER_MISMATCH, f"the header {twice!r} is given twice")
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    if not isinstance(params, dict) or not isinstance(meta, dict):
        raise ProtocolError(
            INVALID_PARAMS, f"params._meta must be an object with {META_VERSION} and {META_CAPABILITIES}"
        )
    try:
        version, capabilities = meta[META_VERSION], meta[META_CAPABILITIES]
    except KeyError as lacking:
        raise ProtocolError(INVALID_PARAMS, f"params._meta lacks {lacking.args[0]}") from None
    method: str = message["method"]
    if headers.version is None or headers.version != version:
        raise ProtocolError(HEADER_MISMATCH, f"the header 'mcp-protocol-version' does not match {META_VERSION}")
    if headers.method != method:
        raise ProtocolError(HEADER_MISMATCH, "the header 'mcp-method' does not match the method")
    key = NAMED_METHODS.get(method)
    if key is not None and headers.name != params.get(key) and params.get(key) is not None:
        raise ProtocolError(HEADER_MISMATCH, f"the header 'mcp-name' does not match params.{key}")
    if version not in STATELESS_VERSIONS:
        data = {"supported": list(STATELESS_VERSIONS), "requested": version}
        raise ProtocolError(UNSUPPORTED_VERSION, "this protocol version is not served", data)
    if method not in methods:
        raise ProtocolError(METHOD_NOT_FOUND, "there is no such method")
    if not isinstance(capabilities, dict):
        raise ProtocolError(INVALID_PARAMS, f"{META_CAPABILITIES} must be an object")
    if META_LOG_LEVEL in meta and not _is_level(meta[META_LOG_LEVEL]):
        raise ProtocolError(INVALID_PARAMS, f"{META_LOG_LEVEL} must be one of {', '.join(LOG_LEVELS)}")
    return StatelessRequest(message["id"], method, params, meta, capabilities, headers)


def _is_level(level: Any) -> bool:
    return isinstance(level, str) and level in LOG_LEVELS
