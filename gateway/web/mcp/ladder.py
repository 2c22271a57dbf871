"""What a request without a session must look like, asked in a fixed order; the first thing that is wrong is answered.

Whether a tool, a capability or an argument is there for the caller is asked later.
"""

from dataclasses import dataclass
from typing import Any, Final

from gateway.web.mcp.headers import Headers
from gateway.web.mcp.messages import RequestId
from gateway.web.mcp.protocol import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    LEVELS,
    META_CAPABILITIES,
    META_LOG_LEVEL,
    META_VERSION,
    METHOD_NOT_FOUND,
    MODERN_VERSIONS,
    UNSUPPORTED_VERSION,
    ProtocolError,
)

NAMED: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""The parameter that `Mcp-Name` repeats."""


@dataclass(slots=True)
class ModernRequest:
    id: RequestId
    method: str
    params: dict[str, Any]
    meta: dict[str, Any]
    capabilities: dict[str, Any]
    headers: Headers


def climb(message: dict[str, Any], headers: Headers, methods: frozenset[str] | dict[str, Any]) -> ModernRequest:
    """The request, every rung of the ladder passed. Raises `ProtocolError`."""
    if headers.repeated and (twice := headers.repeated_routing):
        raise ProtocolError(HEADER_MISMATCH, f"the header {twice!r} is there twice")
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    if not isinstance(params, dict) or not isinstance(meta, dict):
        raise ProtocolError(
            INVALID_PARAMS, f"params._meta must be an object with {META_VERSION} and {META_CAPABILITIES}"
        )
    if META_VERSION not in meta or META_CAPABILITIES not in meta:
        lacking = META_CAPABILITIES if META_VERSION in meta else META_VERSION
        raise ProtocolError(INVALID_PARAMS, f"params._meta lacks {lacking}")
    method: str = message["method"]
    version = meta[META_VERSION]
    _match_headers(headers, version, method, params)
    if version not in MODERN_VERSIONS:
        data = {"supported": list(MODERN_VERSIONS), "requested": version}
        raise ProtocolError(UNSUPPORTED_VERSION, "this protocol version is not served", data)
    if method not in methods:
        raise ProtocolError(METHOD_NOT_FOUND, "there is no such method")
    capabilities = meta[META_CAPABILITIES]
    if not isinstance(capabilities, dict):
        raise ProtocolError(INVALID_PARAMS, f"{META_CAPABILITIES} must be an object")
    if META_LOG_LEVEL in meta and not _is_level(meta[META_LOG_LEVEL]):
        raise ProtocolError(INVALID_PARAMS, f"{META_LOG_LEVEL} must be one of {', '.join(LEVELS)}")
    return ModernRequest(message["id"], method, params, meta, capabilities, headers)


def _is_level(level: Any) -> bool:
    return isinstance(level, str) and level in LEVELS


def _match_headers(headers: Headers, version: Any, method: str, params: dict[str, Any]) -> None:
    if headers.version is None or headers.version != version:
        raise ProtocolError(HEADER_MISMATCH, f"the header 'mcp-protocol-version' does not match {META_VERSION}")
    if headers.method != method:
        raise ProtocolError(HEADER_MISMATCH, "the header 'mcp-method' does not match the method")
    key = NAMED.get(method)
    if key is not None:
        name = params.get(key)
        if name is not None and headers.name != name:
            raise ProtocolError(HEADER_MISMATCH, f"the header 'mcp-name' does not match params.{key}")
