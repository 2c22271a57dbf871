"""SpooledArtifact: a lazy, read-only view of a tool's text or bytes, and the query tools forged for it.

A subclass lists its own query tools in `tool_methods` and inherits the rest: forging offers the
base seven for every artifact and a subclass's tools for its instances only. Artifacts do not
authorise, de-duplicate or limit anything; the handler of a query tool asks the guard of its context first.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any, ClassVar, Final, TypeGuard, TypeVar

from gateway.core.abandoning import in_thread
from gateway.core.canonical import UNDEFINED, js_number, pretty
from gateway.core.lines import Allowance, IndexedReader, answer_limit, encode
from gateway.core.paging import PAGE_ARGUMENTS, PagedQuery, current_query, paged
from gateway.core.patterns import Pattern
from gateway.core.schemas import Schema
from gateway.core.searching import STRETCH_WORK, Bounds, Collecting, Page, page_of_lines
from gateway.core.spool import InMemoryReader, SpoolReader, is_spool_reader
from gateway.core.tokens import BUILTIN_ENCODINGS, ESTIMATORS, TIKTOKEN_ENCODINGS, estimating_in
from gateway.core.tool_registry import ToolRegistry
from gateway.core.tools import ArtifactTool, is_artifact_class
from gateway.errors import (
    AnswerTooLarge,
    ArtifactIdCollision,
    InvalidInitialToolValue,
    NotASpoolReader,
    TokenEstimateUnavailable,
)

MAX_QUERY_ANSWER: Final = 4 << 20
"""Bytes that one forged query may collect or answer; calls from Python are not limited.

