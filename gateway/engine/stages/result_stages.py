"""Redact results as their classes require, in every view; limit how large a result or its inline text is.

The text is parsed, masked and printed again, so only understood text is shown. JSON is printed with two spaces of
indentation, JSON Lines with one compact record per line, YAML in block style; keys keep their order, numbers their
value, and a duplicate key its last value. JSON5 is printed as JSON. Text that cannot be parsed or masked is not shown.

Sizes of results: which are shown inline, and which are too large for their class.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

from gateway.artifacts import (
    InMemoryReader,
    JsonPath,
    JsonPathMatch,
    JsonSyntaxError,
    SpooledArtifact,
    SpooledJsonArtifact,
    SpooledYamlArtifact,
    encode_utf8,
    iter_chunks,
    load_yaml_parser,
    to_handle,
)
from gateway.engine.stages.result_cache import measure_bytes
from gateway.errors import ArtifactError, PeerMissing
from gateway.model import (
    BackendError,
    CallContext,
    CallPipeline,
    Invocation,
    Next,
    SpoolReader,
    Tokenizable,
    is_artifact,
    is_spool_reader,
)
from gateway.registries import ArtifactClass

MASK: Final = "[redacted]"
NOT_SHOWN: Final = (
    "[not shown: parts of this result must be masked, but the text is not JSON or YAML, or it is too large]"
)

FindArtifactClass = Callable[[str], ArtifactClass | None]
"""Returns the artifact class of a tool's results, by the name in the call."""

Writer = Callable[[Sequence[Any]], str]


class RedactedReader(InMemoryReader):
    """The masked text of another reader. Its description wraps that one's, so the bytes are not found by mistake."""

    def __init__(self, text: str, *, of: SpoolReader) -> None:
        super().__init__(text)
        self._of = of

    def describe(self) -> dict[str, Any]:
        return {"tag": "redacted", "locator": to_handle(self._of)}


class _Unmaskable(Exception):
    """A path leads to a value without a place in the text, such as a length or a name."""


async def redact_artifact(artifact: Any, paths: Sequence[str], *, options: Mapping[str, Any] | None = None) -> Any:
    """Return the artifact for display: another of its class, created with `options`, over the masked text.

    Values at the JSONPaths are replaced whole, whatever is inside them. All paths are evaluated on the original text,
    so that no mask hides another one's value from its filter. This never raises; the reason why something is not shown
    is omitted, because parsers quote the text they cannot read.
    """
    if not paths:
        return artifact
    reader = getattr(artifact, "reader", None)
    if not is_spool_reader(reader):
        return SpooledArtifact(InMemoryReader(NOT_SHOWN))
    given = dict(options or {})
    try:
        text = await _mask_text(artifact, paths, options=given)
    except (ArtifactError, PeerMissing, _Unmaskable, ValueError, RecursionError):
        text = json.dumps(NOT_SHOWN)  # valid JSON and YAML, so that queries find it, too
    return type(artifact)(RedactedReader(text, of=reader), **given)


async def redact_json(value: Mapping[str, Any], paths: Sequence[str]) -> str:
    """Return an object as JSON on one line, with the values at the JSONPaths masked; not shown if that fails."""

    def mask() -> str:
        records: list[Any] = [json.loads(json.dumps(value, default=str))]
        _mask(records, [JsonPath(path) for path in paths])
        return json.dumps(records[0], ensure_ascii=False, separators=(",", ":"))

    try:
        return await asyncio.to_thread(mask)  # a path may take seconds over a short text
    except (ArtifactError, _Unmaskable, ValueError, TypeError, RecursionError):
        return NOT_SHOWN


class RedactionStage:
    """Masks the results of a dispatch, as their classes require, before they are rendered or queried."""

    def __init__(self, class_of: FindArtifactClass) -> None:
        self._class_of = class_of

    async def __call__(self, ctx: CallContext, next: Next) -> None:
        for call in ctx.turn_tool_calls:
            kind = self._class_of(call.tool)
            if kind is not None and kind.redact and not call.from_artifact_tool and _is_bare(call.results):
                await ctx.mutate_tool_call(call.replace(results=await self.redact_results(call.results, kind)))
        await next()

    async def redact_results(self, results: Any, kind: ArtifactClass) -> Any:
        """Return the results for display. Texts of failures and media have no paths and stay."""
        if isinstance(results, list):
            return [await self.redact_results(each, kind) for each in results]
        return await redact_artifact(results, kind.redact, options=kind.options) if is_artifact(results) else results


