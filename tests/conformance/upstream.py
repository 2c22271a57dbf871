"""Everything that the MCP conformance suite requires, as a server on the reference SDK: `python upstream.py PORT`.

It runs behind a gateway. It asks its questions in results, as servers without sessions do: a gateway talks to it that
way, for every caller.
"""

import asyncio
import base64
import json
import sys
from typing import Annotated, Any

import mcp_types as types
import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.shared.exceptions import MCPError
from pydantic import Field

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
SILENCE = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
CONFIRMATION = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
USER = {
    "type": "object",
    "properties": {"username": {"type": "string"}, "email": {"type": "string"}},
    "required": ["username", "email"],
}
TITLED = [{"const": f"value{number}", "title": f"Option {number}"} for number in (1, 2, 3)]
PLAIN = ["option1", "option2", "option3"]
CHOICES = {
    "untitledSingle": {"type": "string", "enum": PLAIN},
    "titledSingle": {"type": "string", "oneOf": TITLED},
    "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": PLAIN}},
    "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
}
DEFAULTS = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}

Blocks = types.CallToolResult
Asked = types.CallToolResult | types.InputRequiredResult
"""The SDK makes schemas of annotations."""

made: MCPServer = MCPServer("everything", version="1.0.0")


def result(*blocks: Any) -> Blocks:
    return Blocks(content=list(blocks))


def text(words: str) -> types.TextContent:
    return types.TextContent(type="text", text=words)


def embedded(uri: str, words: str, mime_type: str = "text/plain") -> types.EmbeddedResource:
    inside = types.TextResourceContents(uri=uri, mime_type=mime_type, text=words)
    return types.EmbeddedResource(type="resource", resource=inside)


def image() -> types.ImageContent:
    return types.ImageContent(type="image", data=PIXEL, mime_type="image/png")


def form(message: str, schema: dict[str, Any]) -> types.ElicitRequest:
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def sampled(prompt: str, tokens: int) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=text(prompt))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=tokens))


def asked(ctx: Context, state: str | None = None, **requests: Any) -> Any:
    """Return the answers by name or, if some are missing, the result that asks for them."""
    answers = ctx.input_responses or {}
    if requests.keys() <= answers.keys():
        return answers
    return types.InputRequiredResult(input_requests=requests, request_state=state)


def is_asking(answers: Any) -> bool:
    return isinstance(answers, types.InputRequiredResult)


def asking(answers: Any) -> types.InputRequiredResult:
    assert isinstance(answers, types.InputRequiredResult)
    return answers


def format_answer(answer: Any) -> str:
    return f"action={answer.action}, content={answer.content}"


# --- tools ---


@made.tool()
async def test_simple_text() -> Blocks:
    return result(text("This is a simple text response for testing."))


@made.tool()
async def test_image_content() -> Blocks:
    return result(image())


@made.tool()
async def test_audio_content() -> Blocks:
    return result(types.AudioContent(type="audio", data=SILENCE, mime_type="audio/wav"))


@made.tool()
async def test_embedded_resource() -> Blocks:
    return result(embedded("test://embedded-resource", "This is an embedded resource content."))


@made.tool()
async def test_multiple_content_types() -> Blocks:
    data = embedded("test://mixed-content-resource", '{"test":"data","value":123}', "application/json")
    return result(text("Multiple content types test:"), image(), data)


@made.tool()
async def test_tool_with_logging(ctx: Context) -> Blocks:
    for words in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(words)
        await asyncio.sleep(0.05)
    return result(text("logged"))


@made.tool()
async def test_tool_with_progress(ctx: Context) -> Blocks:
    for progress in (0, 50, 100):
        await ctx.report_progress(progress, 100)
        await asyncio.sleep(0.05)
    return result(text("done"))


@made.tool()
async def test_error_handling() -> Blocks:
    return Blocks(content=[text("This tool intentionally returns an error for testing")], is_error=True)


@made.tool()
async def test_sampling(prompt: str, ctx: Context) -> Asked:
    answers = asked(ctx, answer=sampled(prompt, 100))
    return asking(answers) if is_asking(answers) else result(text(f"LLM response: {answers['answer'].content.text}"))


@made.tool()
async def test_elicitation(message: str, ctx: Context) -> Asked:
    answers = asked(ctx, user=form(message, USER))
    return asking(answers) if is_asking(answers) else result(text(f"User response: {format_answer(answers['user'])}"))


@made.tool()
async def test_elicitation_sep1034_defaults(ctx: Context) -> Asked:
    answers = asked(ctx, user=form("Please check", {"type": "object", "properties": DEFAULTS}))
    return (
        asking(answers)
        if is_asking(answers)
        else result(text(f"Elicitation completed: {format_answer(answers['user'])}"))
    )


@made.tool()
async def test_elicitation_sep1330_enums(ctx: Context) -> Asked:
    answers = asked(ctx, user=form("Please choose", {"type": "object", "properties": CHOICES}))
    return (
        asking(answers)
        if is_asking(answers)
        else result(text(f"Elicitation completed: {format_answer(answers['user'])}"))
    )


@made.tool()
async def test_reconnection() -> Blocks:
    await asyncio.sleep(2)  # longer than the gateway keeps a connection open
    return result(text("Reconnection test completed"))


@made.tool()
async def test_missing_capability(ctx: Context) -> Blocks:
    declared = ctx.client_capabilities
    if declared is None or declared.sampling is None:
        needed: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "it needs a client that samples", needed)
    return result(text("it is there"))


