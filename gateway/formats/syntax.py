"""Reading a syntax tree: what the languages share. Runs in the worker process, next to the parser.

Every walk is iterative and forward, since a hostile tree is a million levels deep or wide. Nodes are
asked for bytes only: tree-sitter 0.26.0 frees the numbers of its row-and-column points too early.
What a node means is the business of the language's own module.
"""

import re
from array import array
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, Protocol

GRAMMARS: Final = {
    "js": ("tree_sitter_javascript", "language"),
    "jsx": ("tree_sitter_javascript", "language"),
    "py": ("tree_sitter_python", "language"),
    "ts": ("tree_sitter_typescript", "language_typescript"),
    "tsx": ("tree_sitter_typescript", "language_tsx"),
}
"""Where the grammar of a language is: a module, and a function of it."""

MAX_ENTRIES: Final = 100_000
"""Declarations, members, imported and exported names, or references in one answer."""

MAX_SECONDS: Final = 30
"""What parsing and reading one source may take."""

SHORT_VALUE: Final = 120
"""Bytes of an initial value that is still shown in a signature, if it is on one line."""

LONG_LINE: Final = 1_000

Span = tuple[int, int]
"""Where something starts and ends in the source's UTF-8 bytes."""

_BLOCK: Final = 4096
_NAME_PART: Final = rb"[\w$\x80-\xff]"
_OPENING: Final = frozenset({"{", "(", "["})
_CLOSING: Final = frozenset({"}", ")", "]"})


class Node(Protocol):
    """What is read from a node of tree-sitter."""

    @property
    def type(self) -> str: ...

    @property
    def is_named(self) -> bool: ...

    @property
    def start_byte(self) -> int: ...

    @property
    def end_byte(self) -> int: ...

    def child_by_field_name(self, name: str, /) -> "Node | None": ...

    def walk(self) -> "Cursor": ...


class Cursor(Protocol):
    @property
    def node(self) -> Any: ...

    def goto_first_child(self) -> bool: ...

    def goto_next_sibling(self) -> bool: ...

    def goto_parent(self) -> bool: ...


class TooManyEntries(Exception):
    """The source declares, or mentions, more than one answer can carry."""


