"""The tools that the MCP conformance suite requires, as Python functions."""

import asyncio
import base64
from collections.abc import Callable, Mapping
from typing import Any

from gateway import (
    GatewayError,
    InMemoryMediaReader,
    Media,
    Question,
    ask_caller,
    can_ask_caller,
    log_message,
    report_progress,
)
from gateway.errors import ToolError

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
)
SILENCE = base64.b64decode("UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=")
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
CONFIRMATION = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}

when_tools_change: list[Callable[[], None]] = []
"""Set by the program that starts the server."""


def test_simple_text() -> str:
    return "This is a simple text response for testing."


def test_image_content() -> Media:
    return _media("image", "image/png", "pixel.png", PIXEL)


def test_audio_content() -> Media:
    return _media("audio", "audio/wav", "silence.wav", SILENCE)


def test_embedded_resource() -> Media:
    return _media("document", "text/plain", "embedded.txt", b"This is an embedded resource content.")


def test_multiple_content_types() -> list[Media]:
    caption = {"text:caption": {"value": "Multiple content types test:", "trust_tier": "first-party"}}
    return [
        _media("image", "image/png", "pixel.png", PIXEL, stash=caption),
        _media("document", "application/json", "data.json", b'{"test":"data","value":123}'),
    ]


async def test_tool_with_logging() -> str:
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        log_message(text)
        await asyncio.sleep(0.05)
    return "logged"


async def test_tool_with_progress() -> str:
    for progress in (0, 50, 100):
        report_progress(progress, 100)
        await asyncio.sleep(0.05)
    return "done"


def test_error_handling() -> str:
    raise ToolError("This tool intentionally returns an error for testing")


async def test_sampling(prompt: str) -> str:
    answers = await ask_caller(answer=_sample(prompt, 100))
    return f"LLM response: {_text_of(answers['answer'])}"


async def test_elicitation(message: str) -> str:
    form = {"type": "object", "properties": {"username": {"type": "string"}, "email": {"type": "string"}}}
    answers = await ask_caller(user=Question.form(message, {**form, "required": ["username", "email"]}))
    return f"User response: {_format_answer(answers['user'])}"


async def test_elicitation_sep1034_defaults() -> str:
    properties = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    answers = await ask_caller(user=Question.form("Please check", {"type": "object", "properties": properties}))
    return f"Elicitation completed: {_format_answer(answers['user'])}"


async def test_elicitation_sep1330_enums() -> str:
    titled = [{"const": f"value{number}", "title": f"Option {number}"} for number in (1, 2, 3)]
    options = ["option1", "option2", "option3"]
    properties = {
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    answers = await ask_caller(user=Question.form("Please choose", {"type": "object", "properties": properties}))
    return f"Elicitation completed: {_format_answer(answers['user'])}"


async def test_reconnection() -> str:
    await asyncio.sleep(2)  # longer than the server keeps a connection open
    return "Reconnection test completed"


async def test_missing_capability() -> str:
    return _text_of((await ask_caller(answer=_sample("hello", 5)))["answer"])


async def test_streaming_elicitation() -> str:
    report_progress(1, 2)
    await asyncio.sleep(0.05)
    return _format_answer((await ask_caller(user=Question.form("Go on?", CONFIRMATION)))["user"])


def test_logging_tool() -> str:
    log_message("This is a log message")
    return "logged"


def test_trigger_tool_change() -> str:
    for change in when_tools_change:
        change()
    return "changed"


def test_x_mcp_header(region: str) -> str:
    return region


def json_schema_2020_12_tool(
    name: str = "",
    address: Any = None,
    contactMethod: str = "",  # noqa: N803 - the suite's name
    phone: str = "",
    email: str = "",
) -> str:
    return f"{name} {address} {contactMethod} {phone} {email}"


async def test_input_required_result_elicitation() -> str:
    answers = await ask_caller(user_name=Question.form("What is your name?", NAME))
    return f"Hello, {answers['user_name'].get('content', {}).get('name')}!"


async def test_input_required_result_sampling() -> str:
    answers = await ask_caller(capital_question=_sample("What is the capital of France?", 100))
    return _text_of(answers["capital_question"])


async def test_input_required_result_list_roots() -> str:
    answers = await ask_caller(client_roots=Question.roots())
    return ", ".join(str(root["uri"]) for root in answers["client_roots"]["roots"])


async def test_input_required_result_request_state() -> str:
    await ask_caller(confirm=Question.form("Please confirm", CONFIRMATION))
    return "state-ok"


async def test_input_required_result_multiple_inputs() -> str:
    answers = await ask_caller(
        user_name=Question.form("What is your name?", NAME),
        greeting=_sample("Generate a greeting", 50),
        client_roots=Question.roots(),
    )
    return f"{_text_of(answers['greeting'])}, {_format_answer(answers['user_name'])}"


async def test_input_required_result_multi_round() -> str:
    color = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
    first = await ask_caller(step1=Question.form("Step 1: What is your name?", NAME))
    second = await ask_caller(step2=Question.form("Step 2: What is your favorite color?", color))
    return f"{_format_answer(first['step1'])}, {_format_answer(second['step2'])}"


async def test_input_required_result_tampered_state() -> str:
    return _format_answer((await ask_caller(confirm=Question.form("Please confirm", CONFIRMATION)))["confirm"])


async def test_input_required_result_capabilities() -> str:
    possible = {"user_name": Question.form("What is your name?", NAME), "greeting": _sample("Greet", 50)}
    questions = {key: question for key, question in possible.items() if can_ask_caller(question)}
    if not questions:
        raise GatewayError("there is nobody to ask")
    return ", ".join(sorted(await ask_caller(**questions)))


def _media(kind: Any, mime_type: str, filename: str, content: bytes, **more: Any) -> Media:
    reader = InMemoryMediaReader(content)
    return Media.tool_generated(kind, mime_type=mime_type, filename=filename, reader=reader, **more)


def _sample(prompt: str, tokens: int) -> Question:
    return Question.sample([{"role": "user", "content": {"type": "text", "text": prompt}}], max_tokens=tokens)


def _text_of(message: Mapping[str, Any]) -> str:
    content = message["content"]
    first = content[0] if isinstance(content, list) else content
    return str(first.get("text"))


def _format_answer(answer: Mapping[str, Any]) -> str:
    return f"action={answer['action']}, content={answer.get('content')}"