@made.tool()
async def test_streaming_elicitation(ctx: Context) -> Asked:
    answers = asked(ctx, user=form("Go on?", CONFIRMATION))
    if is_asking(answers):
        await ctx.report_progress(1, 2)
        return asking(answers)
    return result(text(format_answer(answers["user"])))


@made.tool()
async def test_logging_tool(ctx: Context) -> Blocks:
    await ctx.info("This is a log message")
    return result(text("logged"))


@made.tool()
async def test_trigger_tool_change(ctx: Context) -> Blocks:
    await ctx.notify_tools_changed()
    return result(text("changed"))


@made.tool()
async def test_trigger_prompt_change(ctx: Context) -> Blocks:
    await ctx.notify_prompts_changed()
    return result(text("changed"))


@made.tool()
async def test_x_mcp_header(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> Blocks:
    return result(text(region))


@made.tool()
async def json_schema_2020_12_tool() -> Blocks:
    return result(text("valid"))


made._tool_manager._tools["json_schema_2020_12_tool"].parameters = SCHEMA  # a function's signature cannot express that


@made.tool()
async def test_input_required_result_elicitation(ctx: Context) -> Asked:
    answers = asked(ctx, user_name=form("What is your name?", NAME))
    return asking(answers) if is_asking(answers) else result(text(f"Hello, {format_answer(answers['user_name'])}!"))


@made.tool()
async def test_input_required_result_sampling(ctx: Context) -> Asked:
    answers = asked(ctx, capital_question=sampled("What is the capital of France?", 100))
    return asking(answers) if is_asking(answers) else result(text(answers["capital_question"].content.text))


@made.tool()
async def test_input_required_result_list_roots(ctx: Context) -> Asked:
    answers = asked(ctx, client_roots=types.ListRootsRequest())
    if is_asking(answers):
        return asking(answers)
    return result(text(", ".join(str(root.uri) for root in answers["client_roots"].roots)))


@made.tool()
async def test_input_required_result_request_state(ctx: Context) -> Asked:
    answers = asked(ctx, "kept", confirm=form("Please confirm", CONFIRMATION))
    if is_asking(answers):
        return asking(answers)
    return result(text("state-ok" if ctx.request_state == "kept" else "the state is lost"))


@made.tool()
async def test_input_required_result_multiple_inputs(ctx: Context) -> Asked:
    answers = asked(
        ctx,
        "several",
        user_name=form("What is your name?", NAME),
        greeting=sampled("Generate a greeting", 50),
        client_roots=types.ListRootsRequest(),
    )
    return asking(answers) if is_asking(answers) else result(text(f"{answers['greeting'].content.text}, all is there"))


@made.tool()
async def test_input_required_result_multi_round(ctx: Context) -> Asked:
    if ctx.request_state is None:
        return asking(asked(ctx, "first", step1=form("Step 1: What is your name?", NAME)))
    color = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
    answers = asked(ctx, "second", step2=form("Step 2: What is your favorite color?", color))
    return asking(answers) if is_asking(answers) else result(text(format_answer(answers["step2"])))


@made.tool()
async def test_input_required_result_tampered_state(ctx: Context) -> Asked:
    answers = asked(ctx, "sealed", confirm=form("Please confirm", CONFIRMATION))
    return asking(answers) if is_asking(answers) else result(text(format_answer(answers["confirm"])))


@made.tool()
async def test_input_required_result_capabilities(ctx: Context) -> Asked:
    declared = ctx.client_capabilities
    possible = {"elicitation": form("What is your name?", NAME), "sampling": sampled("Greet", 50)}
    requests = {name: each for name, each in possible.items() if getattr(declared, name, None) is not None}
    answers = asked(ctx, "asked", **requests)
    return asking(answers) if is_asking(answers) else result(text(", ".join(sorted(answers))))


# --- resources ---


@made.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    return "This is the content of the static text resource."


@made.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    return base64.b64decode(PIXEL)


@made.resource("test://template/{id}/data", mime_type="application/json")
def templated(id: str) -> str:
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@made.resource("test://watched-resource", mime_type="text/plain")
def watched() -> str:
    return "Watched resource content"


# --- prompts ---


@made.prompt(description="What the suite asks for.")
def test_simple_prompt() -> list[UserMessage]:
    return [UserMessage(text("This is a simple prompt for testing."))]


@made.prompt(description="What the suite asks for.")
def test_prompt_with_arguments(arg1: str, arg2: str) -> list[UserMessage]:
    return [UserMessage(text(f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"))]


@made.prompt(description="What the suite asks for.")
def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:  # noqa: N803 - the suite's name
    about = text("Please process the embedded resource above.")
    return [UserMessage(embedded(resourceUri, "Embedded resource content for testing.")), UserMessage(about)]


@made.prompt(description="What the suite asks for.")
def test_prompt_with_image() -> list[UserMessage]:
    return [UserMessage(image()), UserMessage(text("Please analyze the image above."))]


@made.prompt(description="What the suite asks for.")
async def test_input_required_result_prompt(ctx: Context) -> list[UserMessage] | types.InputRequiredResult:
    context = {"type": "object", "properties": {"context": {"type": "string"}}, "required": ["context"]}
    answers = asked(ctx, user_context=form("What context should the prompt use?", context))
    return asking(answers) if is_asking(answers) else [UserMessage(text(format_answer(answers["user_context"])))]


@made.completion()  # type: ignore[no-untyped-call, untyped-decorator]
async def completed(ref: Any, argument: Any, context: Any) -> types.Completion:
    return types.Completion(values=[f"{argument.value}ana"], total=1, has_more=False)


if __name__ == "__main__":
    uvicorn.run(made.streamable_http_app(), port=int(sys.argv[1]), log_level="warning", timeout_graceful_shutdown=1)