def _is_bare(results: Any) -> bool:
    items = results if isinstance(results, list) else [results]
    return any(is_artifact(item) and not isinstance(getattr(item, "reader", None), RedactedReader) for item in items)


async def _mask_text(artifact: Any, paths: Sequence[str], *, options: dict[str, Any]) -> str:
    records, write = await _parse(artifact, options)

    def mask() -> str:
        _mask(records, [JsonPath(path) for path in paths])
        return write(records)

    return await asyncio.to_thread(mask)  # always: a path may take seconds over a short text


async def _parse(artifact: Any, options: dict[str, Any]) -> tuple[list[Any], Writer]:
    """Return private values and their printer: `artifact` keeps the values it has parsed itself."""
    if isinstance(artifact, SpooledYamlArtifact):
        return await type(artifact)(artifact.reader, **options).yaml_slice(), _yaml_documents
    if isinstance(artifact, SpooledJsonArtifact):
        return await _json_records(type(artifact)(artifact.reader, **options))
    try:  # not inferred: detecting JSON5 takes long
        return await _json_records(SpooledJsonArtifact(artifact.reader, "json"))
    except JsonSyntaxError:
        return await _json_records(SpooledJsonArtifact(artifact.reader, "jsonl"))


async def _json_records(artifact: SpooledJsonArtifact) -> tuple[list[Any], Writer]:
    write = _json_lines if await artifact.json_type() == "jsonl" else _json_document
    return await artifact.json_slice(), write


def _mask(records: list[Any], paths: Sequence[JsonPath]) -> None:
    found = {
        (index, None if place.parent is None else id(place.parent.obj), place.key): place
        for path in paths
        for index, record in enumerate(records)
        for place in path.matches(record)
    }  # each place once, however many paths lead there
    for (index, *_), place in found.items():
        if place.parent is None:
            records[index] = MASK
        else:
            _replace(place, place.parent.obj)
    for index, record in enumerate(records):
        if not record and not isinstance(record, dict | list):  # no path matches these, not even $
            records[index] = MASK


def _replace(place: JsonPathMatch, container: Any) -> None:
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
    return "---\n".join(load_yaml_parser().write_yaml(each) for each in records)


class InlineSmallResults:
    """Shows results below a size inline and leaves larger ones behind a handle.

    A class's own limit wins over `below`; without either, results stay as they are.
    """

    def __init__(self, below: int | None, class_of: FindArtifactClass = lambda tool: None) -> None:
        self._below = below
        self._class_of = class_of

    async def decide(self, results: Any, *, default: bool, limit: int | None = None) -> bool:
        """Whether results are shown inline. `default` applies to results without a handle or without a known size."""
        below = self._below if limit is None else limit
        items = results if isinstance(results, list) else [results]
        if below is None or not all(map(is_artifact, items)):
            return default
        size = await measure_results(results)
        return default if size is None else size < below

    async def __call__(self, ctx: CallContext, next: Next) -> None:
        for call in ctx.turn_tool_calls:
            kind = self._class_of(call.tool)
            limit = None if kind is None else kind.inline_below
            inline = await self.decide(call.results, default=call.inline, limit=limit)
            if inline != call.inline:
                await ctx.mutate_tool_call(call.replace(inline=inline))
        await next()


class SizeLimit:
    """Refuses results larger than their class allows. Streams are cut off, so nothing of them is stored."""

    def __init__(self, max_size: int, *, of: str) -> None:
        self._max_size = max_size
        self._of = of

    async def __call__(self, call: Invocation, run: CallPipeline) -> Any:
        result = await run(call.with_keep(lambda content: call.keep(self._count_bytes(content))))
        if isinstance(result, str | bytes | bytearray | memoryview):
            self._check(measure_bytes(result if isinstance(result, str) else bytes(result)))
        return result

    async def _count_bytes(self, content: Any) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in iter_chunks(content):
            size += len(chunk)
            self._check(size)
            yield chunk

    def _check(self, size: int) -> None:
        if size > self._max_size:
            raise BackendError(
                "failed",
                f"the result is larger than the {self._max_size} bytes that {self._of} may have; nothing was stored",
                help="ask for less at once",
            )


async def measure_results(results: Any, ctx: CallContext | None = None) -> int | None:
    """Return the bytes of a call's results; `None` if one of them does not know its size, or is gone."""
    if isinstance(results, list):
        sizes = [await measure_results(each, ctx) for each in results]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None
    if isinstance(results, Tokenizable):
        return len(encode_utf8(results.render(ctx)))
    try:
        size: int | None = await results.byte_length()
    except ArtifactError:
        return None
    return size
