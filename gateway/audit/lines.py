"""Rows as JSON lines: one canonical object per line, in plain files or gzip.

A line holds the body as it was hashed, byte for byte, so nothing has to be parsed to verify it.
"""

import gzip
import re
import zlib
from binascii import unhexlify
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from gateway.audit.chain import Row
from gateway.errors import GatewayError

MAX_LINE: Final = 1 << 20
"""Bytes. What we write is bounded to far less; what claims to be ours need not be."""

_GZIP: Final = b"\x1f\x8b"
_START: Final = b'{"body":{'
_HASH: Final = b'},"hash":"'
_END: Final = re.compile(
    rb'\},"hash":"([0-9a-f]{64})","prev":"([0-9a-f]{64})",'
    rb'"seq":([1-9][0-9]{0,18}),"shard":"([A-Za-z0-9][A-Za-z0-9._:-]{0,127})"\}\n'
)
_STATEMENT: Final = b'"log":{'
_BLOCK: Final = 1 << 18
_TOLD_EVERY: Final = 1 << 12
_LARGEST: Final = 2**63 - 1


class LogUnreadable(GatewayError):
    code = "E_LOG_UNREADABLE"
    default_message = "the log cannot be read"


class NotAnEntry(GatewayError):
    """Something in a log is no entry. `line` is where it stands."""

    code = "E_NOT_AN_ENTRY"
    default_message = "not an entry of a decision log"

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def line_of(row: Row) -> bytes:
    """The line of a row, with its end."""
    return b'{"body":%b,"hash":"%b","prev":"%b","seq":%d,"shard":"%b"}\n' % (
        row.body,
        row.hash.hex().encode(),
        row.prev.hex().encode(),
        row.seq,
        row.shard.encode(),
    )


def row_of(line: bytes) -> Row | None:
    """The row of a line, `None` if it is not exactly what `line_of` writes."""
    end = line.rfind(_HASH)  # from the back: a body may contain whatever its texts do
    found = _END.fullmatch(line, end) if end > 0 and line.startswith(_START) else None
    if found is None:
        return None
    digest, prev, seq, shard = found.groups()
    number = int(seq)
    if number > _LARGEST:
        return None
    return Row(shard.decode(), number, unhexlify(prev), unhexlify(digest), line[len(_START) - 1 : end + 1])


class LineFile:
    """The rows of one file. Every iteration reads it anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._size = 0
        self._position: Callable[[], int] = lambda: 0

    def __iter__(self) -> Iterator[Row]:
        """Raises `NotAnEntry` at the first line that is none, `LogUnreadable` if the file cannot be read on."""
        for number, line in self._lines():
            row = row_of(line)
            if row is None:
                raise NotAnEntry(number, f"line {number} is no entry of a decision log{_why(line)}")
            yield row

    def statements(self) -> Iterator[Row]:
        """The rows that say something about the log itself. Lines that are no rows are left to the other reading."""
        with self._open() as file:
            while block := file.read(_BLOCK) + file.readline(MAX_LINE):
                if _STATEMENT in block:
                    told = (line for line in block.splitlines(keepends=True) if _STATEMENT in line)
                    yield from (row for line in told if (row := row_of(line)) is not None)

    def fraction(self) -> float:
        """How much of the file has been read, from 0 to 1."""
        return self._read / self._size if self._size else 0.0

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with self._open() as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), start=1):
                if not number % _TOLD_EVERY:
                    self._read = self._position()
                yield number, line
        self._read = self._size

    @contextmanager
    def _open(self) -> Iterator[IO[bytes] | gzip.GzipFile]:
        try:
            with self._path.open("rb") as raw:
                self._size, self._position = self._path.stat().st_size, raw.tell
                with _unpacked(raw) as file:
                    yield file
        except (OSError, EOFError, zlib.error) as error:
            raise LogUnreadable(
                f"{self._path} cannot be read ({getattr(error, 'strerror', None) or type(error).__name__})",
                help="check the path, and whether the file was copied completely",
            ) from error


def _unpacked(raw: IO[bytes]) -> IO[bytes] | gzip.GzipFile:
    start = raw.read(len(_GZIP))
    raw.seek(0)
    return gzip.open(raw, "rb") if start == _GZIP else raw


def _why(line: bytes) -> str:
    if len(line) >= MAX_LINE:
        return ": it is too long"
    return "" if line.endswith(b"\n") else ": it ends in the middle"
