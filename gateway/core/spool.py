"""Spool readers and byte stores: where the text and bytes that tools return are kept.

In memory for tests and short-lived processes, in files for everything else. Ids come from
callers, so they never become part of a path.
"""

import asyncio
import inspect
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Set
from contextlib import suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, TypeGuard
from uuid import uuid4

from gateway.core.lines import IndexedReader, LineIndex, decode, encode
from gateway.errors import ArtifactGone, NoReaderResolver, ReaderNotDescribable

Content = str | bytes | bytearray | memoryview
Stream = Iterable[Content] | AsyncIterable[Content]

_CHUNK: Final = 1 << 20
_NUMBER_DIGITS: Final = 8
_ATTEMPTS: Final = 10


class SpoolReader(Protocol):
    """Line-indexed text. Each method may be sync or async; `line` answers `None` out of range.

    An optional `describe()` returns `{"tag": ..., "locator": ...}`, so that the reader can be
    persisted and found again.
    """

    def line(self, index: int) -> Any: ...

    def byte_length(self) -> Any: ...

    def line_count(self) -> Any: ...

    def read_all(self) -> Any: ...


class ByteStore(Protocol):
    """Keeps bytes under an id. Rewriting an id leaves readers handed out earlier on the old bytes."""

    async def write(self, id: str, content: Content | Stream) -> SpoolReader: ...

    async def read(self, id: str) -> SpoolReader | None: ...

    async def delete(self, id: str) -> bool: ...


def is_spool_reader(value: object) -> TypeGuard[SpoolReader]:
    if isinstance(value, IndexedReader):
        return True
    return all(callable(getattr(value, name, None)) for name in ("line", "byte_length", "line_count", "read_all"))


def describe_reader(reader: object) -> dict[str, Any]:
    """The handle under which a reader can be found again by `resolve_reader`."""
    describe = getattr(reader, "describe", None)
    if describe is None:
        raise ReaderNotDescribable(f"{type(reader).__name__} cannot be persisted: it has no describe()")
    return dict(describe())


def resolve_reader(handle: Mapping[str, Any], resolvers: Mapping[str, Callable[[Any], Any]]) -> Any:
    """The reader a handle stands for; `resolvers` are found by the handle's tag."""
    tag = handle.get("tag")
    resolver = resolvers.get(tag) if isinstance(tag, str) else None
    if resolver is None:
        raise NoReaderResolver(f"no resolver is known for readers tagged {tag!r}")
    return resolver(handle.get("locator"))


class InMemoryReader(IndexedReader):
    def __init__(self, content: Content) -> None:
        self._content = content if type(content) is bytes else as_bytes(content)

    @cached_property
    def _index(self) -> LineIndex:  # type: ignore[override]  # made when somebody first asks for lines: most never do
        index = LineIndex()
        index.feed(self._content)
        return index

    def byte_length(self) -> int:
        return len(self._content)

    def read_range(self, offset: int, length: int) -> bytes:
        return self._content[offset : offset + length]

    def read_all(self) -> str:
        return decode(self._content, first=True)


class InMemoryStore:
    def __init__(self) -> None:
        self._readers: dict[str, InMemoryReader] = {}

    async def write(self, id: str, content: Content | Stream) -> InMemoryReader:
        reader = InMemoryReader(b"".join([chunk async for chunk in chunks_of(content)]))
        self._readers[id] = reader
        return reader

    async def read(self, id: str) -> InMemoryReader | None:
        return self._readers.get(id)

    async def delete(self, id: str) -> bool:
        return self._readers.pop(id, None) is not None


class FileReader(IndexedReader):
    """Reads a file range by range; no handle stays open between two reads."""

    def __init__(self, path: str | Path, index: LineIndex | None = None) -> None:
        self._path = Path(path)
        super().__init__(index or _stored_index(self._path) or _index_of(self._path))

    def read_range(self, offset: int, length: int) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(offset)
                return file.read(length)
        except FileNotFoundError as error:
            raise ArtifactGone() from error

    def describe(self) -> dict[str, Any]:
        return {"tag": "file", "locator": str(self._path)}


