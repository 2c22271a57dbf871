"""The channel from a running call to its MCP client: progress, log messages and questions.

Only the transport of questions differs between the protocol revisions. Messages of a tool are marked with its tier and
trust, so that a tool cannot pose as the gateway. Log data has the same envelope as results. A progress message is one
line for people, so it has a prefix instead. Both have the same `_meta` as the blocks of a result.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.engine import Call, CallerCannotAnswer, Turn, get_current_call
from gateway.mcp import INVALID_PARAMS, LOG_LEVELS, ProtocolError, RequestId, encode_notification
from gateway.model import LogLevel, Question, compute_nonce, content_envelope, escape_tags, new_token
from gateway.server.mcp.call_results import dump_json
from gateway.server.mcp.responses import McpResponse

TRUST_PREFIX: Final = "[untrusted] "
_MAX_MESSAGE: Final = 2048
"""Maximum characters of a progress message."""

_NONCE_OF: Final = "message\n"
"""Keeps the nonces of messages apart from those of results, which begin with a checksum."""

_LOGGER: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


@dataclass(frozen=True, slots=True)
class MessageMarker:
    """Marks messages with the tool that sends them. `nonce` is `None` if its catalogue renders without envelopes."""

    tool: str
    tier: str | None
    trusted: bool
    nonce: str | None

    def progress(self, message: str) -> dict[str, Any]:
        """Return the members of a progress notification that hold the tool's message."""
        line = "".join(char if char.isprintable() else _escape(char) for char in message[:_MAX_MESSAGE])
        is_marked = not self.trusted and self.nonce is not None
        return {"message": f"{TRUST_PREFIX if is_marked else ''}{escape_tags(line)}", "_meta": self._meta}

    def log(self, data: Any, logger: str | None) -> dict[str, Any]:
        """Return the members of a log notification. Data that is not text is JSON inside the envelope."""
        named = {"logger": logger} if logger is not None and _LOGGER.fullmatch(logger) else {}
        return {"data": self._data(data), **named, "_meta": self._meta}

    def _data(self, data: Any) -> Any:
        if self.trusted or self.nonce is None:
            return escape_tags(_unicode(data)) if isinstance(data, str) else data
        text = _unicode(data) if isinstance(data, str) else dump_json(data).decode()
        attributes = {"kind": "log-message", "tool": self.tool}
        return content_envelope("untrusted", text, nonce=self.nonce, attributes=attributes).render()

    @property
    def _meta(self) -> dict[str, Any]:
        hazard = "inert" if self.trusted else "extractable-instructions"
        return {"tier": self.tier, "trusted": self.trusted, "hazard": hazard}


def get_message_marker() -> MessageMarker:
    """Return the marker of the current call."""
    try:
        call = get_current_call()
    except LookupError:
        return MessageMarker("", None, False, new_token(16))
    return _marker(call, call.turn) if call.turn is not None else MessageMarker(call.tool, None, False, new_token(16))


def _marker(call: Call, turn: Turn) -> MessageMarker:
    declared = turn.published.tool(turn.stored.catalogue, call.tool)
    is_enveloped = turn.catalogue.catalogue.render == "envelope"
    return MessageMarker(
        call.tool,
        None if declared is None else declared.trust.tier.name,
        declared is not None and declared.trust.trusted,
        compute_nonce(turn.turn_secret, _NONCE_OF, call.id) if is_enveloped else None,
    )


def _unicode(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


class McpCallerChannel:
    """Implements `gateway.model.CallerChannel`; a subclass per protocol family implements `ask`."""

    waits_for_answer = True

    missing: dict[str, Any] | None = None
    """The capabilities that the client lacks for a question that was not asked."""
    _progress = float("-inf")

    def __init__(
        self,
        reply: McpResponse | None,
        capabilities: Mapping[str, Any],
        progress_token: RequestId | None,
        log_level: str | None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`loop` is the running event loop, which is determined if it is not given."""
        self.loop = asyncio.get_running_loop() if loop is None else loop
        self.reply = reply
        self.capabilities = capabilities
        self.meta: Mapping[str, Any] = {}
        """`_meta` of the client's request."""
        self._token = progress_token
        self._log_level = log_level

    @property
    def wants_progress(self) -> bool:
        return self._token is not None

    @property
    def log_level(self) -> str | None:
        return self._log_level

    def report_missing(self, needed: Mapping[str, Any]) -> None:
        self.missing = dict(needed)

    def attach_request(self, reply: McpResponse, *, progress_token: RequestId | None, log_level: str | None) -> None:
        """Continue the same call with another request."""
        self.reply, self._token, self._log_level = reply, progress_token, log_level

    def send_progress(self, progress: float, total: float | None, message: str | None) -> None:
        if self._token is None or self.reply is None or not progress > self._progress:
            return
        self._progress = progress
        params: dict[str, Any] = {"progressToken": self._token, "progress": progress}
        params |= {"total": total} if isinstance(total, int | float) else {}
        params |= {} if message is None else get_message_marker().progress(message)
        self.reply.send_message(encode_notification("notifications/progress", params), can_be_dropped=True)

    def send_log(self, level: LogLevel, data: Any, logger: str | None) -> None:
        if self._log_level is None or self.reply is None or LOG_LEVELS[level] < LOG_LEVELS[self._log_level]:
            return
        params = {"level": level, **get_message_marker().log(data, logger)}
        self.reply.send_message(encode_notification("notifications/message", params), can_be_dropped=True)

    def can_answer(self, question: Question) -> bool:
        return find_missing_capabilities(self.capabilities, question) is None

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        raise NotImplementedError

    def check_capabilities(self, questions: Mapping[str, Question]) -> None:
        """Raise `CallerCannotAnswer` if a question needs a capability that the client did not declare."""
        lacks = [
            each for question in questions.values() if (each := find_missing_capabilities(self.capabilities, question))
        ]
        if lacks:
            self.missing = {key: value for each in lacks for key, value in each.items()}
            raise CallerCannotAnswer(f"the client did not declare the capability {', '.join(self.missing)}")


def find_missing_capabilities(capabilities: Mapping[str, Any], question: Question) -> dict[str, Any] | None:
    """Return the capabilities that a client lacks for a question; `None` if it declared them."""
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


def validate_answer(question: Question, answer: Any) -> Any:
    """Return the answer if it has the shape that the question needs. Raises `ProtocolError`."""
    is_shaped = isinstance(answer, dict)
    if is_shaped and question.method == "elicitation/create":
        is_shaped = answer.get("action") in ("accept", "decline", "cancel")
        is_shaped = is_shaped and isinstance(answer.get("content", {}), dict | None)
    elif is_shaped and question.method == "roots/list":
        is_shaped = isinstance(answer.get("roots"), list)
    elif is_shaped:
        is_shaped = "content" in answer
    if not is_shaped:
        raise ProtocolError(INVALID_PARAMS, f"the answer is not valid for {question.method}")
    return answer
