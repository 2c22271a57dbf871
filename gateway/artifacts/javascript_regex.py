r"""JavaScript regular expressions, translated to RE2 and run line by line in linear time.

The syntax is JavaScript's without the flag `u`, including sloppy spellings. Everything else, and what a
linear-time engine cannot do (look-around, back-references), is refused with a hint. Groups do not
capture: only whether a line matches is needed.

A pattern is translated once, so that RE2 can search many lines in one buffer: nothing in it
matches a line feed (RE2's `never_nl`), and `^` and `$` match at the ends of a line.

Characters are those of JavaScript's flag `u`, with or without the flag. Differences to JavaScript:

- without `u` JavaScript treats an astral character as two, folds case differently for a few letters
  (`k` and the Kelvin sign), and reads `\u{61}` and `\p{L}` as the bare letters; with `u` it refuses
  sloppy spellings (`\-`, a lone `{`) that are accepted here;
- with `m` a carriage return, U+2028 or U+2029 beside `^` or `$` is consumed by the match, so
  nothing else in the expression can match it;
- with `i` `\P{Lu}` is the opposite of `\p{Lu}`, and `\b` supports ASCII words only;
- `\p{C}` does not contain unassigned code points, and the only supported properties are general
  categories, scripts, `Any` and `ASCII`.
"""

import re
from functools import lru_cache
from typing import Any, Final

from gateway.errors import PatternNotSupported

MAX_REPEAT: Final = 1_000

_SPACE: Final = r"\t\x{b}\f\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
_NOT_SPACE: Final = (
    r"\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}"
    r"\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{fefe}\x{ff00}-\x{10ffff}"
)
_LINE_ENDS: Final = r"\r\x{2028}\x{2029}"
_NOTHING: Final = r"[^\x{0}-\x{10ffff}]"
_ANYTHING: Final = "(?s:.)"
_SETS: Final = {"d": r"\d", "D": r"\D", "w": r"\w", "W": r"\W", "s": _SPACE, "S": _NOT_SPACE}
_CONTROLS: Final = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_DIGITS: Final = frozenset("0123456789")
_HEX_DIGITS: Final = frozenset("0123456789abcdefABCDEF")
_LOOK_AROUND: Final = ("?=", "?!", "?<=", "?<!")
_CATEGORIES: Final = dict(
    re.findall(
        r"(\w+)=(\w+)",
        "Letter=L Uppercase_Letter=Lu Lowercase_Letter=Ll Titlecase_Letter=Lt Modifier_Letter=Lm Other_Letter=Lo "
        "Mark=M Combining_Mark=M Nonspacing_Mark=Mn Spacing_Mark=Mc Enclosing_Mark=Me "
        "Number=N Decimal_Number=Nd digit=Nd Letter_Number=Nl Other_Number=No "
        "Punctuation=P punct=P Connector_Punctuation=Pc Dash_Punctuation=Pd Open_Punctuation=Ps Close_Punctuation=Pe "
        "Initial_Punctuation=Pi Final_Punctuation=Pf Other_Punctuation=Po "
        "Symbol=S Math_Symbol=Sm Currency_Symbol=Sc Modifier_Symbol=Sk Other_Symbol=So "
        "Separator=Z Space_Separator=Zs Line_Separator=Zl Paragraph_Separator=Zp "
        "Other=C Control=Cc cntrl=Cc Format=Cf Surrogate=Cs Private_Use=Co",
    )
)
_PROPERTY_HELP: Final = r"use a general category such as \p{L} or a script such as \p{Script=Greek}"


def to_re2(source: str, flags: str) -> str:
    """Translate an expression for RE2 with `never_nl`. Raises `PatternNotSupported`."""
    return _Translation(_join_surrogates(source), flags).text()


