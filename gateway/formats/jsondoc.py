"""SpooledJsonArtifact: JSON, JSON Lines or JSON5, queried by JSONPath.

Without a hint the format is inferred once: the first of JSON, JSON Lines and JSON5 that the text
satisfies. A one-line JSON Lines file is therefore JSON.
"""

import asyncio
from typing import Any, ClassVar, Final, Literal

from gateway.core.artifacts import ToolMethod
from gateway.core.spool import SpoolReader
from gateway.errors import ArtifactError, JsonParseError, PeerMissing
from gateway.formats.documents import PATH_ARGUMENT, RANGE_ARGUMENTS, DocumentArtifact, method_builder
from gateway.formats.json_text import JsonFormat, JsonText, NotJson, parse_json, parse_json5, parse_lines

_HINTS: Final[dict[str, JsonFormat]] = {"json": "json", "json5": "json5", "jsonl": "jsonl", "ndjson": "jsonl"}
_method = method_builder("json")


class SpooledJsonArtifact(DocumentArtifact[JsonText]):
    """`format` skips the inference: `json`, `json5`, `jsonl` or its other name `ndjson`."""

    tool_methods: ClassVar[tuple[ToolMethod, ...]] = (
        _method("type", "Returns its format: json, json5 or jsonl."),
        _method("keys", "Returns the keys of its root object, or of all objects in a JSON Lines file."),
        _method("length", "Returns how many records it has: one per line of JSON Lines, otherwise 1."),
        _method("get", "Returns every value a JSONPath finds, in all records.", PATH_ARGUMENT),
        _method("filter", "Returns the records in which a JSONPath finds something.", PATH_ARGUMENT),
        _method("slice", "Returns a range of the records of a JSON Lines file.", RANGE_ARGUMENTS),
        _method("pluck", "Returns every value a JSONPath finds, in all records.", PATH_ARGUMENT),
    )
    parse_limit: ClassVar[int] = 64 << 20  # orjson sets sixteen times as much aside
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

    def _records(self, document: JsonText) -> list[Any]:
        return document.records

    def _parse(self, text: str) -> JsonText:
        """JSON or JSON Lines; JSON5 is left to `_load`, because it always needs a thread."""
        if self._hint == "jsonl":
            return JsonText("jsonl", parse_lines(text))
        try:
            return JsonText(self._hint or "json", [parse_json(text)])  # JSON5 contains JSON
        except NotJson:
            if self._hint is None and (records := _several_lines(text)):
                return JsonText("jsonl", records)
            raise

    async def _load(self, text: str) -> JsonText:
        try:
            return await super()._load(text)
        except NotJson as error:
            if self._hint in ("json", "jsonl"):
                raise
            return JsonText("json5", [await asyncio.to_thread(self._json5, text, error)])

    def _json5(self, text: str, error: NotJson) -> Any:
        if self._hint == "json5":
            return parse_json5(text)
        try:
            return parse_json5(text)
        except (JsonParseError, PeerMissing) as last:
            raise JsonParseError(f"neither JSON nor JSON Lines: {error.message}; {last.message}") from last


def _several_lines(text: str) -> list[Any]:
    try:
        return parse_lines(text)
    except NotJson:
        return []
