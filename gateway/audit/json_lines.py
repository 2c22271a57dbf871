"""Rows as JSON lines: one canonical object per line, in plain files or gzip.

A line contains the body exactly as it was hashed, so verification need not parse it.
"""

import gzip
import re
import zlib
from binascii import unhexlify
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from gateway.audit.chain import ChainRow
from gateway.errors import GatewayError

MAX_LINE: Final = 1 << 20
"""Bytes. The gateway writes far shorter lines, but the file may come from others."""

_GZIP: Final = b"\x1f\x8b"
_START: Final = b'{"body":{'
_HASH: Final = b'},"hash":"'
_END: Final = re.compile(
    rb'\},"hash":"([0-9a-f]{64})","prev":"([0-9a-f]{64})",'
    rb'"seq":([1-9][0-9]{0,18}),"shard":"([A-Za-z0-9][A-Za-z0-9._:-]{0,127})"\}\n'
)
_STATEMENT: Final = b'"log":{'
_BLOCK: Final = 1 << 18
_PROGRESS_INTERVAL: Final = 1 << 12
_LARGEST: Final = 2**63 - 1


class UnreadableLog(GatewayError):
    code = "E_LOG_UNREADABLE"
    default_message = "the log cannot be read"


class InvalidEntry(GatewayError):
    """A part of a log that is not an entry, and its `line`."""

    code = "E_NOT_AN_ENTRY"
    default_message = "not an entry of a decision log"

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def to_line(row: ChainRow) -> bytes:
    """Return the line of a row, with its line end."""
    return b'{"body":%b,"hash":"%b","prev":"%b","seq":%d,"shard":"%b"}\n' % (
        row.body,
        row.hash.hex().encode(),
        row.prev.hex().encode(),
        row.seq,
        row.shard.encode(),
    )


def from_line(line: bytes) -> ChainRow | None:
    """Return the row of a line; `None` if it is not exactly what `to_line` writes."""
    end = line.rfind(_HASH)  # from the back: texts in the body may contain it
    found = _END.fullmatch(line, end) if end > 0 and line.startswith(_START) else None
    if found is None:
        return None
    digest, prev, seq, shard = found.groups()
    number = int(seq)
    if number > _LARGEST:
        return None
    return ChainRow(shard.decode(), number, unhexlify(prev), unhexlify(digest), line[len(_START) - 1 : end + 1])


class JsonLinesLog:
    """The rows of one file. Every iteration reads it again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._size = 0
        self._position: Callable[[], int] = lambda: 0

    def __iter__(self) -> Iterator[ChainRow]:
        """Raise `InvalidEntry` at the first invalid line, `UnreadableLog` if the file cannot be read."""
        for number, line in self._lines():
            row = from_line(line)
            if row is None:
                raise InvalidEntry(number, f"line {number} is not an entry of a decision log{_describe_fault(line)}")
            yield row

    def statements(self) -> Iterator[ChainRow]:
        """Yield the rows with statements about the log itself. Invalid lines are skipped: `__iter__` reports them."""
        with self._open() as file:
            while block := file.read(_BLOCK) + file.readline(MAX_LINE):
                if _STATEMENT in block:
                    matching = (line for line in block.splitlines(keepends=True) if _STATEMENT in line)
                    yield from (row for line in matching if (row := from_line(line)) is not None)

    def fraction(self) -> float:
        """Return how much of the file has been read, from 0 to 1."""
        return self._read / self._size if self._size else 0.0

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with self._open() as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), start=1):
                if not number % _PROGRESS_INTERVAL:
                    self._read = self._position()
                yield number, line
        self._read = self._size

    @contextmanager
    def _open(self) -> Iterator[IO[bytes] | gzip.GzipFile]:
        try:
            with self._path.open("rb") as raw:
                self._size, self._position = self._path.stat().st_size, raw.tell
                with _decompress(raw) as file:
                    yield file
        except (OSError, EOFError, zlib.error) as error:
            raise UnreadableLog(
                f"{self._path} cannot be read ({getattr(error, 'strerror', None) or type(error).__name__})",
                help="check the path, and whether the file was copied completely",
            ) from error


def _decompress(raw: IO[bytes]) -> IO[bytes] | gzip.GzipFile:
    start = raw.read(len(_GZIP))
    raw.seek(0)
    return gzip.open(raw, "rb") if start == _GZIP else raw


def _describe_fault(line: bytes) -> str:
    if len(line) >= MAX_LINE:
        return ": it is too long"
    return "" if line.endswith(b"\n") else ": it is cut off"
