"""Reads a syntax tree: the common part of all languages. Runs in the worker process, next to the parser.

Every traversal is iterative and forward, since a hostile tree is a million levels deep or wide. Only byte
offsets of nodes are read: tree-sitter 0.26.0 frees its row-and-column points too early. The module of each
language interprets the nodes.
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
"""The grammar of each language: a module, and a function of it."""

MAX_ENTRIES: Final = 100_000
"""Declarations, members, imported and exported names, or references in one answer."""

MAX_SECONDS: Final = 30
"""Time limit for parsing and reading one source."""

SHORT_VALUE: Final = 120
"""Bytes of an initial value up to which it is shown in a signature, if it is on one line."""

LONG_LINE: Final = 1_000

ByteSpan = tuple[int, int]
"""Start and end in the source's UTF-8 bytes."""

_BLOCK: Final = 4096
_NAME_PART: Final = rb"[\w$\x80-\xff]"
_OPENING: Final = frozenset({"{", "(", "["})
_CLOSING: Final = frozenset({"}", ")", "]"})


class SyntaxNode(Protocol):
    """The part of a tree-sitter node that is used here."""

    @property
    def type(self) -> str: ...

    @property
    def is_named(self) -> bool: ...

    @property
    def start_byte(self) -> int: ...

    @property
    def end_byte(self) -> int: ...

    def child_by_field_name(self, name: str, /) -> "SyntaxNode | None": ...

    def walk(self) -> "Cursor": ...


class Cursor(Protocol):
    @property
    def node(self) -> Any: ...

    def goto_first_child(self) -> bool: ...

    def goto_next_sibling(self) -> bool: ...

    def goto_parent(self) -> bool: ...


class TooManyEntries(Exception):
    """The source has more declarations or references than fit into one answer."""


@dataclass
class Facts:
    """What was extracted from a source, without its text: the answers, and the positions of signatures and docs."""

    symbols: list[dict[str, Any]] = field(default_factory=list)
    imports: list[dict[str, Any]] = field(default_factory=list)
    exports: list[dict[str, Any]] = field(default_factory=list)
    outline: list[dict[str, Any]] = field(default_factory=list)
    signatures: dict[str, list[list[ByteSpan]]] = field(default_factory=dict)
    docs: dict[str, list[ByteSpan]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Declaration:
    """A declared name. A signature is the concatenation of one or more parts of the text."""

    kind: str
    name: str
    span: ByteSpan
    signature: list[ByteSpan]
    docs: list[ByteSpan]


class SourceText:
    """The parsed bytes, with an index of their lines."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        blocks = range(0, len(data), _BLOCK)
        self._newlines = array("I", accumulate((data.count(b"\n", at, at + _BLOCK) for at in blocks), initial=0))

    def text(self, node: SyntaxNode) -> str:
        return self.data[node.start_byte : node.end_byte].decode()

    def unquote(self, node: SyntaxNode) -> str:
        """Return the text of a name or specifier, without the quotes if it is a string."""
        text = self.text(node)
        return text[1:-1] if node.type == "string" else text

    def line(self, offset: int) -> int:
        block = offset // _BLOCK
        return self._newlines[block] + self.data.count(b"\n", block * _BLOCK, offset)

    def lines(self, span: ByteSpan) -> dict[str, int]:
        start, end = span
        return {"startLine": self.line(start), "endLine": self.line(max(start, end - 1))}

    def line_end(self, offset: int) -> int:
        """Return the end of the line, or the offset at which it is too long to show."""
        line = self.data[offset : offset + LONG_LINE].partition(b"\n")[0]
        return offset + len(line.decode("utf-8", "ignore").encode())

    def has_newline(self, start: int, end: int) -> bool:
        return self.data.find(b"\n", start, end) >= 0

    def trim(self, span: ByteSpan, unwanted: bytes = b"; \t\r\n") -> ByteSpan:
        start, end = span
        return start, start + len(self.data[start:end].rstrip(unwanted))

    def truncate_value(self, span: ByteSpan, value: SyntaxNode | None) -> ByteSpan:
        """Return the span of a binding, cut before an initial value that does not fit on a line."""
        if value is None or (
            value.end_byte - value.start_byte <= SHORT_VALUE and not self.has_newline(value.start_byte, value.end_byte)
        ):
            return self.trim(span)
        return self.trim((span[0], value.start_byte), b"= \t\r\n")


class FactCollector:
    """Collects at most `MAX_ENTRIES` facts. Declarations without a name, in broken code, are left out."""

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self.facts = Facts()
        self._members = Facts()
        self._left = MAX_ENTRIES

    def add(self, count: int = 1) -> None:
        self._left -= count
        if self._left < 0:
            raise TooManyEntries(f"the source declares more than {MAX_ENTRIES} names")

    def declare(self, declaration: Declaration, *, exported: bool) -> None:
        if not declaration.name:
            return
        self.add()
        self.facts.symbols.append(
            {
                "kind": declaration.kind,
                "name": declaration.name,
                "exported": exported,
                **self.source.lines(declaration.span),
            }
        )
        _add_declaration(self.facts, declaration.name, declaration)

    def outline(self, kind: str, name: str, span: ByteSpan, members: Iterable[Declaration]) -> None:
        """Add one class or interface. Members are found by `name.member`, and by `member` if that name is free."""
        if not name:
            return
        self.add()
        listed: list[dict[str, Any]] = []
        self.facts.outline.append({"kind": kind, "name": name, **self.source.lines(span), "members": listed})
        new: set[str] = set()
        for each in members:
            if not each.name:
                continue
            self.add()
            listed.append({"name": each.name, "kind": each.kind, **self.source.lines(each.span)})
            _add_declaration(self._members, f"{name}.{each.name}", each)
            if each.name in new or each.name not in self._members.signatures:
                new.add(each.name)
                _add_declaration(self._members, each.name, each)

    def finish(self) -> Facts:
        for entries in (self.facts.symbols, self.facts.outline):  # broken regions are not read in order
            entries.sort(key=lambda entry: int(entry["startLine"]))
        self.facts.signatures = self._members.signatures | self.facts.signatures
        self.facts.docs = self._members.docs | self.facts.docs
        return self.facts


def _add_declaration(facts: Facts, name: str, declaration: Declaration) -> None:
    facts.signatures.setdefault(name, []).append(declaration.signature)
    facts.docs.setdefault(name, []).extend(declaration.docs)


def span_of(node: SyntaxNode) -> ByteSpan:
    return node.start_byte, node.end_byte


def children(node: SyntaxNode) -> Iterator[SyntaxNode]:
    """Yield children one by one: a list of all children of a hostile node would fill the memory."""
    cursor = node.walk()
    found = cursor.goto_first_child()
    while found:
        yield cursor.node
        found = cursor.goto_next_sibling()


def bracket_depth(depth: int, token: str) -> int:
    """Return the depth of brackets after a token; for regions in which the parser found no structure."""
    if token in _OPENING:
        return depth + 1
    return max(depth - 1, 0) if token in _CLOSING else depth


def find_references(root: SyntaxNode, data: bytes, *, name: str, kinds: Collection[str]) -> list[tuple[int, int]]:
    """Return line and column of every identifier with that name, in source order; columns in UTF-16 units."""
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


def _identifiers(root: SyntaxNode, data: bytes, name: bytes, kinds: Collection[str]) -> Iterator[int]:
    """Yield offsets of identifiers: search the text first, and visit the tree only at matches."""
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
