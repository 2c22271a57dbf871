"""A document as plain data, with the place in a file that each of its values and keys came from.

Every layer that changes the data (environment, overlays) gives back a new document whose positions still name
the token a person would edit.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.governance.diagnostics import Position

Path = tuple[str | int, ...]
"""Where a value is inside a document: keys and list indexes from the root, which is `()`."""

Token = tuple[int, int, int]
"""Line, column and width, counted as in `Position`."""


class Positions(Mapping[Path, Position]):
    """Tokens of one file as positions, made when asked for: most of a document is never wrong."""

    __slots__ = ("_file", "_tokens")

    def __init__(self, file: str, tokens: Mapping[Path, Token]) -> None:
        self._file = file
        self._tokens = tokens

    def __getitem__(self, path: Path) -> Position:
        return Position(self._file, *self._tokens[path])

    def __contains__(self, path: object) -> bool:
        return path in self._tokens

    def __iter__(self) -> Iterator[Path]:
        return iter(self._tokens)

    def __len__(self) -> int:
        return len(self._tokens)


@dataclass(frozen=True, slots=True)
class Document:
    """One mapping of a file. Treat `data` as read-only: values that were aliased are shared."""

    data: dict[str, Any]
    file: str
    positions: Mapping[Path, Position]
    key_positions: Mapping[Path, Position]
    substituted: frozenset[Path] = frozenset()
    """Values that contain text from the environment: later layers do not print them."""

    written: Mapping[Path, str] = field(default_factory=dict)
    """Values that were filled in, from the environment or not, as they stand in the file."""

    def position(self, path: Path) -> Position:
        """The value's token, or that of the nearest value around it that has one."""
        while path and path not in self.positions:
            path = path[:-1]
        return self.positions[path]

    def key_position(self, path: Path) -> Position:
        """The key in front of the value; for what has no key of its own, the position of the value."""
        return self.key_positions.get(path) or self.position(path)
