"""What a tool promises of its results: JSON that fits a schema. It says whether a value keeps that, and finds the
value in the text of a result, where that is all there is of it.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.core.bounded_json import TooManyValues, read_json
from gateway.core.exact_json import reads_exactly
from gateway.core.schemas import Schema
from gateway.errors import ValidationException

NOTHING: Final[Any] = object()
"""There is no JSON; `None` would be its null."""

MAX_PROMISED: Final = 16 << 20
"""Bytes of a result that are looked at, and given to programs, where JSON is promised."""

_WRAPPED: Final = "result"
"""Under which servers put a value that is no object: MCP had objects only for a time."""


class Promise:
    """Raises `ValueError` for a schema that cannot be checked."""

    __slots__ = ("_schema",)

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = Schema(plain(schema), closed=False)

    def is_kept(self, value: Any) -> bool:
        try:
            return value is not NOTHING and self._schema.accepts_parsed(value)
        except (TypeError, ValueError, RecursionError):
            return False

    def broken(self, value: Any) -> str:
        """In which way a value does not keep it."""
        try:
            if value is not NOTHING:
                self._schema.accepted(value)
        except ValidationException as error:
            return error.message
        return "it is not JSON, or too large"

    def found_in(self, text: str) -> Any:
        """The value that keeps it and of which a text is what a model reads; `NOTHING` if there is none."""
        value = parsed(text)
        for each in (value, {_WRAPPED: value}, {_WRAPPED: text}):
            if self.is_kept(each):
                return each
        return NOTHING


def parsed(text: str | bytes) -> Any:
    """The value of a JSON document.

    `NOTHING` for what is none, has too many values, or an integer that would be rounded.
    """
    try:
        value = read_json(text)
    except (orjson.JSONDecodeError, TooManyValues):
        return NOTHING
    return value if reads_exactly(text.encode() if isinstance(text, str) else text) else NOTHING


def plain(value: Any) -> Any:
    """Documents are frozen; schemas are compiled from plain containers."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
