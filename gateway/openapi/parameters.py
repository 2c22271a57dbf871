"""The parameters and the body of one operation: arguments with a schema, and where each of them goes."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, Final

from gateway.openapi.bodies import FORM, MULTIPART, is_json, is_text, media_type
from gateway.openapi.pointers import Pointers, shown
from gateway.openapi.refusals import Unusable
from gateway.openapi.requests import MEDIA_TYPE, STYLES, Body, Parameter, Part, Place, Style, default_explode
from gateway.openapi.schemas import Schemas
from gateway.openapi.texts import prose, slug

_PLACES: Final[tuple[Place, ...]] = ("path", "query", "header", "cookie")
_MAX_ARGUMENTS: Final = 500
_NOT_ARGUMENTS: Final = frozenset(
    {"accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "cookie", "expect"}
    | {"forwarded", "host", "keep-alive", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"}
    | {"idempotency-key", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "traceparent", "tracestate"}
)
"""Headers that are the gateway's own to set, or that say who is asking."""

_PLAIN_OBJECT: Final = frozenset({"type", "properties", "required", "title", "description", "examples", "deprecated"})
_BASE64: Final = {"type": "string", "contentEncoding": "base64"}

Key = tuple[str, str]
"""Where a parameter is, and its name there."""


@dataclass(slots=True)
class Arguments:
    """What a call takes, collected name by name."""

    properties: dict[str, Any] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    body: Body | None = None

    def named(self, name: str, place: str) -> str:
        """A name that no argument has yet: as it is, with its place, with a number."""
        plain = slug(name) or place
        numbered = (slug(f"{plain}_{place}_{number}") for number in count(2))
        candidates = chain([plain], [slug(f"{plain}_{place}")], numbered)
        return next(each for each in candidates if each not in self.properties)

    def add(self, argument: str, schema: Any, *, required: bool) -> None:
        if len(self.properties) >= _MAX_ARGUMENTS:
            raise Unusable(f"it takes more than {_MAX_ARGUMENTS} arguments")
        self.properties[argument] = schema
        if required:
            self.required.append(argument)

    def schema(self) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "object", "properties": self.properties}
        return found | ({"required": self.required} if self.required else {})


def arguments_of(
    operation: Mapping[str, Any],
    item: Mapping[str, Any],
    *,
    pointers: Pointers,
    schemas: Schemas,
    given: Collection[Key],
) -> Arguments:
    """Raises `Unusable`. `given` are parameters that credentials fill in, so nobody else may."""
    arguments = Arguments()
    declared = _declared(operation, item, pointers)
    for place in _PLACES:
        for (where, name), parameter in declared.items():
            if where == place and not _is_ours(place, name, given):
                _add_parameter(arguments, place, name, parameter, schemas)
    body = operation.get("requestBody")
    if body is not None:
        _add_body(arguments, pointers.followed(body), pointers, schemas)
    return arguments


def _declared(
    operation: Mapping[str, Any], item: Mapping[str, Any], pointers: Pointers
) -> dict[Key, Mapping[str, Any]]:
    """By place and name: an operation's own parameter replaces that of its path."""
    found: dict[Key, Mapping[str, Any]] = {}
    for source in (item, operation):
        listed = source.get("parameters") or []
        if not isinstance(listed, list):
            raise Unusable("its parameters are not a list")
        for each in listed:
            parameter = pointers.followed(each)
            place, name = parameter.get("in"), parameter.get("name")
            if place not in _PLACES or not isinstance(name, str) or not name:
                raise Unusable("a parameter has no name or no known place")
            found[place, name] = parameter
    return found


def _is_ours(place: Place, name: str, given: Collection[Key]) -> bool:
    folded = name.lower() if place == "header" else name
    return (place, folded) in given or (place == "header" and folded in _NOT_ARGUMENTS)


def _add_parameter(
    arguments: Arguments, place: Place, name: str, parameter: Mapping[str, Any], schemas: Schemas
) -> None:
    style: Any = parameter.get("style", STYLES[place][0])
    if style not in STYLES[place]:
        raise Unusable(f"the parameter {shown(name)} has a style that its place does not know")
    if place == "header" and not _is_header_name(name):
        raise Unusable(f"the parameter {shown(name)} is no name of a header")
    explode = parameter.get("explode", default_explode(style))
    schema, as_json = _parameter_schema(name, parameter, schemas)
    argument = arguments.named(name, place)
    required = place == "path" or parameter.get("required") is True
    arguments.add(argument, _told(schema, parameter), required=required)
    arguments.parameters.append(
        Parameter(
            argument,
            name,
            place,
            style,
            explode is True,
            reserved=place == "query" and parameter.get("allowReserved") is True,
            as_json=as_json,
        )
    )


def _parameter_schema(name: str, parameter: Mapping[str, Any], schemas: Schemas) -> tuple[Any, bool]:
    content = parameter.get("content")
    if isinstance(content, dict) and content:
        kind, described = next(iter(content.items()))
        schema = schemas.converted(described.get("schema", {}) if isinstance(described, dict) else {})
        if is_json(media_type(kind)):
            return schema, True
        if not is_text(media_type(kind)):
            raise Unusable(f"the parameter {shown(name)} is of a media type that cannot be written there")
        return schema, False
    return schemas.converted(parameter.get("schema", {})), False


