"""Store large results as files, each complete and synced before its reader is returned.

    processes/<process>                         locked while it lives
    incoming/<process>/<part>                   being written; leftovers if the process is dead
    <tenant>/<turn>/<id>.<generation>.bytes     complete and synced, with its line index in .lines beside it

Every folder is opened relative to an open one and no link is followed, so planted links lead nowhere.
"""

import asyncio
import errno
import os
import re
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from io import FileIO
from pathlib import Path
from typing import Final, Self
from uuid import uuid4

from gateway.artifacts import LineIndex
from gateway.errors import ArtifactGone, StoreUnavailable
from gateway.storage.blobs.blob_store import BlobKey, BlobReader, InlineBlobStore, parse_key
from gateway.storage.blobs.result_spool import ResultSpool
from gateway.storage.process_liveness import ProcessLock

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_HASH: Final = re.compile(r"[0-9a-f]{32}")
_ATTEMPTS: Final = 10


class BlobFolder:
    def __init__(self, root: Path) -> None:
        with translate_disk_errors():
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._process = ProcessLock(root / "processes")
            _make(self._root, "incoming")
            self._remove_leftovers()
            with self._inside("incoming") as incoming:
                _make(incoming, self._process.id)
                self._incoming = os.open(self._process.id, _FOLDER, dir_fd=incoming)

    def close(self) -> None:
        if self._root < 0:
            return
        with suppress(OSError), self._inside("incoming") as incoming:  # the next process that opens the spool cleans up
            os.rmdir(self._process.id, dir_fd=incoming)
        os.close(self._incoming)
        os.close(self._root)
        self._root = self._incoming = -1  # other files get these numbers
        self._process.release()

    def create_part(self) -> tuple[FileIO, str]:
        """Return a new file that no reader finds, and its name. It has no buffer: closing it writes nothing."""
        name = uuid4().hex
        with translate_disk_errors():
            return FileIO(os.open(name, _WRITE, 0o600, dir_fd=self._incoming), "w"), name

    def discard_part(self, name: str) -> None:
        _unlink(name, self._incoming)

    def publish(self, part: str, key: BlobKey, *, index: LineIndex) -> None:
        """Move a synced part to its key; durable when this returns."""
        with translate_disk_errors():
            for attempt in range(_ATTEMPTS):
                try:
                    return self._move(part, key, index)
                except FileNotFoundError:  # another process removed the empty folder meanwhile
                    if attempt == _ATTEMPTS - 1:
                        raise

    def open(self, key: BlobKey, *, suffix: str = ".bytes") -> int:
        """Return a descriptor for reading. Raises `ArtifactGone` unless there is a plain file with one name."""
        try:
            with self._inside(key.tenant, key.turn) as folder:
                file = os.open(f"{key.name}{suffix}", _READ, dir_fd=folder)
        except OSError as error:
            if error.errno in _ABSENT:
                raise ArtifactGone() from error
            raise _unavailable(error) from error
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            os.close(file)
            raise ArtifactGone()
        return file

    def read(self, key: BlobKey, *, offset: int, length: int, suffix: str = ".bytes") -> bytes:
        file = self.open(key, suffix=suffix)
        with translate_disk_errors(), _close_after(file):
            parts = []
            while length > 0 and (part := os.pread(file, min(length, 1 << 30), offset)):
                parts.append(part)
                offset += len(part)
                length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def status(self, key: BlobKey) -> os.stat_result:
        file = self.open(key)
        with _close_after(file):
            return os.fstat(file)

    def delete(self, key: BlobKey) -> int | None:
        """Return how many bytes were deleted; `None` if the piece is not there."""
        with translate_disk_errors():
            try:
                with self._inside(key.tenant, key.turn) as folder:
                    status = os.stat(f"{key.name}.bytes", dir_fd=folder, follow_symlinks=False)
                    os.unlink(f"{key.name}.bytes", dir_fd=folder)
                    _unlink(f"{key.name}.lines", folder)
                    os.fsync(folder)
                with suppress(OSError), self._inside(key.tenant) as tenant:  # not empty yet, most of the time
                    os.rmdir(key.turn, dir_fd=tenant)
            except OSError as error:
                if error.errno in _ABSENT:
                    return None
                raise
        return status.st_size if stat.S_ISREG(status.st_mode) else 0

    def names(self, tenant: str, turn: str) -> list[str]:
        """Return ids with their generations, in order."""
        with translate_disk_errors():
            try:
                with self._inside(tenant, turn) as folder:
                    names = os.listdir(folder)
            except OSError as error:
                if error.errno in _ABSENT:
                    return []
                raise
        return sorted(name.removesuffix(".bytes") for name in names if name.endswith(".bytes"))

    def older(self, tenant: str, turn: str, *, before: float) -> list[str]:
        """Return the keys of files that were written before a time."""
        keys = []
        for name in self.names(tenant, turn):
            key = parse_key(f"f.{tenant}.{turn}.{name}")
            with suppress(ArtifactGone):
                if key is not None and self.status(key).st_mtime < before:
                    keys.append(str(key))
        return keys

    def turns(self, tenant: str) -> list[str]:
        with translate_disk_errors():
            try:
                with self._inside(tenant) as folder:
                    return [name for name in os.listdir(folder) if _HASH.fullmatch(name)]
            except OSError as error:
                if error.errno in _ABSENT:
                    return []
                raise

    def tenants(self) -> list[str]:
        with translate_disk_errors():
            return [name for name in os.listdir(self._root) if _HASH.fullmatch(name)]

    def _move(self, part: str, key: BlobKey, index: LineIndex) -> None:
        _make(self._root, key.tenant)
        with self._inside(key.tenant) as tenant:
            _make(tenant, key.turn)
            with self._inside(key.tenant, key.turn) as folder:
                _write_index(folder, f"{key.name}.lines", index)
                try:
                    os.rename(part, f"{key.name}.bytes", src_dir_fd=self._incoming, dst_dir_fd=folder)
                except OSError:
                    with suppress(OSError):
                        os.unlink(f"{key.name}.lines", dir_fd=folder)
                    raise
                os.fsync(folder)
            # Always: the process that created these folders may have ended before it synced them.
            os.fsync(tenant)
        os.fsync(self._root)

    @contextmanager
    def _inside(self, *path: str) -> Iterator[int]:
        folder = os.dup(self._root)
        try:
            for name in path:
                inner = os.open(name, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    def _remove_leftovers(self) -> None:
        with self._inside("incoming") as incoming:
            for process in os.listdir(incoming):
                if self._process.has_ended(process):
                    _remove(incoming, process)
        self._process.sweep()


@contextmanager
def translate_disk_errors() -> Iterator[None]:
    """Raise `StoreUnavailable` for failures of the disk."""
    try:
        yield
    except OSError as error:
        raise _unavailable(error) from error


def _unavailable(error: OSError) -> StoreUnavailable:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreUnavailable("the disk of the spool is full", help="make room; nothing needs to be restarted")
    return StoreUnavailable(
        f"the spool cannot be read or written: {error.strerror}", help="check the folder, its disk and who may write"
    )


def _make(folder: int, name: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)


def _write_index(folder: int, name: str, index: LineIndex) -> None:
    """Write the line index. It is not synced: it has a checksum, and is computed again if that does not match."""
    with suppress(FileExistsError):  # from an earlier attempt
        file = os.open(name, _WRITE, 0o600, dir_fd=folder)
        with os.fdopen(file, "wb") as lines:
            lines.write(index.to_bytes())


def _remove(folder: int, name: str) -> None:
    """Remove a folder of files, or anything else of that name; links are removed, not followed.

    Other processes may remove the same at the same time, so a missing file is no error.
    """
    try:
        inner = os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        return
    except OSError:
        _unlink(name, folder)
        return
    with _close_after(inner):
        for file in os.listdir(inner):
            _unlink(file, inner)
    with suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=folder)


