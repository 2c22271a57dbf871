"""Anchors: signed statements of how far a chain has come, kept where whoever can change the log cannot change them.

Without them a chain proves that it is one chain, and not that it is the one that was written.
"""

import base64
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from gateway.audit.chain import Head
from gateway.audit.keys import SigningKey
from gateway.errors import StorageError

EVERY_ENTRIES: Final = 1000
EVERY_MICROSECONDS: Final = 60_000_000
MAX_LINE: Final = 4096

_LINE: Final = re.compile(
    rb'\{"anchor":(\{"at":(\d{1,16}),"count":([1-9]\d{0,18}),"hash":"([0-9a-f]{64})","key":"([0-9a-f]{16})",'
    rb'"seq":([1-9]\d{0,18}),"shard":"([A-Za-z0-9][A-Za-z0-9._:-]{0,127})"\}),"signature":"([A-Za-z0-9+/]{86}==)"\}'
)


class AnchorNotKept(StorageError):
    code = "E_ANCHOR_NOT_KEPT"
    status = 503
    default_message = "the anchor could not be written"


@dataclass(frozen=True, slots=True)
class Anchor:
    """At `at` the shard's entry `seq` had this hash. `count` tells how many entries are new since the anchor before."""

    shard: str
    seq: int
    hash: bytes
    count: int
    at: int
    key: str

    def encode(self) -> bytes:
        """The bytes that are signed: canonical JSON."""
        return b'{"at":%d,"count":%d,"hash":"%b","key":"%b","seq":%d,"shard":"%b"}' % (
            self.at,
            self.count,
            self.hash.hex().encode(),
            self.key.encode(),
            self.seq,
            self.shard.encode(),
        )


class SignedAnchor(NamedTuple):
    """An anchor as it was found, with the line it stands on. Whether its signature is good is not known yet."""

    anchor: Anchor
    signature: bytes
    line: int = 0

    def encode(self) -> bytes:
        return b'{"anchor":%b,"signature":"%b"}\n' % (self.anchor.encode(), base64.b64encode(self.signature))


class NoAnchor(NamedTuple):
    """A line that is no anchor. One that was cut off was never confirmed to anybody: a process died while it wrote."""

    line: int
    is_cut_off: bool


class AnchorSink(Protocol):
    """Somewhere else: a file on another mount, an object store with a lock, a transparency log."""

    def write(self, line: bytes) -> None:
        """Keep one line for good before returning. Raises `AnchorNotKept`; it may be called again with a later one."""
        ...


class Anchoring:
    """Anchors one chain from time to time. `anchored` is how far earlier anchors of the same shard reach."""

    def __init__(
        self,
        key: SigningKey,
        sink: AnchorSink,
        *,
        anchored: int = 0,
        every_entries: int = EVERY_ENTRIES,
        every_microseconds: int = EVERY_MICROSECONDS,
    ) -> None:
        self._key = key
        self._sink = sink
        self._anchored = anchored
        self._every_entries = every_entries
        self._every = every_microseconds
        self._since: int | None = None

    def is_due(self, head: Head, at: int) -> bool:
        """Whether enough entries, or enough time with any, have passed since the last anchor."""
        fresh = head.seq - self._anchored
        if fresh <= 0:
            return False
        if self._since is None:
            self._since = at
        return fresh >= self._every_entries or at - self._since >= self._every

    def anchor(self, head: Head, at: int) -> SignedAnchor | None:
        """Sign and keep how far the chain is; `None` if that was said already. Only of rows that are durable."""
        if head.seq <= self._anchored:
            return None
        anchor = Anchor(head.shard, head.seq, head.hash, head.seq - self._anchored, at, self._key.id)
        signed = SignedAnchor(anchor, self._key.sign(anchor.encode()))
        self._sink.write(signed.encode())
        self._anchored, self._since = head.seq, None
        return signed

    def rotate(self, key: SigningKey) -> None:
        """Sign with another key from now on; the `key-rotated` entry is the caller's to append."""
        self._key = key


class AnchorFile:
    """Anchors as JSON lines, appended and synced. Several processes may share one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, line: bytes) -> None:
        try:
            is_new = not self._path.exists()
            file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
            try:
                _append(file, line)
                os.fsync(file)
            finally:
                os.close(file)
            if is_new:
                _sync_folder(self._path.parent)
        except OSError as error:
            raise AnchorNotKept(
                f"the anchor could not be written to {self._path} ({error.strerror})",
                help="check that the folder is there and writable for the gateway, and that there is room",
            ) from error


def last_anchored(path: Path, shard: str) -> int:
    """How far the anchors of a shard reach, for whoever goes on with it; 0 where there are none."""
    if not path.exists():
        return 0
    anchors = (each.anchor for each in read_anchors(path) if isinstance(each, SignedAnchor))
    return max((anchor.seq for anchor in anchors if anchor.shard == shard), default=0)


def read_anchors(path: Path) -> Iterator[SignedAnchor | NoAnchor]:
    """The anchors of a file in its order, and the lines that are none. Raises `OSError`."""
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), start=1):
            yield parsed(line.rstrip(b"\n"), number)


def parsed(line: bytes, number: int) -> SignedAnchor | NoAnchor:
    found = _LINE.fullmatch(line)
    if found is None:
        return NoAnchor(number, is_cut_off=not line.endswith(b'"}'))
    _, at, count, digest, key, seq, shard, signature = found.groups()
    anchor = Anchor(shard.decode(), int(seq), bytes.fromhex(digest.decode()), int(count), int(at), key.decode())
    return SignedAnchor(anchor, base64.b64decode(signature), number)


def _append(file: int, line: bytes) -> None:
    # Two processes must not both mend a line that was cut off, nor one write behind what the other has half written.
    # The lock ends with the descriptor. A file system that has no locks is written to without.
    with suppress(OSError):
        flock(file, LOCK_EX)
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        line = b"\n" + line  # a process died while it wrote
    if os.write(file, line) != len(line):
        raise OSError(28, "only a part of the line was written")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
