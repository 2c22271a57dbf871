"""Artifacts as the model sees them: their base class, their readers and byte stores, and their ids."""

from collections.abc import AsyncIterable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeGuard

SpoolContent = str | bytes | bytearray | memoryview
ContentStream = Iterable[SpoolContent] | AsyncIterable[SpoolContent]


ARTIFACT_METHODS: Final = ("head", "tail", "grep", "cat", "byte_length", "line_count", "estimate_tokens")
"""A class that has these methods is an artifact class, whatever it derives from."""
_PIECE: Final = "#"
"""Separates the id of a call from the number of an artifact in its list of results."""


class SpoolReader(Protocol):
    """Line-indexed text. Each method may be sync or async; `line` returns `None` out of range.

    An optional `describe()` returns `{"tag": ..., "locator": ...}`, so that the reader can be
    persisted and restored.
    """

    def line(self, index: int) -> Any: ...

    def byte_length(self) -> Any: ...

    def line_count(self) -> Any: ...

    def read_all(self) -> Any: ...


class ByteStore(Protocol):
    """A store of bytes by id. After an id is rewritten, earlier readers still read the old bytes."""

    async def write(self, id: str, content: SpoolContent | ContentStream) -> SpoolReader: ...

    async def read(self, id: str) -> SpoolReader | None: ...

    async def delete(self, id: str) -> bool: ...


def is_spool_reader(value: object) -> TypeGuard[SpoolReader]:
    # Without a generator: every result comes here.
    return (
        callable(getattr(value, "line", None))
        and callable(getattr(value, "byte_length", None))
        and callable(getattr(value, "line_count", None))
        and callable(getattr(value, "read_all", None))
    )


class Artifact:
    """A stored result that query tools read. `gateway.artifacts` implements it."""

    if TYPE_CHECKING:

        @classmethod
        def effective_methods(cls) -> Sequence[Any]: ...

        async def as_string(self) -> str: ...


def is_artifact(value: object) -> bool:
    """Whether a value can be used as an artifact. Its shape decides, as for an artifact class."""
    return isinstance(value, Artifact) or is_artifact_class(type(value))


def is_artifact_class(value: object) -> TypeGuard[type]:
    """Whether a value is a class that has the shape of an artifact class."""
    return isinstance(value, type) and all(callable(getattr(value, method, None)) for method in ARTIFACT_METHODS)


def pieces_of(id: str, results: Any) -> list[tuple[str, Any]]:
    """Return the results of a call with their ids.

    A single result has the id of the call. Several are numbered from 0: `CALL#0`, `CALL#1`.
    """
    if not isinstance(results, list):
        return [(id, results)]
    return [(piece_id(id, number, of=len(results)), each) for number, each in enumerate(results)]


def piece_id(call_id: str, number: int, *, of: int) -> str:
    """Return the id of one of `of` results."""
    return call_id if of == 1 else f"{call_id}{_PIECE}{number}"


def candidate_call_ids(id: str) -> tuple[str, ...]:
    """Return the ids of the calls that may have an artifact with this id. A call with exactly this id comes first."""
    call, _, number = id.rpartition(_PIECE)
    return (id, call) if call and number.isascii() and number.isdecimal() else (id,)
