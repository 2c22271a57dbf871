"""Where a Markdown document's front matter, headings and code fences are, found line by line.

Only positions are kept, a few bytes per heading or fence, so a document of any size can be scanned.
The rules are simpler than CommonMark's on purpose (headings start with `#` at column 0, any
indentation may precede a fence), and nothing here reads a document or knows of artifacts.
"""

import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

FRONT_MATTER_FENCE: Final = "---"

_HEADING: Final = re.compile(r"(#{1,6})\s")
_FENCE: Final = re.compile(r"\s*+(`{3,}|~{3,})(\S*)")


@dataclass(frozen=True, slots=True)
class Heading:
    """`end_line` is the last line before the next heading of the same or a smaller depth."""

    depth: int
    line: int
    end_line: int


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """Both fence lines are included; one that is never closed ends with the document."""

    line: int
    end_line: int


@dataclass(frozen=True, slots=True)
class Structure:
    """The positions found in one document. `front_matter_end` is the closing line, `None` without one."""

    front_matter_end: int | None
    heading_lines: "array[int]"
    heading_ends: "array[int]"
    depths: bytes
    block_lines: "array[int]"

    def headings(self, depth: int | None = None) -> Iterator[Heading]:
        for found in zip(self.depths, self.heading_lines, self.heading_ends, strict=True):
            if depth is None or found[0] == depth:
                yield Heading(*found)

    def code_blocks(self) -> Iterator[CodeBlock]:
        pairs = iter(self.block_lines)
        for start, end in zip(pairs, pairs, strict=True):
            yield CodeBlock(start, end)


class StructureScan:
    """Takes a document's lines in order, in pieces of any size, and remembers where things start and end."""

    def __init__(self) -> None:
        self._line = 0
        self._in_front_matter = False
        self._front_matter_end: int | None = None
        self._fence = ""
        self._heading_lines = array("Q")
        self._depths = bytearray()
        self._block_lines = array("Q")

    def feed(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._take(without_carriage_return(line))
            self._line += 1

    def finish(self) -> Structure:
        last = self._line - 1
        return Structure(
            front_matter_end=self._front_matter_end,
            heading_lines=self._heading_lines,
            heading_ends=_ends(self._heading_lines, self._depths, last),
            depths=bytes(self._depths),
            block_lines=self._block_lines + array("Q", [last] if self._fence else []),
        )

    def _take(self, line: str) -> None:
        if line == FRONT_MATTER_FENCE and (self._line == 0 or self._in_front_matter):
            self._in_front_matter = self._line == 0
            self._front_matter_end = None if self._in_front_matter else self._line
        elif self._in_front_matter:
            return
        elif fence := _FENCE.match(line):
            self._take_fence(fence.group(1))
        elif not self._fence and (heading := _HEADING.match(line)):
            self._heading_lines.append(self._line)
            self._depths.append(len(heading.group(1)))

    def _take_fence(self, marker: str) -> None:
        if self._fence and not marker.startswith(self._fence):  # another character, or too short to close
            return
        self._fence = "" if self._fence else marker
        self._block_lines.append(self._line)


def without_carriage_return(line: str) -> str:
    """The line of a CRLF document as it would read in an LF document."""
    return line.removesuffix("\r")


def heading_text(line: str) -> str:
    """What a heading line says; closing `#`s are part of it."""
    return without_carriage_return(line).lstrip("#").strip()


def fence_language(line: str) -> str | None:
    """The word glued to an opening fence."""
    fence = _FENCE.match(without_carriage_return(line))
    return (fence.group(2) or None) if fence else None


def _ends(lines: "array[int]", depths: bytearray, last: int) -> "array[int]":
    """For each heading the line before the next one that is not deeper, else `last`."""
    ends = array("Q", bytes(lines.itemsize * len(lines)))
    next_start = [last + 1] * 7  # per depth: where the nearest following heading of at most that depth starts
    for index in range(len(lines) - 1, -1, -1):
        line, depth = lines[index], depths[index]
        ends[index] = next_start[depth] - 1
        next_start[depth:] = [line] * (7 - depth)
    return ends
