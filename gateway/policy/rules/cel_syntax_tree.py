"""A second, tolerant parser of CEL, for advice about conditions and for conditions that need no interpreter.

The interpreter does not expose the tree of what it compiles, so this module parses the same text again. Where it does
not understand an expression, it returns `None`: nothing is reported, and the interpreter evaluates the expression.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

_MAX_DEPTH: Final = 32
"""Nested brackets; each level takes a dozen stack frames."""

_MAX_CHAIN: Final = 64
"""Consecutive fields, signs or sums: each makes the tree one level deeper."""

_LONG: Final = r'"""(?:\\[\s\S]|[^\\])*?"""|' + r"'''(?:\\[\s\S]|[^\\])*?'''"
_SHORT: Final = r'"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])*'"
_RAW: Final = r'[rR](?:"""[\s\S]*?"""|' + r"'''[\s\S]*?'''|" + r'"[^"\n]*"|' + r"'[^'\n]*')"
_TOKEN: Final = re.compile(
    rf"(?P<blank>\s+|//[^\n]*)|(?P<bytes>[bB](?:{_RAW}|{_LONG}|{_SHORT}))|(?P<raw>{_RAW})|(?P<text>{_LONG}|{_SHORT})"
    r"|(?P<number>(?:0[xX][0-9a-fA-F]+|(?:\d+\.\d+|\d+|\.\d+)(?:[eE][+-]?\d+)?)[uU]?)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|[<>!?:,.+\-*/%()\[\]{}])"
)
_ESCAPE: Final = re.compile(
    r"\\(?:([abfnrtv])|([\\?\"'`])|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2}))"
)
_CONTROLS: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_LEVELS: Final = (("||",), ("&&",), ("<", "<=", ">=", ">", "==", "!=", "in"), ("+", "-"), ("*", "/", "%"))


@dataclass(frozen=True, slots=True)
class Node:
    """A part of an expression, with its place in the text."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ConstantNode(Node):
    """A literal. `value` is a text, a number, a boolean or `None`."""

    value: Any


@dataclass(frozen=True, slots=True)
class NameNode(Node):
    name: str


@dataclass(frozen=True, slots=True)
class FieldNode(Node):
    """`operand.name` or `operand["name"]`; the name itself begins at `at`."""

    operand: Node
    name: str
    at: int


@dataclass(frozen=True, slots=True)
class IndexNode(Node):
    """`operand[index]` where the index is not text."""

    operand: Node
    index: Node


@dataclass(frozen=True, slots=True)
class CallNode(Node):
    """`function(arguments)`, or `target.function(arguments)`."""

    function: str
    target: Node | None
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ListNode(Node):
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class OperatorNode(Node):
    """An operator with its operands: one for `!` and `-`, three for `?`, two or more for `&&` and `||`."""

    operator: str
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class MapNode(Node):
    """`{key: value}`, or a bytes literal: nothing is known about its value."""

    parts: tuple[Node, ...]


def parse_expression(source: str) -> Node | None:
    """Return the tree of an expression; `None` if this parser does not understand it."""
    try:
        return _Parser(source).parse()
    except _NotUnderstood:
        return None


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case FieldNode(operand=operand):
            return (operand,)
        case IndexNode(operand=operand, index=index):
            return (operand, index)
        case CallNode(target=target, arguments=arguments):
            return arguments if target is None else (target, *arguments)
        case ListNode(items=parts) | OperatorNode(operands=parts) | MapNode(parts=parts):
            return parts
    return ()


class _NotUnderstood(Exception):
    pass


