"""Build plain data with positions from a stream of scalars, lists, mappings and aliases, without recursion.

Problems of keys, aliases, nesting and numbers are reported, and building continues.

An unquoted scalar is null, true, false, a decimal number, or text. YAML 1.1 would parse `22:30` as 1350, `012` as 10,
`on` as true and `2026-11-16` as a date. Here all of them are text, and so are `1e3`, `+1`, `.5`, `0x1F`, `.inf`, `True`
and `Null`: only a number in the usual decimal notation is a number.
"""

import math
import re
from typing import Any, Final

from gateway.config.yaml.document import (
    MAX_BYTES,
    DocumentPath,
    Positions,
    ProblemList,
    TokenRange,
    YamlDocument,
    truncate_line,
)
from gateway.registries import Position, suggest_name

YamlScalar = str | int | float | bool | None

_WORDS: Final[dict[str, YamlScalar]] = {"": None, "~": None, "null": None, "true": True, "false": False}
MERGE: Final = "<<"
"""The key that other YAML parsers replace by the fields of its value."""

_NOT_KEYS: Final = frozenset((MERGE, *_WORDS))
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?")
_NUMERIC: Final = frozenset("-0123456789")
_LONGEST_INTEGER: Final = 20
_INTEGERS: Final = range(-(1 << 63), 1 << 64)
"""Integers that JSON libraries, databases and other languages support."""


class NumberOutOfRange(Exception):
    """A number that other programs may not support."""