class _Translation:
    """A translator that makes one pass over the source, left to right."""

    def __init__(self, source: str, flags: str) -> None:
        self._source = source
        self._at = 0
        self._multiline = "m" in flags
        self._dot = _ANYTHING if "s" in flags else f"[^{_LINE_ENDS}]"
        self._groups_open = 0
        self._names: set[str] = set()
        self._repeatable = False

    def text(self) -> str:
        items: list[str] = []
        while self._at < len(self._source):
            items.append(self._item(self._take()))
        if self._groups_open:
            raise PatternNotSupported("a group is not closed", help=r"add the missing ), or write \( for a parenthesis")
        return "(?m)" + "".join(items)  # `^` and `$` match at lines: the buffer holds many

    def _item(self, char: str) -> str:
        if char in "*+?" or (char == "{" and self._is_quantifier()):
            return self._quantifier(char)
        self._repeatable = char not in "^$(|"
        match char:
            case "\\":
                return self._escape()
            case "[":
                return self._class()
            case "(":
                return self._group()
            case ")":
                return self._end_of_group()
            case ".":
                return self._dot
            case "|":
                return "|"
            case "^" | "$":
                return f"(?:{char}|[{_LINE_ENDS}])" if self._multiline else char
            case _:
                return _spell(ord(char))

    def _quantifier(self, char: str) -> str:
        if not self._repeatable:
            raise PatternNotSupported(
                f"there is nothing to repeat at position {self._at - 1}", help=rf"write \{char} for the character"
            )
        self._repeatable = False
        text = self._repetition() if char == "{" else char
        if self._peek() == "?":  # a lazy quantifier matches the same lines
            self._take()
        return text

    def _repetition(self) -> str:
        low, comma, high = self._take_until("}").partition(",")
        bounds = [_significant(bound) for bound in (low, high) if bound]
        if max(map(len, bounds)) > 4 or max(map(int, bounds)) > MAX_REPEAT:
            raise PatternNotSupported(
                f"more than {MAX_REPEAT} repetitions are not supported",
                help=f"repeat at most {MAX_REPEAT} times, or use * or +",
            )
        if int(bounds[0]) > int(bounds[-1]):
            raise PatternNotSupported("the bounds of a repetition are out of order", help="write the smaller one first")
        return "{" + comma.join(bounds) + ("," if comma and not high else "") + "}"

    def _group(self) -> str:
        rest = self._source[self._at :]
        if rest.startswith(_LOOK_AROUND):
            raise PatternNotSupported(
                f"look-around at position {self._at - 1} is not supported",
                help="search for the wider text without it and narrow the answer; "
                "instead of excluding text, search for what the line must contain",
            )
        self._groups_open += 1
        if rest.startswith("?:"):
            self._at += 2
        elif rest.startswith("?<"):
            self._at += 2
            self._group_name(self._take_until(">"))
        elif rest.startswith("?"):
            raise PatternNotSupported(
                f"the group at position {self._at - 1} is not valid",
                help="use (?:...) or (?<name>...), and give flags such as i beside the pattern",
            )
        return "(?:"

    def _group_name(self, name: str) -> None:
        if not name.replace("$", "_").isidentifier() or name in self._names:
            raise PatternNotSupported(
                f"the name of the group before position {self._at} is invalid or already used",
                help="use letters, digits and _, and each name once",
            )
        self._names.add(name)

    def _end_of_group(self) -> str:
        if not self._groups_open:
            raise PatternNotSupported(
                f"the ) at position {self._at - 1} closes nothing", help=r"write \) for a parenthesis"
            )
        self._groups_open -= 1
        return ")"

    def _escape(self) -> str:
        char = self._take()
        if char in ("b", "B"):
            self._repeatable = False
            return f"\\{char}"
        if char in _DIGITS - {"0"} or (char == "k" and self._peek() == "<"):
            raise PatternNotSupported(
                f"back-references (\\{char}) are not supported",
                help="write the repeated text out, or search for each half",
            )
        found = self._character(char)
        return f"[{found}]" if isinstance(found, str) else _spell(found)

    def _class(self) -> str:
        is_negated = self._peek() == "^"
        if is_negated:
            self._take()
        members: list[str] = []
        while self._peek() != "]":
            members += self._class_range()
        self._take()
        if not members:  # JavaScript's [] matches nothing and [^] anything
            return _ANYTHING if is_negated else _NOTHING
        return f"[{'^' if is_negated else ''}{''.join(members)}]"

    def _class_range(self) -> list[str]:
        """Read one member: a hyphen between two characters makes a range; beside a set it is a literal."""
        first = self._class_atom()
        if self._peek() != "-" or self._source[self._at + 1 : self._at + 2] == "]":
            return [_member(first)]
        self._take()
        last = self._class_atom()
        if isinstance(first, str) or isinstance(last, str):
            return [_member(first), _spell(ord("-")), _member(last)]
        if first > last:
            raise PatternNotSupported(
                "a range in a character class is out of order",
                help=r"write the smaller character first, or \- for a hyphen",
            )
        return [f"{_spell(first)}-{_spell(last)}"]

    def _class_atom(self) -> int | str:
        char = self._take()
        if not char:
            raise PatternNotSupported(
                "a character class is not closed", help=r"add the missing ], or write \[ for a bracket"
            )
        if char != "\\":
            return ord(char)
        char = self._take()
        if char == "b":
            return 8
        if char == "c" and (self._peek() in _DIGITS or self._peek() == "_"):
            return ord(self._take()) % 32
        if char in _DIGITS - {"0"}:
            raise PatternNotSupported(
                f"the octal escape \\{char} is not supported", help=r"write \xHH with two hex digits"
            )
        return self._character(char)

    def _character(self, char: str) -> int | str:
        """Return the meaning of an escape: one character, or a set as RE2 writes it in a class."""
        if not char:
            raise PatternNotSupported("the pattern ends in a lone backslash", help=r"write \\ for a backslash")
        if char in _SETS:
            return _SETS[char]
        if char == "0" and self._peek() in _DIGITS:
            raise PatternNotSupported("octal escapes are not supported", help=r"write \xHH with two hex digits")
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in ("p", "P") and self._peek() == "{":
            self._take()
            return _property(char, self._take_until("}"))
        if char == "c":
            return self._control()
        code = self._code_point(char) if char in ("x", "u") else None
        return ord(char) if code is None else code

    def _control(self) -> int:
        letter = self._peek()
        if letter.isascii() and letter.isalpha():
            return ord(self._take()) % 32
        self._at -= 1
        return ord("\\")  # JavaScript reads a literal backslash, then the c

    def _code_point(self, char: str) -> int | None:
        """Read `\\xHH`, `\\uHHHH` (two of them for a surrogate pair) or `\\u{...}`; else return `None`."""
        if char == "x":
            return self._hex(2)
        if self._peek() == "{":
            self._take()
            return _braced_code_point(self._take_until("}"))
        high = self._hex(4)
        if high is None or not 0xD800 <= high <= 0xDBFF or not self._source.startswith("\\u", self._at):
            return high
        self._at += 2
        low = self._hex(4)
        if low is None or not 0xDC00 <= low <= 0xDFFF:
            return high  # `_spell` refuses a lone surrogate
        return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)

    def _hex(self, length: int) -> int | None:
        digits = self._source[self._at : self._at + length]
        if len(digits) < length or not _HEX_DIGITS.issuperset(digits):
            return None
        self._at += length
        return int(digits, 16)

    def _is_quantifier(self) -> bool:
        body, closed, _ = self._source[self._at :].partition("}")
        low, _, high = body.partition(",")
        return bool(closed and low) and _DIGITS.issuperset(low) and _DIGITS.issuperset(high)

    def _peek(self) -> str:
        return self._source[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._peek()
        self._at += 1
        return char

    def _take_until(self, end: str) -> str:
        text, closed, _ = self._source[self._at :].partition(end)
        if not closed:
            raise PatternNotSupported(f"a {end} is missing after position {self._at}", help=f"add the missing {end}")
        self._at += len(text) + 1
        return text


def _join_surrogates(source: str) -> str:
    """Join adjacent surrogate halves to one character."""
    return source.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _spell(code: int) -> str:
    if 0xD800 <= code <= 0xDFFF:
        raise PatternNotSupported(
            "a lone surrogate cannot be searched for", help="write the whole character, or as \\u{...}"
        )
    char = chr(code)
    return char if char.isalnum() else f"\\x{{{code:x}}}"


def _member(atom: int | str) -> str:
    return atom if isinstance(atom, str) else _spell(atom)


def _significant(digits: str) -> str:
    """Remove leading zeros: then a long number is a large one, and is refused without converting its digits."""
    return digits.lstrip("0") or digits[:1]


def _braced_code_point(digits: str) -> int:
    significant = _significant(digits)
    is_short = 0 < len(significant) <= 6
    if not is_short or not _HEX_DIGITS.issuperset(digits) or int(significant, 16) > 0x10FFFF:
        raise PatternNotSupported("a \\u{...} escape is not valid", help="write hex digits up to 10ffff")
    return int(significant, 16)


def _property(letter: str, text: str) -> str:
    key, assigned, name = text.rpartition("=")
    if key in ("", "General_Category", "gc"):
        name = _CATEGORIES.get(name, name)
    elif key not in ("Script", "sc"):
        raise PatternNotSupported("a property is not supported", help=_PROPERTY_HELP)
    if name == "ASCII" and not assigned:
        return r"\x{0}-\x{7f}" if letter == "p" else r"\x{80}-\x{10ffff}"
    if not name.replace("_", "").isalnum():
        raise PatternNotSupported("a property is not valid", help=_PROPERTY_HELP)
    return f"\\{letter}{{{name}}}"


MAX_PATTERN_LENGTH: Final = 4_096
_MAX_PROGRAM_BYTES: Final = 8 << 20
_CACHED_PATTERNS: Final = 16
"""Compiled patterns in the cache; each may hold `_MAX_PROGRAM_BYTES` of engine state."""


class Pattern:
    """A compiled pattern. `matches` tests one line; `scanner` searches buffers of many lines."""

    __slots__ = ("flags", "scanner", "source")

    def __init__(self, source: str, flags: str = "") -> None:
        self.source = source
        self.flags = flags
        self.scanner = _compile(source, flags)

    @property
    def instructions(self) -> int:
        """Size of the program. In the worst case the engine executes all instructions for each byte."""
        size: int = self.scanner.programsize
        return size

    def matches(self, line: str) -> bool:
        return self.scanner.search(_utf8(line)) is not None

    def __repr__(self) -> str:
        return f"Pattern({self.source!r}, {self.flags!r})"


@lru_cache(maxsize=_CACHED_PATTERNS)
def _compile(source: str, flags: str) -> Any:
    if not isinstance(source, str) or not isinstance(flags, str):
        raise PatternNotSupported("a pattern and its flags must be text", help="pass both as strings")
    if len(source) > MAX_PATTERN_LENGTH:
        raise PatternNotSupported(
            f"the pattern is longer than {MAX_PATTERN_LENGTH} characters", help="search for a shorter part of it"
        )
    _check_flags(flags)
    import re2  # most processes search nothing

    options = re2.Options()
    options.log_errors = False
    options.never_nl = True
    options.max_mem = _MAX_PROGRAM_BYTES
    options.case_sensitive = "i" not in flags
    try:
        return re2.compile(to_re2(source, flags).encode(), options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace")  # the problem, a colon, and a part of the pattern
        problem = reason.partition(":")[0][:100]
        raise PatternNotSupported(f"the pattern cannot be run: {problem}", help=_hint(reason)) from error
    finally:
        re2.purge()  # RE2's own cache would hold 128 patterns


def _check_flags(flags: str) -> None:
    for flag in flags:
        if flag not in "imsu":
            raise PatternNotSupported("a flag is unknown", help="use any of i, m, s, u")
        if flags.count(flag) > 1:
            raise PatternNotSupported("a flag is repeated", help="give each flag once")


def _hint(reason: str) -> str:
    if "\\p" in reason.lower():
        return r"use a general category such as \p{L} or a script such as \p{Script=Greek}"
    return f"make it smaller: repeat at most {MAX_REPEAT} times in all, or use * or +"


def _utf8(line: str) -> bytes:
    """Encode as UTF-8; a lone surrogate becomes U+FFFD, as in spooled text."""
    return line.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()
