"""Responses of upstream servers: results, JSON-RPC errors, and the server's info of either era. All of it is untrusted.

Results stay plain JSON, so unknown fields are preserved.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from gateway.backends.result_conversion import excerpt
from gateway.mcp import (
    HANDSHAKE_DATES,
    INVALID_PARAMS,
    META_SERVER_INFO,
    MISSING_CAPABILITY,
    STATELESS_VERSION,
    Era,
    Json,
)
from gateway.model import BackendError, BackendErrorKind

_WORDS: Final[Mapping[int, BackendErrorKind]] = {INVALID_PARAMS: "invalid"}
_LONGEST_ERROR: Final = 2048


class RemoteError(BackendError):
    """The server answered with a JSON-RPC error; `number` is its code, `data` its data."""

    code = "E_UPSTREAM_ERROR"

    def __init__(self, number: int, message: str, data: Any = None) -> None:
        word = _WORDS.get(number, "failed")
        text = f"the upstream server answered: {excerpt(message, limit=_LONGEST_ERROR)}"
        super().__init__(word, text, kind=str(number))
        self.number = number
        self.data = data

    @property
    def missing_capabilities(self) -> Json | None:
        """The client capabilities that the server requires, if their absence is the error."""
        needed = self.data.get("requiredCapabilities") if isinstance(self.data, dict) else None
        return needed if self.number == MISSING_CAPABILITY and isinstance(needed, dict) else None


@cache
def client_info() -> Mapping[str, str]:
    """Return the gateway's name and version for servers."""
    try:
        return {"name": "agent-gateway", "version": version("agent-gateway")}
    except PackageNotFoundError:
        return {"name": "agent-gateway", "version": "0"}


def get_result(message: Mapping[str, Any]) -> Json:
    """Return the result of a response. Raise `RemoteError` for an error."""
    if "error" in message:
        raise to_remote_error(message["error"])
    result = message.get("result")
    if not isinstance(result, dict):
        raise BackendError("failed", "the upstream server did not answer with a result")
    return result


def to_remote_error(error: Any) -> RemoteError:
    number = error.get("code") if isinstance(error, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    known = number if type(number) is int else 0
    text = message if isinstance(message, str) else "an error without a message"
    return RemoteError(known, text, error.get("data") if isinstance(error, dict) else None)


_NO_COMMON_VERSION: Final = "the upstream server supports no version of MCP that the gateway supports"


@dataclass(slots=True)
class ServerInfo:
    era: Era
    version: str
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    server_info: Mapping[str, Any] = field(default_factory=dict)
    instructions: str | None = None

    @property
    def notification_kinds(self) -> dict[str, bool]:
        """The list changes that a modern server notifies about, as `subscriptions/listen` names them."""
        kinds = ("tools", "prompts", "resources")
        declared = {kind: self.capabilities.get(kind) for kind in kinds}
        return {
            f"{kind}ListChanged": True
            for kind, each in declared.items()
            if isinstance(each, dict) and each.get("listChanged") is True
        }


def parse_discovery(found: Json) -> ServerInfo:
    """Parse the response to `server/discover`. Raise `BackendError` if there is no common version."""
    versions, meta = found.get("supportedVersions"), found.get("_meta")
    if not isinstance(versions, list) or STATELESS_VERSION not in versions:
        raise BackendError("failed", _NO_COMMON_VERSION)
    return _build_info(
        "modern", STATELESS_VERSION, found, meta.get(META_SERVER_INFO) if isinstance(meta, dict) else None
    )


def parse_initialize(found: Json) -> ServerInfo:
    """Parse the response to `initialize`. Raise `BackendError` if there is no common version."""
    version = found.get("protocolVersion")
    if not isinstance(version, str) or version not in HANDSHAKE_DATES:
        raise BackendError("failed", _NO_COMMON_VERSION)
    return _build_info("legacy", version, found, found.get("serverInfo"))


def _build_info(era: Era, version: str, found: Json, info: Any) -> ServerInfo:
    capabilities, instructions = found.get("capabilities"), found.get("instructions")
    return ServerInfo(
        era,
        version,
        capabilities if isinstance(capabilities, dict) else {},
        info if isinstance(info, dict) else {},
        instructions if isinstance(instructions, str) else None,
    )
