"""Plain data with positions from a stream of values, lists, mappings and aliases, built without recursion.

Says what is wrong with keys, aliases, nesting and numbers, and reads on. What an unquoted scalar means is decided
in `scalars`. Knows no YAML library.
"""

from typing import Any, Final

from gateway.config.nodes import Document, Path, Positions, Token
from gateway.config.scalars import MERGE, OutOfRange, Scalar, is_text_as_key, plain
from gateway.config.text import MAX_BYTES, Problems, clipped
from gateway.governance.diagnostics import Position, did_you_mean

MAX_DEPTH: Final = 64
MAX_ALIASES: Final = 100
MAX_ALIASED: Final = MAX_BYTES
"""Characters that all aliases of a file together may stand for, so that none can multiply the others."""

_SCALAR_OVERHEAD: Final = 16
_Aliased = tuple[Any, int, int]
"""What an anchor stands for: the value, its size in characters and how many levels it has."""

_NOTHING: Final[_Aliased] = (None, 0, 0)


class TooDeep(Exception):
    """The rest of the document cannot be read; the diagnostic is already noted."""


class _Open:
    """A list or mapping whose end has not been reached. What has no path is read for its problems only."""

    __slots__ = ("anchor", "awaits_key", "container", "height", "key", "path", "size", "target")

    def __init__(self, container: Any, path: Path | None, anchor: str | None) -> None:
        self.container = container
        self.path = path
        self.anchor = anchor
        self.size = _SCALAR_OVERHEAD
        self.height = 1
        self.awaits_key = type(container) is dict
        self.key: str | None = None
        self.target: Path | None = None

    def next_path(self) -> Path | None:
        """Where the next value will be."""
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


