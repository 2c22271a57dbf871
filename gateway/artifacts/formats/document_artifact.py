"""The base of artifacts of structured formats: parse once, query by JSONPath, describe the tools.

A subclass parses its format and returns the records that a path is applied to. The names of its
query tools contain the name of the format. This module does not depend on any format.

Paths come from models and are limited: in length, in nesting and in the nodes that one query may visit.
`javascript_jsonpath` describes the syntax.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from gateway.artifacts.query_tools import MAX_QUERY_ANSWER, ToolMethod, to_text
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.errors import AnswerTooLarge, ArtifactError, JsonPathInvalid, PeerMissing
from gateway.model import UNDEFINED, SpoolReader

MAX_PATH_LENGTH: Final = 2_048
MAX_PIECES: Final = 128
"""Dots, brackets and similar characters in one path: the parser recurses, and generators nest, at each of them."""

MAX_VISITS: Final = 1_000_000
"""Nodes that one query may visit, which takes some seconds; every record adds `_VISITS_PER_RECORD`."""

_VISITS_PER_RECORD: Final = 10


class JsonPathMatch(Protocol):
    """A value inside a document, its key, and its parent."""

    @property
    def obj(self) -> Any: ...

    @property
    def key(self) -> str | int | None: ...

    @property
    def parent(self) -> "JsonPathMatch | None": ...


class JsonPath:
    """A compiled path. Raises `JsonPathInvalid` for an invalid path."""

    __slots__ = ("_compiled", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        self._compiled = _compile(source)

    def values(self, records: Sequence[Any]) -> list[Any]:
        """Return the values that the path finds in all records, as one list; none in a falsy record."""
        return [place.obj for places in self._each(records) for place in places]

    def filter(self, records: Sequence[Any]) -> list[Any]:
        """Return the records in which the path finds something."""
        searched = zip(records, self._each(records), strict=True)
        return [record for record, places in searched if next(places, None) is not None]

    def matches(self, record: Any) -> Iterator[JsonPathMatch]:
        """Yield the nodes of the record that the path finds, in order."""
        return next(self._each([record]))

    def _each(self, records: Sequence[Any]) -> Iterator[Iterator[JsonPathMatch]]:
        jsonpath = _javascript_jsonpath()
        budget = jsonpath.VisitBudget(MAX_VISITS + _VISITS_PER_RECORD * len(records))
        return (jsonpath.find_nodes(self._compiled, record, budget=budget) for record in records)


@lru_cache(maxsize=256)
def _compile(source: str) -> Any:
    if not source.strip():
        raise JsonPathInvalid("the path is empty", help="use $ for the whole document")
    if len(source) > MAX_PATH_LENGTH:
        raise JsonPathInvalid(f"the path is longer than {MAX_PATH_LENGTH} characters")
    if sum(source.count(char) for char in ".^~([!") > MAX_PIECES:
        raise JsonPathInvalid(f"the path has more than {MAX_PIECES} dots, brackets and the like")
    return _javascript_jsonpath().compile_path(source)


def _javascript_jsonpath() -> Any:
    try:
        from gateway.artifacts.formats import javascript_jsonpath
    except ImportError as error:
        raise PeerMissing("the JSONPath parser is not installed", help="install python-jsonpath") from error
    return javascript_jsonpath


MAX_DEPTH: Final = 256
"""Levels of nesting in one document: all parsers and writers here can recurse deeper."""

_THREAD_ABOVE: Final = 1 << 20

_CONTAINERS: Final = (dict, list)  # a tuple: `dict | list` would be rebuilt for every value
_SHOWN: Final = 80
_VALUE_OVERHEAD: Final = 64
"""Bytes that printing a value needs besides its text, so that many small values are counted, too."""

ParsedDocument = TypeVar("ParsedDocument")
ToolArguments = TypeVar("ToolArguments")
DocumentAnswer = TypeVar("DocumentAnswer")
ParseFailure = TypeVar("ParseFailure", bound=ArtifactError)


class DocumentArtifact(SpooledArtifact, Generic[ParsedDocument]):
    """An artifact whose text is parsed on first use. Unlike its parent it caches the result."""

    parse_limit: ClassVar[int] = 8 << 20
    """A larger content is not parsed; it can still be read line by line."""

    parse_error: ClassVar[type[ArtifactError]] = ArtifactError

    def __init__(self, reader: SpoolReader) -> None:
        super().__init__(reader)
        self._parsed: list[ParsedDocument] = []

    @abstractmethod
    def _parse(self, text: str) -> ParsedDocument:
        """Parse the text; runs in a thread if the text is long."""

    @abstractmethod
    def _records(self, document: ParsedDocument) -> list[Any]:
        """Return the records that paths are applied to, one after the other."""

    async def value(self) -> Any:
        """Return the whole content as one JSON value: the only record, or the list of all records."""
        records = await self._all_records()
        return records[0] if len(records) == 1 else records

    async def _document(self) -> ParsedDocument:
        if not self._parsed:
            size = await self.byte_length()
            if size > self.parse_limit:
                raise self.parse_error(
                    f"the document has {size} bytes; at most {self.parse_limit} are parsed",
                    help="read it line by line with artifact_grep or artifact_cat",
                )
            self._parsed = [await self._load(await self.as_string())]
        return self._parsed[0]

    async def _load(self, text: str) -> ParsedDocument:
        return await self._apply(self._parse, text)

    async def _apply(self, function: Callable[[ToolArguments], DocumentAnswer], value: ToolArguments) -> DocumentAnswer:
        """Call a function whose time grows with the content; in a thread if the content is large."""
        if await self.byte_length() > _THREAD_ABOVE:
            return await asyncio.to_thread(function, value)
        return function(value)

    async def _all_records(self) -> list[Any]:
        return self._records(await self._document())

    async def _keys(self) -> Any:
        """Return the keys of all records that are objects, in order; `UNDEFINED` if there is no object."""
        return await self._apply(_keys_of, await self._all_records())

    async def _get(self, path: str) -> list[Any]:
        records = await self._all_records()
        return await asyncio.to_thread(lambda: JsonPath(path).values(records))

    async def _filter(self, path: str) -> list[Any]:
        records = await self._all_records()
        return await asyncio.to_thread(lambda: JsonPath(path).filter(records))


def _keys_of(records: Sequence[Any]) -> Any:
    objects = [record for record in records if isinstance(record, dict)]
    if not objects:
        return UNDEFINED
    return list(dict.fromkeys(key for record in objects for key in record))


def check_depth(value: Any, error: type[ArtifactError]) -> None:
    """Raise `error` for nesting past `MAX_DEPTH`: code that prints a document is recursive."""
    level = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, _CONTAINERS)
        ]
    if level:
        raise depth_error(error)


def depth_error(error: type[ParseFailure]) -> ParseFailure:
    return error(
        f"the document is nested deeper than {MAX_DEPTH} levels", help="read it line by line with artifact_cat"
    )


def truncate(text: str) -> str:
    """Shorten a text from a document for a message."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def to_bounded_text(answer: Any) -> str:
    """Return the default text of an answer; raise `AnswerTooLarge` before building a text that is too large."""
    left = MAX_QUERY_ANSWER
    pending = [(answer, 0)]
    while pending:
        value, depth = pending.pop()
        if isinstance(value, dict):
            left -= sum(map(len, value))
            members: Any = value.values()
        else:
            members = value if isinstance(value, list) else ()
            left -= len(value) if isinstance(value, str) else 0
        left -= len(members) * (_VALUE_OVERHEAD + 2 * depth)
        if left < 0:
            raise AnswerTooLarge(
                f"the answer is larger than {MAX_QUERY_ANSWER} bytes",
                help="ask for less with a narrower path, or with start and end",
            )
        pending.extend((member, depth + 1) for member in members)
    return to_text(answer)


PATH_ARGUMENT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "path": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_PATH_LENGTH,
            "description": "A JSONPath such as $.items[?(@.price > 10)].name",
        }
    },
    "required": ["path"],
}
RANGE_ARGUMENTS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "start": {"type": "integer", "minimum": 0, "description": "First one, counted from 0."},
        "end": {"type": "integer", "minimum": 0, "description": "The one to stop before."},
    },
}


def tool_method_factory(format: str) -> Callable[..., ToolMethod]:
    """Return a builder of the descriptors of one format: `artifact_<format>_<name>` calls `<format>_<name>`."""

    def build(name: str, what: str, args_schema: dict[str, Any] | None = None) -> ToolMethod:
        article = "an" if format[0] in "aeiox" else "a"  # as names in capitals are read: an INI, an XML, a YAML
        return ToolMethod(
            f"artifact_{format}_{name}",
            f"{format}_{name}",
            f"Queries {article} {format.upper()} artifact of this turn, selected by callId. {what}",
            args_schema,
            to_bounded_text,
        )

    return build
