"""Anchors: signed statements about the end of a chain, stored where an attacker who changes the log cannot reach them.

Without anchors, a chain proves its consistency, but not that it is the chain that was originally written.
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

from gateway.audit.chain import ChainHead
from gateway.audit.signing_keys import SigningKey
from gateway.errors import StorageError

ANCHOR_INTERVAL_ENTRIES: Final = 1000
ANCHOR_INTERVAL_MICROSECONDS: Final = 60_000_000
MAX_LINE: Final = 4096

_LINE: Final = re.compile(
    rb'\{"anchor":(\{"at":(\d{1,16}),"count":([1-9]\d{0,18}),"hash":"([0-9a-f]{64})","key":"([0-9a-f]{16})",'
    rb'"seq":([1-9]\d{0,18}),"shard":"([A-Za-z0-9][A-Za-z0-9._:-]{0,127})"\}),"signature":"([A-Za-z0-9+/]{86}==)"\}'
)


class AnchorWriteFailed(StorageError):
    code = "E_ANCHOR_NOT_KEPT"
    status = 503
    default_message = "the anchor could not be written"


@dataclass(frozen=True, slots=True)
class Anchor:
    """At `at` the shard's entry `seq` had this hash. `count` is the number of entries since the previous anchor."""

    shard: str
    seq: int
    hash: bytes
    count: int
    at: int
    key: str

    def encode(self) -> bytes:
        """Return the signed bytes: canonical JSON."""
        return b'{"at":%d,"count":%d,"hash":"%b","key":"%b","seq":%d,"shard":"%b"}' % (
            self.at,
            self.count,
            self.hash.hex().encode(),
            self.key.encode(),
            self.seq,
            self.shard.encode(),
        )


class SignedAnchor(NamedTuple):
    """An anchor as read, with its line number. Its signature is not verified yet."""

    anchor: Anchor
    signature: bytes
    line: int = 0

    def encode(self) -> bytes:
        return b'{"anchor":%b,"signature":"%b"}\n' % (self.anchor.encode(), base64.b64encode(self.signature))


class InvalidAnchorLine(NamedTuple):
    """A line that is not an anchor. A truncated one was never confirmed: a process died while it wrote."""

    line: int
    is_cut_off: bool


class AnchorSink(Protocol):
    """A store outside the log: a file on another mount, an object store with a lock, a transparency log."""

    def write(self, line: bytes) -> None:
        """Store one line durably. Raise `AnchorWriteFailed`; the caller may write a later anchor afterwards."""
        ...


class AnchorSigner:
    """Anchors one chain periodically. `anchored` is the last entry that earlier anchors of the shard cover."""

    def __init__(
        self,
        key: SigningKey,
        sink: AnchorSink,
        *,
        anchored: int = 0,
        every_entries: int = ANCHOR_INTERVAL_ENTRIES,
        every_microseconds: int = ANCHOR_INTERVAL_MICROSECONDS,
    ) -> None:
        self._key = key
        self._sink = sink
        self._anchored = anchored
        self._every_entries = every_entries
        self._every = every_microseconds
        self._since: int | None = None

    def is_due(self, head: ChainHead, at: int) -> bool:
        """Whether enough entries have been added, or enough time has passed with any, since the last anchor."""
        new_entries = head.seq - self._anchored
        if new_entries <= 0:
            return False
        if self._since is None:
            self._since = at
        return new_entries >= self._every_entries or at - self._since >= self._every

    def anchor(self, head: ChainHead, at: int) -> SignedAnchor | None:
        """Sign and store the end of the chain, whose rows must be durable; `None` if it is already anchored."""
        if head.seq <= self._anchored:
            return None
        anchor = Anchor(head.shard, head.seq, head.hash, head.seq - self._anchored, at, self._key.id)
        signed = SignedAnchor(anchor, self._key.sign(anchor.encode()))
        self._sink.write(signed.encode())
        self._anchored, self._since = head.seq, None
        return signed

    def rotate(self, key: SigningKey) -> None:
        """Sign with another key from now on; the caller appends the `key-rotated` entry."""
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
            raise AnchorWriteFailed(
                f"the anchor could not be written to {self._path} ({error.strerror})",
                help="check that the folder exists and is writable for the gateway, and that the disk is not full",
            ) from error


def read_anchor_position(path: Path, shard: str) -> int:
    """Return the last entry of a shard that the anchors cover, for a writer that resumes it; 0 if there is none."""
    if not path.exists():
        return 0
    anchors = (each.anchor for each in read_anchors(path) if isinstance(each, SignedAnchor))
    return max((anchor.seq for anchor in anchors if anchor.shard == shard), default=0)


def read_anchors(path: Path) -> Iterator[SignedAnchor | InvalidAnchorLine]:
    """Yield the anchors of a file in order, and the invalid lines. Raise `OSError`."""
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), start=1):
            yield parse_anchor(line.rstrip(b"\n"), number)


def parse_anchor(line: bytes, number: int) -> SignedAnchor | InvalidAnchorLine:
    found = _LINE.fullmatch(line)
    if found is None:
        return InvalidAnchorLine(number, is_cut_off=not line.endswith(b'"}'))
    _, at, count, digest, key, seq, shard, signature = found.groups()
    anchor = Anchor(shard.decode(), int(seq), bytes.fromhex(digest.decode()), int(count), int(at), key.decode())
    return SignedAnchor(anchor, base64.b64decode(signature), number)


def _append(file: int, line: bytes) -> None:
    # The lock prevents two processes from repairing the same truncated line, and from appending to a half-written one.
    # Closing the descriptor releases it. On a file system without locks, lines are written without.
    with suppress(OSError):
        flock(file, LOCK_EX)
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        line = b"\n" + line  # the last line is truncated: a process died while it wrote
    if os.write(file, line) != len(line):
        raise OSError(28, "only a part of the line was written")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
