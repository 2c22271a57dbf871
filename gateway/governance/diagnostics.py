"""Diagnostics: what is wrong with a declared thing, as data with a position and a suggestion.

Whoever reads files produces them, whoever faces people renders them; this module does neither.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final, Literal

Severity = Literal["error", "warning"]

_CLOSE: Final = 0.6
_MAX_NAME: Final = 128
"""Longer names are not compared: looking for near ones would take longer than reading the file."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A token in a file, counted from 1. `width` is how many characters a caret line underlines."""

    file: str
    line: int
    column: int = 1
    width: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem. `code` is stable and documented; `help` says what to do, if we know."""

    code: str
    message: str
    position: Position
    severity: Severity = "error"
    help: str | None = None
    related: Sequence[tuple[str, Position]] = field(default=())

    @property
    def is_error(self) -> bool:
        return self.severity == "error"


def in_order(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Each problem once, by position: the same for the same input, whatever order it was found in."""
    unique = {(found.position, found.code, found.message): found for found in diagnostics}
    return [unique[key] for key in sorted(unique)]


def did_you_mean(given: str, known: Iterable[str]) -> str | None:
    """`did you mean 'x'?` for the nearest known name, or `None`."""
    if len(given) > _MAX_NAME:
        return None
    folded = {name.casefold().replace("-", "_"): name for name in known}
    near = get_close_matches(given.casefold().replace("-", "_"), folded, n=1, cutoff=_CLOSE)
    return f"did you mean {folded[near[0]]!r}?" if near else None
