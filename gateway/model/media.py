"""Media: bytes that a model is shown, not text that it queries, with their trust tier and modality hazard.

The bytes stay behind a lazy reader. They are read only where a provider block or an upload is
built; events, records and `to_json` carry metadata only. `MediaReader` and `SpoolReader` share
no methods but `byte_length`: media cannot be queried line by line.
"""

import asyncio
import base64
import inspect
import operator
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeGuard, get_args
from uuid import uuid4

from gateway.errors import (
    InvalidInitialMediaValue,
    InvalidInitialRegistryValue,
    NotAMediaReader,
    ValidationException,
    problem,
)
from gateway.model.primitives.containers import DottedDict, Immutable

MediaKind = Literal["image", "audio", "video", "document"]
TrustTier = Literal["first-party", "third-party-public", "third-party-private"]
ModalityHazard = Literal["inert", "extractable-instructions", "opaque-perceptual"]
Chunk = bytes | bytearray | memoryview
ByteStream = Iterable[Chunk] | AsyncIterable[Chunk]

TIERS: Final[tuple[TrustTier, ...]] = get_args(TrustTier)
"""Ordered from the most to the least trusted."""

_CHUNK: Final = 1 << 20
_ENTRY_FIELDS: Final = frozenset({"value", "trust_tier", "derived_from_media"})
_MISSING: Final[Any] = object()


class MediaReader(Protocol):
    """Opaque bytes. `stream()` starts from the beginning on each call; both methods may be sync or async.

    A stream is an iterable of chunks, an async iterable of them, a binary file or bytes. It is closed after use.
    `byte_length()` returns `None` if the length is unknown.
    """

    def stream(self) -> Any: ...

    def byte_length(self) -> Any: ...


def is_media_reader(value: object) -> TypeGuard[MediaReader]:
    """Whether `value` has the methods of a media reader. A class is not a reader, only an instance is."""
    if isinstance(value, type):
        return False
    return all(callable(getattr(value, name, None)) for name in ("stream", "byte_length"))


class InMemoryMediaReader:
    def __init__(self, content: Chunk) -> None:
        self._content = _bytes_of(content)

    def stream(self) -> ByteStream:
        return [self._content]

    def byte_length(self) -> int:
        return len(self._content)


