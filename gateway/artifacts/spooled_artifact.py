"""SpooledArtifact: a lazy, read-only view of a tool's text or bytes, and its query tools.

A subclass lists its own query tools in `tool_methods` and inherits the others. The seven base tools
accept every artifact, the tools of a subclass only its instances. Artifacts do not authorise,
de-duplicate or limit anything; the handler of a query tool calls the guard of its context first.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeGuard, TypeVar

from gateway.artifacts.indexed_reader import ByteBudget, IndexedReader
from gateway.artifacts.javascript_regex import Pattern
from gateway.artifacts.query_tools import ToolMethod, build_query_tool, collect_artifacts, ids_offering, resolve
from gateway.artifacts.search import (
    CHUNK_WORK,
    PAGE_ARGUMENTS,
    MatchCollector,
    SearchLimits,
    SearchPage,
    current_page_request,
    search_lines,
)
from gateway.artifacts.spool_stores import InMemoryReader
from gateway.errors import (
    AnswerTooLarge,
    NotASpoolReader,
    TokenEstimateUnavailable,
)
from gateway.model import (
    BUILTIN_ENCODINGS,
    ESTIMATORS,
    TIKTOKEN_ENCODINGS,
    Artifact,
    ArtifactTool,
    SpoolReader,
    ToolRegistry,
    is_artifact_class,
    is_spool_reader,
    run_in_thread,
)

_THREAD_ABOVE: Final = 1 << 20
_SEARCHED_ABOVE: Final = 64 << 10
_LINES_AT_ONCE: Final = 256

QueryAnswer = TypeVar("QueryAnswer")


@dataclass(frozen=True, slots=True)
class SizeHints:
    byte_length: int | None = None
    line_count: int | None = None


_NO_HINTS: Final = SizeHints()


def _base_methods() -> tuple[ToolMethod, ...]:
    lines = {"type": "integer", "minimum": 1, "default": 10, "description": "How many lines."}
    pattern = {
        "type": "string",
        "minLength": 1,
        "description": "A JavaScript regular expression, matched line by line.",
    }
    flags = {"type": "string", "pattern": "^[imsu]*$", "description": "Any of the flags i, m, s and u."}
    start = {"type": "integer", "minimum": 0, "description": "First line, counted from 0."}
    end = {"type": "integer", "minimum": 0, "description": "Line to stop before."}
    encoding = {"type": "string", "enum": list(BUILTIN_ENCODINGS), "description": "The tokenizer's encoding."}
    return (
        ToolMethod("artifact_head", "head", _about("Returns its first lines."), _args({"n": lines})),
        ToolMethod("artifact_tail", "tail", _about("Returns its last lines."), _args({"n": lines})),
        ToolMethod(
            "artifact_grep",
            "grep",
            _about("Returns the lines in which a regular expression is found, a page at a time if they are many."),
            _args({"pattern": pattern, "flags": flags, **PAGE_ARGUMENTS}, "pattern"),
        ),
        ToolMethod("artifact_cat", "cat", _about("Returns a range of its lines."), _args({"start": start, "end": end})),
        ToolMethod("artifact_byte_length", "byte_length", _about("Returns its size in bytes.")),
        ToolMethod("artifact_line_count", "line_count", _about("Returns how many lines it has.")),
        ToolMethod(
            "artifact_estimate_tokens",
            "estimate_tokens",
            _about("Estimates how many tokens its whole text would cost."),
            _args({"encoding": encoding}, "encoding"),
        ),
    )


def _about(what: str) -> str:
    return f"Queries an artifact of this turn, selected by callId. {what}"


def _args(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


class SpooledArtifact(Artifact):
    """A view of spooled content. Every method is async; the content is not cached."""

    tool_methods: ClassVar[tuple[ToolMethod, ...]] = _base_methods()
    queries: ClassVar[frozenset[str] | None] = None
    """The methods that query tools may call on artifacts of this class; `None` allows all."""

    def __init__(self, reader: SpoolReader) -> None:
        if not is_spool_reader(reader):
            raise NotASpoolReader()
        self.reader = reader
        self._sizes = _NO_HINTS

    @staticmethod
    def is_spooled_artifact(value: object) -> "TypeGuard[SpooledArtifact]":
        return isinstance(value, SpooledArtifact)

    @staticmethod
    def is_spooled_artifact_constructor(value: object) -> TypeGuard[type]:
        return is_artifact_class(value)

    def _set_size_hints(self, *, byte_length: int | None = None, line_count: int | None = None) -> None:
        """Set sizes that the producer knows; they take precedence over the reader's."""
        self._sizes = SizeHints(byte_length, line_count)

    async def head(self, n: int = 10) -> list[str]:
        return await self.cat(0, n) if n > 0 else []

    async def tail(self, n: int = 10) -> list[str]:
        count = await self.line_count()
        return await self.cat(count - n, count) if n > 0 else []

    async def cat(self, start: int = 0, end: int | None = None) -> list[str]:
        """Return lines `[start, end)`, clamped to the content. A negative end returns none."""
        count = await self.line_count()
        first = max(start, 0)
        last = count if end is None else min(end, count)
        if isinstance(reader := self.reader, IndexedReader):
            last = min(last, reader.line_count())  # a size hint may be larger
            return await self._run_off_loop(lambda: list(reader.lines(first, last))) if first < last else []
        return await self._list_lines(first, last)

    async def grep(
        self, pattern: str | Pattern, flags: str = "", *, limit: int | None = None, from_line: int = 0
    ) -> list[str]:
        """Return the lines that a JavaScript regular expression matches, in order, at most `limit`.

        Within the query tool `artifact_grep` it returns one page of them.
        """
        return (await self.grep_page(pattern, flags, limit=limit, from_line=from_line)).lines

    async def grep_page(
        self, pattern: str | Pattern, flags: str = "", *, limit: int | None = None, from_line: int = 0
    ) -> SearchPage:
        """Return the lines that `grep` finds, and the line to continue from."""
        compiled = pattern if isinstance(pattern, Pattern) else Pattern(pattern, flags)
        first, query = max(from_line, 0), current_page_request()
        if limit is not None and limit <= 0:
            return SearchPage([], first)
        if query is None:
            return await self._search(compiled, first, SearchLimits(limit))
        page = await self._search(compiled, max(first, query.from_line), query.limits(limit))
        query.record_page(page)
        return page

    async def byte_length(self) -> int:
        hint = self._sizes.byte_length
        if hint is not None:
            return hint
        size = self.reader.byte_length()
        return size if type(size) is int else await resolve(size)

    async def line_count(self) -> int:
        hint = self._sizes.line_count
        return await resolve(self.reader.line_count()) if hint is None else hint

    async def estimate_tokens(self, encoding: str) -> int:
        """Return the tokens of the whole text, including line ends."""
        size = await self.byte_length()
        _refuse_uncountable(size)
        text = await self.as_string()
        try:
            if size > _THREAD_ABOVE or encoding in TIKTOKEN_ENCODINGS:  # a vocabulary takes long to load
                return await run_in_thread(lambda: ESTIMATORS.count(text, encoding))
            return ESTIMATORS.count(text, encoding)
        except TokenEstimateUnavailable as error:
            return ESTIMATORS.fall_back(text, error)

    async def as_string(self) -> str:
        """Return the whole text."""
        reader = self.reader
        is_in_memory = isinstance(reader, InMemoryReader) and type(reader).read_all is InMemoryReader.read_all
        if is_in_memory and reader.byte_length() <= _THREAD_ABOVE:
            return str(reader.read_all())
        read = reader.read_all
        text: str = await resolve(await self._run_off_loop(read) if isinstance(reader, IndexedReader) else read())
        return text

    @classmethod
    def forge_tools(cls, ctx: Any) -> ToolRegistry:
        """Create the query tools for the artifacts of `ctx`: the seven base tools, and those of this class.

        The `callId` enum is a snapshot; for ids that are stored later, call this again. A tool accepts
        instances of the class that lists its descriptor, including those of subclasses.
        """
        forged: dict[str, ArtifactTool] = {}
        for owner in reversed(cls.__mro__):
            descriptors = owner.__dict__.get("tool_methods", ())
            holders = collect_artifacts(ctx, owner) if descriptors else {}
            offered = {each.method: ids_offering(holders, each.method) for each in descriptors}
            # The tool of a parent class keeps its name: it accepts more artifacts.
            forged |= {
                each.name: build_query_tool(each, offered[each.method], owner)
                for each in descriptors
                if offered[each.method] and each.name not in forged
            }
        return ToolRegistry(forged.values())

    @classmethod
    def query_tools(cls) -> list[ArtifactTool]:
        """Return the query tools without an enum of ids: for tool lists that must not depend on earlier calls."""
        owners = {each.name: owner for owner in cls.__mro__ for each in owner.__dict__.get("tool_methods", ())}
        return [
            build_query_tool(each, None, owners[each.name])
            for each in cls.effective_methods()
            if cls.allows_query(each.method)
        ]

    @classmethod
    def allows_query(cls, method: str) -> bool:
        return cls.queries is None or method in cls.queries

    @classmethod
    def effective_methods(cls) -> list[ToolMethod]:
        """Return own descriptors followed by inherited ones, each name once."""
        found: dict[str, ToolMethod] = {}
        for owner in cls.__mro__:
            for descriptor in owner.__dict__.get("tool_methods", ()):
                found.setdefault(descriptor.name, descriptor)
        return list(found.values())

    async def _search(self, pattern: Pattern, start: int, bounds: SearchLimits) -> SearchPage:
        if isinstance(reader := self.reader, IndexedReader):
            above = min(_SEARCHED_ABOVE, CHUNK_WORK // 4 // pattern.instructions)
            return await self._run_off_loop(lambda: reader.page(pattern, start=start, bounds=bounds), above=above)
        lines = self._each_line(start, await self.line_count())
        return await search_lines(lines, pattern, into=MatchCollector(bounds, take=ByteBudget().spend))

    async def _list_lines(self, start: int, end: int) -> list[str]:
        budget, lines = ByteBudget(), []
        async for _, line in self._each_line(start, end):
            budget.spend(len(line))
            lines.append(line)
        return lines

    async def _run_off_loop(self, read: Callable[[], QueryAnswer], *, above: int = _THREAD_ABOVE) -> QueryAnswer:
        is_remote = isinstance(self.reader, IndexedReader) and self.reader.is_remote
        if is_remote or await self.byte_length() > above:  # would block all other turns
            return await run_in_thread(read)
        return read()

    async def _each_line(self, start: int, end: int) -> AsyncIterator[tuple[int, str]]:
        for index in range(start, end):
            if index % _LINES_AT_ONCE == 0:
                await asyncio.sleep(0)
            line: str | None = await resolve(self.reader.line(index))
            if line is not None:
                yield index, line


def _refuse_uncountable(size: int) -> None:
    try:
        ByteBudget().spend(size)
    except AnswerTooLarge as error:
        raise AnswerTooLarge(
            f"the text has {size} bytes, too many to count its tokens in one query",
            help="divide its size by 3.5 for an estimate",
        ) from error
