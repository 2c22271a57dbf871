"""Text to JSON values: strict JSON as JavaScript's `JSON.parse` reads it, JSON Lines, and JSON5.

Two parsers give the same values: orjson where it agrees with JavaScript, the standard library where it
does not (integers past 64 bits, half surrogate pairs, numbers past the largest double).
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from gateway.core.bounded_json import TooManyValues, check_values
from gateway.errors import JsonParseError, PeerMissing
from gateway.formats.documents import require_shallow, too_deep

JsonFormat = Literal["json", "json5", "jsonl"]

MAX_JSON5_LENGTH: Final = 128 << 10
"""The JSON5 parser takes some 20 microseconds per character."""

MAX_VALUES: Final = 1_000_000
"""Of one document, or of all lines of one."""

_SPACE: Final = "\t\n\v\f\r \xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(map(chr, range(0x2000, 0x200B)))
"""What JavaScript trims."""

_JSON5_PLACE: Final = re.compile(r"<string>:(\d+) Unexpected (.*) at column (\d+)", re.DOTALL)
_MAYBE_PAST_64_BITS: Final = re.compile("[0-9]{19}")


@dataclass(frozen=True, slots=True)
class JsonText:
    """A parsed text: one record for `json` and `json5`, one per non-blank line for `jsonl`."""

    format: JsonFormat
    records: list[Any]


class NotJson(JsonParseError):
    """The text breaks JSON's grammar, so it may be of another format."""


def parse_json(text: str) -> Any:
    """One strict JSON value."""
    _require_few(text, MAX_VALUES)
    value = _strict(text.strip(_SPACE))
    require_shallow(value, JsonParseError)
    return value


def parse_lines(text: str) -> list[Any]:
    """One strict JSON value per non-blank line."""
    records = []
    _require_few(text, MAX_VALUES - text.count("\n"))
    for number, line in enumerate(_lines(text), 1):
        if stripped := line.strip(_SPACE):
            try:
                records.append(parse_json(stripped))
            except JsonParseError as error:
                raise type(error)(f"line {number}: {error.message}", help=error.help) from error
    return records


def parse_json5(text: str) -> Any:
    """One JSON5 value. Slow: call it in a thread."""
    try:
        import json5
    except ImportError as error:
        raise PeerMissing("the JSON5 parser is not installed", help="install json5") from error
    if len(text) > MAX_JSON5_LENGTH:
        raise JsonParseError(
            f"as JSON5: {len(text)} characters are too many, at most {MAX_JSON5_LENGTH} are read",
            help="have the tool return JSON, or read the text line by line",
        )
    try:
        value = json5.loads(text)
    except RecursionError as error:
        raise too_deep(JsonParseError) from error
    except ValueError as error:
        raise JsonParseError(f"as JSON5: {_json5_reason(str(error))}") from error
    require_shallow(value, JsonParseError)
    return value


def _require_few(text: str, most: int) -> None:
    try:
        check_values(text, max(most, 0))
    except TooManyValues:
        raise JsonParseError(
            f"the document has more than {MAX_VALUES} values", help="read it line by line with artifact_grep"
        ) from None


def _strict(text: str) -> Any:
    if _MAYBE_PAST_64_BITS.search(text) is None:  # orjson would round such an integer
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            pass
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise too_deep(JsonParseError) from error
    except json.JSONDecodeError as error:
        reason = error.msg[:1].lower() + error.msg[1:]
        raise NotJson(f"{reason} (line {error.lineno}:{error.colno})") from error
    except ValueError as error:  # Python's own limit, against quadratic time
        raise JsonParseError("an integer has thousands of digits") from error


def _refuse_constant(name: str) -> Any:
    raise NotJson(f"{name} is not JSON")


def _json5_reason(message: str) -> str:
    place = _JSON5_PLACE.fullmatch(message)
    return f"unexpected {place[2]} (line {place[1]}:{place[3]})" if place else message[:1].lower() + message[1:]


def _lines(text: str) -> Iterator[str]:
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]
