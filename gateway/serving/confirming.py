"""Asking whoever calls whether they mean it: now, if they stay for the answer, or by having them come back with it."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from gateway.approvals.confirming import question_text
from gateway.approvals.refusals import ConfirmationImpossible, ConfirmationPending
from gateway.core.events import now
from gateway.governance.approvals import Action
from gateway.governance.rules import Confirmation
from gateway.serving.asking import CallerCannotAnswer
from gateway.serving.current import Answer, Question, ServedCall, Unconfirmed

CONFIRM: Final = "confirm"
"""The name of the question."""

_NOTHING_TO_FILL_IN: Final[dict[str, Any]] = {"type": "object", "properties": {}}


async def confirmation_of(call: ServedCall, checks: Sequence[Confirmation], action: Action) -> Answer:
    """What whoever calls says to this very action.

    Raises `ConfirmationPending` for clients that come back with their answer, and `ConfirmationImpossible` for those
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
    if not client.stays:
        call.unconfirmed = Unconfirmed(question, action.digest, now() + within)
        raise ConfirmationPending()
    try:
        async with asyncio.timeout(within.total_seconds()):
            answered = (await client.ask({CONFIRM: question}))[CONFIRM]
    except TimeoutError:
        raise ConfirmationImpossible("they did not answer in time") from None
    except CallerCannotAnswer as error:
        raise ConfirmationImpossible(f"they gave no answer: {error.message}") from error
    answer: Answer = answered["action"]
    return answer


def _question(call: ServedCall, checks: Sequence[Confirmation], action: Action) -> Question:
    """One for all rules that hold the call; an argument that one of them shows is shown."""
    show = [name for each in checks for name in each.show] if all(each.show for each in checks) else []
    text = question_text(action, advertised=call.tool, reasons=[each.reason for each in checks], show=show)
    if text is None:
        raise ConfirmationImpossible("its arguments are too large to be shown to them")
    return Question.form(text, _NOTHING_TO_FILL_IN)
