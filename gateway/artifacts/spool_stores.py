"""Spool readers and byte stores, which hold the text and bytes that tools return.

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
from typing import Any, BinaryIO, Final
from uuid import uuid4

from gateway.artifacts.indexed_reader import IndexedReader, LineIndex, decode_utf8, encode_utf8
from gateway.errors import ArtifactGone, NoReaderResolver, ReaderNotDescribable
from gateway.model import ContentStream, SpoolContent

_CHUNK: Final = 1 << 20
_NUMBER_DIGITS: Final = 8
_ATTEMPTS: Final = 10


def to_handle(reader: object) -> dict[str, Any]:
    """Return the handle from which `from_handle` restores a reader."""
    describe = getattr(reader, "describe", None)
    if describe is None:
        raise ReaderNotDescribable(f"{type(reader).__name__} cannot be persisted: it has no describe()")
    return dict(describe())


def from_handle(handle: Mapping[str, Any], resolvers: Mapping[str, Callable[[Any], Any]]) -> Any:
    """Return the reader of a handle; `resolvers` maps the tags of handles to functions."""
    tag = handle.get("tag")
    resolver = resolvers.get(tag) if isinstance(tag, str) else None
    if resolver is None:
        raise NoReaderResolver(f"no resolver is known for readers tagged {tag!r}")
    return resolver(handle.get("locator"))


class InMemoryReader(IndexedReader):
    def __init__(self, content: SpoolContent) -> None:
        self._content = content if type(content) is bytes else to_bytes(content)

    @cached_property
    def _index(self) -> LineIndex:  # type: ignore[override]  # created on first use: most are never read by lines
        index = LineIndex()
        index.feed(self._content)
        return index

    def byte_length(self) -> int:
        return len(self._content)

    def read_range(self, offset: int, length: int) -> bytes:
        return self._content[offset : offset + length]

    def read_all(self) -> str:
        return decode_utf8(self._content, first=True)


class InMemoryStore:
    def __init__(self) -> None:
        self._readers: dict[str, InMemoryReader] = {}

    async def write(self, id: str, content: SpoolContent | ContentStream) -> InMemoryReader:
        reader = InMemoryReader(b"".join([chunk async for chunk in iter_chunks(content)]))
        self._readers[id] = reader
        return reader

    async def read(self, id: str) -> InMemoryReader | None:
        return self._readers.get(id)

    async def delete(self, id: str) -> bool:
        return self._readers.pop(id, None) is not None


class FileReader(IndexedReader):
    """Reads a file range by range; the file is not open between two reads."""

    def __init__(self, path: str | Path, index: LineIndex | None = None) -> None:
        self._path = Path(path)
        super().__init__(index or _load_index(self._path) or _build_index(self._path))

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
    """One folder per id with numbered generations; the highest number is the current one.

    A generation is written in `incoming` and renamed in one step, to a name that is never used
    again: a reader reads the same bytes until they are deleted. Files that a crash leaves in
    `incoming` belong to no id and can be removed.
    """

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root).absolute()

    async def write(self, id: str, content: SpoolContent | ContentStream) -> FileReader:
        incoming = self._root / "incoming"
        incoming.mkdir(parents=True, exist_ok=True)
        part = incoming / uuid4().hex
        index = LineIndex()
        try:
            with part.open("xb") as file:
                async for chunk in iter_chunks(content):
                    await _append(file, index, chunk)
            path = _publish_with_retries(part, index, folder=self._folder(id))
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
        with suppress(OSError):  # it does not exist, or another process has just written to it
            folder.rmdir()
        return bool(generations)

    def _folder(self, id: str) -> Path:
        # Not `encode_utf8`, which would map ids with different lone surrogates to the same folder.
        digest = sha256(id.encode("utf-8", "surrogatepass")).hexdigest()
        return self._root / digest[:2] / digest


def to_bytes(content: SpoolContent) -> bytes:
    if type(content) is bytes:
        return content
    if isinstance(content, str):
        return encode_utf8(content)
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"spooled content must be text or bytes, not {type(content).__name__}")


async def iter_chunks(content: SpoolContent | ContentStream) -> AsyncIterator[bytes]:
    """Yield the content as chunks of bytes, whether it is one value, a file or a stream."""
    if isinstance(content, str | bytes | bytearray | memoryview):
        yield to_bytes(content)
    elif isinstance(content, AsyncIterable):
        async for chunk in content:
            yield to_bytes(chunk)
    elif callable(read := getattr(content, "read", None)):
        while chunk := await _read_some(read):
            yield to_bytes(chunk)
    elif isinstance(content, Iterable) and not isinstance(content, Mapping | Set):
        for chunk in content:
            yield to_bytes(chunk)
    else:
        raise TypeError(f"spooled content must be text, bytes or a stream of them, not {type(content).__name__}")


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


def _publish_with_retries(part: Path, index: LineIndex, *, folder: Path) -> Path:
    attempts = 0
    while True:
        try:
            return _publish(part, index, folder=folder)
        except (FileNotFoundError, FileExistsError):
            # Another process deleted the id and its folder between two steps, perhaps those of `mkdir`.
            attempts += 1
            if attempts == _ATTEMPTS:
                raise


def _publish(part: Path, index: LineIndex, *, folder: Path) -> Path:
    """Make the finished file the highest generation. Its index is written first, so readers always find it."""
    folder.mkdir(parents=True, exist_ok=True)
    generations = _generations(folder)
    number = int(generations[-1].name[:_NUMBER_DIGITS]) + 1 if generations else 0
    path = folder / f"{number:0{_NUMBER_DIGITS}d}-{part.name}.bytes"
    path.with_suffix(".lines").write_bytes(index.to_bytes())
    return part.rename(path)


def _generations(folder: Path) -> list[Path]:
    return sorted(_files(folder, ".bytes"))


def _files(folder: Path, suffix: str) -> list[Path]:
    """List the files with a suffix; empty if the folder does not exist or another process removes it."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [folder / name for name in names if name.endswith(suffix)]


def _load_index(path: Path) -> LineIndex | None:
    try:
        size = path.stat().st_size
        with path.with_suffix(".lines").open("rb") as file:
            return LineIndex.from_bytes(file.read(LineIndex.stored_size(size) + 1), size)
    except OSError:
        return None


def _build_index(path: Path) -> LineIndex:
    index = LineIndex()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                index.feed(chunk)
    except FileNotFoundError as error:
        raise ArtifactGone() from error
    return index