def _unlink(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


@contextmanager
def _close_after(file: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(file)


_CHUNK: Final = 1 << 20


class DiskSpool(ResultSpool):
    """A spool whose large pieces are files."""

    @classmethod
    async def open(
        cls,
        root: str | Path,
        *,
        small: InlineBlobStore | None = None,
        max_output: int | None = None,
        quota: int | None = None,
    ) -> Self:
        """Open or create a spool, and remove incomplete files of dead processes."""
        folder = await asyncio.to_thread(BlobFolder, Path(root).absolute())
        return cls(DiskBlobStore(folder), small=small, max_output=max_output, quota=quota)


class DiskBlobReader(BlobReader):
    """A result in a file; no descriptor stays open between two reads."""

    def __init__(self, folder: BlobFolder, key: BlobKey, index: LineIndex) -> None:
        super().__init__(key, index)
        self._folder = folder
        self._key = key

    def read_range(self, offset: int, length: int) -> bytes:
        return self._folder.read(self._key, offset=offset, length=length)


class DiskBlobStore:
    """Implements `BlobStore`."""

    def __init__(self, folder: BlobFolder) -> None:
        self._folder = folder

    @property
    def trouble(self) -> str | None:
        """Unknown: only a write shows whether the disk works."""
        return None

    async def start_write(self, key: BlobKey) -> "_Part":
        return _Part(self._folder, key)

    async def open(self, key: BlobKey) -> DiskBlobReader | None:
        try:
            return await asyncio.to_thread(lambda: DiskBlobReader(self._folder, key, _index_of(self._folder, key)))
        except ArtifactGone:
            return None

    async def delete(self, key: BlobKey) -> int | None:
        return await asyncio.to_thread(self._folder.delete, key)

    async def names(self, tenant: str, turn: str, slot: str) -> list[str]:
        names = await asyncio.to_thread(self._folder.names, tenant, turn)
        return [name for name in names if name.startswith(f"{slot}.")]

    async def count_bytes(self, tenant: str) -> int:
        return await asyncio.to_thread(self._count_bytes, tenant)

    async def list_older(self, before: datetime) -> AsyncIterator[list[str]]:
        for tenant in await asyncio.to_thread(self._folder.tenants):
            for turn in await asyncio.to_thread(self._folder.turns, tenant):
                yield await asyncio.to_thread(self._folder.older, tenant, turn, before=before.timestamp())

    async def close(self) -> None:
        await asyncio.to_thread(self._folder.close)

    def _count_bytes(self, tenant: str) -> int:
        sizes = 0
        for turn in self._folder.turns(tenant):
            for name in self._folder.names(tenant, turn):
                try:
                    sizes += self._folder.status(BlobKey("f", tenant, turn, name)).st_size
                except ArtifactGone:  # deleted meanwhile
                    continue
        return sizes


class _Part:
    """A file that is being written."""

    def __init__(self, folder: BlobFolder, key: BlobKey) -> None:
        self._file, self._name = folder.create_part()
        self._folder = folder
        self._key = key
        self._index = LineIndex()
        self._is_published = False

    async def append(self, chunk: bytes) -> None:
        if len(chunk) < _CHUNK:  # a thread hop costs more than writing this
            self._append(chunk)
        else:
            await _run_uncancelled(lambda: self._append(chunk))

    async def publish(self) -> DiskBlobReader:
        await _run_uncancelled(self._publish)
        return DiskBlobReader(self._folder, self._key, self._index)

    async def discard(self) -> None:
        self._file.close()
        if not self._is_published:
            self._folder.discard_part(self._name)
        else:  # its caller stopped waiting just now and does not know the key
            self._folder.delete(self._key)

    def _append(self, chunk: bytes) -> None:
        with translate_disk_errors():
            unwritten = memoryview(chunk)
            while unwritten:
                unwritten = unwritten[self._file.write(unwritten) :]
        self._index.feed(chunk)

    def _publish(self) -> None:
        with translate_disk_errors(), self._file:
            os.fsync(self._file.fileno())
        self._folder.publish(self._name, self._key, index=self._index)
        self._is_published = True


async def _run_uncancelled(work: Callable[[], None]) -> None:
    """Run work in a thread. If the caller is cancelled, that takes effect when the work is done: the file is in use."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _index_of(folder: BlobFolder, key: BlobKey) -> LineIndex:
    size = folder.status(key).st_size
    try:
        stored = folder.read(key, offset=0, length=LineIndex.stored_size(size) + 1, suffix=".lines")
    except ArtifactGone:
        stored = b""
    index = LineIndex.from_bytes(stored, size)
    if index is None:
        index = LineIndex()
        while chunk := folder.read(key, offset=index.size, length=_CHUNK):
            index.feed(chunk)
    return index
