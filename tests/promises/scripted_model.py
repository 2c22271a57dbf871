"""Turns played by a scripted model: what the model gets, what it proposes, and what an operator sees.

The model proposes one step per iteration and acks in the iteration after the last one, so the last request always shows
the outcome of everything before.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway import (
    DispatchContext,
    InMemoryMediaReader,
    InMemoryStore,
    Media,
    ProposedCall,
    Renderer,
    Reporter,
    Schema,
    Tool,
    ToolCall,
    TurnRunner,
    assemble_prompt,
    definitions,
    in_memory_callbacks,
    settle_calls,
)
from gateway.model.llm_prompt import ChatMessage
from gateway.model.media import MediaKind
from gateway.model.turns.conversation_records import Callback
from gateway.model.turns.events import Listener

Step = Sequence[ProposedCall] | Callable[[DispatchContext, Reporter], Awaitable[object]]

ANYTHING: dict[str, Any] = {"type": "object", "additionalProperties": True}
BASE_SEVEN = {
    "artifact_head",
    "artifact_tail",
    "artifact_grep",
    "artifact_cat",
    "artifact_byte_length",
    "artifact_line_count",
    "artifact_estimate_tokens",
}

JSON_TOOLS = {f"artifact_json_{name}" for name in ("type", "keys", "length", "get", "filter", "slice", "pluck")}
MARKDOWN_TOOLS = {
    f"artifact_md_{name}"
    for name in ("frontmatter", "headings", "code_blocks", "sections", "links", "images", "text", "ast")
}


@dataclass(frozen=True)
class Request:
    """What the model gets at the start of one iteration."""

    messages: list[ChatMessage]
    tools: list[dict[str, Any]]


@dataclass(frozen=True)
class Seen:
    """Everything that left a turn. `at` is the index of the request, by default the last."""

    requests: list[Request] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    spool: InMemoryStore = field(default_factory=InMemoryStore)
    callbacks: dict[str, Callback] = field(default_factory=in_memory_callbacks)

    @property
    def records(self) -> list[ToolCall]:
        found: list[ToolCall] = self.callbacks["fetch_tool_calls"](None)
        return found

    def record(self, id: str) -> ToolCall:
        (found,) = [record for record in self.records if record.id == id]
        return found

    def named(self, *names: str) -> list[Any]:
        return [event for event in self.events if event.name in names]

    def offered(self, at: int = -1) -> dict[str, dict[str, Any]]:
        """Return the parameters of every tool offered to the model, by name."""
        functions = [tool["function"] for tool in self.requests[at].tools]
        assert len({function["name"] for function in functions}) == len(functions)
        return {function["name"]: function["parameters"] for function in functions}

    def selectable(self, tool: str, at: int = -1) -> list[str]:
        """Return the ids that a query tool offers for `callId`."""
        ids: list[str] = self.offered(at)[tool]["properties"]["callId"]["enum"]
        return ids

    def blocks(self, id: str, at: int = -1) -> list[dict[str, Any]]:
        """Return what the model reads of the result of one call."""
        (found,) = [message for message in self.requests[at].messages if message.get("tool_call_id") == id]
        blocks: list[dict[str, Any]] = found["content"]
        return blocks

    def shown(self, id: str, at: int = -1) -> str:
        return "\n".join(block["text"] for block in self.blocks(id, at) if block["type"] == "text")


async def play(
    tools: Sequence[Tool],
    *steps: Step,
    inline: bool = True,
    renderer: Renderer | None = None,
    raw: dict[str, Any] | None = None,
    seen: Seen | None = None,
    observers: Mapping[str, Listener] | None = None,
    **config: Any,
) -> Seen:
    """Run one turn to its end; raise errors reported on the `error` event."""
    seen = seen or Seen()

    async def model(ctx: DispatchContext, reporter: Reporter) -> None:
        seen.requests.append(Request(await assemble_prompt(ctx, renderer), definitions(ctx.tools, "openai")))
        if ctx.iteration == len(steps):
            ctx.ack()
        elif callable(step := steps[ctx.iteration]):
            await step(ctx, reporter)
        else:
            await settle_calls(ctx, reporter, step, spool=seen.spool, inline=inline)

    runner = TurnRunner({"executor": model, "tools": tools, **seen.callbacks, **config})
    runner.functional.on("*", seen.events.append)
    runner.observability.on("*", seen.events.append)
    for name, observer in (observers or {}).items():
        runner.observability.on(name, observer)
    await runner.run({"system_prompt": "Answer the user.", **(raw or {})})
    for event in seen.named("error"):
        raise event.error
    return seen


def tool(name: str, handler: Callable[..., Any], schema: dict[str, Any] = ANYTHING, **fields: Any) -> Tool:
    return Tool(name=name, description=f"The tool {name}.", input_schema=Schema(schema), handler=handler, **fields)


def returning(value: Any) -> Callable[..., Any]:
    """Return a handler that always answers `value`."""
    return lambda args, ctx, meta: value


def remembering(handled: list[Any], value: Any = "done") -> Callable[..., Any]:
    """Return a handler that adds its arguments to `handled` and answers `value`."""

    def handle(args: dict[str, Any], ctx: object, meta: object) -> Any:
        handled.append(args)
        return value

    return handle


def call(id: str, tool: str, **args: Any) -> ProposedCall:
    return ProposedCall(id, tool, args)


def media(kind: MediaKind = "image", content: bytes = b"\x89PNG", **fields: Any) -> Media:
    stored = {"mime_type": "image/png", "filename": "asset.png", "reader": InMemoryMediaReader(content)}
    return Media.retrieved_public(kind, **(stored | fields))