class Tree:
    """The documents of one file. Aliases are counted per file, anchors belong to their document."""

    def __init__(self, file: str, problems: Problems) -> None:
        self.documents: list[Document] = []
        self._file = file
        self._problems = problems
        self._aliases = 0
        self._aliased = 0
        self.begin()

    def begin(self) -> None:
        """Start a document, forgetting an unfinished one."""
        self._open: list[_Open] = []
        self._anchors: dict[str, _Aliased] = {}
        self._tokens: dict[Path, Token] = {}
        self._key_tokens: dict[Path, Token] = {}
        self._root: Any = None

    def finish(self) -> None:
        """The document is complete: keep it if it is a mapping, pass over it if it is empty."""
        if isinstance(self._root, dict):
            values, keys = Positions(self._file, self._tokens), Positions(self._file, self._key_tokens)
            self.documents.append(Document(self._root, self._file, values, keys))
        elif self._root is not None:
            found = "a list" if isinstance(self._root, list) else "a single value"
            self._note(
                "not-a-mapping",
                f"a document is a mapping, this is {found}",
                self._tokens[()],
                help="start it with 'apiVersion:', 'kind:', 'metadata:' and 'spec:'; separate documents with '---'",
            )
        self.begin()

    def scalar(self, text: str, token: Token, *, is_plain: bool, anchor: str | None) -> None:
        parent = self._open[-1] if self._open else None
        value: Scalar = text
        if parent is not None and parent.awaits_key:
            if is_plain and not is_text_as_key(text):
                self._odd_key(parent, text, token)
            else:
                self._key(parent, text, token)
        else:
            if is_plain:
                try:
                    value = plain(text)
                except OutOfRange:
                    help = "put it in quotes if it is text"
                    self._note("number-range", "the number is too large", token, help=help)
            self._place(parent, value, token, size=_SCALAR_OVERHEAD + len(text))
        if anchor is not None:
            self._anchors[anchor] = (value, _SCALAR_OVERHEAD + len(text), 0)

    def start(self, container: Any, token: Token, *, anchor: str | None) -> None:
        """A list or mapping opens; raises `TooDeep`."""
        if len(self._open) >= MAX_DEPTH:
            self._too_deep(token)
            raise TooDeep
        path: Path | None = ()
        if self._open:
            parent = self._open[-1]
            path = parent.next_path()
            if parent.awaits_key:
                self._note("key-type", "a list or mapping cannot be a key", token, help="a key is a text")
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

    def alias(self, anchor: str, token: Token) -> None:
        parent = self._open[-1] if self._open else None
        value, size, height = self._aliased_value(anchor, token)
        if parent is not None and parent.awaits_key:
            self._alias_key(parent, value, token)
            return
        if len(self._open) + height > MAX_DEPTH:
            self._too_deep(token)
            value, size, height = _NOTHING
        if parent is not None:
            parent.height = max(parent.height, height + 1)
        self._place(parent, value, token, size=size)

    def _odd_key(self, parent: _Open, text: str, token: Token) -> None:
        if text == MERGE:
            help = "write the fields out; what differs by environment belongs in an overlay"
            self._note("merge-key", "merge keys are not read", token, help=help)
            parent.drop_next()
            return
        help = f'put it in quotes: "{text}"' if text else "write a key in front of ':'"
        self._note("key-type", f"the key {clipped(text)} is not text", token, help=help)
        self._key(parent, text, token)

    def _alias_key(self, parent: _Open, value: Any, token: Token) -> None:
        if isinstance(value, str):
            self._key(parent, value, token)
        else:
            self._note("key-type", "the alias does not stand for a text", token, help="write the key out")
            parent.drop_next()

    def _key(self, parent: _Open, text: str, token: Token) -> None:
        parent.awaits_key = False
        if text in parent.container:
            first = self._key_tokens.get((*parent.path, text)) if parent.path is not None else None
            related = (("first given here", self._position(first)),) if first else ()
            self._note("duplicate-key", f"key {clipped(text)} is given twice", token, related=related)
            return
        parent.key = text
        parent.size += _SCALAR_OVERHEAD + len(text)
        if parent.path is not None:
            parent.target = target = (*parent.path, text)
            self._key_tokens[target] = token

    def _place(self, parent: _Open | None, value: Any, token: Token, *, size: int) -> None:
        if parent is None:
            self._root = value
            self._tokens[()] = token
            return
        path = parent.next_path()
        if path is not None:
            self._tokens[path] = token
        parent.add(value, size)

    def _aliased_value(self, anchor: str, token: Token) -> _Aliased:
        if any(each.anchor == anchor for each in self._open):
            help = "write the value out where it is needed"
            self._note("anchor-cycle", f"the anchor {clipped(anchor)} contains itself", token, help=help)
            return _NOTHING
        if anchor not in self._anchors:
            near = did_you_mean(anchor, self._anchors) if len(self._anchors) <= MAX_ALIASES else None
            help = near or f"mark the value that is meant with '&{anchor}'"
            self._note("unknown-anchor", f"there is no anchor {clipped(anchor)} above", token, help=help)
            return _NOTHING
        return self._anchors[anchor] if self._may_alias(self._anchors[anchor][1], token) else _NOTHING

    def _may_alias(self, size: int, token: Token) -> bool:
        was_within_limits = self._aliases <= MAX_ALIASES and self._aliased <= MAX_ALIASED
        self._aliases += 1
        self._aliased += size
        too_many, too_large = self._aliases > MAX_ALIASES, self._aliased > MAX_ALIASED
        if was_within_limits and (too_many or too_large):
            limit = f"more than {MAX_ALIASES} aliases" if too_many else "aliases for more than 1 MiB of text"
            self._note("alias-limit", f"{limit} in one file", token, help="write the values out, or split the file")
        return not (too_many or too_large)

    def _too_deep(self, token: Token) -> None:
        self._note("too-deep", f"nested more than {MAX_DEPTH} levels deep", token)

    def _position(self, token: Token) -> Position:
        return Position(self._file, *token)

    def _note(
        self,
        code: str,
        message: str,
        token: Token,
        *,
        help: str | None = None,
        related: tuple[tuple[str, Position], ...] = (),
    ) -> None:
        self._problems.note(code, message, self._position(token), help=help, related=related)
