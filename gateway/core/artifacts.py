"""SpooledArtifact: a lazy, read-only view of a tool's text or bytes, and the query tools forged for it.

A subclass lists its own query tools in `tool_methods` and inherits the rest: forging offers the
base seven for every artifact and a subclass's tools for its instances only. Artifacts do not
authorise, de-duplicate or limit anything; that is the business of handlers and middleware.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeGuard

from gateway.core.canonical import UNDEFINED, js_number, pretty
from gateway.core.lines import Allowance, IndexedReader, answer_limit
from gateway.core.patterns import Pattern
from gateway.core.schemas import Schema
from gateway.core.spool import SpoolReader, is_spool_reader
from gateway.core.tokens import BUILTIN_ENCODINGS, ESTIMATORS
from gateway.core.tool_registry import ToolRegistry
from gateway.core.tools import ArtifactTool, is_artifact_class
from gateway.errors import ArtifactIdCollision, NotASpoolReader

MAX_QUERY_ANSWER: Final = 16 << 20
"""Bytes of lines that one forged query may collect; calls from Python are not limited."""

_THREAD_ABOVE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ToolMethod:
    """Describes one query tool: the method it calls and the arguments it takes besides `callId`.

    Arguments are passed by position, in the order of `args_schema`'s properties. `serialise`
    turns the method's answer into text where the default does not fit.
    """

    name: str
    method: str
    description: str
    args_schema: dict[str, Any] | None = None
    serialise: Callable[[Any], str] | None = None


@dataclass(slots=True)
class SizeHints:
    byte_length: int | None = None
    line_count: int | None = None


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
            _about("Returns every line in which a regular expression is found."),
            _args({"pattern": pattern, "flags": flags}, "pattern"),
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

    def __init__(self, reader: SpoolReader) -> None:
        if not is_spool_reader(reader):
            raise NotASpoolReader()
        self.reader = reader
        self._sizes = SizeHints()

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
        if first >= last:
            return []
        if isinstance(reader := self.reader, IndexedReader):
            return await self._collect(lambda: reader.lines(first, last))
        return [line async for line in self._each_line(first, last)]

    async def grep(self, pattern: str | Pattern, flags: str = "") -> list[str]:
        """Every line in which the JavaScript regular expression is found, in order."""
        compiled = pattern if isinstance(pattern, Pattern) else Pattern(pattern, flags)
        if isinstance(reader := self.reader, IndexedReader):
            return await self._collect(lambda: reader.search(compiled))
        count = await self.line_count()
        return [line async for line in self._each_line(0, count) if compiled.matches(line)]

    async def byte_length(self) -> int:
        hint = self._sizes.byte_length
        return await _resolved(self.reader.byte_length()) if hint is None else hint

    async def line_count(self) -> int:
        hint = self._sizes.line_count
        return await _resolved(self.reader.line_count()) if hint is None else hint

    async def estimate_tokens(self, encoding: str) -> int:
        """Tokens of the whole text, terminators included."""
        return ESTIMATORS.estimate(await self.as_string(), encoding)

    async def as_string(self) -> str:
        """The whole text, faithful to the bytes."""
        text: str = await _resolved(self.reader.read_all())
        return text

    @classmethod
    def forge_tools(cls, ctx: Any) -> ToolRegistry:
        """The query tools for the artifacts of `ctx`: the base seven, and those of this class.

        The `callId` enum is a snapshot; ids stored later need another forge. Descriptors are
        narrowed to instances of the class that lists them, so a subclass inherits its parent's.
        """
        forged = ToolRegistry()
        for owner in reversed(cls.__mro__):
            descriptors = owner.__dict__.get("tool_methods", ())
            ids = artifact_ids(ctx, owner) if descriptors else []
            if ids:
                own = [forge_tool(each, ids, owner) for each in descriptors if not forged.has(each.name)]
                forged = ToolRegistry.merge([forged, ToolRegistry.merge([ToolRegistry([tool]) for tool in own])])
        return forged

    @classmethod
    def effective_methods(cls) -> list[ToolMethod]:
        """Own descriptors followed by inherited ones, each name once."""
        found: dict[str, ToolMethod] = {}
        for owner in cls.__mro__:
            for descriptor in owner.__dict__.get("tool_methods", ()):
                found.setdefault(descriptor.name, descriptor)
        return list(found.values())

    async def _collect(self, lines: Callable[[], Iterator[str]]) -> list[str]:
        if await self.byte_length() > _THREAD_ABOVE:  # long enough to hold up every other turn
            return await asyncio.to_thread(lambda: list(lines()))
        return list(lines())

    async def _each_line(self, start: int, end: int) -> Any:
        allowance = Allowance()
        for index in range(start, end):
            line = await _resolved(self.reader.line(index))
            if line is not None:
                allowance.take(len(line))
                yield line


def is_artifact(value: object) -> bool:
    """Whether a value can stand as an artifact: judged by shape, like an artifact constructor."""
    return is_artifact_class(type(value))


def artifact_ids(ctx: Any, owner: type = SpooledArtifact) -> list[str]:
    """Ids whose content is an artifact of class `owner`, in the order of the records."""
    calls = [call.id for call in ctx.turn_tool_calls if not call.from_artifact_tool and isinstance(call.results, owner)]
    retrieved = [record.id for record in _retrieved(ctx) if isinstance(record.content, owner)]
    if shared := set(calls) & set(retrieved):
        raise ArtifactIdCollision(f"a tool call and a retrieved record share the id {min(shared)!r}")
    return list(dict.fromkeys([*calls, *retrieved]))


def find_artifact(ctx: Any, id: str, owner: type = SpooledArtifact) -> Any:
    """The artifact of class `owner` with that id in this turn, or `None`. Never looks anywhere else."""
    for call in ctx.turn_tool_calls:
        if call.id == id and not call.from_artifact_tool and isinstance(call.results, owner):
            return call.results
    for record in _retrieved(ctx):
        if record.id == id and isinstance(record.content, owner):
            return record.content
    return None


def forge_tool(descriptor: ToolMethod, ids: Sequence[str], owner: type) -> ArtifactTool:
    """One query tool, bound to the ids known now and to whatever context it is called in."""
    document = dict(descriptor.args_schema or {"type": "object", "properties": {}})
    order = list(document["properties"])
    choice = {"type": "string", "enum": list(ids), "description": "The id of the call whose result is queried."}
    document["properties"] = {"callId": choice, **document["properties"]}
    document["required"] = ["callId", *document.get("required", ())]

    async def handle(args: dict[str, Any], ctx: Any, meta: object) -> str:
        artifact = find_artifact(ctx, args["callId"], owner)
        if artifact is None:
            return f"Error: no artifact with the id {args['callId']!r} is available in this turn."
        method = getattr(artifact, descriptor.method, None)
        if method is None:
            return f"Error: the artifact has no method {descriptor.method!r}."
        with answer_limit(MAX_QUERY_ANSWER):
            answer = await _resolved(method(*_positional(order, args)))
        return (descriptor.serialise or serialise)(answer)

    return ArtifactTool(
        name=descriptor.name,
        description=descriptor.description,
        input_schema=Schema(document),
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
        return js_number(answer)
    return pretty(answer)


def _retrieved(ctx: Any) -> list[Any]:
    return [record for record in getattr(ctx, "turn_retrievables", ()) if not getattr(record, "inline", True)]


def _positional(order: Sequence[str], args: dict[str, Any]) -> list[Any]:
    """Arguments in declared order; trailing ones that were not given are left to the method's defaults."""
    given = [args.get(name, UNDEFINED) for name in order]
    while given and given[-1] is UNDEFINED:
        given.pop()
    return [None if value is UNDEFINED else value for value in given]


async def _resolved(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
