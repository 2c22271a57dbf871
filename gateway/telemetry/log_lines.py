"""Log records as lines: JSON for programs, words for people, one line each, whatever is in them.

What goes wrong is told by its type, its place in our code and, if it is an error of ours, by its message, which is
safe. Messages of other errors may be contents of calls, and are left out; so is all but the first line of other
libraries.
"""

import errno
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from logging import Formatter, LogRecord
from pathlib import Path
from traceback import walk_tb
from typing import Any, Final

from gateway.errors import GatewayError
from gateway.serving.current import serving_now

OURS: Final = "gateway"
LONGEST: Final = 2_000
"""Characters of a message."""

_MOST_CAUSES: Final = 5
_MOST_PLACES: Final = 12
_PACKAGE: Final = Path(__file__).parent.parent


class JsonLog(Formatter):
    """One JSON object a line."""

    def format(self, record: LogRecord) -> str:
        return json.dumps(fields_of(record), ensure_ascii=False, separators=(",", ":"))


class TextLog(Formatter):
    """For whoever looks at a terminal."""

    def format(self, record: LogRecord) -> str:
        told = fields_of(record)
        at = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        words = [at, told["level"].upper(), told["message"]]
        if problem := told.get("error"):
            words.append(f"({_words_of(problem)})")
        if call := told.get("callId"):
            words.append(f"[call {call} of {told['tool']}]")
        return " ".join(words)


def fields_of(record: LogRecord) -> dict[str, Any]:
    """What is told of a record; `traceId` and `spanId` are those of the call in which it was made."""
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
    """The words themselves; of other libraries no more than a line, and none of the values that they fill in."""
    if record.name.partition(".")[0] == OURS:
        try:
            return one_line(record.getMessage())
        except (TypeError, ValueError):
            return one_line(str(record.msg))
    return one_line(str(record.msg).partition("\n")[0])


def problem_of(error: BaseException) -> dict[str, Any]:
    """What an error is, where it came from, and what it came of. Its text only if it is safe."""
    causes = list(_causes(error))
    told: dict[str, Any] = {"type": type(error).__name__, **_details(error), "at": _places(error)}
    if causes:
        told["causes"] = [{"type": type(each).__name__, **_details(each)} for each in causes]
    return told


def one_line(text: str) -> str:
    """Nothing that a terminal would obey, or that would look like another line."""
    short = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    if short.isprintable():
        return short
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in short)


def _of_call() -> Mapping[str, str]:
    call = serving_now()
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
    """Files, lines and functions, the innermost last. Files of ours are named as in the repository."""
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
