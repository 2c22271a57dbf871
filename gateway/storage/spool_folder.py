"""The files of a spool. Every step down is taken from an open folder and follows no link: what somebody plants in the
folder leads nowhere else.

    processes/<process>                         locked while it lives
    incoming/<process>/<part>                   being written; of a process that is gone: rubbish
    <tenant>/<turn>/<id>.<generation>.bytes     whole and synced, with its line index in .lines beside it
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Final
from uuid import uuid4

from gateway.core.lines import LineIndex
from gateway.errors import ArtifactGone, StoreUnavailable
from gateway.storage.keys import Key, parsed
from gateway.storage.processes import ProcessLock

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_HASH: Final = re.compile(r"[0-9a-f]{32}")
_ATTEMPTS: Final = 10


class SpoolFolder:
    def __init__(self, root: Path) -> None:
        with reported():
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
        with suppress(OSError), self._inside("incoming") as incoming:  # left for whoever opens the spool next
            os.rmdir(self._process.id, dir_fd=incoming)
        os.close(self._incoming)
        os.close(self._root)
        self._root = self._incoming = -1  # the numbers will stand for other files
        self._process.release()

    def create_part(self) -> tuple[FileIO, str]:
        """A new file nobody can find, and its name. It has no buffer: closing it writes nothing."""
        name = uuid4().hex
        with reported():
            return FileIO(os.open(name, _WRITE, 0o600, dir_fd=self._incoming), "w"), name

    def discard_part(self, name: str) -> None:
        _unlink(name, self._incoming)

    def publish(self, part: str, key: Key, *, index: LineIndex) -> None:
        """Let a synced part appear under its key; on return that is durable, too."""
        with reported():
            for attempt in range(_ATTEMPTS):
                try:
                    return self._move(part, key, index)
                except FileNotFoundError:  # the folder was empty, and removed between two steps
                    if attempt == _ATTEMPTS - 1:
                        raise

    def open(self, key: Key, *, suffix: str = ".bytes") -> int:
        """A descriptor for reading. Raises `ArtifactGone` for what is not there, or not a plain file of its own."""
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

    def read(self, key: Key, *, offset: int, length: int, suffix: str = ".bytes") -> bytes:
        file = self.open(key, suffix=suffix)
        with reported(), _closing(file):
            parts = []
            while length > 0 and (part := os.pread(file, min(length, 1 << 30), offset)):
                parts.append(part)
                offset += len(part)
                length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def status(self, key: Key) -> os.stat_result:
        file = self.open(key)
        with _closing(file):
            return os.fstat(file)

    def delete(self, key: Key) -> int | None:
        """How many bytes went; `None` if there were none to go."""
        with reported():
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
        """Ids with their generations, in order."""
        with reported():
            try:
                with self._inside(tenant, turn) as folder:
                    names = os.listdir(folder)
            except OSError as error:
                if error.errno in _ABSENT:
                    return []
                raise
        return sorted(name.removesuffix(".bytes") for name in names if name.endswith(".bytes"))

    def older(self, tenant: str, turn: str, *, before: float) -> list[str]:
        """Keys of the files that were written before a moment."""
        keys = []
        for name in self.names(tenant, turn):
            key = parsed(f"f.{tenant}.{turn}.{name}")
            with suppress(ArtifactGone):
                if key is not None and self.status(key).st_mtime < before:
                    keys.append(str(key))
        return keys

    def turns(self, tenant: str) -> list[str]:
        with reported():
            try:
                with self._inside(tenant) as folder:
                    return [name for name in os.listdir(folder) if _HASH.fullmatch(name)]
            except OSError as error:
                if error.errno in _ABSENT:
                    return []
                raise

    def tenants(self) -> list[str]:
        with reported():
            return [name for name in os.listdir(self._root) if _HASH.fullmatch(name)]

    def _move(self, part: str, key: Key, index: LineIndex) -> None:
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
            # Always: whoever made these folders may not have got as far as syncing them.
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
                if self._process.is_gone(process):
                    _remove(incoming, process)
        self._process.sweep()


@contextmanager
def reported() -> Iterator[None]:
    """The disk's failures are `StoreUnavailable`."""
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
    """Not synced: it carries a checksum, and is made anew where it does not fit."""
    with suppress(FileExistsError):  # of an attempt before this one
        file = os.open(name, _WRITE, 0o600, dir_fd=folder)
        with os.fdopen(file, "wb") as lines:
            lines.write(index.to_bytes())


def _remove(folder: int, name: str) -> None:
    """Remove a folder of files, or whatever else has that name; links are removed, not followed.

    Other processes that start or end may remove the same at the same time: a part that is gone already is no error.
    """
    try:
        inner = os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        return
    except OSError:
        _unlink(name, folder)
        return
    with _closing(inner):
        for file in os.listdir(inner):
            _unlink(file, inner)
    with suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=folder)


def _unlink(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


@contextmanager
def _closing(file: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(file)
