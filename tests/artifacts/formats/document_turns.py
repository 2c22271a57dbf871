"""A turn with artifacts, for tests of the structured formats: forge a query tool, call it, read its text."""

from dataclasses import dataclass, field
from typing import Any

from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.model.tools.tool import Tool
from gateway.model.tools.tool_call import ToolCall

MOMENT = "2026-01-01T00:00:00Z"


@dataclass
class Turn:
    """The part of a context that forging and calling need."""

    turn_tool_calls: list[ToolCall] = field(default_factory=list)
    turn_id: str = "turn"
    dispatch_id: str = "dispatch"
    events: list[Any] = field(default_factory=list)

    def emit(self, event: Any) -> None:
        self.events.append(event)


def turn_with(**artifacts: SpooledArtifact) -> Turn:
    """A turn in which each call, named by its id, returned the given artifact."""
    return Turn([_call(id, artifact) for id, artifact in artifacts.items()])


async def ask(artifact: SpooledArtifact, tool: str, **args: Any) -> str:
    """Return the text that a model reads when it calls the query tool on the artifact."""
    turn = turn_with(c1=artifact)
    forged = type(artifact).forge_tools(turn).get(tool)
    assert forged is not None
    return await run(forged, turn, callId="c1", **args)


async def run(tool: Tool, turn: Turn, **args: Any) -> str:
    answer: str = await tool.executor(turn)(args)
    return answer


def _call(id: str, results: SpooledArtifact) -> ToolCall:
    return ToolCall(
        id=id,
        tool="fetch",
        args={},
        is_complete=True,
        is_error=False,
        results=results,
        created_at=MOMENT,
        updated_at=MOMENT,
        completed_at=MOMENT,
    )
