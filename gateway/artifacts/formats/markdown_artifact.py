"""SpooledMarkdownArtifact: query tools for Markdown, by structure and by syntax tree.

Structure (front matter, headings, sections, code blocks) is found by one scan that stores positions only, so it
works for a document of any size. Its rules are simpler than CommonMark's on purpose: headings start with `#` at
column 0, and a fence may have any indentation. Links, images, text and tree come from a parser, for a limited range of
lines at a time. All line numbers count from 0.
"""

import asyncio
import re
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

from gateway.artifacts.formats.document_artifact import to_bounded_text
from gateway.artifacts.formats.markdown_parser import size_error
from gateway.artifacts.formats.markdown_tree import MarkdownNode, build_tree, find_images, find_links, plain_text, walk
from gateway.artifacts.indexed_reader import ByteBudget, limit_answer
from gateway.artifacts.query_tools import ToolMethod
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.errors import AnswerTooLarge, YamlParseError
from gateway.model import UNDEFINED, SpoolReader

FRONT_MATTER_LINES: Final = 200
"""A block that is not closed within these lines is not front matter."""

MAX_FRONT_MATTER: Final = 64 << 10
MAX_TREE_NODES: Final = 20_000
"""Nodes in one answer of `md_ast`: several megabytes of text."""

_BATCH_BYTES: Final = 8 << 20
_BATCH_LINES: Final = 1 << 14
_RANGE_BYTES: Final = 16 << 20
_NEARBY: Final = 1 << 10
_ENTRY: Final = 128
"""Bytes that a printed entry of a list needs besides its text."""

_OVERLONG_LINE: Final = " " * (MAX_FRONT_MATTER + 1)
"""Replaces a line that fits into no batch: the scan treats it as prose, and front matter refuses it as too long."""

MarkdownAnswer = TypeVar("MarkdownAnswer")

FRONT_MATTER_FENCE: Final = "---"
_HEADING: Final = re.compile(r"(#{1,6})\s")
_FENCE: Final = re.compile(r"\s*+(`{3,}|~{3,})(\S*)")


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading. `end_line` is the last line before the next heading of the same or a smaller depth."""

    depth: int
    line: int
    end_line: int


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A code block, including both fence lines; one that is never closed ends with the document."""

    line: int
    end_line: int


Item = TypeVar("Item", Heading, CodeBlock)