class _Parser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, source: str) -> None:
        self._tokens = list(_tokens(source))
        self._next = 0
        self._depth = 0

    def parse(self) -> Node:
        node = self._expression()
        if self._kind != "end":
            raise _NotUnderstood
        return node

    @property
    def _kind(self) -> str:
        return self._tokens[self._next][0]

    @property
    def _text(self) -> str:
        return self._tokens[self._next][1]

    @property
    def _start(self) -> int:
        return self._tokens[self._next][2]

    @property
    def _end(self) -> int:
        """Where the previous token ends."""
        _, text, start = self._tokens[self._next - 1]
        return start + len(text)

    def _take(self, *signs: str) -> str | None:
        """Take the next token if it is one of the signs."""
        if self._kind in ("sign", "name") and self._text in signs:
            self._next += 1
            return self._tokens[self._next - 1][1]
        return None

    def _expect(self, sign: str) -> None:
        if self._take(sign) is None:
            raise _NotUnderstood

    def _expression(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _NotUnderstood
        node = self._binary(0)
        if self._take("?"):
            chosen = self._binary(0)
            self._expect(":")
            other = self._expression()
            node = OperatorNode(node.start, self._end, "?", (node, chosen, other))
        self._depth -= 1
        return node

    def _binary(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self._unary()
        node = self._binary(level + 1)
        if level <= 1:  # `&&` and `||` take any number of operands, so that long ones stay flat
            operands = [node]
            while self._take(*_LEVELS[level]):
                operands.append(self._binary(level + 1))
            operator = _LEVELS[level][0]
            return node if not operands[1:] else OperatorNode(node.start, self._end, operator, tuple(operands))
        for _ in range(_MAX_CHAIN):
            sign = self._take(*_LEVELS[level])
            if sign is None:
                return node
            right = self._binary(level + 1)
            node = OperatorNode(node.start, right.end, sign, (node, right))
        raise _NotUnderstood

    def _unary(self) -> Node:
        start, signs = self._start, []
        while sign := self._take("!", "-"):
            signs.append(sign)
        if len(signs) > _MAX_CHAIN:
            raise _NotUnderstood
        node = self._member()
        for sign in reversed(signs):
            node = self._apply_sign(start, sign, node)
        return node

    def _apply_sign(self, start: int, sign: str, node: Node) -> Node:
        if sign == "-" and isinstance(node, ConstantNode) and type(node.value) in (int, float):
            return ConstantNode(start, node.end, -node.value)
        return OperatorNode(start, node.end, sign, (node,))

    def _member(self) -> Node:
        node = self._primary()
        for _ in range(_MAX_CHAIN):
            sign = self._take(".", "[")
            if sign is None:
                return node
            if sign == ".":
                node = self._field(node)
                continue
            index = self._expression()
            self._expect("]")
            if isinstance(index, ConstantNode) and isinstance(index.value, str):
                node = FieldNode(node.start, self._end, node, index.value, index.start)
            else:
                node = IndexNode(node.start, self._end, node, index)
        raise _NotUnderstood

    def _field(self, node: Node) -> Node:
        if self._kind != "name":
            raise _NotUnderstood
        name, at = self._text, self._start
        self._next += 1
        if self._take("("):
            arguments = self._items(")")
            return CallNode(node.start, self._end, name, node, arguments)
        return FieldNode(node.start, self._end, node, name, at)

    def _primary(self) -> Node:
        kind, text, start = self._tokens[self._next]
        self._next += 1
        if kind in ("text", "raw", "number"):
            return ConstantNode(start, start + len(text), _constant(kind, text))
        if kind == "bytes":
            return MapNode(start, start + len(text), ())
        if kind == "name":
            if text in _CONSTANTS:
                return ConstantNode(start, start + len(text), _CONSTANTS[text])
            if self._take("("):
                arguments = self._items(")")
                return CallNode(start, self._end, text, None, arguments)
            return NameNode(start, start + len(text), text)
        if text == "(":
            node = self._expression()
            self._expect(")")
            return node
        if text == "[":
            items = self._items("]")
            return ListNode(start, self._end, items)
        if text == "{":
            parts = self._items("}", pairs=True)
            return MapNode(start, self._end, parts)
        raise _NotUnderstood

    def _items(self, closing: str, *, pairs: bool = False) -> tuple[Node, ...]:
        found: list[Node] = []
        while not self._take(closing):
            found.append(self._expression())
            if pairs:
                self._expect(":")
                found.append(self._expression())
            if not self._take(","):
                self._expect(closing)
                break
        return tuple(found)


def _tokens(source: str) -> list[tuple[str, str, int]]:
    found: list[tuple[str, str, int]] = []
    place = 0
    while place < len(source):
        match = _TOKEN.match(source, place)
        if match is None or match.lastgroup is None:
            raise _NotUnderstood
        if match.lastgroup != "blank":
            found.append((match.lastgroup, match.group(), place))
        place = match.end()
    found.append(("end", "", place))
    return found


def _constant(kind: str, text: str) -> Any:
    if kind == "number":
        digits = text.rstrip("uU")
        is_whole = digits.isdecimal() or digits[:2] in ("0x", "0X")
        return int(digits, 0 if digits[:2] in ("0x", "0X") else 10) if is_whole else float(digits)
    body = text[1:] if kind == "raw" else text
    quotes = 3 if len(body) >= 6 and body[:3] in ('"""', "'''") else 1
    inner = body[quotes:-quotes]
    return inner if kind == "raw" else _ESCAPE.sub(_unescape, inner)


def _unescape(match: re.Match[str]) -> str:
    control, mark, byte, short, long, octal = match.groups()
    if control:
        return _CONTROLS[control]
    if mark:
        return mark
    code = int(octal, 8) if octal else int(byte or short or long, 16)
    if code > 0x10FFFF:
        raise _NotUnderstood
    return chr(code)
