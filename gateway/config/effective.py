"""The effective file: documents as they are after environment and overlay, as one YAML text that loads again.

What came from the environment is printed as it was written, never as filled in. Every text that a YAML 1.1 reader
could take for something else is quoted, so that other programs read what we read. Written by hand rather than by a
YAML library, because each line can name the place its value came from. What is larger than a file may be is printed,
too, but has to be split to load.
"""

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

from gateway.config.kinds import KINDS
from gateway.config.nodes import Document, Path
from gateway.config.references import identity_of

_ENVELOPE: Final = ("apiVersion", "kind", "metadata", "spec")
_ORDER: Final = {kind: index for index, kind in enumerate(KINDS)}
_STEP: Final = "  "
_LONGEST_KEY: Final = 1000
"""Readers look no further than 1,024 characters for the colon behind a key."""

# Letters first, so that nothing is a number, a date or an indicator; a number with a unit is the one exception.
_PLAIN: Final = re.compile(
    r"[A-Za-z_/$](?:[A-Za-z0-9 _./@+|=,;()\[\]{}$*?!<>&%'\"-]|:(?! |$))*(?<! )|[1-9][0-9]{0,8}[A-Za-z]{1,3}"
)
_WORDS: Final = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def effective_yaml(documents: Sequence[Document], *, origins: bool) -> str:
    """The documents by kind and name. With `origins`, every value is followed by the file and line it came from."""
    printed = (_Printing(document, origins).text() for document in sorted(documents, key=_place))
    return "---\n".join(printed)


def _place(document: Document) -> tuple[int, str, str]:
    kind, name = identity_of(document) or ("", "")
    return _ORDER.get(kind, len(_ORDER)), kind, name


class _Printing:
    """One document in block style: a value stands behind its key or dash, a container in the lines below."""

    def __init__(self, document: Document, origins: bool) -> None:
        self._document = document
        self._origins = origins

    def text(self) -> str:
        data = self._document.data
        ordered = {key: data[key] for key in (*(key for key in _ENVELOPE if key in data), *data)}
        return "".join(f"{line}\n" for line in self._value(ordered, (), indent=""))

    def _value(self, value: Any, path: Path, *, indent: str) -> Iterator[str]:
        """Its lines, the first one without its indentation: whatever stands in front of it decides that."""
        value = self._document.written.get(path, value)
        match value:
            case dict() if value:
                yield from self._mapping(value, path, indent=indent)
            case list() if value:
                yield from self._list(value, path, indent=indent)
            case str() if _is_block(value):
                yield f"|{_chomping(value)}{self._origin(path)}"
                yield from (f"{indent}{line}" if line else "" for line in value.removesuffix("\n").split("\n"))
            case _:
                yield f"{_inline(value)}{self._origin(path)}"

    def _mapping(self, mapping: dict[str, Any], path: Path, *, indent: str) -> Iterator[str]:
        for index, (key, value) in enumerate(mapping.items()):
            margin = indent if index else ""
            lead = _text(key)
            if len(lead) > _LONGEST_KEY:
                yield f"{margin}? {lead}"
                margin, lead = indent, ""
            below = self._value(value, (*path, key), indent=indent + _STEP)
            if value and isinstance(value, dict | list):
                yield f"{margin}{lead}:"
                yield f"{indent}{_STEP}{next(below)}"
            else:
                yield f"{margin}{lead}: {next(below)}"
            yield from below

    def _list(self, entries: list[Any], path: Path, *, indent: str) -> Iterator[str]:
        for index, value in enumerate(entries):
            below = self._value(value, (*path, index), indent=indent + _STEP)
            yield f"{indent if index else ''}- {next(below)}"
            yield from below

    def _origin(self, path: Path) -> str:
        if not self._origins:
            return ""
        position = self._document.position(path)
        return f" # {_visible(position.file)}:{position.line}"


def _inline(value: Any) -> str:
    match value:
        case str():
            return _text(value)
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float():
            digits = f"{Decimal(repr(value)):f}"  # never with an exponent
            return digits if "." in digits else f"{digits}.0"
        case dict():
            return "{}"
        case list():
            return "[]"
    return str(value)


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.casefold() not in _WORDS:
        return text
    escaped = "".join(_ESCAPES.get(char) or _visible(char) for char in text)
    return f'"{escaped}"'


def _visible(text: str) -> str:
    """The text with an escape for every character that a reader of the file could not see."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(ord(char)) for char in text)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _is_block(text: str) -> bool:
    """Whether a text of several lines can stand as it is: nothing unseen, nothing that its indentation depends on."""
    first, *rest = text.removesuffix("\n").split("\n")
    if "\n" not in text or not first or first[0] == " ":
        return False
    return first.isprintable() and all(line.isprintable() and (not line or not line.isspace()) for line in rest)


def _chomping(text: str) -> str:
    """What becomes of the breaks at the end: none, one or all are kept."""
    if not text.endswith("\n"):
        return "-"
    return "+" if text.endswith("\n\n") else ""
