"""What a Python tool may say to whoever called it, and ask: progress, log messages, questions.

All of it works wherever the function runs inside the gateway's process, in the event loop or in a thread. Where nobody
listens, because the function is tried on its own or the wire has no place for it, telling is silent and asking raises.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from gateway.core.deadlines import Deadline, current_deadline
from gateway.errors import ToolError
from gateway.serving.current import Client, LogLevel, Question, current_client


class CallerCannotAnswer(ToolError):
    code = "E_CALLER_CANNOT_ANSWER"
    status = 501
    default_message = "the client cannot be asked"


def report_progress(progress: float, total: float | None = None, *, message: str | None = None) -> None:
    """Tell how far the call is. Values that do not grow are dropped."""
    if (client := current_client()) is not None:
        _in_loop(client, lambda: client.progress(progress, total, message))


def log_message(data: Any, level: LogLevel = "info", *, logger: str | None = None) -> None:
    """Send a log message to a client that asked for messages of this level."""
    if (client := current_client()) is not None:
        _in_loop(client, lambda: client.log(level, data, logger))


def can_ask_caller(question: Question) -> bool:
    """Whether the client said that it can answer such a question."""
    client = current_client()
    return client is not None and client.can_answer(question)


async def ask_caller(**questions: Question) -> Mapping[str, Any]:
    """Wait for one answer per question, under its name, as the client gave it. Raises `CallerCannotAnswer`.

    The time that the call has stands still until then.
    """
    return await _asked(_client(), questions, current_deadline())


def ask_caller_blocking(**questions: Question) -> Mapping[str, Any]:
    """The same for functions that run in a thread; in the event loop it would wait for itself."""
    client = _client()
    if _is_in(client.loop):
        raise RuntimeError("use 'await ask_caller(...)' in an async function")
    asking = _asked(client, questions, current_deadline())
    return asyncio.run_coroutine_threadsafe(asking, client.loop).result()


async def _asked(client: Client, questions: Mapping[str, Question], deadline: Deadline | None) -> Mapping[str, Any]:
    if deadline is None:
        return await client.ask(questions)
    with deadline.paused():
        return await client.ask(questions)


def _client() -> Client:
    client = current_client()
    if client is None:
        raise CallerCannotAnswer("nobody can be asked here")
    return client


def _in_loop(client: Client, tell: Callable[[], None]) -> None:
    if _is_in(client.loop):
        tell()
    else:
        client.loop.call_soon_threadsafe(tell)


def _is_in(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
