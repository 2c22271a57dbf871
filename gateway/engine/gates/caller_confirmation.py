"""Confirmation of a call by its caller: at once if the client waits for the answer, otherwise with a second call."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from gateway.approvals import ApprovalSubject, ConfirmationImpossible, ConfirmationPending, format_question
from gateway.engine.call import Call, ConfirmationAnswer, PendingConfirmation
from gateway.engine.caller import CallerCannotAnswer
from gateway.model import Question, now
from gateway.policy import ConfirmationCheck

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
