"""The output schema of a tool: checks a structured result, or finds one in the text of a result."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.errors import ValidationException
from gateway.model.primitives.bounded_json import TooManyValues, read_json
from gateway.model.primitives.exact_json import reads_exactly
from gateway.model.schema.schema import Schema

NO_VALUE: Final[Any] = object()
"""Marks a missing value: `None` is JSON's null."""

MAX_STRUCTURED_SIZE: Final = 16 << 20
"""Largest result in bytes that is parsed and sent as structured content if the tool has an output schema."""

_WRAPPED: Final = "result"
"""Servers wrap a value that is not an object under this key: earlier versions of MCP allowed objects only."""


class OutputSchema:
    """A compiled output schema. Raises `ValueError` for an invalid schema."""

    __slots__ = ("_schema",)

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = Schema(to_plain_containers(schema), closed=False)

    def matches(self, value: Any) -> bool:
        try:
            return value is not NO_VALUE and self._schema.accepts_parsed(value)
        except (TypeError, ValueError, RecursionError):
            return False

    def mismatch(self, value: Any) -> str:
        """Return how a value violates the schema."""
        try:
            if value is not NO_VALUE:
                self._schema.check(value)
        except ValidationException as error:
            return error.message
        return "it is not JSON, or too large"

    def extract(self, text: str) -> Any:
        """Return the value of a text that satisfies the schema, wrapped if needed; `NO_VALUE` if there is none."""
        value = parse_output(text)
        for each in (value, {_WRAPPED: value}, {_WRAPPED: text}):
            if self.matches(each):
                return each
        return NO_VALUE


def parse_output(text: str | bytes) -> Any:
    """Parse a JSON document; `NO_VALUE` if it is invalid, has too many values, or has an integer past 64 bits."""
    try:
        value = read_json(text)
    except (orjson.JSONDecodeError, TooManyValues):
        return NO_VALUE
    return value if reads_exactly(text.encode() if isinstance(text, str) else text) else NO_VALUE


def to_plain_containers(value: Any) -> Any:
    """Copy a frozen document into plain dicts and lists, which schemas are compiled from."""
    if isinstance(value, Mapping):
        return {key: to_plain_containers(item) for key, item in value.items()}
    return [to_plain_containers(item) for item in value] if isinstance(value, list | tuple) else value
