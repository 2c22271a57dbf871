r"""Regular expressions with JavaScript's meaning, run line by line on a linear-time engine.

A pattern is translated once so that RE2 can search many lines in one buffer: nothing in it can
match a line feed (RE2's `never_nl`), `^` and `$` stand for the ends of a line, and where the two
dialects differ (`\s`, `.`, `\uXXXX`, `[^]`) the translation spells JavaScript's meaning out. What a
linear-time engine cannot do, look-around and back-references, is refused with a hint.

Known difference: under the flag `m` a carriage return, U+2028 or U+2029 beside `^` or `$`
is consumed by the match, so an expression cannot name that character a second time.
"""

from functools import lru_cache
from typing import Any, Final

import re2

from gateway.errors import PatternNotSupported

MAX_PATTERN_LENGTH: Final = 4_096
_MAX_PROGRAM_BYTES: Final = 8 << 20

_SPACE: Final = r"\t\x{b}\f\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
_NOT_SPACE: Final = (
    r"\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}"
    r"\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{fefe}\x{ff00}-\x{10ffff}"
)
_LINE_ENDS: Final = r"\r\x{2028}\x{2029}"
_NOTHING: Final = r"[^\x{0}-\x{10ffff}]"
_ANYTHING: Final = "(?s:.)"
_CLASSES: Final = {"d": r"\d", "D": r"\D", "w": r"\w", "W": r"\W", "s": _SPACE, "S": _NOT_SPACE}
_CONTROLS: Final = {"t": r"\t", "r": r"\r", "f": r"\f", "v": r"\x{b}", "n": r"\n", "0": r"\x{0}"}
_HEX_DIGITS: Final = frozenset("0123456789abcdefABCDEF")
_LOOK_AROUND: Final = ("?=", "?!", "?<=", "?<!")


class Pattern:
    """A compiled pattern. `matches` asks about one line; `scanner` searches buffers of many lines."""

    __slots__ = ("flags", "scanner", "source")

    def __init__(self, source: str, flags: str = "") -> None:
        self.source = source
        self.flags = flags
        self.scanner = _compile(source, flags)

    def matches(self, line: str) -> bool:
        return self.scanner.search(line.encode("utf-8", "replace")) is not None

    def __repr__(self) -> str:
        return f"Pattern({self.source!r}, {self.flags!r})"