def _told(schema: Any, about: Mapping[str, Any]) -> Any:
    """The schema with what is said about the parameter itself."""
    text = prose(about.get("description"), limit=1024)
    if not isinstance(schema, dict):
        schema = {} if schema else {"not": {}}
    default = schema.get("description", "")
    if text and default.rpartition("Default: ")[1] and "Default: " not in text:
        text = f"{text} Default: {default.rpartition('Default: ')[2]}"
    deprecated = {"deprecated": True} if about.get("deprecated") is True else {}
    return {**schema, **({"description": text} if text else {}), **deprecated}


def _is_header_name(name: str) -> bool:
    return name.isascii() and len(name) <= 128 and all(each.isalnum() or each in "-_" for each in name)


def _add_body(arguments: Arguments, body: Mapping[str, Any], pointers: Pointers, schemas: Schemas) -> None:
    content = body.get("content")
    if not isinstance(content, dict) or not content:
        return
    chosen = preferred(content)
    kind = media_type(chosen)
    described = content[chosen] if isinstance(content[chosen], dict) else {}
    required = body.get("required") is True
    sent_as = "application/json" if kind == "*/*" else chosen
    if not MEDIA_TYPE.fullmatch(sent_as):
        raise Unusable(f"the body is of the media type {shown(chosen)}, which is none")
    if kind != "*/*" and kind not in (FORM, MULTIPART) and not is_json(kind):
        _add_text_or_bytes(arguments, sent_as, body, required=required)
        return
    schema = schemas.converted(described.get("schema", {}))
    whole = schemas.target(schema)
    if _is_plain_object(whole) and (required or not whole.get("required")):
        _add_properties(arguments, sent_as, whole, described, schemas, required=required)
        return
    argument = arguments.named("body", "body")
    arguments.add(argument, _told(schema, body), required=required)
    encoded = tuple(_encodings(sent_as, whole, described, schemas))
    arguments.body = Body(sent_as, required, argument, encoded)


def preferred(content: Collection[str]) -> str:
    """The media type that is written best, whatever the order of the document."""

    def rank(key: str) -> int:
        kind = media_type(key)
        order = ["application/json", "application/merge-patch+json", "*/*", FORM, MULTIPART]
        if kind in order[:2]:
            return order.index(kind)
        return 2 if is_json(kind) else 1 + order.index(kind) if kind in order else 6 if is_text(kind) else 7

    return min((key for key in content), key=lambda key: (rank(key), len(key)))


def _add_text_or_bytes(arguments: Arguments, kind: str, body: Mapping[str, Any], *, required: bool) -> None:
    argument = arguments.named("body", "body")
    binary = not is_text(media_type(kind))
    schema: dict[str, Any] = dict(_BASE64) if binary else {"type": "string"}
    schema["description"] = (
        f"{prose(body.get('description'), limit=900)} ({kind}{', base64' if binary else ''})".strip()
    )
    arguments.add(argument, schema, required=required)
    arguments.body = Body(kind, required, argument, binary=binary)


def _is_plain_object(schema: Any) -> bool:
    """Whether its properties can be arguments of their own without a change of meaning."""
    return (
        isinstance(schema, dict)
        and schema.keys() - {"additionalProperties"} <= _PLAIN_OBJECT
        and schema.get("additionalProperties", False) is False
        and schema.get("type", "object") == "object"
        and bool(schema.get("properties"))
        and set(schema.get("required", ())) <= schema["properties"].keys()
    )


def _add_properties(
    arguments: Arguments,
    kind: str,
    whole: Mapping[str, Any],
    described: Mapping[str, Any],
    schemas: Schemas,
    *,
    required: bool,
) -> None:
    needed = set(whole.get("required", ()))
    parts: list[Part] = []
    encoding = {part.name: part for part in _encodings(kind, whole, described, schemas)}
    for name, schema in whole["properties"].items():
        argument = arguments.named(name, "body")
        part = encoding.get(name) or Part(name, name)
        shown_schema = _binary(schemas.target(schema)) if part.binary else schema
        arguments.add(argument, shown_schema, required=name in needed)
        parts.append(Part(argument, name, part.style, part.explode, binary=part.binary, media_type=part.media_type))
    arguments.body = Body(kind, required, None, tuple(parts))


def _encodings(kind: str, whole: Any, described: Mapping[str, Any], schemas: Schemas) -> Iterator[Part]:
    """How properties of a form are written, where that is not the default."""
    if media_type(kind) not in (FORM, MULTIPART) or not isinstance(whole, dict):
        return
    given = described.get("encoding")
    encoding = given if isinstance(given, dict) else {}
    for name, schema in whole.get("properties", {}).items():
        written = encoding.get(name)
        about: Mapping[str, Any] = written if isinstance(written, dict) else {}
        style = about.get("style")
        content_type = about.get("contentType")
        part = Part(
            name,
            name,
            _form_style(style) if media_type(kind) == FORM else None,
            about.get("explode", True) is True,
            binary=media_type(kind) == MULTIPART and _is_binary(schemas.target(schema)),
            media_type=content_type if isinstance(content_type, str) and MEDIA_TYPE.fullmatch(content_type) else None,
        )
        if part != Part(name, name):
            yield part


def _form_style(style: Any) -> Style | None:
    return style if isinstance(style, str) and style in STYLES["query"] else None


def _is_binary(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    if schema.get("type") == "array":
        return _is_binary(schema.get("items"))
    return schema.get("format") == "binary" or "contentMediaType" in schema


def _binary(schema: Any) -> dict[str, Any]:
    """Bytes as callers give them."""
    about = {key: schema[key] for key in ("title", "description") if key in schema}
    if schema.get("type") == "array":
        return {"type": "array", "items": dict(_BASE64), **about}
    return {**_BASE64, **about}
