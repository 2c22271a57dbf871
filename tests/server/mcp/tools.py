"""Tools that the tests of the MCP endpoint publish."""

import asyncio
from typing import Any

from gateway import (
    CallerCannotAnswer,
    InMemoryMediaReader,
    Media,
    Question,
    ask_caller,
    ask_caller_blocking,
    can_ask_caller,
    log_message,
    report_progress,
)

NAME_FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Waiting:
    """Events for tests: calls of `wait` that began, were released, or were stopped."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.stopped = asyncio.Event()


waiting: dict[str, Waiting] = {}


def echo(text: str) -> str:
    return text


def quote(pieces: int) -> dict[str, Any]:
    return {"total": pieces * 2}


def misquote() -> dict[str, Any]:
    return {"sum": 1}


def report(lines: int) -> str:
    return "".join(f"line {number}\n" for number in range(lines))


def picture() -> Media:
    return Media.tool_generated("image", mime_type="image/png", filename="p.png", reader=InMemoryMediaReader(b"png"))


def papers() -> list[Media]:
    caption = {"text:caption": {"value": "Two papers", "trust_tier": "first-party"}}
    return [
        Media.retrieved_public(
            "document",
            mime_type="text/plain",
            filename=f"{name}.txt",
            reader=InMemoryMediaReader(name.encode()),
            stash=stash,
        )
        for name, stash in (("one", caption), ("two", None))
    ]


def broken() -> str:
    raise RuntimeError("the secret of the database is 1234")


def marked(region: str, level: int = 1) -> str:
    return f"{region} {level}"


async def wait(key: str) -> str:
    state = waiting[key]
    state.began.set()
    try:
        await state.goes_on.wait()
    except asyncio.CancelledError:
        state.stopped.set()
        raise
    return "done"


async def steps() -> str:
    for step in (1, 2, 2, 3):
        report_progress(step, 3, message=f"step {step}")
        await asyncio.sleep(0)
    return "walked"


def steps_in_a_thread() -> str:
    report_progress(1)
    log_message("from a thread", "warning")
    return "walked"


async def chatter() -> str:
    log_message({"a": 1}, "debug")
    log_message("loud", "error", logger="tool")
    return "said"


async def greet() -> str:
    answers = await ask_caller(who=Question.form("What is your name?", NAME_FORM))
    return f"{answers['who']['action']} {answers['who'].get('content', {}).get('name')}"


async def greet_twice() -> str:
    first = await ask_caller(who=Question.form("First?", NAME_FORM))
    both = await ask_caller(who=Question.form("Second?", NAME_FORM), where=Question.roots())
    return f"{first['who']['content']['name']} {both['who']['content']['name']} {both['where']['roots'][0]['uri']}"


def greet_in_a_thread() -> str:
    return str(ask_caller_blocking(who=Question.form("Who?", NAME_FORM))["who"]["content"]["name"])


async def sample_if_possible() -> str:
    question = Question.sample([{"role": "user", "content": {"type": "text", "text": "hi"}}], max_tokens=5)
    if not can_ask_caller(question):
        return "not asked"
    try:
        return str((await ask_caller(said=question))["said"]["content"]["text"])
    except CallerCannotAnswer:
        return "refused"
