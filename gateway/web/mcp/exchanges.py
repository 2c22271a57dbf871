"""Whoever calls, as a running call sees them: told of progress and messages they asked for, and asked questions.

How a question travels differs between the revisions; everything else is the same.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from gateway.serving.asking import CallerCannotAnswer
from gateway.serving.current import LogLevel, Question
from gateway.web.mcp.messages import RequestId, notification_bytes
from gateway.web.mcp.protocol import INVALID_PARAMS, LEVELS, ProtocolError
from gateway.web.mcp.replies import Reply
from gateway.web.mcp.telling import teller


class Exchange:
    """Implements `gateway.serving.current.Client`; asking is left to the revisions."""

    stays = True

    missing: dict[str, Any] | None = None
    """What the client would have had to declare for a question that was not asked."""
    _progress = float("-inf")

    def __init__(
        self,
        reply: Reply | None,
        capabilities: Mapping[str, Any],
        progress_token: RequestId | None,
        log_level: str | None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`loop` is the one that it runs in, which is found out if it is not given."""
        self.loop = asyncio.get_running_loop() if loop is None else loop
        self.reply = reply
        self.capabilities = capabilities
        self.meta: Mapping[str, Any] = {}
        """What else the client sent along with its request."""
        self._token = progress_token
        self._log_level = log_level

    @property
    def wants_progress(self) -> bool:
        return self._token is not None

    @property
    def log_level(self) -> str | None:
        return self._log_level

    def lacks(self, needed: Mapping[str, Any]) -> None:
        self.missing = dict(needed)

    def heard_as(self, reply: Reply, *, progress_token: RequestId | None, log_level: str | None) -> None:
        """Another request goes on with the same call."""
        self.reply, self._token, self._log_level = reply, progress_token, log_level

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        if self._token is None or self.reply is None or not progress > self._progress:
            return
        self._progress = progress
        told: dict[str, Any] = {"progressToken": self._token, "progress": progress}
        told |= {"total": total} if isinstance(total, int | float) else {}
        told |= {} if message is None else teller().progress(message)
        self.reply.say(notification_bytes("notifications/progress", told), can_be_dropped=True)

    def log(self, level: LogLevel, data: Any, logger: str | None) -> None:
        if self._log_level is None or self.reply is None or LEVELS[level] < LEVELS[self._log_level]:
            return
        told = {"level": level, **teller().log(data, logger)}
        self.reply.say(notification_bytes("notifications/message", told), can_be_dropped=True)

    def can_answer(self, question: Question) -> bool:
        return lacking(self.capabilities, question) is None

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        raise NotImplementedError

    def check(self, questions: Mapping[str, Question]) -> None:
        """Raises `CallerCannotAnswer` for what the client did not declare."""
        lacks = [each for question in questions.values() if (each := lacking(self.capabilities, question))]
        if lacks:
            self.missing = {key: value for each in lacks for key, value in each.items()}
            raise CallerCannotAnswer(f"the client did not say that it can do {', '.join(self.missing)}")


def lacking(capabilities: Mapping[str, Any], question: Question) -> dict[str, Any] | None:
    """What a client would have to declare for a question; `None` if it did."""
    if question.method == "elicitation/create":
        declared = capabilities.get("elicitation")
        mode = question.params.get("mode", "form")
        if isinstance(declared, dict) and (mode in declared or (mode == "form" and "url" not in declared)):
            return None
        return {"elicitation": {mode: {}} if mode == "url" else {}}
    name = "sampling" if question.method == "sampling/createMessage" else "roots"
    declared = capabilities.get(name)
    if not isinstance(declared, dict):
        return {name: {}}
    if name == "sampling" and "tools" in question.params and "tools" not in declared:
        return {"sampling": {"tools": {}}}
    return None


def checked_answer(question: Question, answer: Any) -> Any:
    """The answer, if it has the shape of one. Raises `ProtocolError`."""
    is_shaped = isinstance(answer, dict)
    if is_shaped and question.method == "elicitation/create":
        is_shaped = answer.get("action") in ("accept", "decline", "cancel")
        is_shaped = is_shaped and isinstance(answer.get("content", {}), dict | None)
    elif is_shaped and question.method == "roots/list":
        is_shaped = isinstance(answer.get("roots"), list)
    elif is_shaped:
        is_shaped = "content" in answer
    if not is_shaped:
        raise ProtocolError(INVALID_PARAMS, f"the answer is not one to {question.method}")
    return answer
