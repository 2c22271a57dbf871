"""What a server says of itself when it is met, in either era. All of it is data: nothing here is believed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.governance.ports import BackendFailed
from gateway.upstreams.messages import Era, Json
from gateway.web.mcp.protocol import HANDSHAKE_DATES, META_SERVER_INFO, MODERN

_NO_COMMON_VERSION: Final = "the upstream server speaks no version of MCP that is spoken here"


@dataclass(slots=True)
class Introduction:
    era: Era
    version: str
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    server_info: Mapping[str, Any] = field(default_factory=dict)
    instructions: str | None = None

    @property
    def announces(self) -> dict[str, bool]:
        """What a modern server says that it announces, in the words in which it is asked to."""
        kinds = ("tools", "prompts", "resources")
        declared = {kind: self.capabilities.get(kind) for kind in kinds}
        return {
            f"{kind}ListChanged": True
            for kind, each in declared.items()
            if isinstance(each, dict) and each.get("listChanged") is True
        }


def discovered(found: Json) -> Introduction:
    """From the answer to `server/discover`. Raises `BackendFailed` if no version is common."""
    versions, meta = found.get("supportedVersions"), found.get("_meta")
    if not isinstance(versions, list) or MODERN not in versions:
        raise BackendFailed("failed", _NO_COMMON_VERSION)
    return _introduction("modern", MODERN, found, meta.get(META_SERVER_INFO) if isinstance(meta, dict) else None)


def shaken_hands(found: Json) -> Introduction:
    """From the answer to `initialize`."""
    version = found.get("protocolVersion")
    if not isinstance(version, str) or version not in HANDSHAKE_DATES:
        raise BackendFailed("failed", _NO_COMMON_VERSION)
    return _introduction("legacy", version, found, found.get("serverInfo"))


def _introduction(era: Era, version: str, found: Json, info: Any) -> Introduction:
    capabilities, instructions = found.get("capabilities"), found.get("instructions")
    return Introduction(
        era,
        version,
        capabilities if isinstance(capabilities, dict) else {},
        info if isinstance(info, dict) else {},
        instructions if isinstance(instructions, str) else None,
    )
