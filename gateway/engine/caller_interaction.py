"""What a Python tool may send to its caller: progress, log messages, questions.

All of it works wherever the function runs inside the gateway's process, in the event loop or in a thread. Without a
caller (the function is tested on its own, or the transport does not support it) messages are dropped, questions raise.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gateway.approvals import ApprovalSubject, ConfirmationImpossible, ConfirmationPending, format_question
from gateway.engine.call import Call, ConfirmationAnswer, PendingConfirmation, get_caller_channel
from gateway.errors import ToolError
from gateway.model import CallerChannel, Deadline, LogLevel, Question, current_deadline, now
from gateway.policy import ConfirmationCheck


class CallerCannotAnswer(ToolError):
    code = "E_CALLER_CANNOT_ANSWER"
    status = 501
    default_message = "the client cannot be asked"


def report_progress(progress: float, total: float | None = None, *, message: str | None = None) -> None:
    """Report how far the call is. Values that do not grow are dropped."""
    if (client := get_caller_channel()) is not None:
        _in_loop(client, lambda: client.send_progress(progress, total, message))


def log_message(data: Any, level: LogLevel = "info", *, logger: str | None = None) -> None:
    """Send a log message to a client that asked for messages of this level."""
    if (client := get_caller_channel()) is not None:
        _in_loop(client, lambda: client.send_log(level, data, logger))


def can_ask_caller(question: Question) -> bool:
    """Whether the client declared that it can answer such a question."""
    client = get_caller_channel()
    return client is not None and client.can_answer(question)


async def ask_caller(**questions: Question) -> Mapping[str, Any]:
    """Wait for one answer per question, under its name, as the client sent it. Raise `CallerCannotAnswer`.

    The deadline of the call is paused until then.
    """
    return await _ask(_client(), questions, current_deadline())


def ask_caller_blocking(**questions: Question) -> Mapping[str, Any]:
    """Do the same in functions that run in a thread; in the event loop it would deadlock."""
    client = _client()
    if _is_in(client.loop):
        raise RuntimeError("use 'await ask_caller(...)' in an async function")
    answers = _ask(client, questions, current_deadline())
    return asyncio.run_coroutine_threadsafe(answers, client.loop).result()


async def _ask(
    client: CallerChannel, questions: Mapping[str, Question], deadline: Deadline | None
) -> Mapping[str, Any]:
    if deadline is None:
        return await client.ask(questions)
    with deadline.pause():
        return await client.ask(questions)


def _client() -> CallerChannel:
    client = get_caller_channel()
    if client is None:
        raise CallerCannotAnswer("there is no caller to ask")
    return client


def _in_loop(client: CallerChannel, tell: Callable[[], None]) -> None:
    if _is_in(client.loop):
        tell()
    else:
        client.loop.call_soon_threadsafe(tell)


def _is_in(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


CONFIRM: Final = "confirm"
"""The name of the question."""

_NOTHING_TO_FILL_IN: Final[dict[str, Any]] = {"type": "object", "properties": {}}


async def ask_confirmation(
    call: Call, checks: Sequence[ConfirmationCheck], action: ApprovalSubject
) -> ConfirmationAnswer:
    """Return the caller's answer about exactly this action.

    Raise `ConfirmationPending` for clients that call again with their answer, and `ConfirmationImpossible` for those
    that cannot be asked.
    """
    holding = call.holding
    if holding.answer is not None and holding.about == action.digest:
        return holding.answer
    question = _question(call, checks, action)
    client = call.client
    if client is None or not client.can_answer(question):
        raise ConfirmationImpossible("this client cannot be asked")
    within = min(each.timeout for each in checks)
    if not client.waits_for_answer:
        call.unconfirmed = PendingConfirmation(question, action.digest, now() + within)
        raise ConfirmationPending()
    try:
        async with asyncio.timeout(within.total_seconds()):
            answered = (await client.ask({CONFIRM: question}))[CONFIRM]
    except TimeoutError:
        raise ConfirmationImpossible("they did not answer in time") from None
    except CallerCannotAnswer as error:
        raise ConfirmationImpossible(f"they gave no answer: {error.message}") from error
    answer: ConfirmationAnswer = answered["action"]
    return answer


def _question(call: Call, checks: Sequence[ConfirmationCheck], action: ApprovalSubject) -> Question:
    """Return one question for all rules that hold the call; it shows an argument if one of the rules does."""
    show = [name for each in checks for name in each.show] if all(each.show for each in checks) else []
    text = format_question(action, advertised=call.tool, reasons=[each.reason for each in checks], show=show)
    if text is None:
        raise ConfirmationImpossible("its arguments are too large to be shown to them")
    return Question.form(text, _NOTHING_TO_FILL_IN)