@dataclass
class Facts:
    """What is known of a source without its text: the answers, and where signatures and docs are."""

    symbols: list[dict[str, Any]] = field(default_factory=list)
    imports: list[dict[str, Any]] = field(default_factory=list)
    exports: list[dict[str, Any]] = field(default_factory=list)
    outline: list[dict[str, Any]] = field(default_factory=list)
    signatures: dict[str, list[list[Span]]] = field(default_factory=dict)
    docs: dict[str, list[Span]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Declaration:
    """A name the source introduces. A signature is one or more pieces of the text, put together."""

    kind: str
    name: str
    span: Span
    signature: list[Span]
    docs: list[Span]


class Source:
    """The bytes that were parsed, and the lines they are on."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        blocks = range(0, len(data), _BLOCK)
        self._newlines = array("I", accumulate((data.count(b"\n", at, at + _BLOCK) for at in blocks), initial=0))

    def text(self, node: Node) -> str:
        return self.data[node.start_byte : node.end_byte].decode()

    def unquoted(self, node: Node) -> str:
        """The text of a name or specifier, without the quotes if it is a string."""
        text = self.text(node)
        return text[1:-1] if node.type == "string" else text

    def line(self, offset: int) -> int:
        block = offset // _BLOCK
        return self._newlines[block] + self.data.count(b"\n", block * _BLOCK, offset)

    def lines(self, span: Span) -> dict[str, int]:
        start, end = span
        return {"startLine": self.line(start), "endLine": self.line(max(start, end - 1))}

    def line_end(self, offset: int) -> int:
        """Where the line ends, or where it gets too long to be shown."""
        line = self.data[offset : offset + LONG_LINE].partition(b"\n")[0]
        return offset + len(line.decode("utf-8", "ignore").encode())

    def has_newline(self, start: int, end: int) -> bool:
        return self.data.find(b"\n", start, end) >= 0

    def trimmed(self, span: Span, unwanted: bytes = b"; \t\r\n") -> Span:
        start, end = span
        return start, start + len(self.data[start:end].rstrip(unwanted))

    def without_long_value(self, span: Span, value: Node | None) -> Span:
        """The span of a binding, cut before an initial value that would not fit on a line."""
        if value is None or (
            value.end_byte - value.start_byte <= SHORT_VALUE and not self.has_newline(value.start_byte, value.end_byte)
        ):
            return self.trimmed(span)
        return self.trimmed((span[0], value.start_byte), b"= \t\r\n")


class Findings:
    """Gathers facts, and refuses to gather more than `MAX_ENTRIES`. What has no name, in broken code, is left out."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.facts = Facts()
        self._members = Facts()
        self._left = MAX_ENTRIES

    def take(self, count: int = 1) -> None:
        self._left -= count
        if self._left < 0:
            raise TooManyEntries(f"the source declares more than {MAX_ENTRIES} names")

    def declare(self, declaration: Declaration, *, exported: bool) -> None:
        if not declaration.name:
            return
        self.take()
        self.facts.symbols.append(
            {
                "kind": declaration.kind,
                "name": declaration.name,
                "exported": exported,
                **self.source.lines(declaration.span),
            }
        )
        _remember(self.facts, declaration.name, declaration)

    def outline(self, kind: str, name: str, span: Span, members: Iterable[Declaration]) -> None:
        """One class or interface. Its members are found by `name.member`, and by `member` if nothing else is."""
        if not name:
            return
        self.take()
        listed: list[dict[str, Any]] = []
        self.facts.outline.append({"kind": kind, "name": name, **self.source.lines(span), "members": listed})
        new: set[str] = set()
        for each in members:
            if not each.name:
                continue
            self.take()
            listed.append({"name": each.name, "kind": each.kind, **self.source.lines(each.span)})
            _remember(self._members, f"{name}.{each.name}", each)
            if each.name in new or each.name not in self._members.signatures:
                new.add(each.name)
                _remember(self._members, each.name, each)

    def finish(self) -> Facts:
        for entries in (self.facts.symbols, self.facts.outline):  # broken regions are read out of turn
            entries.sort(key=lambda entry: int(entry["startLine"]))
        self.facts.signatures = self._members.signatures | self.facts.signatures
        self.facts.docs = self._members.docs | self.facts.docs
        return self.facts


def _remember(facts: Facts, name: str, declaration: Declaration) -> None:
    facts.signatures.setdefault(name, []).append(declaration.signature)
    facts.docs.setdefault(name, []).extend(declaration.docs)


def span_of(node: Node) -> Span:
    return node.start_byte, node.end_byte


def children(node: Node) -> Iterator[Node]:
    """One by one: a list of all children of a hostile node would fill the memory."""
    cursor = node.walk()
    found = cursor.goto_first_child()
    while found:
        yield cursor.node
        found = cursor.goto_next_sibling()


def depth_after(depth: int, token: str) -> int:
    """How deep in brackets one is after a token; needed where the parser found no structure."""
    if token in _OPENING:
        return depth + 1
    return max(depth - 1, 0) if token in _CLOSING else depth


def references(root: Node, data: bytes, *, name: str, kinds: Collection[str]) -> list[tuple[int, int]]:
    """Line and column of every identifier of that name, in source order; columns in UTF-16 units."""
    found: list[tuple[int, int]] = []
    line = column = last = 0
    for offset in _identifiers(root, data, name.encode(), kinds):
        if len(found) == MAX_ENTRIES:
            raise TooManyEntries(f"the source mentions the name more than {MAX_ENTRIES} times")
        between = data[last:offset]
        if newlines := between.count(b"\n"):
            line += newlines
            column = 0
        column += _utf16_units(between[between.rfind(b"\n") + 1 :])
        found.append((line, column))
        last = offset
    return found


def _identifiers(root: Node, data: bytes, name: bytes, kinds: Collection[str]) -> Iterator[int]:
    """Searches the text first and asks the tree about the hits only: most of it is never visited."""
    cursor = root.walk()
    whole_word = re.compile(b"(?<!%b)%b(?!%b)" % (_NAME_PART, re.escape(name), _NAME_PART))
    for match in whole_word.finditer(data):
        _seek(cursor, match.start())
        node = cursor.node
        if node.type in kinds and span_of(node) == match.span():
            yield match.start()


def _seek(cursor: Cursor, offset: int) -> None:
    """Move forward to the leaf at `offset`, or to the first node after it."""
    while True:
        node = cursor.node
        if node.end_byte <= offset:
            while not cursor.goto_next_sibling():
                if not cursor.goto_parent():
                    return
        elif node.start_byte > offset or not cursor.goto_first_child():
            return


def _utf16_units(data: bytes) -> int:
    return len(data) if data.isascii() else len(data.decode().encode("utf-16-le")) // 2
