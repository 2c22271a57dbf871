"""What the artifacts of structured formats share: parsing once, querying by JSONPath, describing the tools.

A format says how its text is parsed and which records a path is run against; its query tools have
the format's name in theirs. Nothing here knows a format.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

from gateway.core.artifacts import MAX_QUERY_ANSWER, SpooledArtifact, ToolMethod, serialise
from gateway.core.canonical import UNDEFINED
from gateway.core.spool import SpoolReader
from gateway.errors import AnswerTooLarge, ArtifactError
from gateway.formats.paths import MAX_PATH_LENGTH, Path

MAX_DEPTH: Final = 256
"""Levels of nesting in one document: less than what any parser or writer here can recurse into."""

_THREAD_ABOVE: Final = 1 << 20

_CONTAINERS: Final = (dict, list)  # a tuple: `dict | list` would be built anew for every value
_SHOWN: Final = 80
_VALUE_OVERHEAD: Final = 64
"""What printing one small value costs besides its text, so that many of them count, too."""

Parsed = TypeVar("Parsed")
Given = TypeVar("Given")
Answer = TypeVar("Answer")
Failure = TypeVar("Failure", bound=ArtifactError)


class DocumentArtifact(SpooledArtifact, Generic[Parsed]):
    """An artifact whose text is parsed on first use. Unlike its parent it keeps the result."""

    parse_limit: ClassVar[int] = 8 << 20
    """A larger content is not parsed; it can still be read line by line."""

    parse_error: ClassVar[type[ArtifactError]] = ArtifactError

    def __init__(self, reader: SpoolReader) -> None:
        super().__init__(reader)
        self._parsed: list[Parsed] = []

    @abstractmethod
    def _parse(self, text: str) -> Parsed:
        """Runs in a thread where the text is long."""

    @abstractmethod
    def _records(self, document: Parsed) -> list[Any]:
        """What paths are run against, one after the other."""

    async def value(self) -> Any:
        """The whole content as one JSON value: the only record, or the list of all of them."""
        records = await self._all_records()
        return records[0] if len(records) == 1 else records

    async def _document(self) -> Parsed:
        if not self._parsed:
            size = await self.byte_length()
            if size > self.parse_limit:
                raise self.parse_error(
                    f"the document has {size} bytes; at most {self.parse_limit} are parsed",
                    help="read it line by line with artifact_grep or artifact_cat",
                )
            self._parsed = [await self._load(await self.as_string())]
        return self._parsed[0]

    async def _load(self, text: str) -> Parsed:
        return await self._apply(self._parse, text)

    async def _apply(self, function: Callable[[Given], Answer], value: Given) -> Answer:
        """Call a function that takes as long as the content is long."""
        if await self.byte_length() > _THREAD_ABOVE:
            return await asyncio.to_thread(function, value)
        return function(value)

    async def _all_records(self) -> list[Any]:
        return self._records(await self._document())

    async def _keys(self) -> Any:
        """The keys of all objects among the records, as they are first seen; missing without an object."""
        return await self._apply(_keys_of, await self._all_records())

    async def _get(self, path: str) -> list[Any]:
        records = await self._all_records()
        return await asyncio.to_thread(lambda: Path(path).values(records))

    async def _filter(self, path: str) -> list[Any]:
        records = await self._all_records()
        return await asyncio.to_thread(lambda: Path(path).matching(records))


def _keys_of(records: Sequence[Any]) -> Any:
    objects = [record for record in records if isinstance(record, dict)]
    if not objects:
        return UNDEFINED
    return list(dict.fromkeys(key for record in objects for key in record))


def require_shallow(value: Any, error: type[ArtifactError]) -> None:
    """Refuse nesting past `MAX_DEPTH`: everything that prints a document recurses into it."""
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
        raise too_deep(error)


def too_deep(error: type[Failure]) -> Failure:
    return error(
        f"the document is nested deeper than {MAX_DEPTH} levels", help="read it line by line with artifact_cat"
    )


def clipped(text: str) -> str:
    """Enough of a document's own words to recognise them in a message."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def bounded_text(answer: Any) -> str:
    """The default text of an answer, refused before it is built if it would be too large."""
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
    return serialise(answer)


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


def method_builder(format: str) -> Callable[..., ToolMethod]:
    """Builds the descriptors of one format: `artifact_<format>_<name>` calls `<format>_<name>`."""

    def build(name: str, what: str, args_schema: dict[str, Any] | None = None) -> ToolMethod:
        article = "an" if format == "xml" else "a"
        return ToolMethod(
            f"artifact_{format}_{name}",
            f"{format}_{name}",
            f"Queries {article} {format.upper()} artifact of this turn, selected by callId. {what}",
            args_schema,
            bounded_text,
        )

    return build
