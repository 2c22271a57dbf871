"""Diagnostics: problems of the configuration as data, with a position and a help text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final, Literal

Severity = Literal["error", "warning"]

_CLOSE: Final = 0.6
_MAX_NAME: Final = 128
"""Longer names are not compared, because the search would be too slow."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A token in a file, counted from 1. `width` is its number of characters."""

    file: str
    line: int
    column: int = 1
    width: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem. `code` is stable and documented; `help` describes what to do, if it is known."""

    code: str
    message: str
    position: Position
    severity: Severity = "error"
    help: str | None = None
    related: Sequence[tuple[str, Position]] = field(default=())

    @property
    def is_error(self) -> bool:
        return self.severity == "error"


def sort_diagnostics(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return each problem once, sorted by position, independent of the order in which it was found."""
    unique = {(found.position, found.code, found.message): found for found in diagnostics}
    return [unique[key] for key in sorted(unique)]


def suggest_name(given: str, known: Iterable[str]) -> str | None:
    """Return `did you mean 'x'?` for the nearest known name, or `None`."""
    if len(given) > _MAX_NAME:
        return None
    folded = {name.casefold().replace("-", "_"): name for name in known}
    near = get_close_matches(given.casefold().replace("-", "_"), folded, n=1, cutoff=_CLOSE)
    return f"did you mean {folded[near[0]]!r}?" if near else None