def parse_plain_scalar(text: str) -> YamlScalar:
    """Return the value of an unquoted scalar. Raises `NumberOutOfRange`."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMERIC:
        return text
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    return _integer(text) if match[1] is None else _float(text)


def is_text_as_key(text: str) -> bool:
    """Whether an unquoted key is text.

    Whole numbers count as text, so that a table of status codes needs no quotes: JSON has text keys only.
    """
    if text in _NOT_KEYS:
        return False
    if text[0] not in _NUMERIC:
        return True
    match = _NUMBER.fullmatch(text)
    return match is None or match[1] is None


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER or (number := int(text)) not in _INTEGERS:
        raise NumberOutOfRange
    return number


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise NumberOutOfRange
    return number


MAX_DEPTH: Final = 64
MAX_ALIASES: Final = 100
MAX_ALIASED: Final = MAX_BYTES
"""Maximum number of characters that all aliases of a file expand to, so that aliases cannot multiply."""

_SCALAR_OVERHEAD: Final = 16
_Aliased = tuple[Any, int, int]
"""The target of an anchor: its value, its size in characters and its depth."""

_NO_VALUE: Final[_Aliased] = (None, 0, 0)


class NestingTooDeep(Exception):
    """The rest of the document cannot be read; the diagnostic is already added."""


class _Open:
    """An open list or mapping. Without a path, it is only checked and then dropped."""

    __slots__ = ("anchor", "awaits_key", "container", "height", "key", "path", "size", "target")

    def __init__(self, container: Any, path: DocumentPath | None, anchor: str | None) -> None:
        self.container = container
        self.path = path
        self.anchor = anchor
        self.size = _SCALAR_OVERHEAD
        self.height = 1
        self.awaits_key = type(container) is dict
        self.key: str | None = None
        self.target: DocumentPath | None = None

    def next_path(self) -> DocumentPath | None:
        """Return the path of the next value."""
        if self.path is None or type(self.container) is dict:
            return self.target
        return (*self.path, len(self.container))

    def drop_next(self) -> None:
        self.awaits_key, self.key, self.target = False, None, None

    def add(self, value: Any, size: int) -> None:
        self.size += size
        if type(self.container) is list:
            self.container.append(value)
            return
        if self.key is not None:
            self.container[self.key] = value
        self.awaits_key, self.key, self.target = True, None, None


class TreeBuilder:
    """Builds the documents of one file. Aliases are counted per file; anchors are valid in their document."""

    def __init__(self, file: str, problems: ProblemList) -> None:
        self.documents: list[YamlDocument] = []
        self._file = file
        self._problems = problems
        self._aliases = 0
        self._aliased = 0
        self.begin()

    def begin(self) -> None:
        """Start a document and drop an unfinished one."""
        self._open: list[_Open] = []
        self._anchors: dict[str, _Aliased] = {}
        self._tokens: dict[DocumentPath, TokenRange] = {}
        self._key_tokens: dict[DocumentPath, TokenRange] = {}
        self._root: Any = None

    def finish(self) -> None:
        """Finish the document: store a mapping, skip an empty document, report anything else."""
        if isinstance(self._root, dict):
            values, keys = Positions(self._file, self._tokens), Positions(self._file, self._key_tokens)
            self.documents.append(YamlDocument(self._root, self._file, values, keys))
        elif self._root is not None:
            found = "a list" if isinstance(self._root, list) else "a single value"
            self._note(
                "not-a-mapping",
                f"a document must be a mapping, not {found}",
                self._tokens[()],
                help="start it with 'apiVersion:', 'kind:', 'metadata:' and 'spec:'; separate documents with '---'",
            )
        self.begin()

    def scalar(self, text: str, token: TokenRange, *, is_plain: bool, anchor: str | None) -> None:
        parent = self._open[-1] if self._open else None
        value: YamlScalar = text
        if parent is not None and parent.awaits_key:
            if is_plain and not is_text_as_key(text):
                self._add_unusual_key(parent, text, token)
            else:
                self._add_key(parent, text, token)
        else:
            if is_plain:
                try:
                    value = parse_plain_scalar(text)
                except NumberOutOfRange:
                    help = "put it in quotes if it is text"
                    self._note("number-range", "the number is too large", token, help=help)
            self._add_value(parent, value, token, size=_SCALAR_OVERHEAD + len(text))
        if anchor is not None:
            self._anchors[anchor] = (value, _SCALAR_OVERHEAD + len(text), 0)

    def start(self, container: Any, token: TokenRange, *, anchor: str | None) -> None:
        """Open a list or mapping. Raises `NestingTooDeep`."""
        if len(self._open) >= MAX_DEPTH:
            self._report_depth(token)
            raise NestingTooDeep
        path: DocumentPath | None = ()
        if self._open:
            parent = self._open[-1]
            path = parent.next_path()
            if parent.awaits_key:
                self._note("key-type", "a list or mapping cannot be a key", token, help="write a text as key")
        if path is not None:
            self._tokens[path] = token
        self._open.append(_Open(container, path, anchor))

    def end(self) -> None:
        closed = self._open.pop()
        if closed.anchor is not None:
            self._anchors[closed.anchor] = (closed.container, closed.size, closed.height)
        if not self._open:
            self._root = closed.container
            return
        parent = self._open[-1]
        parent.height = max(parent.height, closed.height + 1)
        if parent.awaits_key:
            parent.drop_next()
        else:
            parent.add(closed.container, closed.size)

    def alias(self, anchor: str, token: TokenRange) -> None:
        parent = self._open[-1] if self._open else None
        value, size, height = self._resolve_alias(anchor, token)
        if parent is not None and parent.awaits_key:
            self._add_alias_key(parent, value, token)
            return
        if len(self._open) + height > MAX_DEPTH:
            self._report_depth(token)
            value, size, height = _NO_VALUE
        if parent is not None:
            parent.height = max(parent.height, height + 1)
        self._add_value(parent, value, token, size=size)

    def _add_unusual_key(self, parent: _Open, text: str, token: TokenRange) -> None:
        if text == MERGE:
            help = "write the fields out; use an overlay for differences between environments"
            self._note("merge-key", "merge keys are not supported", token, help=help)
            parent.drop_next()
            return
        help = f'put it in quotes: "{text}"' if text else "write a key in front of ':'"
        self._note("key-type", f"the key {truncate_line(text)} is not text", token, help=help)
        self._add_key(parent, text, token)

    def _add_alias_key(self, parent: _Open, value: Any, token: TokenRange) -> None:
        if isinstance(value, str):
            self._add_key(parent, value, token)
        else:
            self._note("key-type", "the alias does not refer to a text", token, help="write the key out")
            parent.drop_next()

    def _add_key(self, parent: _Open, text: str, token: TokenRange) -> None:
        parent.awaits_key = False
        if text in parent.container:
            first = self._key_tokens.get((*parent.path, text)) if parent.path is not None else None
            related = (("the first one", self._position(first)),) if first else ()
            self._note("duplicate-key", f"the key {truncate_line(text)} is repeated", token, related=related)
            return
        parent.key = text
        parent.size += _SCALAR_OVERHEAD + len(text)
        if parent.path is not None:
            parent.target = target = (*parent.path, text)
            self._key_tokens[target] = token

    def _add_value(self, parent: _Open | None, value: Any, token: TokenRange, *, size: int) -> None:
        if parent is None:
            self._root = value
            self._tokens[()] = token
            return
        path = parent.next_path()
        if path is not None:
            self._tokens[path] = token
        parent.add(value, size)

    def _resolve_alias(self, anchor: str, token: TokenRange) -> _Aliased:
        if any(each.anchor == anchor for each in self._open):
            help = "write the value out where it is needed"
            self._note("anchor-cycle", f"the anchor {truncate_line(anchor)} contains itself", token, help=help)
            return _NO_VALUE
        if anchor not in self._anchors:
            near = suggest_name(anchor, self._anchors) if len(self._anchors) <= MAX_ALIASES else None
            help = near or f"mark the value with '&{anchor}'"
            self._note(
                "unknown-anchor", f"there is no anchor {truncate_line(anchor)} before this alias", token, help=help
            )
            return _NO_VALUE
        return self._anchors[anchor] if self._may_alias(self._anchors[anchor][1], token) else _NO_VALUE

    def _may_alias(self, size: int, token: TokenRange) -> bool:
        was_within_limits = self._aliases <= MAX_ALIASES and self._aliased <= MAX_ALIASED
        self._aliases += 1
        self._aliased += size
        too_many, too_large = self._aliases > MAX_ALIASES, self._aliased > MAX_ALIASED
        if was_within_limits and (too_many or too_large):
            limit = f"more than {MAX_ALIASES} aliases" if too_many else "aliases for more than 1 MiB of text"
            self._note("alias-limit", f"{limit} in one file", token, help="write the values out, or split the file")
        return not (too_many or too_large)

    def _report_depth(self, token: TokenRange) -> None:
        self._note("too-deep", f"nested more than {MAX_DEPTH} levels deep", token)

    def _position(self, token: TokenRange) -> Position:
        return Position(self._file, *token)

    def _note(
        self,
        code: str,
        message: str,
        token: TokenRange,
        *,
        help: str | None = None,
        related: tuple[tuple[str, Position], ...] = (),
    ) -> None:
        self._problems.note(code, message, self._position(token), help=help, related=related)