class FileStore:
    """One folder per id with numbered generations inside; the highest is the current one.

    A generation is written elsewhere and appears in one step, under a name that is never used
    again: a reader sees its own bytes until they are deleted, and nothing after that. What a
    crash leaves in `incoming` belongs to no id and can be removed.
    """

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root).absolute()

    async def write(self, id: str, content: Content | Stream) -> FileReader:
        incoming = self._root / "incoming"
        incoming.mkdir(parents=True, exist_ok=True)
        part = incoming / uuid4().hex
        index = LineIndex()
        try:
            with part.open("xb") as file:
                async for chunk in chunks_of(content):
                    await _append(file, index, chunk)
            path = _published(part, index, folder=self._folder(id))
        finally:
            part.unlink(missing_ok=True)
        return FileReader(path, index)

    async def read(self, id: str) -> FileReader | None:
        generations = _generations(self._folder(id))
        return FileReader(generations[-1]) if generations else None

    async def delete(self, id: str) -> bool:
        folder = self._folder(id)
        generations = _generations(folder)
        for path in (*generations, *_files(folder, ".lines")):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # it may never have been there, or another writer was faster
            folder.rmdir()
        return bool(generations)

    def _folder(self, id: str) -> Path:
        # Not `encode`: half a surrogate pair is as good an id as any other and must not be mixed up.
        digest = sha256(id.encode("utf-8", "surrogatepass")).hexdigest()
        return self._root / digest[:2] / digest


def as_bytes(content: Content) -> bytes:
    if type(content) is bytes:
        return content
    if isinstance(content, str):
        return encode(content)
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"spooled content is text or bytes, not {type(content).__name__}")


async def chunks_of(content: Content | Stream) -> AsyncIterator[bytes]:
    """The content as chunks of bytes, whether it is one value, a file or a stream."""
    if isinstance(content, str | bytes | bytearray | memoryview):
        yield as_bytes(content)
    elif isinstance(content, AsyncIterable):
        async for chunk in content:
            yield as_bytes(chunk)
    elif callable(read := getattr(content, "read", None)):
        while chunk := await _read_some(read):
            yield as_bytes(chunk)
    elif isinstance(content, Iterable) and not isinstance(content, Mapping | Set):
        for chunk in content:
            yield as_bytes(chunk)
    else:
        raise TypeError(f"spooled content is text, bytes or a stream of them, not {type(content).__name__}")


async def _read_some(read: Callable[[int], Any]) -> Any:
    chunk = await asyncio.to_thread(read, _CHUNK)
    return await chunk if inspect.isawaitable(chunk) else chunk


async def _append(file: BinaryIO, index: LineIndex, chunk: bytes) -> None:
    def append() -> None:
        file.write(chunk)
        index.feed(chunk)

    if len(chunk) < _CHUNK:  # a thread hop costs more than writing this
        append()
    else:
        await asyncio.to_thread(append)


def _published(part: Path, index: LineIndex, *, folder: Path) -> Path:
    attempts = 0
    while True:
        try:
            return _publish(part, index, folder=folder)
        except (FileNotFoundError, FileExistsError):
            # Another process deleted the id, and removed its folder between two steps; `mkdir` has two steps, too.
            attempts += 1
            if attempts == _ATTEMPTS:
                raise


def _publish(part: Path, index: LineIndex, *, folder: Path) -> Path:
    """Make the finished file the highest generation; whoever sees it finds its index beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    generations = _generations(folder)
    number = int(generations[-1].name[:_NUMBER_DIGITS]) + 1 if generations else 0
    path = folder / f"{number:0{_NUMBER_DIGITS}d}-{part.name}.bytes"
    path.with_suffix(".lines").write_bytes(index.to_bytes())
    return part.rename(path)


def _generations(folder: Path) -> list[Path]:
    return sorted(_files(folder, ".bytes"))


def _files(folder: Path, suffix: str) -> list[Path]:
    """None of a folder that is not there, or that another process removes meanwhile."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [folder / name for name in names if name.endswith(suffix)]


def _stored_index(path: Path) -> LineIndex | None:
    try:
        size = path.stat().st_size
        with path.with_suffix(".lines").open("rb") as file:
            return LineIndex.from_bytes(file.read(LineIndex.stored_size(size) + 1), size)
    except OSError:
        return None


def _index_of(path: Path) -> LineIndex:
    index = LineIndex()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                index.feed(chunk)
    except FileNotFoundError as error:
        raise ArtifactGone() from error
    return index
