"""Log formatters (JSON and text, one line per record), and a handler that exports log records as OTLP.

An error is logged with its type, its place in the code and, if it is a `GatewayError`, its message, which is safe.
Messages of other errors may contain data of calls, and are omitted; so is all but the first line from other libraries.
"""

import errno
import json
import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from logging import Formatter, LogRecord
from pathlib import Path
from traceback import walk_tb
from typing import Any, Final

from gateway.engine import find_current_call
from gateway.errors import GatewayError
from gateway.telemetry import names
from gateway.telemetry.export.signal_exporter import Queue
from gateway.telemetry.export.wire_format import Attributes, event_body, log_head, of_log
from gateway.telemetry.finished_span import Value

OURS: Final = "gateway"
LONGEST: Final = 2_000
"""Characters of a message."""

_MOST_CAUSES: Final = 5
_MOST_PLACES: Final = 12
_PACKAGE: Final = Path(__file__).parent.parent


class JsonLogFormatter(Formatter):
    """One JSON object a line."""

    def format(self, record: LogRecord) -> str:
        return json.dumps(log_fields(record), ensure_ascii=False, separators=(",", ":"))


class TextLogFormatter(Formatter):
    """One line of text, for terminals."""

    def format(self, record: LogRecord) -> str:
        told = log_fields(record)
        at = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        words = [at, told["level"].upper(), told["message"]]
        if problem := told.get("error"):
            words.append(f"({_words_of(problem)})")
        if call := told.get("callId"):
            words.append(f"[call {call} of {told['tool']}]")
        return " ".join(words)


def log_fields(record: LogRecord) -> dict[str, Any]:
    """Return the fields of a record; `traceId` and `spanId` are those of the current call."""
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    told: dict[str, Any] = {
        "time": moment.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": one_line(record.name),
        "message": message_of(record),
    }
    told |= _of_call()
    if record.exc_info and isinstance(error := record.exc_info[1], BaseException):
        told["error"] = problem_of(error)
    return told


def message_of(record: LogRecord) -> str:
    """Return the message; from other libraries only its first line, without the values of its arguments."""
    if record.name.partition(".")[0] == OURS:
        try:
            return one_line(record.getMessage())
        except (TypeError, ValueError):
            return one_line(str(record.msg))
    return one_line(str(record.msg).partition("\n")[0])


def problem_of(error: BaseException) -> dict[str, Any]:
    """Return type, place and causes of an error, and its text only if it is safe."""
    causes = list(_causes(error))
    told: dict[str, Any] = {"type": type(error).__name__, **_details(error), "at": _places(error)}
    if causes:
        told["causes"] = [{"type": type(each).__name__, **_details(each)} for each in causes]
    return told


def one_line(text: str) -> str:
    """Return the text truncated and without control characters and line breaks."""
    short = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    if short.isprintable():
        return short
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in short)


def _of_call() -> Mapping[str, str]:
    call = find_current_call()
    if call is None:
        return {}
    told = {"callId": one_line(call.id), "tool": one_line(call.identity or call.tool)}
    if call.seen is not None:
        told |= {"traceId": call.seen.trace_id, "spanId": call.seen.span_id}
    return told


def _details(error: BaseException) -> dict[str, str]:
    if isinstance(error, GatewayError):
        return {"code": error.code, "message": one_line(error.message)}
    if isinstance(error, OSError) and (number := error.errno) is not None and number in errno.errorcode:
        return {"code": errno.errorcode[number]}
    name = getattr(error, "sqlite_errorname", None)
    return {"code": name} if isinstance(name, str) else {}


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = {id(error)}
    while len(seen) <= _MOST_CAUSES:
        cause = getattr(error, "cause", None) if isinstance(error, GatewayError) else None
        following = cause or error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if not isinstance(following, BaseException) or id(following) in seen:
            return
        error = following
        seen.add(id(error))
        yield error


def _places(error: BaseException) -> list[str]:
    """Return files, lines and functions, the innermost last. Files of the gateway have their path in the repository."""
    found = [
        f"{_file(frame.f_code.co_filename)}:{line} {frame.f_code.co_name}"
        for frame, line in walk_tb(error.__traceback__)
    ]
    return found[-_MOST_PLACES:]


def _file(name: str) -> str:
    path = Path(name)
    return f"{OURS}/{path.relative_to(_PACKAGE)}" if path.is_relative_to(_PACKAGE) else path.name


def _words_of(problem: Mapping[str, Any]) -> str:
    words = problem["type"]
    if message := problem.get("message"):
        words = f"{words}: {message}"
    if causes := problem.get("causes"):
        words = f"{words}, of {', of '.join(each['type'] for each in causes)}"
    return f"{words} at {problem['at'][-1]}" if problem["at"] else words


_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16
_OWN: Final = "gateway.telemetry"
"""Records of telemetry itself are not exported: failed exports would cause further ones."""

_SEVERITIES: Final = ((logging.CRITICAL, 21), (logging.ERROR, 17), (logging.WARNING, 13), (logging.INFO, 9))
_DEBUG: Final = 5


class OtlpLogHandler(logging.Handler):
    def __init__(self, queue: Queue, *, limit: int) -> None:
        super().__init__()
        self._queue = queue
        self._limit = limit
        self._attributes = Attributes(limit)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(_OWN):
            return
        try:
            self._queue.put(self._encode(record))
        except Exception:  # the line on standard error has it
            return

    def _encode(self, record: logging.LogRecord) -> bytes:
        told = log_fields(record)
        attributes: dict[str, Value] = {names.LOGGER: told["logger"]}
        if "callId" in told:
            attributes |= {names.CALL_ID: told["callId"], names.TOOL_NAME: told["tool"]}
        if "error" in told:
            attributes[names.ERROR_TYPE] = told["error"].get("code") or told["error"]["type"]
        trace_id = bytes.fromhex(told.get("traceId", _NO_TRACE))
        span_id = bytes.fromhex(told.get("spanId", _NO_SPAN))
        severity = next((number for level, number in _SEVERITIES if record.levelno >= level), _DEBUG)
        head = log_head(trace_id, span_id, int(record.created * 1e9), severity)
        return head + event_body(told["message"], self._limit) + of_log(self._attributes.all(attributes))