An answer is held several times on its way, and one emoji makes each of its characters four bytes.
"""

_THREAD_ABOVE: Final = 1 << 20
_SEARCHED_ABOVE: Final = 64 << 10
_LINES_AT_ONCE: Final = 256
_PIECE: Final = "#"
_CALL_ID: Final = {"type": "string", "description": "The id of the call whose result is queried."}

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class ToolMethod:
    """Describes one query tool: the method it calls and the arguments it takes besides `callId`.

    Arguments are passed by position, in the order of `args_schema`'s properties; one that is not
    given leaves the method its own default. `serialise` turns the method's answer into text where
    the default does not fit. One of `grep` with the arguments of `PAGE_ARGUMENTS` answers a page at a
    time; these are not passed on. A descriptor that no tool can be forged from is refused at once.
    """

    name: str
    method: str
    description: str
    args_schema: dict[str, Any] | None = None
    serialise: Callable[[Any], str] | None = None

    def __post_init__(self) -> None:
        try:
            self.schema([])
        except (TypeError, ValueError) as error:
            raise InvalidInitialToolValue(f"the query tool {self.name!r} is invalid: {error}") from error

    @property
    def arguments(self) -> list[str]:
        """The names of the arguments besides `callId`, in the order the method takes them."""
        return [name for name in self._properties if not (self.is_paged and name in PAGE_ARGUMENTS)]

    @property
    def is_paged(self) -> bool:
        return self.method == "grep" and PAGE_ARGUMENTS.keys() <= set(self._properties)

    @property
    def _properties(self) -> list[str]:
        return list((self.args_schema or {}).get("properties", ()))

    def schema(self, ids: Sequence[str]) -> Schema:
        """What the forged tool takes: one of `ids`, and the arguments of the method."""
        return self.template.narrowed("callId", ids)

    @cached_property
    def template(self) -> Schema:
        """What it takes, whatever the ids. Compiled once; forging only adds them."""
        return _template_of(self)


def _template_of(descriptor: ToolMethod) -> Schema:
    for name in ("name", "method", "description"):
        if not isinstance(value := getattr(descriptor, name), str) or not value:
            raise ValueError(f"{name!r} is a non-empty string")
    document = {"type": "object", "properties": {}, **(descriptor.args_schema or {})}
    if document["type"] != "object" or "callId" in document["properties"]:
        raise ValueError("'args_schema' describes an object, and not the callId")
    document["properties"] = {"callId": _CALL_ID, **document["properties"]}
    document["required"] = ["callId", *document.get("required", ())]
    return Schema(document)


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


class SpooledArtifact:
    """A view of spooled content. Every method is async; nothing of the content is kept."""

    tool_methods: ClassVar[tuple[ToolMethod, ...]] = _base_methods()
    queries: ClassVar[frozenset[str] | None] = None
    """The methods that query tools may call on artifacts of this class; without a word, all."""

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
        """Sizes the producer already knows; they win over the reader."""
        self._sizes = SizeHints(byte_length, line_count)

    async def head(self, n: int = 10) -> list[str]:
        return await self.cat(0, n) if n > 0 else []

    async def tail(self, n: int = 10) -> list[str]:
        count = await self.line_count()
        return await self.cat(count - n, count) if n > 0 else []

    async def cat(self, start: int = 0, end: int | None = None) -> list[str]:
        """Lines `[start, end)`, clamped to the content. A negative end gives nothing."""
        count = await self.line_count()
        first = max(start, 0)
        last = count if end is None else min(end, count)
        if isinstance(reader := self.reader, IndexedReader):
            last = min(last, reader.line_count())  # a hint may promise more
            return await self._off_loop(lambda: list(reader.lines(first, last))) if first < last else []
        return await self._listed(first, last)

    async def grep(
        self, pattern: str | Pattern, flags: str = "", *, limit: int | None = None, from_line: int = 0
    ) -> list[str]:
        """Every line in which the JavaScript regular expression is found, in order: `limit` of them at most.

        In the query tool `artifact_grep` a page of them.
        """
        return (await self.grep_page(pattern, flags, limit=limit, from_line=from_line)).lines

    async def grep_page(
        self, pattern: str | Pattern, flags: str = "", *, limit: int | None = None, from_line: int = 0
    ) -> Page:
        """What `grep` finds, and the line to go on from."""
        compiled = pattern if isinstance(pattern, Pattern) else Pattern(pattern, flags)
        first, query = max(from_line, 0), current_query()
        if limit is not None and limit <= 0:
            return Page([], first)
        if query is None:
            return await self._search(compiled, first, Bounds(limit))
        page = await self._search(compiled, max(first, query.from_line), query.bounds(limit))
        query.answered(page)
        return page

    async def byte_length(self) -> int:
        hint = self._sizes.byte_length
        return await _resolved(self.reader.byte_length()) if hint is None else hint

    async def line_count(self) -> int:
        hint = self._sizes.line_count
        return await _resolved(self.reader.line_count()) if hint is None else hint

    async def estimate_tokens(self, encoding: str) -> int:
        """Tokens of the whole text, terminators included."""
        size = await self.byte_length()
        _refuse_uncountable(size)
        text = await self.as_string()
        try:
            if size > _THREAD_ABOVE or encoding in TIKTOKEN_ENCODINGS:  # a vocabulary takes long to load
                return await in_thread(lambda: ESTIMATORS.count(text, encoding))
            return ESTIMATORS.count(text, encoding)
        except TokenEstimateUnavailable as error:
            return ESTIMATORS.degraded(text, error)

    async def as_string(self) -> str:
        """The whole text, faithful to the bytes."""
        reader = self.reader
        is_in_memory = isinstance(reader, InMemoryReader) and type(reader).read_all is InMemoryReader.read_all
        if is_in_memory and reader.byte_length() <= _THREAD_ABOVE:
            return str(reader.read_all())
        read = reader.read_all
        text: str = await _resolved(await self._off_loop(read) if isinstance(reader, IndexedReader) else read())
        return text

    @classmethod
    def forge_tools(cls, ctx: Any) -> ToolRegistry:
        """The query tools for the artifacts of `ctx`: the base seven, and those of this class.

        The `callId` enum is a snapshot; ids stored later need another forge. Descriptors are
        narrowed to instances of the class that lists them, so a subclass inherits its parent's.
        """
        forged: dict[str, ArtifactTool] = {}
        for owner in reversed(cls.__mro__):
            descriptors = owner.__dict__.get("tool_methods", ())
            holders = artifacts_by_id(ctx, owner) if descriptors else {}
            offered = {each.method: _offering(holders, each.method) for each in descriptors}
            # A name that a parent already has stays the parent's: it answers for more artifacts.
            forged |= {
                each.name: forge_tool(each, offered[each.method], owner)
                for each in descriptors
                if offered[each.method] and each.name not in forged
            }
        return ToolRegistry(forged.values())

    @classmethod
    def query_tools(cls) -> list[ArtifactTool]:
        """The query tools without a list of ids: for callers whose lists must not vary by earlier calls."""
        owners = {each.name: owner for owner in cls.__mro__ for each in owner.__dict__.get("tool_methods", ())}
        return [
            forge_tool(each, None, owners[each.name]) for each in cls.effective_methods() if cls.offers(each.method)
        ]

    @classmethod
    def offers(cls, method: str) -> bool:
        return cls.queries is None or method in cls.queries

    @classmethod
    def effective_methods(cls) -> list[ToolMethod]:
        """Own descriptors followed by inherited ones, each name once."""
        found: dict[str, ToolMethod] = {}
        for owner in cls.__mro__:
            for descriptor in owner.__dict__.get("tool_methods", ()):
                found.setdefault(descriptor.name, descriptor)
        return list(found.values())

    async def _search(self, pattern: Pattern, start: int, bounds: Bounds) -> Page:
        if isinstance(reader := self.reader, IndexedReader):
            above = min(_SEARCHED_ABOVE, STRETCH_WORK // 4 // pattern.instructions)
            return await self._off_loop(lambda: reader.page(pattern, start=start, bounds=bounds), above=above)
        lines = self._each_line(start, await self.line_count())
        return await page_of_lines(lines, pattern, into=Collecting(bounds, take=Allowance().take))

    async def _listed(self, start: int, end: int) -> list[str]:
        allowance, lines = Allowance(), []
        async for _, line in self._each_line(start, end):
            allowance.take(len(line))
            lines.append(line)
        return lines

    async def _off_loop(self, read: Callable[[], Answer], *, above: int = _THREAD_ABOVE) -> Answer:
        is_remote = isinstance(self.reader, IndexedReader) and self.reader.is_remote
        if is_remote or await self.byte_length() > above:  # long enough to hold up every other turn
            return await in_thread(read)
        return read()

    async def _each_line(self, start: int, end: int) -> AsyncIterator[tuple[int, str]]:
        for index in range(start, end):
            if index % _LINES_AT_ONCE == 0:
                await asyncio.sleep(0)
            line: str | None = await _resolved(self.reader.line(index))
            if line is not None:
                yield index, line


def is_artifact(value: object) -> bool:
    """Whether a value can stand as an artifact: judged by shape, like an artifact constructor."""
    return isinstance(value, SpooledArtifact) or is_artifact_class(type(value))


def pieces_of(id: str, results: Any) -> list[tuple[str, Any]]:
    """What a call yielded, piece by piece, each with its id: that of the call, or one of its own in a list of several.

    Pieces of a list are numbered from 0: `CALL#0`, `CALL#1`.
    """
    if not isinstance(results, list):
        return [(id, results)]
    return [(piece_id(id, number, of=len(results)), each) for number, each in enumerate(results)]


def piece_id(call_id: str, number: int, *, of: int) -> str:
    """The id of one of so many pieces. A single one has that of its call."""
    return call_id if of == 1 else f"{call_id}{_PIECE}{number}"


def calls_named_by(id: str) -> tuple[str, ...]:
    """The ids of the calls whose result an artifact of that id may be of: a call of just that id comes first."""
    call, _, number = id.rpartition(_PIECE)
    return (id, call) if call and number.isascii() and number.isdecimal() else (id,)


def artifacts_by_id(ctx: Any, owner: type = SpooledArtifact) -> dict[str, Any]:
    """The artifacts of class `owner` that can be queried, by id, in the order of the records."""
    calls = {
        id: artifact
        for call in ctx.turn_tool_calls
        if not call.from_artifact_tool
        for id, artifact in pieces_of(call.id, call.results)
        if isinstance(artifact, owner)
    }
    retrieved = {record.id: record.content for record in _retrieved(ctx) if isinstance(record.content, owner)}
    if shared := calls.keys() & retrieved.keys():
        raise ArtifactIdCollision(f"a tool call and a retrieved record share the id {min(shared)!r}")
    return calls | retrieved


def find_artifact(ctx: Any, id: str, owner: type = SpooledArtifact) -> Any:
    """The artifact of class `owner` with that id in this turn, or `None`. Never looks anywhere else."""
    names = calls_named_by(id)
    calls = [call for call in ctx.turn_tool_calls if call.id in names and not call.from_artifact_tool]
    for call in sorted(calls, key=lambda each: names.index(each.id)):
        found = dict(pieces_of(call.id, call.results)).get(id)
        if isinstance(found, owner):
            return found
    for record in _retrieved(ctx):
        if record.id == id and isinstance(record.content, owner):
            return record.content
    return None


def forge_tool(descriptor: ToolMethod, ids: Sequence[str] | None, owner: type) -> ArtifactTool:
    """One query tool, bound to the ids known now (`None`: to none) and to whatever context it is called in."""

    async def handle(args: dict[str, Any], ctx: Any, meta: object) -> str:
        guard = getattr(ctx, "query_guard", None)
        if guard is not None:
            await guard(descriptor.name, args)
        artifact = find_artifact(ctx, args["callId"], owner)
        if artifact is None or not _offers(artifact, descriptor.method):
            return "Error: no artifact with this id is available in this turn."
        method = getattr(artifact, descriptor.method, None)
        if not callable(method):
            return f"Error: the artifact has no method {descriptor.method!r}."
        query = PagedQuery(args.get("limit"), args.get("fromLine", 0)) if descriptor.is_paged else None
        with answer_limit(MAX_QUERY_ANSWER), estimating_in(ctx), paged(query):
            answer = await _resolved(method(*_positional(method, descriptor.arguments, args)))
            text = _bounded((descriptor.serialise or serialise)(answer))
        if query is None:
            return text
        return query.told(text, tool=descriptor.name, line_count=await artifact.line_count())

    return ArtifactTool(
        name=descriptor.name,
        description=descriptor.description,
        input_schema=descriptor.schema(ids) if ids is not None else descriptor.template,
        handler=handle,
        ephemeral=True,
        on_collision="replace",
    )


def serialise(answer: Any) -> str:
    """The default text of a query's answer."""
    if answer is UNDEFINED:
        return "(undefined)"
    if isinstance(answer, str):
        return answer
    if isinstance(answer, list | tuple):
        if not answer:
            return "(empty list)"
        if all(isinstance(item, str) for item in answer):
            return "\n".join(answer)
    elif isinstance(answer, int | float) and not isinstance(answer, bool):
        return _number_text(answer)
    return pretty(answer)


