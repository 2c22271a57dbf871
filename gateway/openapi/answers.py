"""What an operation answers when it succeeds: the media type to ask for, who reads it, and its schema."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gateway.openapi.bodies import is_json, media_type
from gateway.openapi.pointers import Pointers
from gateway.openapi.refusals import Unusable
from gateway.openapi.requests import MEDIA_TYPE
from gateway.openapi.schemas import Schemas

_ARTIFACTS: Final = {
    "text/markdown": "markdown",
    "text/x-markdown": "markdown",
    "application/yaml": "yaml",
    "application/x-yaml": "yaml",
    "text/yaml": "yaml",
    "application/xml": "xml",
    "text/xml": "xml",
}
_MEDIA: Final = ("image/", "audio/", "video/")


@dataclass(frozen=True, slots=True)
class Content:
    """What is asked for: one media type, or anything."""

    accept: str = "*/*"
    schema: Any = field(default=None, repr=False)
    is_only: bool = True
    """Whether every successful answer is one of this kind."""


def accepted(responses: Any, pointers: Pointers) -> Content:
    """The first successful answer that has content; JSON where there is a choice."""
    if not isinstance(responses, dict):
        return Content()
    statuses = sorted(str(status) for status in responses if str(status)[:1] == "2") or ["default"]
    described = [_described(responses.get(status), pointers) for status in statuses]
    first = next((each for each in described if each is not None), Content())
    return replace(first, is_only=all(each == first for each in described))


def _described(response: Any, pointers: Pointers) -> Content | None:
    try:
        content = pointers.followed(response).get("content") if response is not None else None
    except Unusable:
        return None
    kinds = [kind for kind in content if MEDIA_TYPE.fullmatch(kind)] if isinstance(content, dict) else []
    if not isinstance(content, dict) or not kinds:
        return None
    kind = min(kinds, key=lambda each: (media_type(each) != "application/json", not is_json(media_type(each))))
    described = content[kind]
    return Content(kind, described.get("schema") if isinstance(described, dict) else None)


def artifact_of(content: Content) -> tuple[str, str | None]:
    """The built-in artifact that reads the answer; and its media type, if it is media."""
    kind = media_type(content.accept)
    if is_json(kind):
        return "json", None
    if kind.endswith("+xml") and not kind.startswith("image/"):
        return "xml", None
    if kind.startswith(_MEDIA) and "*" not in kind and not kind.endswith("+xml"):
        return "text", kind
    return _ARTIFACTS.get(kind, "text"), None


def output_schema(content: Content, schemas: Schemas, *, budget: int) -> Mapping[str, Any] | None:
    """The schema of a JSON object; of anything else, of what cannot be understood, and of one among others, none."""
    if content.schema is None or not content.is_only or not is_json(media_type(content.accept)):
        return None
    try:
        schema = schemas.converted(content.schema)
        whole = schemas.target(schema)
        if not isinstance(whole, dict) or whole.get("type") != "object":
            return None
        return schemas.complete(whole, budget=budget)
    except Unusable:
        return None
