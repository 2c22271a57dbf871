"""What another MCP server said, on its way to a caller: blocks that are kept as they came, and what stood beside them.

None of it says how far it is trusted. What stands beside a result is for programs, and is not kept with the record.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.core.promises import NOTHING

TEXT_BLOCK: Final = "mcp:text"
"""The source of media that are one text among other blocks."""
RAW_BLOCK: Final = "mcp:block"
"""The source of media that are a block of another kind, as JSON."""

NEXT: Final = "gateway/next"
"""In `meta`: what to call the tool with, besides what it was called with, for more of the same."""

_RESERVED: Final = ("gateway/", "io.modelcontextprotocol/", "modelcontextprotocol")
_OURS: Final = frozenset({"tier", "trusted", "hazard"})


@dataclass(slots=True)
class Aside:
    """What came with a result. `meta` and `fields` are those that mean nothing to us."""

    structured: Any = NOTHING
    meta: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)


def foreign_meta(meta: Any) -> dict[str, Any]:
    """What of somebody else's `_meta` may be passed on: nothing that could be taken for ours."""
    if not isinstance(meta, dict):
        return {}
    return {key: value for key, value in meta.items() if key not in _OURS and not key.lower().startswith(_RESERVED)}