def _number_text(number: int | float) -> str:
    text = js_number(number)
    if text != "null":
        return text
    if number != number:
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def _bounded(text: str) -> str:
    """What a descriptor's own `serialise` returns is not ours to trust: it may be long, or no text at all."""
    if isinstance(text, str) and len(text) > MAX_QUERY_ANSWER // 4 and len(encode(text)) > MAX_QUERY_ANSWER:
        raise AnswerTooLarge(f"the answer is larger than {MAX_QUERY_ANSWER} bytes", help="ask for less at once")
    return text


def _refuse_uncountable(size: int) -> None:
    try:
        Allowance().take(size)
    except AnswerTooLarge as error:
        raise AnswerTooLarge(
            f"the text has {size} bytes, too many to count its tokens in one query",
            help="divide its size by 3.5 for an estimate",
        ) from error


def _offering(holders: dict[str, Any], method: str) -> list[str]:
    return [id for id, artifact in holders.items() if _offers(artifact, method)]


def _offers(artifact: Any, method: str) -> bool:
    queries = getattr(type(artifact), "queries", None)
    return queries is None or method in queries


def _retrieved(ctx: Any) -> list[Any]:
    return [record for record in getattr(ctx, "turn_retrievables", ()) if not getattr(record, "inline", True)]


def _positional(method: Callable[..., Any], order: Sequence[str], args: dict[str, Any]) -> list[Any]:
    """Arguments in declared order; one that was not given is the method's own default."""
    given = [args.get(name, UNDEFINED) for name in order]
    while given and given[-1] is UNDEFINED:
        given.pop()
    if all(value is not UNDEFINED for value in given):
        return given
    parameters = inspect.signature(method).parameters.values()
    defaults = [None if each.default is each.empty else each.default for each in parameters]
    filled = zip_longest(given, defaults[: len(given)])
    return [default if value is UNDEFINED else value for value, default in filled]


async def _resolved(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
