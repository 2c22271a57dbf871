r"""Regular expressions with JavaScript's meaning, run line by line on a linear-time engine.

A pattern is translated once so that RE2 can search many lines in one buffer: nothing in it can
match a line feed (RE2's `never_nl`), and `^` and `$` stand for the ends of a line.

What a character is follows JavaScript's flag `u`, whether or not the flag is given. These differ:

- without `u` JavaScript sees an astral character as two, folds case differently for a few letters
  (`k` and the Kelvin sign), and reads `\u{61}` and `\p{L}` as the bare letters; with `u` it refuses
  sloppy spellings (`\-`, a lone `{`) that are accepted here;
- under `m` a carriage return, U+2028 or U+2029 beside `^` or `$` is consumed by the match, so
  nothing else in the expression can look at it;
- under `i` `\P{Lu}` is the opposite of `\p{Lu}`, and `\b` knows ASCII words only;
- `\p{C}` leaves unassigned code points out, and only general categories, scripts, `Any` and `ASCII`
  are known as properties.
"""

from functools import lru_cache
from typing import Any, Final

import re2

from gateway.core.dialect import MAX_REPEAT, translate
from gateway.errors import PatternNotSupported

MAX_PATTERN_LENGTH: Final = 4_096
_MAX_PROGRAM_BYTES: Final = 8 << 20
_PATTERNS_KEPT: Final = 16
"""Each may come to hold `_MAX_PROGRAM_BYTES` of the engine's state."""


class Pattern:
    """A compiled pattern. `matches` asks about one line; `scanner` searches buffers of many lines."""

    __slots__ = ("flags", "scanner", "source")

    def __init__(self, source: str, flags: str = "") -> None:
        self.source = source
        self.flags = flags
        self.scanner = _compile(source, flags)

    @property
    def instructions(self) -> int:
        """What a byte may cost: the engine goes through all of them at worst."""
        size: int = self.scanner.programsize
        return size

    def matches(self, line: str) -> bool:
        return self.scanner.search(_utf8(line)) is not None

    def __repr__(self) -> str:
        return f"Pattern({self.source!r}, {self.flags!r})"


@lru_cache(maxsize=_PATTERNS_KEPT)
def _compile(source: str, flags: str) -> Any:
    if not isinstance(source, str) or not isinstance(flags, str):
        raise PatternNotSupported("a pattern and its flags are text", help="pass both as strings")
    if len(source) > MAX_PATTERN_LENGTH:
        raise PatternNotSupported(
            f"the pattern is longer than {MAX_PATTERN_LENGTH} characters", help="search for a shorter part of it"
        )
    _check_flags(flags)
    options = re2.Options()
    options.log_errors = False
    options.never_nl = True
    options.max_mem = _MAX_PROGRAM_BYTES
    options.case_sensitive = "i" not in flags
    try:
        return re2.compile(translate(source, flags).encode(), options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace")  # what is wrong, a colon, and the piece of the pattern
        words = reason.partition(":")[0][:100]
        raise PatternNotSupported(f"the pattern cannot be run: {words}", help=_hint(reason)) from error
    finally:
        re2.purge()  # its own cache would keep 128 of them alive


def _check_flags(flags: str) -> None:
    for flag in flags:
        if flag not in "imsu":
            raise PatternNotSupported("a flag is not known", help="use any of i, m, s, u")
        if flags.count(flag) > 1:
            raise PatternNotSupported("a flag is repeated", help="give each flag once")


def _hint(reason: str) -> str:
    if "\\p" in reason.lower():
        return r"use a general category such as \p{L} or a script such as \p{Script=Greek}"
    return f"make it smaller: repeat at most {MAX_REPEAT} times in all, or use * or +"


def _utf8(line: str) -> bytes:
    """Half a surrogate pair becomes U+FFFD, as it does when text is spooled."""
    return line.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()
