"""SpooledJsonArtifact: JSON, JSON Lines or JSON5, queried by JSONPath; and the parsers of these formats.

Strict JSON is parsed as JavaScript's `JSON.parse` does, by two parsers that give the same values:
orjson where it agrees with JavaScript, else the standard library (integers past 64 bits, lone
surrogates, numbers past the largest double).

Without a hint the format is inferred once: the first of JSON, JSON Lines and JSON5 that can parse
the text. A JSON Lines file with one line is therefore JSON.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import orjson

from gateway.artifacts.formats.document_artifact import (
    MAX_DEPTH,
    PATH_ARGUMENT,
    RANGE_ARGUMENTS,
    DocumentArtifact,
    check_depth,
    depth_error,
    tool_method_factory,
)
from gateway.artifacts.query_tools import ToolMethod
from gateway.errors import ArtifactError, JsonParseError, PeerMissing
from gateway.model import SpoolReader, TooManyValues, check_values

JsonFormat = Literal["json", "json5", "jsonl"]

MAX_JSON5_LENGTH: Final = 128 << 10
"""Characters; the JSON5 parser takes about 20 microseconds for each."""

MAX_VALUES: Final = 1_000_000
"""Values in one document, or in all lines of a JSON Lines document."""

_SPACE: Final = "\t\n\v\f\r \xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(map(chr, range(0x2000, 0x200B)))
"""Characters that JavaScript trims."""

_JSON5_PLACE: Final = re.compile(r"<string>:(\d+) Unexpected (.*) at column (\d+)", re.DOTALL)
_MAYBE_PAST_64_BITS: Final = re.compile("[0-9]{19}")


@dataclass(frozen=True, slots=True)
class ParsedJson:
    """A parsed text: one record for `json` and `json5`, one per non-blank line for `jsonl`."""

    format: JsonFormat
    records: list[Any]


class JsonSyntaxError(JsonParseError):
    """The text is not valid JSON, so it may have another format."""


def parse_json(text: str) -> Any:
    """Parse one strict JSON value."""
    _check_value_count(text, MAX_VALUES)
    value = _parse_strict(text.strip(_SPACE))
    if text.count("{") + text.count("[") > MAX_DEPTH:  # otherwise it cannot be deeper
        check_depth(value, JsonParseError)
    return value


def parse_json_lines(text: str) -> list[Any]:
    """Parse one strict JSON value per non-blank line."""
    records = []
    _check_value_count(text, MAX_VALUES - text.count("\n"))
    for number, line in enumerate(_lines(text), 1):
        if stripped := line.strip(_SPACE):
            try:
                records.append(parse_json(stripped))
            except JsonParseError as error:
                raise type(error)(f"line {number}: {error.message}", help=error.help) from error
    return records


def parse_json5(text: str) -> Any:
    """Parse one JSON5 value. Slow: call it in a thread."""
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
        raise depth_error(JsonParseError) from error
    except ValueError as error:
        raise JsonParseError(f"as JSON5: {_json5_reason(str(error))}") from error
    check_depth(value, JsonParseError)
    return value


def _check_value_count(text: str, most: int) -> None:
    try:
        check_values(text, max(most, 0))
    except TooManyValues:
        raise JsonParseError(
            f"the document has more than {MAX_VALUES} values", help="read it line by line with artifact_grep"
        ) from None


def _parse_strict(text: str) -> Any:
    if _MAYBE_PAST_64_BITS.search(text) is None:  # orjson would round such an integer
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            pass
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise depth_error(JsonParseError) from error
    except json.JSONDecodeError as error:
        reason = error.msg[:1].lower() + error.msg[1:]
        raise JsonSyntaxError(f"{reason} (line {error.lineno}:{error.colno})") from error
    except ValueError as error:  # Python limits digits, because converting them takes quadratic time
        raise JsonParseError("an integer has thousands of digits") from error


def _refuse_constant(name: str) -> Any:
    raise JsonSyntaxError(f"{name} is not JSON")


def _json5_reason(message: str) -> str:
    place = _JSON5_PLACE.fullmatch(message)
    return f"unexpected {place[2]} (line {place[1]}:{place[3]})" if place else message[:1].lower() + message[1:]


def _lines(text: str) -> Iterator[str]:
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]


_HINTS: Final[dict[str, JsonFormat]] = {"json": "json", "json5": "json5", "jsonl": "jsonl", "ndjson": "jsonl"}
_method = tool_method_factory("json")


class SpooledJsonArtifact(DocumentArtifact[ParsedJson]):
    """A JSON artifact. `format` skips the inference: `json`, `json5`, `jsonl` or its other name `ndjson`."""

    tool_methods: ClassVar[tuple[ToolMethod, ...]] = (
        _method("type", "Returns its format: json, json5 or jsonl."),
        _method("keys", "Returns the keys of its root object, or of all objects in a JSON Lines file."),
        _method("length", "Returns how many records it has: one per line of JSON Lines, otherwise 1."),
        _method("get", "Returns every value a JSONPath finds, in all records.", PATH_ARGUMENT),
        _method("filter", "Returns the records in which a JSONPath finds something.", PATH_ARGUMENT),
        _method("slice", "Returns a range of the records of a JSON Lines file.", RANGE_ARGUMENTS),
        _method("pluck", "Returns every value a JSONPath finds, in all records.", PATH_ARGUMENT),
    )
    parse_limit: ClassVar[int] = 64 << 20  # orjson reserves sixteen times as much memory
    parse_error: ClassVar[type[ArtifactError]] = JsonParseError

    def __init__(self, reader: SpoolReader, format: Literal["json", "json5", "jsonl", "ndjson"] | None = None) -> None:
        super().__init__(reader)
        if format is not None and format not in _HINTS:
            raise ValueError(f"{format!r} is not one of {', '.join(_HINTS)}")
        self._hint = None if format is None else _HINTS[format]

    async def json_type(self) -> JsonFormat:
        return (await self._document()).format

    async def json_keys(self) -> Any:
        return await self._keys()

    async def json_length(self) -> int:
        return len(await self._all_records())

    async def json_get(self, path: str) -> list[Any]:
        return await self._get(path)

    async def json_filter(self, path: str) -> list[Any]:
        return await self._filter(path)

    async def json_slice(self, start: int | None = None, end: int | None = None) -> list[Any]:
        document = await self._document()
        return document.records[start:end] if document.format == "jsonl" else document.records

    async def json_pluck(self, path: str) -> list[Any]:
        return await self._get(path)

    async def value(self) -> Any:
        document = await self._document()
        return document.records if document.format == "jsonl" else document.records[0]

    def _records(self, document: ParsedJson) -> list[Any]:
        return document.records

    def _parse(self, text: str) -> ParsedJson:
        """Parse JSON or JSON Lines. `_load` parses JSON5, because that always needs a thread."""
        if self._hint == "jsonl":
            return ParsedJson("jsonl", parse_json_lines(text))
        try:
            return ParsedJson(self._hint or "json", [parse_json(text)])  # JSON5 contains JSON
        except JsonSyntaxError:
            if self._hint is None and (records := _try_json_lines(text)):
                return ParsedJson("jsonl", records)
            raise

    async def _load(self, text: str) -> ParsedJson:
        try:
            return await super()._load(text)
        except JsonSyntaxError as error:
            if self._hint in ("json", "jsonl"):
                raise
            return ParsedJson("json5", [await asyncio.to_thread(self._json5, text, error)])

    def _json5(self, text: str, error: JsonSyntaxError) -> Any:
        if self._hint == "json5":
            return parse_json5(text)
        try:
            return parse_json5(text)
        except (JsonParseError, PeerMissing) as last:
            raise JsonParseError(f"neither JSON nor JSON Lines: {error.message}; {last.message}") from last


def _try_json_lines(text: str) -> list[Any]:
    try:
        return parse_json_lines(text)
    except JsonSyntaxError:
        return []