@dataclass(frozen=True, slots=True)
class MarkdownStructure:
    """The positions found in one document. `front_matter_end` is its closing line, or `None`."""

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
    """Scans the lines of a document, fed in order in batches of any size, and stores positions."""

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
            self._take(strip_carriage_return(line))
            self._line += 1

    def finish(self) -> MarkdownStructure:
        last = self._line - 1
        return MarkdownStructure(
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


def strip_carriage_return(line: str) -> str:
    """Return a line of a CRLF document without its carriage return."""
    return line.removesuffix("\r")


def heading_text(line: str) -> str:
    """Return the text of a heading line, including closing `#`s."""
    return strip_carriage_return(line).lstrip("#").strip()


def fence_language(line: str) -> str | None:
    """Return the word directly after an opening fence."""
    fence = _FENCE.match(strip_carriage_return(line))
    return (fence.group(2) or None) if fence else None


def _ends(lines: "array[int]", depths: bytearray, last: int) -> "array[int]":
    """Return for each heading the line before the next one that is not deeper, else `last`."""
    ends = array("Q", bytes(lines.itemsize * len(lines)))
    next_start = [last + 1] * 7  # per depth: start of the next heading of at most that depth
    for index in range(len(lines) - 1, -1, -1):
        line, depth = lines[index], depths[index]
        ends[index] = next_start[depth] - 1
        next_start[depth:] = [line] * (7 - depth)
    return ends


def _methods() -> tuple[ToolMethod, ...]:
    depth = {"type": "integer", "minimum": 1, "maximum": 6, "description": "Only headings with this many #."}
    lang = {"type": "string", "description": "Only blocks in this language; an empty text selects those without one."}
    lines = {
        "startLine": {"type": "integer", "minimum": 0, "description": "First line, counted from 0."},
        "endLine": {"type": "integer", "minimum": 0, "description": "Line to stop before."},
    }
    read_block = "Lines count from 0; read a block's code with artifact_cat from startLine + 1 to endLine."
    read_section = "Lines count from 0; read a section with artifact_cat from bodyStartLine to bodyEndLine + 1."
    return (
        _method("frontmatter", "Returns its YAML front matter as an object.", {}),
        _method("headings", "Lists its headings and the lines each one covers, counted from 0.", {"depth": depth}),
        _method("code_blocks", f"Lists its fenced code blocks. {read_block}", {"lang": lang}),
        _method("sections", f"Lists its sections. {read_section}", {"depth": depth}),
        _method("links", "Lists the inline links and bare addresses in a range of lines; not references.", lines),
        _method("images", "Lists the inline images in a range of lines.", lines),
        _method("text", "Returns a range of lines as plain text, without markup.", lines),
        _method("ast", "Returns the syntax tree of a range of lines.", lines, serialise=to_bounded_text),
    )


def _method(
    name: str, what: str, properties: dict[str, Any], *, serialise: Callable[[Any], str] | None = None
) -> ToolMethod:
    about = f"Queries a Markdown artifact of this turn, selected by callId. {what}"
    schema = {"type": "object", "properties": properties}
    return ToolMethod(f"artifact_md_{name}", f"md_{name}", about, schema, serialise)


class SpooledMarkdownArtifact(SpooledArtifact):
    """A Markdown document. Caches the positions of its structure, never its text."""

    tool_methods: ClassVar[tuple[ToolMethod, ...]] = _methods()

    def __init__(self, reader: SpoolReader) -> None:
        super().__init__(reader)
        self._structure: MarkdownStructure | None = None

    async def md_frontmatter(self) -> Any:
        """Return the front matter as a dict; `UNDEFINED` if there is none, or if it is not a mapping."""
        if not await self._opens_front_matter():
            return UNDEFINED
        block, size = [FRONT_MATTER_FENCE], 0
        async for lines in self._batches(1, FRONT_MATTER_LINES):
            for line in map(strip_carriage_return, lines):
                if line == FRONT_MATTER_FENCE:
                    return await asyncio.to_thread(_front_matter, block, size)
                size += len(line) + 1
                if size <= MAX_FRONT_MATTER:
                    block.append(line)
        return UNDEFINED

    async def md_headings(self, depth: int | None = None) -> list[MarkdownNode]:
        budget, found = ByteBudget(), []
        async for heading, line in self._with_lines((await self._get_structure()).headings(depth)):
            text = heading_text(line)
            budget.spend(len(text) + _ENTRY)
            found.append({"depth": heading.depth, "text": text, "startLine": heading.line, "endLine": heading.end_line})
        return found

    async def md_sections(self, depth: int | None = None) -> list[MarkdownNode]:
        """Return sections as ranges of lines, without text; an empty section ends before it starts."""
        return [
            {
                "depth": heading["depth"],
                "heading": heading["text"],
                "headingLine": heading["startLine"],
                "bodyStartLine": heading["startLine"] + 1,
                "bodyEndLine": heading["endLine"],
            }
            for heading in await self.md_headings(depth)
        ]

    async def md_code_blocks(self, lang: str | None = None) -> list[MarkdownNode]:
        """Return fenced blocks, fences included; `lang=""` selects those without a language."""
        budget, found = ByteBudget(), []
        async for block, line in self._with_lines((await self._get_structure()).code_blocks()):
            language = fence_language(line)
            if lang is None or lang == (language or ""):
                budget.spend(len(language or "") + _ENTRY)
                found.append({"lang": language, "startLine": block.line, "endLine": block.end_line})
        return found

    async def md_links(self, start_line: int | None = None, end_line: int | None = None) -> list[MarkdownNode]:
        return await self._read(start_line, end_line, answer=find_links)

    async def md_images(self, start_line: int | None = None, end_line: int | None = None) -> list[MarkdownNode]:
        return await self._read(start_line, end_line, answer=find_images)

    async def md_text(self, start_line: int | None = None, end_line: int | None = None) -> str:
        return await self._read(start_line, end_line, answer=plain_text)

    async def md_ast(self, start_line: int | None = None, end_line: int | None = None) -> MarkdownNode:
        """Return an MDAST-like tree; see `markdown_tree`."""
        return await self._read(start_line, end_line, answer=_check_node_count)

    async def _read(
        self, start: int | None, end: int | None, *, answer: Callable[[MarkdownNode], MarkdownAnswer]
    ) -> MarkdownAnswer:
        """Apply `answer` to the tree of lines `[start, end)`; a range from 0 excludes the front matter."""
        first = max(start or 0, 0)
        if first == 0 and await self._opens_front_matter():
            closed = (await self._get_structure()).front_matter_end
            first = 0 if closed is None else closed + 1
        try:
            with limit_answer(_RANGE_BYTES):
                lines = await self.cat(first, end)
        except AnswerTooLarge as error:
            raise size_error("the lines hold too much text to be parsed at once") from error
        return await asyncio.to_thread(lambda: answer(build_tree(lines, first)))

    async def _get_structure(self) -> MarkdownStructure:
        if self._structure is None:
            scan = StructureScan()
            async for lines in self._batches(0, await self.line_count()):
                await asyncio.to_thread(scan.feed, lines)
            self._structure = scan.finish()
        return self._structure

    async def _opens_front_matter(self) -> bool:
        first = [line async for lines in self._batches(0, 1) for line in lines]
        return [strip_carriage_return(line) for line in first] == [FRONT_MATTER_FENCE]

    async def _with_lines(self, items: Iterable[Item]) -> AsyncIterator[tuple[Item, str]]:
        """Yield each item with the text of its first line; lines of nearby items are read together."""
        for nearby in _group_nearby(items):
            first, waiting = nearby[0].line, deque(nearby)
            async for lines in self._batches(first, nearby[-1].line + 1):
                while waiting and waiting[0].line < first + len(lines):
                    item = waiting.popleft()
                    yield item, lines[item.line - first]
                first += len(lines)

    async def _batches(self, first: int, end: int) -> AsyncIterator[list[str]]:
        """Yield lines `[first, end)` in batches that fit into a memory limit, for lines of any length."""
        end = min(end, await self.line_count())
        step = _BATCH_LINES
        while first < end:
            step = min(step, end - first)
            try:
                with limit_answer(_BATCH_BYTES):
                    lines = await self.cat(first, first + step)
            except AnswerTooLarge:
                if step > 1:
                    step //= 2
                    continue
                lines = [_OVERLONG_LINE]
            yield lines
            first += step
            step = min(step * 2, _BATCH_LINES)


def _group_nearby(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Group items that are near each other, so that their lines are read together."""
    nearby: list[Item] = []
    for item in items:
        if nearby and item.line - nearby[0].line >= _NEARBY:
            yield nearby
            nearby = []
        nearby.append(item)
    if nearby:
        yield nearby


def _front_matter(block: list[str], size: int) -> Any:
    if size > MAX_FRONT_MATTER:
        raise YamlParseError(f"the front matter is longer than {MAX_FRONT_MATTER} characters")
    from gateway.artifacts.formats.yaml_parser import parse_yaml  # PyYAML loads on first use: most documents have none

    document = parse_yaml("\n".join(block), single=True)[0]  # the opening fence starts a document
    return document if isinstance(document, dict) else UNDEFINED


def _check_node_count(root: MarkdownNode) -> MarkdownNode:
    for number, _ in enumerate(walk(root)):
        if number >= MAX_TREE_NODES:
            raise size_error(f"the syntax tree has more than {MAX_TREE_NODES} nodes")
    return root
