"""Events as data on the wire: camelCase names, no bytes of results, no text of errors that are not ours.

Whatever text a tool or an upstream may have written says that nobody vouches for it.
"""

from dataclasses import asdict, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final

from gateway.core.artifacts import is_artifact
from gateway.core.events import Event
from gateway.core.media import Media
from gateway.core.tokens import Tokenizable
from gateway.errors import GatewayError
from gateway.web.rest.answers import wire_json

MAX_DATA: Final = 64 << 10
"""Bytes of one event. Larger ones are told without their data: whoever wants it asks for the record."""

_MAX_TEXT: Final = 4_096
_MAX_DEPTH: Final = 32


def event_data(event: Event) -> bytes:
    """One line of JSON."""
    data = wire_json({camel(name): shown(value) for name, value in event.to_dict().items()})
    return data if len(data) <= MAX_DATA else wire_json({"omittedBytes": len(data)})


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def shown(value: Any, depth: int = 0) -> Any:
    """A value as JSON. What has no place in JSON is named by its class."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if len(value) <= MAX_DATA else f"{value[:_MAX_TEXT]}…"
    if isinstance(value, datetime):
        return value.isoformat()
    if depth >= _MAX_DEPTH:
        return "…"
    if isinstance(value, dict):
        return {str(key): shown(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [shown(each, depth + 1) for each in value]
    return _described(value, depth)


def _described(value: Any, depth: int) -> Any:
    if isinstance(value, Tokenizable):
        text = str(value)
        is_cut = len(text) > _MAX_TEXT
        return {"kind": "text", "text": text[:_MAX_TEXT] if is_cut else text, "isCut": is_cut, "trusted": False}
    if isinstance(value, Media):
        return {"kind": "media", "media": shown(value.to_json(), depth + 1)}
    if is_artifact(value):
        return {"kind": "artifact", "artifact": {"kind": type(value).__name__}}
    if isinstance(value, GatewayError):
        return {"code": value.code, "message": value.message, "trusted": False}
    if isinstance(value, BaseException):
        return {"code": "E_FOREIGN", "message": type(value).__name__}
    if isinstance(value, Enum):
        return shown(value.value, depth + 1)
    if is_dataclass(value) and not isinstance(value, type):
        return {camel(name): shown(each, depth + 1) for name, each in asdict(value).items()}
    return type(value).__name__
