"""What an operation answers when it succeeds: the media type to ask for, who reads it, and its schema."""

from collections.abc import Mapping
from dataclasses import dataclass, field
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


def accepted(responses: Any, pointers: Pointers) -> Content:
    """The first successful answer that has content; JSON where there is a choice."""
    if not isinstance(responses, dict):
        return Content()
    statuses = sorted(str(status) for status in responses if str(status)[:1] == "2") or ["default"]
    for status in statuses:
        try:
            content = pointers.followed(responses[status]).get("content") if status in responses else None
        except Unusable:
            continue
        if not isinstance(content, dict):
            continue
        if kinds := [kind for kind in content if MEDIA_TYPE.fullmatch(kind)]:
            kind = min(kinds, key=lambda each: (media_type(each) != "application/json", not is_json(media_type(each))))
            described = content[kind]
            return Content(kind, described.get("schema") if isinstance(described, dict) else None)
    return Content()


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
    """The schema of a JSON object; of anything else, and of what cannot be understood, none."""
    if content.schema is None or not is_json(media_type(content.accept)):
        return None
    try:
        schema = schemas.converted(content.schema)
        whole = schemas.target(schema)
        if not isinstance(whole, dict) or whole.get("type") != "object":
            return None
        return schemas.complete(whole, budget=budget)
    except Unusable:
        return None