@lru_cache(maxsize=64)
def _compile(source: str, flags: str) -> Any:
    if len(source) > MAX_PATTERN_LENGTH:
        raise PatternNotSupported(f"the pattern is longer than {MAX_PATTERN_LENGTH} characters")
    _check_flags(flags)
    options = re2.Options()
    options.log_errors = False
    options.never_nl = True
    options.max_mem = _MAX_PROGRAM_BYTES
    options.case_sensitive = "i" not in flags
    try:
        return re2.compile(_Translation(source, flags).text().encode("utf-8", "replace"), options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace")
        raise PatternNotSupported(f"the pattern is not valid: {reason}", help=_hint(reason)) from error


def _check_flags(flags: str) -> None:
    for flag in flags:
        if flag not in "imsu":
            raise PatternNotSupported(f"unknown flag {flag!r}", help="use any of i, m, s, u")
        if flags.count(flag) > 1:
            raise PatternNotSupported(f"the flag {flag!r} is repeated")


def _hint(reason: str) -> str | None:
    if "repetition size" in reason or "too large" in reason:
        return "repeat at most 1000 times in all, or use * or +"
    return None


class _Translation:
    """One pass over the source, left to right."""

    def __init__(self, source: str, flags: str) -> None:
        self._source = source
        self._at = 0
        self._multiline = "m" in flags
        self._dot = _ANYTHING if "s" in flags else f"[^{_LINE_ENDS}]"

    def text(self) -> str:
        items: list[str] = []
        while self._at < len(self._source):
            items.append(self._item(self._take()))
        return "(?m)" + "".join(items)  # `^` and `$` are always those of a line: the buffer holds many

    def _item(self, char: str) -> str:
        match char:
            case "\\":
                return self._escape()
            case "[":
                return self._class()
            case "(":
                return self._group()
            case ".":
                return self._dot
            case "^" | "$" if self._multiline:
                return f"(?:{char}|[{_LINE_ENDS}])"
            case "{" if not self._is_quantifier():
                return r"\{"
            case _:
                return char

    def _group(self) -> str:
        rest = self._source[self._at :]
        if rest.startswith(_LOOK_AROUND):
            raise PatternNotSupported(
                f"look-around at position {self._at - 1} is not supported",
                help="search for the wider text without it and narrow the answer; "
                "instead of excluding text, search for what the line must contain",
            )
        if rest.startswith("?") and not rest.startswith(("?:", "?<")):
            raise PatternNotSupported(
                f"the group at position {self._at - 1} is not valid", help="use (?:...) or (?<name>...)"
            )
        return "("

    def _escape(self) -> str:
        char = self._take()
        if not char:
            raise PatternNotSupported("the pattern ends in a lone backslash", help=r"write \\ for a backslash")
        if char in "123456789" or (char == "k" and self._peek() == "<"):
            raise PatternNotSupported(
                f"back-references (\\{char}) are not supported",
                help="write the repeated text out, or search for each half",
            )
        if char in "bB":
            return f"\\{char}"
        if char in _CLASSES:
            return f"[{_CLASSES[char]}]"
        return self._character(char)

    def _character(self, char: str) -> str:
        """An escape for one character or one property, in RE2's spelling."""
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "x":
            return self._hex(2) or "x"
        if char == "u":
            return self._braced_hex() if self._peek() == "{" else self._hex(4) or "u"
        if char in "pP" and self._peek() == "{":
            return self._property(char)
        if char == "c" and self._peek().isascii() and self._peek().isalpha():
            return f"\\x{{{ord(self._take().upper()) - 64:x}}}"
        return char if char.isalnum() or not char.isascii() else f"\\{char}"

    def _braced_hex(self) -> str:
        digits, closed, _ = self._source[self._at + 1 :].partition("}")
        if not closed or not 0 < len(digits) <= 6 or not _HEX_DIGITS.issuperset(digits):
            raise PatternNotSupported("a \\u{...} escape is not valid", help="write up to six hex digits")
        self._at += len(digits) + 2
        return _spelled(digits)

    def _hex(self, length: int) -> str:
        digits = self._source[self._at : self._at + length]
        if len(digits) < length or not _HEX_DIGITS.issuperset(digits):
            return ""
        self._at += length
        return _spelled(digits)

    def _property(self, char: str) -> str:
        name, closed, _ = self._source[self._at + 1 :].partition("}")
        if not closed:
            raise PatternNotSupported(f"a \\{char}{{...}} escape is not closed", help="add the missing }")
        self._at += len(name) + 2
        return f"\\{char}{{{name.rpartition('=')[2]}}}"  # JavaScript also writes Script=Greek

    def _class(self) -> str:
        negated = self._peek() == "^"
        if negated:
            self._take()
        members: list[str] = []
        while (char := self._take()) != "]":
            members.append(self._class_member(char))
        if not members:  # JavaScript's [] matches nothing and [^] anything
            return _ANYTHING if negated else _NOTHING
        return f"[{'^' if negated else ''}{''.join(members)}]"

    def _class_member(self, char: str) -> str:
        if char == "\\":
            char = self._take()
            if char in _CLASSES:
                return _CLASSES[char]
            if char == "b":
                return r"\x{8}"
            if char:
                return self._character(char)
        if not char:
            raise PatternNotSupported("a character class is not closed", help="add the missing ]")
        return f"\\{char}" if char in "[^" else char

    def _is_quantifier(self) -> bool:
        body, closed, _ = self._source[self._at :].partition("}")
        low, _, high = body.partition(",")
        return bool(closed) and low.isdecimal() and (high.isdecimal() or not high)

    def _peek(self) -> str:
        return self._source[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._peek()
        self._at += 1
        return char


def _spelled(digits: str) -> str:
    code = int(digits, 16)
    if 0xD800 <= code <= 0xDFFF:
        raise PatternNotSupported(
            "half a surrogate pair cannot be searched for", help="write the character as \\u{...}"
        )
    return f"\\x{{{code:x}}}"
