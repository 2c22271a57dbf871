"""SpooledToonArtifact: Token-Oriented Object Notation, a compact text form of JSON, queried by JSONPath."""

from typing import Any, ClassVar

from gateway.artifacts.formats.document_artifact import (
    PATH_ARGUMENT,
    RANGE_ARGUMENTS,
    DocumentArtifact,
    check_depth,
    tool_method_factory,
    truncate,
)
from gateway.artifacts.query_tools import ToolMethod
from gateway.errors import ArtifactError, ToonDecodeFailed, ToonPeerMissing
from gateway.model import SpoolReader

_method = tool_method_factory("toon")


class SpooledToonArtifact(DocumentArtifact[list[Any]]):
    """A TOON artifact. `strict` checks declared lengths and indentation, in steps of `indent_size` spaces."""

    tool_methods: ClassVar[tuple[ToolMethod, ...]] = (
        _method("type", "Returns its format."),
        _method("keys", "Returns the keys of its root object."),
        _method("length", "Returns how many items its root list has; 1 if the root is no list."),
        _method("get", "Returns every value a JSONPath finds.", PATH_ARGUMENT),
        _method("pluck", "Returns every value a JSONPath finds.", PATH_ARGUMENT),
        _method("filter", "Returns the root in a list if a JSONPath finds something in it.", PATH_ARGUMENT),
        _method("slice", "Returns a range of its root list.", RANGE_ARGUMENTS),
    )
    parse_error: ClassVar[type[ArtifactError]] = ToonDecodeFailed

    def __init__(self, reader: SpoolReader, *, indent_size: int = 2, strict: bool = True) -> None:
        super().__init__(reader)
        if indent_size < 1:
            raise ValueError("'indent_size' must be at least 1")
        self._indent_size = indent_size
        self._strict = strict

    async def toon_type(self) -> dict[str, str]:
        return {"format": "toon"}

    async def toon_keys(self) -> Any:
        return await self._keys()

    async def toon_length(self) -> int:
        root = await self.value()
        return len(root) if isinstance(root, list) else 1

    async def toon_get(self, path: str) -> list[Any]:
        return await self._get(path)

    async def toon_pluck(self, path: str) -> list[Any]:
        return await self._get(path)

    async def toon_filter(self, path: str) -> list[Any]:
        return await self._filter(path)

    async def toon_slice(self, start: int | None = None, end: int | None = None) -> list[Any]:
        root = await self.value()
        return root[start:end] if isinstance(root, list) else [root]

    def _parse(self, text: str) -> list[Any]:
        library = import_toon()
        try:
            root = library.loads(text, indent_size=self._indent_size, strict=self._strict, parse_int=_integer)
        except library.ToonDecodeError as error:
            raise ToonDecodeFailed(_describe_error(error)) from error
        check_depth(root, ToonDecodeFailed)
        return [root]

    def _records(self, document: list[Any]) -> list[Any]:
        return document


def import_toon() -> Any:
    """Import the TOON library. Raises `ToonPeerMissing` if it is not installed."""
    try:
        import toon_format
    except ImportError as error:
        raise ToonPeerMissing(help="install toon-format") from error
    return toon_format


def _integer(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:  # Python limits digits, because converting them takes quadratic time
        raise ValueError("an integer has thousands of digits") from None


def _describe_error(error: Any) -> str:
    reason = truncate(error.msg[:1].lower() + error.msg[1:])
    if error.line is None:
        return reason
    return f"{reason} (line {error.line}: {truncate(error.source or '')!r})"
