"""The effective configuration: all documents after overlays, as one YAML text that can be loaded again.

Environment references are printed as written, never with their values. Every text that a YAML 1.1 parser could read as
another type is quoted, so that other programs read the same values. No YAML library is used, because each line can name
the origin of its value. Output larger than the file limit is printed too, but must be split before it loads.
"""

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

from gateway.config.document_checks import document_identity
from gateway.config.kinds.validation import KINDS
from gateway.config.yaml.document import DocumentPath, YamlDocument

_ENVELOPE: Final = ("apiVersion", "kind", "metadata", "spec")
_ORDER: Final = {kind: index for index, kind in enumerate(KINDS)}
_STEP: Final = "  "
_LONGEST_KEY: Final = 1000
"""YAML parsers search at most 1,024 characters for the colon after a key."""

# Starts with a letter, so it is no number, date or indicator. The one exception is a number with a unit.
_PLAIN: Final = re.compile(
    r"[A-Za-z_/$](?:[A-Za-z0-9 _./@+|=,;()\[\]{}$*?!<>&%'\"-]|:(?! |$))*(?<! )|[1-9][0-9]{0,8}[A-Za-z]{1,3}"
)
_WORDS: Final = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def render_effective_yaml(documents: Sequence[YamlDocument], *, origins: bool) -> str:
    """Return the documents by kind and name. With `origins`, a comment names the file and line of every value."""
    printed = (_DocumentPrinter(document, origins).text() for document in sorted(documents, key=_sort_key))
    return "---\n".join(printed)


def _sort_key(document: YamlDocument) -> tuple[int, str, str]:
    kind, name = document_identity(document) or ("", "")
    return _ORDER.get(kind, len(_ORDER)), kind, name


class _DocumentPrinter:
    """One document in block style: a scalar follows its key or dash, a container starts on the next line."""

    def __init__(self, document: YamlDocument, origins: bool) -> None:
        self._document = document
        self._origins = origins

    def text(self) -> str:
        data = self._document.data
        ordered = {key: data[key] for key in (*(key for key in _ENVELOPE if key in data), *data)}
        return "".join(f"{line}\n" for line in self._value_lines(ordered, (), indent=""))

    def _value_lines(self, value: Any, path: DocumentPath, *, indent: str) -> Iterator[str]:
        """Yield the lines of a value. The first has no indentation, because the caller puts it after a key or dash."""
        value = self._document.written.get(path, value)
        match value:
            case dict() if value:
                yield from self._mapping_lines(value, path, indent=indent)
            case list() if value:
                yield from self._list_lines(value, path, indent=indent)
            case str() if _is_block(value):
                yield f"|{_chomping_indicator(value)}{self._origin(path)}"
                yield from (f"{indent}{line}" if line else "" for line in value.removesuffix("\n").split("\n"))
            case _:
                yield f"{_inline(value)}{self._origin(path)}"

    def _mapping_lines(self, mapping: dict[str, Any], path: DocumentPath, *, indent: str) -> Iterator[str]:
        for index, (key, value) in enumerate(mapping.items()):
            margin = indent if index else ""
            lead = _text(key)
            if len(lead) > _LONGEST_KEY:
                yield f"{margin}? {lead}"
                margin, lead = indent, ""
            below = self._value_lines(value, (*path, key), indent=indent + _STEP)
            if value and isinstance(value, dict | list):
                yield f"{margin}{lead}:"
                yield f"{indent}{_STEP}{next(below)}"
            else:
                yield f"{margin}{lead}: {next(below)}"
            yield from below

    def _list_lines(self, entries: list[Any], path: DocumentPath, *, indent: str) -> Iterator[str]:
        for index, value in enumerate(entries):
            below = self._value_lines(value, (*path, index), indent=indent + _STEP)
            yield f"{indent if index else ''}- {next(below)}"
            yield from below

    def _origin(self, path: DocumentPath) -> str:
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
    """Return the text with an escape for every invisible character."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(ord(char)) for char in text)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _is_block(text: str) -> bool:
    """Whether a text fits a block scalar: several lines, all visible, and no leading space in the first."""
    first, *rest = text.removesuffix("\n").split("\n")
    if "\n" not in text or not first or first[0] == " ":
        return False
    return first.isprintable() and all(line.isprintable() and (not line or not line.isspace()) for line in rest)


def _chomping_indicator(text: str) -> str:
    """Return the indicator that strips, clips or keeps the line breaks at the end."""
    if not text.endswith("\n"):
        return "-"
    return "+" if text.endswith("\n\n") else ""
