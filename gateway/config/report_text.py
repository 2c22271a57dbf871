"""Diagnostics as text: the message, the line it is about, a caret under the token, and what to do.

configs/a.yaml:9:33: unknown-field: 'max_output' is not a field of spec.limits
  |
9 |   limits: {timeout: 10 seconds, max_output: 1MiB}
  |                                 ^^^^^^^^^^
  = did you mean 'maxOutput'?
"""

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from gateway.config.text import lines
from gateway.governance.diagnostics import Diagnostic, Position

Sources = Callable[[str], str | None]

_WINDOW: Final = 120
"""Characters of a longer line that are shown, about half of them in front of the caret."""

_TAB: Final = "    "
_MORE: Final = "…"


def text(diagnostics: Sequence[Diagnostic], sources: Sources) -> str:
    """One block per problem, then a line that counts them."""
    of_problems = ("\n".join(block) for block in blocks(diagnostics, sources))
    return "\n\n".join((*of_problems, summary(diagnostics))) + "\n"


def blocks(diagnostics: Iterable[Diagnostic], sources: Sources) -> Iterator[list[str]]:
    """The lines about each problem: the headline first, then the source line and what to do, if known."""
    known: dict[str, list[str]] = {}

    def line_at(position: Position) -> str | None:
        if position.file not in known:
            source = sources(position.file)
            known[position.file] = [] if source is None else lines(source)
        of_file = known[position.file]
        return of_file[position.line - 1] if position.line <= len(of_file) else None

    for each in diagnostics:
        yield list(_block(each, line_at(each.position)))


def summary(diagnostics: Iterable[Diagnostic]) -> str:
    """`3 errors, 1 warning`, or `no problems`."""
    severities = [each.severity for each in diagnostics]
    counts = ((severities.count(severity), severity) for severity in ("error", "warning"))
    return ", ".join(f"{count} {word}{'s' * (count != 1)}" for count, word in counts if count) or "no problems"


def headline(diagnostic: Diagnostic) -> str:
    """`file:line:column: code: message`; only a warning says what it is."""
    severity = "" if diagnostic.is_error else "warning: "
    return visible(f"{diagnostic.position}: {severity}{diagnostic.code}: {diagnostic.message}")


def notes(diagnostic: Diagnostic) -> list[str]:
    """What to do, and which other places have to do with it."""
    help = [visible(diagnostic.help)] if diagnostic.help else []
    return help + [visible(f"{words}: {position}") for words, position in diagnostic.related]


def visible(words: str) -> str:
    """The text with a sign in place of everything that a terminal would obey or not show."""
    return words if words.isprintable() else "".join(map(_shown, words))


def _block(diagnostic: Diagnostic, line: str | None) -> Iterator[str]:
    number = str(diagnostic.position.line)
    gutter = " " * len(number)
    yield headline(diagnostic)
    if line is not None and line.strip():
        shown, caret = _excerpt(line, diagnostic.position)
        yield f"{gutter} |"
        yield f"{number} | {shown}"
        yield f"{gutter} | {caret}"
    yield from (f"{gutter} = {note}" for note in notes(diagnostic))


def _excerpt(line: str, position: Position) -> tuple[str, str]:
    """The line, or the part of it around the token, and the carets below it."""
    token = min(position.column - 1, len(line))
    start = 0 if len(line) <= _WINDOW else max(0, token - _WINDOW // 2)
    end = min(len(line), start + _WINDOW)
    before, after = _MORE * (start > 0), _MORE * (end < len(line))
    carets = sum(map(_cells, line[token : min(end, token + position.width)])) or 1
    indent = len(before) + sum(map(_cells, line[start:token]))
    shown = "".join(map(_shown, line[start:end])).rstrip()
    return f"{before}{shown}{after}", " " * indent + "^" * carets


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    if character == "\t":
        return _TAB
    code = ord(character)
    return chr(0x2400 + code) if code < 0x20 else f"<U+{code:04X}>"


def _cells(character: str) -> int:
    """How many columns of a terminal the character takes as shown."""
    if not character.isprintable():
        return len(_shown(character))
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
