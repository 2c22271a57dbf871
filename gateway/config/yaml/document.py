"""A document as plain data with the file position of each value and key, and the text checks of a file.

Files are UTF-8, at most 1 MiB, and have no invisible characters. Lines are counted as YAML 1.1 parsers count them, so
that line numbers agree in all messages.

Every layer that changes the data (environment, overlays) returns a new document, whose positions are still those of the
tokens that the author would edit.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.registries import Diagnostic, Position

DocumentPath = tuple[str | int, ...]
"""Path of a value in a document: keys and list indexes from the root, which is `()`."""

TokenRange = tuple[int, int, int]
"""Line, column and width, counted as in `Position`."""


class Positions(Mapping[DocumentPath, Position]):
    """Positions of the tokens of one file, created on access, because most are never reported."""

    __slots__ = ("_file", "_tokens")

    def __init__(self, file: str, tokens: Mapping[DocumentPath, TokenRange]) -> None:
        self._file = file
        self._tokens = tokens

    def __getitem__(self, path: DocumentPath) -> Position:
        return Position(self._file, *self._tokens[path])

    def __contains__(self, path: object) -> bool:
        return path in self._tokens

    def __iter__(self) -> Iterator[DocumentPath]:
        return iter(self._tokens)

    def __len__(self) -> int:
        return len(self._tokens)


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """One mapping of a file. Treat `data` as read-only: aliased values are shared."""

    data: dict[str, Any]
    file: str
    positions: Mapping[DocumentPath, Position]
    key_positions: Mapping[DocumentPath, Position]
    substituted: frozenset[DocumentPath] = frozenset()
    """Paths of values that contain text from the environment, which later layers must not print."""

    written: Mapping[DocumentPath, str] = field(default_factory=dict)
    """Original texts of values with substituted variables."""

    def position(self, path: DocumentPath) -> Position:
        """Return the position of the value, or of the nearest parent that has one."""
        while path and path not in self.positions:
            path = path[:-1]
        return self.positions[path]

    def key_position(self, path: DocumentPath) -> Position:
        """Return the position of the value's key, or of the value if it has no key."""
        return self.key_positions.get(path) or self.position(path)


MAX_BYTES: Final = 1 << 20
MAX_PROBLEMS: Final = 100
"""Maximum number of diagnostics per file."""

_LONGEST_NAME: Final = 60
_BREAK: Final = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_BOM: Final = "\ufeff"
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")

# Besides characters that YAML forbids: marks that reorder text on the screen, and invisible letters. With them, a
# reviewer would approve a text that differs from what a program or a model reads.
_FORBIDDEN: Final = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\ufffd"
    "\U00010000-\U000dffff\U000e0080-\U0010ffff]"
)


def split_lines(text: str) -> list[str]:
    """Return the lines without line breaks; at least one."""
    return _BREAK.split(text.removeprefix(_BOM))


def decode_file(data: bytes, file: str, *, limit: int = MAX_BYTES) -> tuple[str | None, list[Diagnostic]]:
    """Return the text of a file, or `None` and the problem."""
    if len(data) > limit:
        return None, [size_problem(file, limit)]
    try:
        return data.decode(), []
    except UnicodeDecodeError as error:
        return None, [_not_utf8(data, file, at=error.start)]


def size_problem(file: str, limit: int = MAX_BYTES) -> Diagnostic:
    is_document = limit == MAX_BYTES
    return Diagnostic(
        "file-too-large",
        f"the file is larger than {limit >> 20} MiB",
        Position(file, 1),
        help="split it: documents can be in any number of files" if is_document else "import fewer definitions",
    )


def check_characters(text: str, file: str, *, problems: "ProblemList") -> str:
    """Return the text without a byte order mark, with U+FFFD for each forbidden character."""
    text = text.removeprefix(_BOM)
    if _FORBIDDEN.search(text) is None:
        return text
    places = LineOffsets(text, file)
    for match in _FORBIDDEN.finditer(text):
        number = f"{ord(match[0]):04X}"
        escaped = f"\\u{number}" if len(number) == 4 else f"\\U{number:0>8}"
        problems.note(
            "control-character",
            f"the invisible character U+{number} is not allowed",
            places.at(match.start()),
            help=f'remove it, or write it as "{escaped}" in double quotes',
        )
    return _FORBIDDEN.sub("\ufffd", text)


def truncate_line(text: str) -> str:
    """Return a quoted text for a message, truncated to 60 characters."""
    return repr(text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}…")


class TooManyProblems(Exception):
    """The limit of problems per file is reached."""


class ProblemList:
    """The problems of one file, up to a limit."""

    def __init__(self) -> None:
        self.found: list[Diagnostic] = []

    def note(
        self,
        code: str,
        message: str,
        position: Position,
        *,
        help: str | None = None,
        related: Sequence[tuple[str, Position]] = (),
    ) -> None:
        """Add a problem. Raises `TooManyProblems` when the limit is reached."""
        self.found.append(Diagnostic(code, message, position, help=help, related=related))
        if len(self.found) >= MAX_PROBLEMS:
            raise TooManyProblems

    def close(self) -> None:
        """Add a note that the rest is not checked."""
        help = "correct the problems above and check again"
        last = self.found[-1].position
        self.found.append(Diagnostic("too-many-problems", "the rest of the file is not checked", last, help=help))


class LineOffsets:
    """Converts character offsets to positions."""

    def __init__(self, text: str, file: str) -> None:
        self._file = file
        self._starts: Sequence[int] = (0, *(match.end() for match in _BREAK.finditer(text)))

    def offset_of(self, line: int) -> int:
        """Return the offset of a line, both counted from 0."""
        return self._starts[line]

    def at(self, index: int, *, width: int = 1) -> Position:
        line = bisect_right(self._starts, index)
        return Position(self._file, line, index - self._starts[line - 1] + 1, width)


def _not_utf8(data: bytes, file: str, *, at: int) -> Diagnostic:
    before = data[:at].decode().removeprefix(_BOM)
    message = "the file is UTF-16" if data.startswith(_UTF16) else f"byte 0x{data[at]:02x} is not UTF-8"
    position = LineOffsets(before, file).at(len(before))
    return Diagnostic("bad-encoding", message, position, help="save the file as UTF-8")
