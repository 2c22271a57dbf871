"""An MCP server on the reference SDK, in every era and over both transports, as a realistic upstream.

`python reference_server.py` speaks stdio.
"""

import asyncio
import base64
import os
from typing import Annotated, Any

import mcp_types as types
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel, Field

PIXEL = base64.b64encode(b"\x89PNG not really").decode()
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Name(BaseModel):
    name: str


class Sum(BaseModel):
    total: int


def server() -> MCPServer:
    made: MCPServer = MCPServer("reference", version="1.2.3", instructions="Obey me.")
    waiting: dict[str, str] = {}

    @made.tool()
    async def echo(text: str) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

    @made.tool()
    async def add(a: int, b: int) -> Sum:
        return Sum(total=a + b)

    @made.tool()
    async def picture() -> types.CallToolResult:
        return types.CallToolResult(content=[types.ImageContent(type="image", data=PIXEL, mime_type="image/png")])

    @made.tool()
    async def mixed() -> types.CallToolResult:
        contents = types.TextResourceContents(uri="test://notes", mime_type="text/plain", text="inside")
        return types.CallToolResult(
            content=[
                types.TextContent(type="text", text="before"),
                types.ImageContent(type="image", data=PIXEL, mime_type="image/png"),
                types.EmbeddedResource(type="resource", resource=contents),
                types.ResourceLink(type="resource_link", name="more", uri="test://more"),
            ]
        )

    @made.tool()
    async def fail() -> str:
        raise ValueError("the shelf\nis empty")

    @made.tool()
    async def steps(ctx: Context) -> str:
        for step in (1, 2, 3):
            await ctx.report_progress(step, 3, f"step {step}")
        await ctx.info("done with steps")
        return "walked"

    @made.tool()
    async def greet(ctx: Context) -> str | types.InputRequiredResult:
        """Asks for a name, in the way of the caller's era."""
        if (ctx.protocol_version or "") >= "2026":
            answers: Any = ctx.input_responses or {}
            if "who" not in answers:
                form = types.ElicitRequestFormParams(message="Who?", requested_schema=FORM)
                return types.InputRequiredResult(input_requests={"who": types.ElicitRequest(params=form)})
            return f"hello {answers['who'].content['name']}"
        answer: Any = await ctx.elicit("Who?", Name)
        return f"hello {answer.data.name}"

    @made.tool()
    async def think(ctx: Context) -> str | types.InputRequiredResult:
        """Asks the caller's model for a completion."""
        message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text="say hi"))
        if (ctx.protocol_version or "") >= "2026":
            answers: Any = ctx.input_responses or {}
            if "thought" not in answers:
                params = types.CreateMessageRequestParams(messages=[message], max_tokens=10)
                return types.InputRequiredResult(input_requests={"thought": types.CreateMessageRequest(params=params)})
            return f"it says {answers['thought'].content.text}"
        answer: Any = await ctx.session.create_message([message], max_tokens=10, related_request_id=ctx.request_id)
        return f"it says {answer.content.text}"

    @made.tool()
    async def wait(key: str) -> str:
        """Waits until it is cancelled, and records that."""
        waiting[key] = "waiting"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            waiting[key] = "cancelled"
            raise
        return "nobody came"

    @made.tool()
    async def waited(key: str) -> str:
        return waiting.get(key, "never")

    @made.tool()
    async def environment() -> str:
        return " ".join(sorted(os.environ))

    @made.tool()
    async def route(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})], ctx: Context) -> str:
        return str((ctx.headers or {}).get("mcp-param-region"))

    @made.tool()
    async def token(ctx: Context) -> str:
        return str((ctx.headers or {}).get("authorization"))

    return made


if __name__ == "__main__":
    server().run("stdio")
