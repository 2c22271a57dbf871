"""SpooledToonArtifact: Token-Oriented Object Notation, a compact text form of JSON, queried by JSONPath."""

from typing import Any, ClassVar

from gateway.core.artifacts import ToolMethod
from gateway.core.spool import SpoolReader
from gateway.errors import ArtifactError, ToonDecodeFailed, ToonPeerMissing
from gateway.formats.documents import (
    PATH_ARGUMENT,
    RANGE_ARGUMENTS,
    DocumentArtifact,
    clipped,
    method_builder,
    require_shallow,
)

_method = method_builder("toon")


class SpooledToonArtifact(DocumentArtifact[list[Any]]):
    """`strict` checks declared lengths and indentation, in steps of `indent_size` spaces."""

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
            raise ValueError("'indent_size' is at least 1")
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
        library = toon_library()
        try:
            root = library.loads(text, indent_size=self._indent_size, strict=self._strict, parse_int=_integer)
        except library.ToonDecodeError as error:
            raise ToonDecodeFailed(_described(error)) from error
        require_shallow(root, ToonDecodeFailed)
        return [root]

    def _records(self, document: list[Any]) -> list[Any]:
        return document


def toon_library() -> Any:
    """The TOON library; raises `ToonPeerMissing` where it is not installed."""
    try:
        import toon_format
    except ImportError as error:
        raise ToonPeerMissing(help="install toon-format") from error
    return toon_format


def _integer(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:  # Python's own limit, against quadratic time
        raise ValueError("an integer has thousands of digits") from None


def _described(error: Any) -> str:
    reason = clipped(error.msg[:1].lower() + error.msg[1:])
    if error.line is None:
        return reason
    return f"{reason} (line {error.line}: {clipped(error.source or '')!r})"
