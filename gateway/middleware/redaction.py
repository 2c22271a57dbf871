"""Masking: an artifact whose every view shows `[redacted]` where its class says so, while the stored bytes stay.

The text is parsed, masked and printed anew, so nothing is shown that was not understood. JSON is printed with two
spaces of indentation, JSON Lines with one compact record per line, YAML in block style; keys keep their order, numbers
their value, and a key that was given twice its last value. JSON5 is printed as JSON. What cannot be parsed or masked is
not shown at all.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gateway.core.artifacts import SpooledArtifact, is_artifact
from gateway.core.context import Context
from gateway.core.pipeline import Next
from gateway.core.spool import InMemoryReader, SpoolReader, describe_reader, is_spool_reader
from gateway.errors import ArtifactError, PeerMissing
from gateway.formats.json_text import NotJson
from gateway.formats.jsondoc import SpooledJsonArtifact
from gateway.formats.paths import Path, Place
from gateway.formats.yamldoc import SpooledYamlArtifact, yaml_text
from gateway.snapshot import ArtifactClass

MASK: Final = "[redacted]"
NOT_SHOWN: Final = (
    "[not shown: parts of this result are masked, and it cannot be: the text is not JSON or YAML, or it is too large]"
)

ClassOf = Callable[[str], ArtifactClass | None]
"""The artifact class of the results of a tool, by the name it is called by."""

Writer = Callable[[Sequence[Any]], str]


class RedactedReader(InMemoryReader):
    """The masked text of another reader. Its description wraps that one's: nobody finds the bytes by mistake."""

    def __init__(self, text: str, *, of: SpoolReader) -> None:
        super().__init__(text)
        self._of = of

    def describe(self) -> dict[str, Any]:
        return {"tag": "redacted", "locator": describe_reader(self._of)}


class _Unmaskable(Exception):
    """A path leads to something that has no place in the text, such as a length or a name."""


async def redacted(artifact: Any, paths: Sequence[str], *, options: Mapping[str, Any] | None = None) -> Any:
    """The artifact as it may be shown: another of its class, made with `options`, over the masked text.

    Values at the JSONPaths are replaced whole, whatever is inside them. All paths look at the text as it was, so that
    no mask hides another one's value from its filter. Always answers; the reason why something is not shown is not
    told, because parsers quote what they cannot read.
    """
    if not paths:
        return artifact
    reader = getattr(artifact, "reader", None)
    if not is_spool_reader(reader):
        return SpooledArtifact(InMemoryReader(NOT_SHOWN))
    given = dict(options or {})
    try:
        text = await _masked_text(artifact, paths, options=given)
    except (ArtifactError, PeerMissing, _Unmaskable, ValueError, RecursionError):
        text = json.dumps(NOT_SHOWN)  # JSON and YAML, so that queries find it, too
    return type(artifact)(RedactedReader(text, of=reader), **given)


async def masked_text(value: Mapping[str, Any], paths: Sequence[str]) -> str:
    """An object as JSON on one line, the values at the JSONPaths masked; what cannot be masked is not shown."""

    def masked() -> str:
        records: list[Any] = [json.loads(json.dumps(value, default=str))]
        _mask(records, [Path(path) for path in paths])
        return json.dumps(records[0], ensure_ascii=False, separators=(",", ":"))

    try:
        return await asyncio.to_thread(masked)  # a path may take seconds over a short text
    except (ArtifactError, _Unmaskable, ValueError, TypeError, RecursionError):
        return NOT_SHOWN


class Redact:
    """Masks the results of a dispatch, as their classes say, before anybody renders or queries them."""

    def __init__(self, class_of: ClassOf) -> None:
        self._class_of = class_of

    async def __call__(self, ctx: Context, next: Next) -> None:
        for call in ctx.turn_tool_calls:
            kind = self._class_of(call.tool)
            if kind is not None and kind.redact and not call.from_artifact_tool and _is_bare(call.results):
                await ctx.mutate_tool_call(call.replace(results=await self.masked(call.results, kind)))
        await next()

    async def masked(self, results: Any, kind: ArtifactClass) -> Any:
        """What may be shown of results. Texts of failures and media have no paths and stay."""
        if isinstance(results, list):
            return [await self.masked(each, kind) for each in results]
        return await redacted(results, kind.redact, options=kind.options) if is_artifact(results) else results


def _is_bare(results: Any) -> bool:
    items = results if isinstance(results, list) else [results]
    return any(is_artifact(item) and not isinstance(getattr(item, "reader", None), RedactedReader) for item in items)


async def _masked_text(artifact: Any, paths: Sequence[str], *, options: dict[str, Any]) -> str:
    records, write = await _parsed(artifact, options)

    def masked() -> str:
        _mask(records, [Path(path) for path in paths])
        return write(records)

    return await asyncio.to_thread(masked)  # always: a path may take seconds over a short text


async def _parsed(artifact: Any, options: dict[str, Any]) -> tuple[list[Any], Writer]:
    """Values that nobody else holds, and how to print them: `artifact` keeps what it has parsed itself."""
    if isinstance(artifact, SpooledYamlArtifact):
        return await type(artifact)(artifact.reader, **options).yaml_slice(), _yaml_documents
    if isinstance(artifact, SpooledJsonArtifact):
        return await _json_records(type(artifact)(artifact.reader, **options))
    try:  # not inferred: whether a text is JSON5 takes long to find out
        return await _json_records(SpooledJsonArtifact(artifact.reader, "json"))
    except NotJson:
        return await _json_records(SpooledJsonArtifact(artifact.reader, "jsonl"))


async def _json_records(artifact: SpooledJsonArtifact) -> tuple[list[Any], Writer]:
    write = _json_lines if await artifact.json_type() == "jsonl" else _json_document
    return await artifact.json_slice(), write


def _mask(records: list[Any], paths: Sequence[Path]) -> None:
    found = {
        (index, None if place.parent is None else id(place.parent.obj), place.key): place
        for path in paths
        for index, record in enumerate(records)
        for place in path.places(record)
    }  # each place once, however many ways lead there
    for (index, *_), place in found.items():
        if place.parent is None:
            records[index] = MASK
        else:
            _replace(place, place.parent.obj)
    for index, record in enumerate(records):
        if not record and not isinstance(record, dict | list):  # no path looks into these, not even $
            records[index] = MASK


def _replace(place: Place, container: Any) -> None:
    try:
        value = container[place.key]
    except (TypeError, LookupError) as error:
        raise _Unmaskable from error
    if value is not place.obj and value != MASK:
        raise _Unmaskable
    container[place.key] = MASK


def _json_document(records: Sequence[Any]) -> str:
    [value] = records
    return json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False)


def _json_lines(records: Sequence[Any]) -> str:
    lines = (json.dumps(each, ensure_ascii=False, separators=(",", ":"), allow_nan=False) for each in records)
    return "".join(f"{line}\n" for line in lines)


def _yaml_documents(records: Sequence[Any]) -> str:
    return "---\n".join(yaml_text().write_document(each) for each in records)
