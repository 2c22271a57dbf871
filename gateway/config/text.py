"""The characters of a configuration file: UTF-8, no larger than 1 MiB, nothing a reviewer cannot see.

Lines are counted as YAML 1.1 parsers count them, so that a line number means the same in every message.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from gateway.governance.diagnostics import Diagnostic, Position

MAX_BYTES: Final = 1 << 20
MAX_PROBLEMS: Final = 100
"""Diagnostics per file; whoever has more starts with the first hundred."""

_LONGEST_NAME: Final = 60
_BREAK: Final = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_BOM: Final = "\ufeff"
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")

# Beyond what YAML forbids: marks that reorder text on the screen and letters that no screen shows. A reviewer would
# approve something other than what a program, or a model that is given a description, reads.
_UNSEEN: Final = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\ufffd"
    "\U00010000-\U000dffff\U000e0080-\U0010ffff]"
)


def lines(text: str) -> list[str]:
    """The lines without their breaks; never fewer than one."""
    return _BREAK.split(text.removeprefix(_BOM))


def decode(data: bytes, file: str, *, limit: int = MAX_BYTES) -> tuple[str | None, list[Diagnostic]]:
    """The text of a file, or why there is none."""
    if len(data) > limit:
        return None, [too_large(file, limit)]
    try:
        return data.decode(), []
    except UnicodeDecodeError as error:
        return None, [_not_utf8(data, file, at=error.start)]


def too_large(file: str, limit: int = MAX_BYTES) -> Diagnostic:
    is_document = limit == MAX_BYTES
    return Diagnostic(
        "file-too-large",
        f"the file is larger than {limit >> 20} MiB",
        Position(file, 1),
        help="split it: documents can be spread over any number of files" if is_document else "import less",
    )


def cleaned(text: str, file: str, *, problems: "Problems") -> str:
    """The text without a byte order mark, each character that must not be there replaced by U+FFFD."""
    text = text.removeprefix(_BOM)
    if _UNSEEN.search(text) is None:
        return text
    places = Places(text, file)
    for match in _UNSEEN.finditer(text):
        number = f"{ord(match[0]):04X}"
        escaped = f"\\u{number}" if len(number) == 4 else f"\\U{number:0>8}"
        problems.note(
            "control-character",
            f"the character U+{number} cannot be seen and is not allowed",
            places.at(match.start()),
            help=f'remove it; if it is meant, write it as "{escaped}" in double quotes',
        )
    return _UNSEEN.sub("\ufffd", text)


def clipped(text: str) -> str:
    """A quoted name or value for a message, of bearable length."""
    return repr(text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}…")


class TooManyProblems(Exception):
    """The file has more problems than anybody wants to read."""


class Problems:
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
        """Keep it; raises `TooManyProblems` with the last one there is room for."""
        self.found.append(Diagnostic(code, message, position, help=help, related=related))
        if len(self.found) >= MAX_PROBLEMS:
            raise TooManyProblems

    def close(self) -> None:
        """Say that there may be more."""
        help = "correct the problems above and check again"
        last = self.found[-1].position
        self.found.append(Diagnostic("too-many-problems", "the rest of the file is not checked", last, help=help))


class Places:
    """Character offsets to positions."""

    def __init__(self, text: str, file: str) -> None:
        self._file = file
        self._starts: Sequence[int] = (0, *(match.end() for match in _BREAK.finditer(text)))

    def offset_of(self, line: int) -> int:
        """The first character of a line, counted from 0."""
        return self._starts[line]

    def at(self, index: int, *, width: int = 1) -> Position:
        line = bisect_right(self._starts, index)
        return Position(self._file, line, index - self._starts[line - 1] + 1, width)


def _not_utf8(data: bytes, file: str, *, at: int) -> Diagnostic:
    before = data[:at].decode().removeprefix(_BOM)
    message = "the file is UTF-16" if data.startswith(_UTF16) else f"byte 0x{data[at]:02x} is not UTF-8"
    position = Places(before, file).at(len(before))
    return Diagnostic("bad-encoding", message, position, help="save the file as UTF-8")
