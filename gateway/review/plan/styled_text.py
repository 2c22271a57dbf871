"""Lines of styled text that reviews are made of, and the escaping of names in them."""

from dataclasses import dataclass
from typing import Literal

Style = Literal["plain", "strong", "quiet", "added", "removed", "changed", "low", "medium", "high", "good", "bad"]
Line = tuple["StyledText", ...]


@dataclass(frozen=True, slots=True)
class StyledText:
    text: str
    style: Style = "plain"


def escape_controls(text: str) -> str:
    """Escape every character that a terminal would not show, or would interpret."""
    return text if text.isprintable() else "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char) or f"\\u{ord(char):04x}"
