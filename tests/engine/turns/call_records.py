"""Records of calls for tests of turns."""

from typing import Any

from gateway.artifacts.spool_stores import InMemoryReader
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.model.primitives.canonical_json import call_id
from gateway.model.tools.tool_call import ToolCall


def make_record(id: str, *, tool: str = "keep", text: str = "some text", number: int = 0, **fields: Any) -> ToolCall:
    args = {"number": number}
    values: dict[str, Any] = {
        "is_error": False,
        "results": SpooledArtifact(InMemoryReader(text)),
        "from_artifact_tool": False,
        "inline": True,
        "trusted": False,
        "created": 1,
        "completed": 2,
        **fields,
    }
    return ToolCall.from_result(id=id, tool=tool, args=args, checksum=call_id(tool, args), **values)
