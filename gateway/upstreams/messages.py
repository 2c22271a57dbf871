"""Messages to and from an upstream server: what ours look like, which of theirs are answers, and what errors mean.

Results stay the plain JSON that they came as: no field is dropped because nobody here knows it.
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Literal

import orjson

from gateway.backends.refusals import excerpt
from gateway.core.bounded_json import LARGE, TooManyValues, read_apart, read_json
from gateway.core.exact_json import reads_exactly
from gateway.governance.ports import BackendFailed, ErrorWord
from gateway.web.mcp.protocol import INVALID_PARAMS, MISSING_CAPABILITY

Era = Literal["modern", "legacy"]
Json = dict[str, Any]

META_CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
MAX_MESSAGE: Final = 64 << 20
"""Bytes of one message from a server, and of one answer."""
MANY_AT_ONCE: Final = 16 << 20
"""Bytes of messages that are read side by side; larger ones of a server are read one after the other."""

_WORDS: Final[Mapping[int, ErrorWord]] = {INVALID_PARAMS: "invalid"}
_LEGAL: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_LONGEST_ERROR: Final = 2048


class RemoteError(BackendFailed):
    """The server answered a request with a JSON-RPC error. `number` is its code over there, `data` what came along."""

    code = "E_UPSTREAM_ERROR"

    def __init__(self, number: int, message: str, data: Any = None) -> None:
        word = _WORDS.get(number, "failed")
        super().__init__(word, f"the upstream server answered: {excerpt(message, limit=_LONGEST_ERROR)}")
        self.number = number
        self.data = data

    @property
    def lacking(self) -> Json | None:
        """What the caller would have had to declare, if that is what was wrong."""
        needed = self.data.get("requiredCapabilities") if isinstance(self.data, dict) else None
        return needed if self.number == MISSING_CAPABILITY and isinstance(needed, dict) else None


class MessageTooLarge(BackendFailed):
    """A server sent more than is read of it. Nothing of the message is kept."""

    code = "E_UPSTREAM_TOO_LARGE"

    def __init__(self, message: str) -> None:
        super().__init__("failed", message, help="have the tool give less at a time, or a link to the rest")


class MessageTooManyValues(MessageTooLarge):
    """A server sent more JSON values than are read."""

    def __init__(self, error: TooManyValues) -> None:
        super().__init__(f"the upstream server sent a message of more than {error.most} JSON values")


def too_large(limit: int) -> MessageTooLarge:
    return MessageTooLarge(f"the upstream server sent a message of more than {limit} bytes")


@cache
def client_info() -> Mapping[str, str]:
    """Who we are, to servers."""
    try:
        return {"name": "agent-gateway", "version": version("agent-gateway")}
    except PackageNotFoundError:
        return {"name": "agent-gateway", "version": "0"}


def encoded(message: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(message)
    except (TypeError, ValueError, RecursionError) as error:
        raise BackendFailed("invalid", "the arguments cannot be written as JSON") from error


async def read(content: bytes) -> Any:
    """Raises `BackendFailed` for what is not JSON, or has too many values."""
    return read_now(content) if len(content) < LARGE else await read_apart(read_now, content)


def read_now(content: bytes) -> Any:
    """The same, in this thread."""
    try:
        message = read_json(content)
    except TooManyValues as error:
        raise MessageTooManyValues(error) from None
    except orjson.JSONDecodeError as error:
        raise BackendFailed("failed", "the upstream server sent something that is not JSON") from error
    if not reads_exactly(content):
        raise BackendFailed("failed", "the upstream server sent an integer of more than 64 bits")
    return message


def answers(message: Any, id: int) -> bool:
    """Whether a message is the response to our request: an id of another type is another id."""
    if not isinstance(message, dict) or type(message.get("id")) is not int or message["id"] != id:
        return False
    return "method" not in message and ("result" in message or "error" in message)


def result_of(message: Mapping[str, Any]) -> Json:
    """The result of a response. Raises `RemoteError` for an error."""
    if "error" in message:
        raise error_of(message["error"])
    result = message.get("result")
    if not isinstance(result, dict):
        raise BackendFailed("failed", "the upstream server answered something else than a result")
    return result


def error_of(error: Any) -> RemoteError:
    number = error.get("code") if isinstance(error, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    known = number if type(number) is int else 0
    text = message if isinstance(message, str) else "an error without words"
    return RemoteError(known, text, error.get("data") if isinstance(error, dict) else None)


def header_value(text: str) -> str:
    """A text as the value of a header; whatever a header cannot hold is packed."""
    if _LEGAL.fullmatch(text) and not text.startswith("=?base64?"):
        return text
    return f"=?base64?{b64encode(text.encode('utf-8', 'surrogatepass')).decode('ascii')}?="