class FileMediaReader:
    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def stream(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk

    def byte_length(self) -> int:
        return self._path.stat().st_size

    def describe(self) -> dict[str, Any]:
        return {"tag": "media-file", "locator": str(self._path)}


class OpenedMediaReader:
    """A reader that calls `opener` for each read: for a download, a blob or a generator.

    An opener that waits is an async function. It must return an unread stream on each call. Use an
    `InMemoryMediaReader` for a source that can be read only once.
    """

    def __init__(self, opener: Callable[[], Any], byte_length: int | None = None) -> None:
        self._opener = opener
        self._byte_length = byte_length

    def stream(self) -> Any:
        return self._opener()

    def byte_length(self) -> int | None:
        return self._byte_length


class Media(Immutable):
    """One asset. Trust tier and hazard have no default: only the producer knows them.

    `stash` maps a name to `{value, trust_tier, derived_from_media?}`: text for consumers that
    cannot show the bytes. The stash is mutable, the other fields are not.
    """

    __slots__ = (
        "filename",
        "id",
        "kind",
        "mime_type",
        "modality_hazard",
        "reader",
        "source",
        "stash",
        "trust_tier",
    )

    id: str
    kind: MediaKind
    mime_type: str
    filename: str
    reader: MediaReader
    trust_tier: TrustTier
    modality_hazard: ModalityHazard
    source: str | None
    stash: DottedDict

    def __init__(
        self,
        *,
        kind: MediaKind = _MISSING,
        mime_type: str = _MISSING,
        filename: str = _MISSING,
        reader: MediaReader = _MISSING,
        trust_tier: TrustTier = _MISSING,
        modality_hazard: ModalityHazard = _MISSING,
        id: str | None = None,
        source: str | None = None,
        stash: dict[str, Any] | None = None,
        **unknown: object,
    ) -> None:
        problems = [
            *_choice_problems("kind", kind, get_args(MediaKind)),
            *_text_problems("mime_type", mime_type),
            *_text_problems("filename", filename),
            *_reader_problems(reader),
            *_choice_problems("trust_tier", trust_tier, TIERS),
            *_choice_problems("modality_hazard", modality_hazard, get_args(ModalityHazard)),
            *([] if id is None else _text_problems("id", id)),
            *([] if source is None else _text_problems("source", source)),
            *_stash_problems(stash),
            *(problem(f"{key!r} is not a field of a media value", [key], "unknown") for key in unknown),
        ]
        if problems:
            raise InvalidInitialMediaValue(cause=ValidationException(problems))
        self._decide(
            id=id or str(uuid4()),
            kind=kind,
            mime_type=mime_type,
            filename=filename,
            reader=reader,
            trust_tier=trust_tier,
            modality_hazard=modality_hazard,
            source=source,
            stash=DottedDict(stash),
        )

    @staticmethod
    def is_media(value: object) -> "TypeGuard[Media]":
        return isinstance(value, Media)

    @classmethod
    def user_attachment(cls, kind: MediaKind = _MISSING, **fields: Any) -> "Media":
        return cls(kind=kind, trust_tier="third-party-private", modality_hazard=modality_hazard(kind), **fields)

    @classmethod
    def tool_generated(cls, kind: MediaKind = _MISSING, **fields: Any) -> "Media":
        return cls(kind=kind, trust_tier="first-party", modality_hazard=modality_hazard(kind), **fields)

    @classmethod
    def retrieved_public(cls, kind: MediaKind = _MISSING, **fields: Any) -> "Media":
        return cls(kind=kind, trust_tier="third-party-public", modality_hazard=modality_hazard(kind), **fields)

    @classmethod
    def retrieved_private(cls, kind: MediaKind = _MISSING, **fields: Any) -> "Media":
        return cls(kind=kind, trust_tier="third-party-private", modality_hazard=modality_hazard(kind), **fields)

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the bytes. Each call reads the source from the beginning."""
        opened = await _resolve(self.reader.stream())
        try:
            async with aclosing(_chunks(opened)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            await _close(opened)

    async def byte_length(self) -> int | None:
        length = await _resolve(self.reader.byte_length())
        return None if length is None else operator.index(length)

    async def as_bytes(self) -> bytes:
        return b"".join([chunk async for chunk in self.stream()])

    async def as_base64(self) -> str:
        return base64.b64encode(await self.as_bytes()).decode("ascii")

    def to_json(self) -> dict[str, Any]:
        """Return the metadata, without reading any bytes."""
        return {
            "id": self.id,
            "kind": self.kind,
            "mimeType": self.mime_type,
            "filename": self.filename,
            "trustTier": self.trust_tier,
            "modalityHazard": self.modality_hazard,
            **({"source": self.source} if self.source else {}),
        }

    def __repr__(self) -> str:
        return f"Media({self.kind!r}, {self.filename!r}, {self.trust_tier!r})"

    def __copy__(self) -> "Media":
        return self

    def __deepcopy__(self, memo: object) -> "Media":
        return self


def modality_hazard(kind: MediaKind) -> ModalityHazard:
    return "extractable-instructions" if kind == "document" else "opaque-perceptual"


def lower_trust_tier(first: TrustTier, second: TrustTier) -> TrustTier:
    return max(first, second, key=TIERS.index)


def require_media_reader(value: object) -> MediaReader:
    """Return `value`, or raise `NotAMediaReader`. For readers outside of `Media`, which checks its own."""
    if not is_media_reader(value):
        raise NotAMediaReader()
    return value


async def _resolve(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def _chunks(opened: Any) -> AsyncGenerator[bytes, None]:
    if isinstance(opened, Chunk):
        yield bytes(opened)
    elif isinstance(opened, AsyncIterable):
        async for chunk in opened:
            yield _bytes_of(chunk)
    elif callable(read := getattr(opened, "read", None)):
        while chunk := await asyncio.to_thread(read, _CHUNK):
            yield _bytes_of(chunk)
    elif isinstance(opened, Iterable):
        for chunk in opened:
            yield _bytes_of(chunk)
    else:
        raise TypeError(f"a media stream must yield bytes, not {type(opened).__name__}")


async def _close(opened: Any) -> None:
    """Close a file, a connection or a generator that was not read to its end."""
    for name in ("aclose", "close"):
        close = getattr(opened, name, None)
        if callable(close):
            await _resolve(close())
            return


def _bytes_of(chunk: Any) -> bytes:
    """Return a chunk as `bytes`. Raises `TypeError` for a number: `bytes(97)` would be 97 zeros."""
    if not isinstance(chunk, Chunk):
        raise TypeError(f"media must consist of bytes, not {type(chunk).__name__}")
    return bytes(chunk)


def _text_problems(field: str, value: Any) -> list[dict[str, Any]]:
    if isinstance(value, str) and value:
        return []
    return [problem(f"{field!r} must be a non-empty string", [field], "required" if value is _MISSING else "type")]


def _choice_problems(field: str, value: Any, choices: tuple[str, ...]) -> list[dict[str, Any]]:
    if isinstance(value, str) and value in choices:
        return []
    listed = ", ".join(repr(choice) for choice in choices)
    return [problem(f"{field!r} must be one of {listed}", [field], "required" if value is _MISSING else "enum")]


def _reader_problems(reader: Any) -> list[dict[str, Any]]:
    if is_media_reader(reader):
        return []
    return [problem("'reader' must have stream() and byte_length()", ["reader"], "type")]


def _stash_problems(stash: Any) -> list[dict[str, Any]]:
    if stash is None:
        return []
    try:
        DottedDict(stash)
    except InvalidInitialRegistryValue as error:
        return [problem(f"'stash' is invalid: {error.message}", ["stash"], "type")]
    return [found for name, entry in stash.items() for found in _entry_problems(name, entry)]


def _entry_problems(name: str, entry: Any) -> list[dict[str, Any]]:
    where = ["stash", name]
    if not isinstance(entry, dict) or not {"value", "trust_tier"} <= entry.keys():
        return [problem(f"the stash entry {name!r} needs 'value' and 'trust_tier'", where, "type")]
    extra = [key for key in entry if key not in _ENTRY_FIELDS]
    found = [problem(f"the stash entry {name!r} has an unknown key {key!r}", [*where, key], "unknown") for key in extra]
    return found + _choice_problems(f"stash.{name}.trust_tier", entry["trust_tier"], TIERS)
