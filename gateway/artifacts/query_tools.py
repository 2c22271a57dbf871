"""Query tools: their descriptors, the artifacts they find in a turn, and the text of their answers."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any, Final

from gateway.artifacts.indexed_reader import encode_utf8, limit_answer
from gateway.artifacts.search import PAGE_ARGUMENTS, PageRequest, use_page_request
from gateway.errors import AnswerTooLarge, ArtifactIdCollision, InvalidInitialToolValue
from gateway.model import (
    UNDEFINED,
    ArtifactTool,
    Schema,
    candidate_call_ids,
    format_js_number,
    pieces_of,
    to_pretty_json,
    warn_into,
)

MAX_QUERY_ANSWER: Final = 4 << 20
"""Bytes that one query tool may collect or return; calls from Python are not limited.

Memory holds several copies of an answer, and one emoji makes each of its characters take four bytes.
"""

_CALL_ID: Final = {"type": "string", "description": "The id of the call whose result is queried."}


@dataclass(frozen=True)
class ToolMethod:
    """Describes one query tool: the method it calls and its arguments besides `callId`.

    Arguments are passed by position, in the order of `args_schema`'s properties; an omitted argument
    has the method's default. `serialise` replaces the default conversion of the result to text. A
    tool of `grep` that has the arguments `PAGE_ARGUMENTS` returns a page at a time; the method does
    not receive these. An invalid descriptor raises `InvalidInitialToolValue` at once.
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
        """The names of the arguments besides `callId`, in the order of the method's parameters."""
        return [name for name in self._properties if not (self.is_paged and name in PAGE_ARGUMENTS)]

    @property
    def is_paged(self) -> bool:
        return self.method == "grep" and PAGE_ARGUMENTS.keys() <= set(self._properties)

    @property
    def _properties(self) -> list[str]:
        return list((self.args_schema or {}).get("properties", ()))

    def schema(self, ids: Sequence[str]) -> Schema:
        """Return the input schema of the tool: one of `ids`, and the arguments of the method."""
        return self.template.with_enum("callId", ids)

    @cached_property
    def template(self) -> Schema:
        """The input schema without ids. Compiled once; `schema` only adds the ids."""
        return _template_of(self)


def _template_of(descriptor: ToolMethod) -> Schema:
    for name in ("name", "method", "description"):
        if not isinstance(value := getattr(descriptor, name), str) or not value:
            raise ValueError(f"{name!r} must be a non-empty string")
    document = {"type": "object", "properties": {}, **(descriptor.args_schema or {})}
    if document["type"] != "object" or "callId" in document["properties"]:
        raise ValueError("'args_schema' must describe an object without callId")
    document["properties"] = {"callId": _CALL_ID, **document["properties"]}
    document["required"] = ["callId", *document.get("required", ())]
    return Schema(document)


def collect_artifacts(ctx: Any, owner: type) -> dict[str, Any]:
    """Return the artifacts of class `owner` that can be queried, by id, in the order of the records."""
    calls = {
        id: artifact
        for call in ctx.turn_tool_calls
        if not call.from_artifact_tool
        for id, artifact in pieces_of(call.id, call.results)
        if isinstance(artifact, owner)
    }
    retrieved = {record.id: record.content for record in _retrievables(ctx) if isinstance(record.content, owner)}
    if shared := calls.keys() & retrieved.keys():
        raise ArtifactIdCollision(f"a tool call and a retrieved record share the id {min(shared)!r}")
    return calls | retrieved


def find_artifact(ctx: Any, id: str, owner: type) -> Any:
    """Return the artifact of class `owner` with that id in this turn, or `None`. Searches this turn only."""
    names = candidate_call_ids(id)
    calls = [call for call in ctx.turn_tool_calls if call.id in names and not call.from_artifact_tool]
    for call in sorted(calls, key=lambda each: names.index(each.id)):
        found = dict(pieces_of(call.id, call.results)).get(id)
        if isinstance(found, owner):
            return found
    for record in _retrievables(ctx):
        if record.id == id and isinstance(record.content, owner):
            return record.content
    return None


def build_query_tool(descriptor: ToolMethod, ids: Sequence[str] | None, owner: type) -> ArtifactTool:
    """Create one query tool, with an enum of `ids` unless they are `None`. It queries the context it is called in."""

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
        query = PageRequest(args.get("limit"), args.get("fromLine", 0)) if descriptor.is_paged else None
        with limit_answer(MAX_QUERY_ANSWER), warn_into(ctx), use_page_request(query):
            answer = await resolve(method(*_positional_arguments(method, descriptor.arguments, args)))
            text = _check_size((descriptor.serialise or to_text)(answer))
        if query is None:
            return text
        return query.append_continuation(text, tool=descriptor.name, line_count=await artifact.line_count())

    return ArtifactTool(
        name=descriptor.name,
        description=descriptor.description,
        input_schema=descriptor.schema(ids) if ids is not None else descriptor.template,
        handler=handle,
        ephemeral=True,
        on_collision="replace",
    )


def to_text(answer: Any) -> str:
    """Convert the answer of a query to its default text."""
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
    return to_pretty_json(answer)


def _number_text(number: int | float) -> str:
    text = format_js_number(number)
    if text != "null":
        return text
    if number != number:
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def _check_size(text: str) -> str:
    """Raise `AnswerTooLarge` if the text is too large. A custom `serialise` may return anything, even no text."""
    if isinstance(text, str) and len(text) > MAX_QUERY_ANSWER // 4 and len(encode_utf8(text)) > MAX_QUERY_ANSWER:
        raise AnswerTooLarge(f"the answer is larger than {MAX_QUERY_ANSWER} bytes", help="ask for less at once")
    return text


def ids_offering(holders: dict[str, Any], method: str) -> list[str]:
    return [id for id, artifact in holders.items() if _offers(artifact, method)]


def _offers(artifact: Any, method: str) -> bool:
    queries = getattr(type(artifact), "queries", None)
    return queries is None or method in queries


def _retrievables(ctx: Any) -> list[Any]:
    return [record for record in getattr(ctx, "turn_retrievables", ()) if not getattr(record, "inline", True)]


def _positional_arguments(method: Callable[..., Any], order: Sequence[str], args: dict[str, Any]) -> list[Any]:
    """Return the arguments in declared order; an omitted one has the method's default."""
    values = [args.get(name, UNDEFINED) for name in order]
    while values and values[-1] is UNDEFINED:
        values.pop()
    if all(value is not UNDEFINED for value in values):
        return values
    parameters = inspect.signature(method).parameters.values()
    defaults = [None if each.default is each.empty else each.default for each in parameters]
    filled = zip_longest(values, defaults[: len(values)])
    return [default if value is UNDEFINED else value for value, default in filled]


async def resolve(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
