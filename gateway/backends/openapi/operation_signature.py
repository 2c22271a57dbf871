"""The arguments of an operation, each with schema and place, and the type and schema of its response."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any, Final

from gateway.backends.openapi.document import ReferenceResolver, UnusableOperation, clean_text, escape_text, slug
from gateway.backends.openapi.request_builder import FORM, MULTIPART, is_json, is_text, media_type
from gateway.backends.openapi.request_template import (
    MEDIA_TYPE,
    STYLES,
    BodyPart,
    ParameterLocation,
    RequestBody,
    RequestParameter,
    Style,
    default_explode,
)
from gateway.backends.openapi.schema_converter import SchemaConverter

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
class ResponseContent:
    """The requested media type of a response."""

    accept: str = "*/*"
    schema: Any = field(default=None, repr=False)
    is_only: bool = True
    """Whether every successful response has this content."""


def choose_response(responses: Any, pointers: ReferenceResolver) -> ResponseContent:
    """Return the content of the first successful response that has any; JSON is preferred."""
    if not isinstance(responses, dict):
        return ResponseContent()
    statuses = sorted(str(status) for status in responses if str(status)[:1] == "2") or ["default"]
    described = [_read_content(responses.get(status), pointers) for status in statuses]
    first = next((each for each in described if each is not None), ResponseContent())
    return replace(first, is_only=all(each == first for each in described))


def _read_content(response: Any, pointers: ReferenceResolver) -> ResponseContent | None:
    try:
        content = pointers.resolve(response).get("content") if response is not None else None
    except UnusableOperation:
        return None
    kinds = [kind for kind in content if MEDIA_TYPE.fullmatch(kind)] if isinstance(content, dict) else []
    if not isinstance(content, dict) or not kinds:
        return None
    kind = min(kinds, key=lambda each: (media_type(each) != "application/json", not is_json(media_type(each))))
    described = content[kind]
    return ResponseContent(kind, described.get("schema") if isinstance(described, dict) else None)


def choose_artifact(content: ResponseContent) -> tuple[str, str | None]:
    """Return the built-in artifact that reads the response, and its media type if it is media."""
    kind = media_type(content.accept)
    if is_json(kind):
        return "json", None
    if kind.endswith("+xml") and not kind.startswith("image/"):
        return "xml", None
    if kind.startswith(_MEDIA) and "*" not in kind and not kind.endswith("+xml"):
        return "text", kind
    return _ARTIFACTS.get(kind, "text"), None


def build_output_schema(content: ResponseContent, schemas: SchemaConverter, *, budget: int) -> Mapping[str, Any] | None:
    """Return the schema of a JSON object; `None` for other or ambiguous content, or if it cannot be converted."""
    if content.schema is None or not content.is_only or not is_json(media_type(content.accept)):
        return None
    try:
        schema = schemas.convert(content.schema)
        whole = schemas.resolve_target(schema)
        if not isinstance(whole, dict) or whole.get("type") != "object":
            return None
        return schemas.complete(whole, budget=budget)
    except UnusableOperation:
        return None


_PLACES: Final[tuple[ParameterLocation, ...]] = ("path", "query", "header", "cookie")
_MAX_ARGUMENTS: Final = 500
_NOT_ARGUMENTS: Final = frozenset(
    {"accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "cookie", "expect"}
    | {"forwarded", "host", "keep-alive", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"}
    | {"idempotency-key", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "traceparent", "tracestate"}
)
"""Headers that only the gateway sets, or that identify the client."""

_PLAIN_OBJECT: Final = frozenset({"type", "properties", "required", "title", "description", "examples", "deprecated"})
_BASE64: Final = {"type": "string", "contentEncoding": "base64"}

Key = tuple[str, str]
"""The location and the name of a parameter."""


@dataclass(slots=True)
class ArgumentSet:
    """The arguments of a call, collected one by one."""

    properties: dict[str, Any] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    parameters: list[RequestParameter] = field(default_factory=list)
    body: RequestBody | None = None

    def unique_name(self, name: str, place: str) -> str:
        """Return an unused name: the name itself, with its place, or with a number."""
        plain = slug(name) or place
        numbered = (slug(f"{plain}_{place}_{number}") for number in count(2))
        candidates = chain([plain], [slug(f"{plain}_{place}")], numbered)
        return next(each for each in candidates if each not in self.properties)

    def add(self, argument: str, schema: Any, *, required: bool) -> None:
        if len(self.properties) >= _MAX_ARGUMENTS:
            raise UnusableOperation(f"it takes more than {_MAX_ARGUMENTS} arguments")
        self.properties[argument] = schema
        if required:
            self.required.append(argument)

    def schema(self) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "object", "properties": self.properties}
        return found | ({"required": self.required} if self.required else {})


def build_arguments(
    operation: Mapping[str, Any],
    item: Mapping[str, Any],
    *,
    pointers: ReferenceResolver,
    schemas: SchemaConverter,
    credentials: Collection[Key],
) -> ArgumentSet:
    """Collect the arguments. `credentials` are parameters that credentials fill in. Raise `UnusableOperation`."""
    arguments = ArgumentSet()
    declared = _collect_parameters(operation, item, pointers)
    for place in _PLACES:
        for (where, name), parameter in declared.items():
            if where == place and not _is_reserved(place, name, credentials):
                _add_parameter(arguments, place, name, parameter, schemas)
    body = operation.get("requestBody")
    if body is not None:
        _add_body(arguments, pointers.resolve(body), pointers, schemas)
    return arguments


def _collect_parameters(
    operation: Mapping[str, Any], item: Mapping[str, Any], pointers: ReferenceResolver
) -> dict[Key, Mapping[str, Any]]:
    """Return the parameters by place and name; those of the operation override those of its path."""
    found: dict[Key, Mapping[str, Any]] = {}
    for source in (item, operation):
        listed = source.get("parameters") or []
        if not isinstance(listed, list):
            raise UnusableOperation("its parameters are not a list")
        for each in listed:
            parameter = pointers.resolve(each)
            place, name = parameter.get("in"), parameter.get("name")
            if place not in _PLACES or not isinstance(name, str) or not name:
                raise UnusableOperation("a parameter has no name or no known place")
            found[place, name] = parameter
    return found


def _is_reserved(place: ParameterLocation, name: str, credentials: Collection[Key]) -> bool:
    folded = name.lower() if place == "header" else name
    return (place, folded) in credentials or (place == "header" and folded in _NOT_ARGUMENTS)


def _add_parameter(
    arguments: ArgumentSet, place: ParameterLocation, name: str, parameter: Mapping[str, Any], schemas: SchemaConverter
) -> None:
    style: Any = parameter.get("style", STYLES[place][0])
    if style not in STYLES[place]:
        raise UnusableOperation(f"the parameter {escape_text(name)} has a style that its location does not allow")
    if place == "header" and not _is_header_name(name):
        raise UnusableOperation(f"the parameter {escape_text(name)} is not a valid header name")
    explode = parameter.get("explode", default_explode(style))
    schema, as_json = _parameter_schema(name, parameter, schemas)
    argument = arguments.unique_name(name, place)
    required = place == "path" or parameter.get("required") is True
    arguments.add(argument, _with_description(schema, parameter), required=required)
    arguments.parameters.append(
        RequestParameter(
            argument,
            name,
            place,
            style,
            explode is True,
            reserved=place == "query" and parameter.get("allowReserved") is True,
            as_json=as_json,
        )
    )


def _parameter_schema(name: str, parameter: Mapping[str, Any], schemas: SchemaConverter) -> tuple[Any, bool]:
    content = parameter.get("content")
    if isinstance(content, dict) and content:
        kind, described = next(iter(content.items()))
        schema = schemas.convert(described.get("schema", {}) if isinstance(described, dict) else {})
        if is_json(media_type(kind)):
            return schema, True
        if not is_text(media_type(kind)):
            raise UnusableOperation(
                f"the parameter {escape_text(name)} is of a media type that cannot be written there"
            )
        return schema, False
    return schemas.convert(parameter.get("schema", {})), False


def _with_description(schema: Any, about: Mapping[str, Any]) -> Any:
    """Return the schema with the parameter's own description and deprecation."""
    text = clean_text(about.get("description"), limit=1024)
    if not isinstance(schema, dict):
        schema = {} if schema else {"not": {}}
    default = schema.get("description", "")
    if text and default.rpartition("Default: ")[1] and "Default: " not in text:
        text = f"{text} Default: {default.rpartition('Default: ')[2]}"
    deprecated = {"deprecated": True} if about.get("deprecated") is True else {}
    return {**schema, **({"description": text} if text else {}), **deprecated}


def _is_header_name(name: str) -> bool:
    return name.isascii() and len(name) <= 128 and all(each.isalnum() or each in "-_" for each in name)


def _add_body(
    arguments: ArgumentSet, body: Mapping[str, Any], pointers: ReferenceResolver, schemas: SchemaConverter
) -> None:
    content = body.get("content")
    if not isinstance(content, dict) or not content:
        return
    chosen = choose_media_type(content)
    kind = media_type(chosen)
    described = content[chosen] if isinstance(content[chosen], dict) else {}
    required = body.get("required") is True
    sent_as = "application/json" if kind == "*/*" else chosen
    if not MEDIA_TYPE.fullmatch(sent_as):
        raise UnusableOperation(f"the body has the invalid media type {escape_text(chosen)}")
    if kind != "*/*" and kind not in (FORM, MULTIPART) and not is_json(kind):
        _add_text_or_bytes(arguments, sent_as, body, required=required)
        return
    schema = schemas.convert(described.get("schema", {}))
    whole = schemas.resolve_target(schema)
    if _is_plain_object(whole) and (required or not whole.get("required")):
        _add_properties(arguments, sent_as, whole, described, schemas, required=required)
        return
    argument = arguments.unique_name("body", "body")
    arguments.add(argument, _with_description(schema, body), required=required)
    encoded = tuple(_encodings(sent_as, whole, described, schemas))
    arguments.body = RequestBody(sent_as, required, argument, encoded)


def choose_media_type(content: Collection[str]) -> str:
    """Return the preferred media type, independent of the order in the document."""

    def rank(key: str) -> int:
        kind = media_type(key)
        order = ["application/json", "application/merge-patch+json", "*/*", FORM, MULTIPART]
        if kind in order[:2]:
            return order.index(kind)
        return 2 if is_json(kind) else 1 + order.index(kind) if kind in order else 6 if is_text(kind) else 7

    return min((key for key in content), key=lambda key: (rank(key), len(key)))


def _add_text_or_bytes(arguments: ArgumentSet, kind: str, body: Mapping[str, Any], *, required: bool) -> None:
    argument = arguments.unique_name("body", "body")
    binary = not is_text(media_type(kind))
    schema: dict[str, Any] = dict(_BASE64) if binary else {"type": "string"}
    schema["description"] = (
        f"{clean_text(body.get('description'), limit=900)} ({kind}{', base64' if binary else ''})".strip()
    )
    arguments.add(argument, schema, required=required)
    arguments.body = RequestBody(kind, required, argument, binary=binary)


def _is_plain_object(schema: Any) -> bool:
    """Whether its properties can become separate arguments without a change of meaning."""
    return (
        isinstance(schema, dict)
        and schema.keys() - {"additionalProperties"} <= _PLAIN_OBJECT
        and schema.get("additionalProperties", False) is False
        and schema.get("type", "object") == "object"
        and bool(schema.get("properties"))
        and set(schema.get("required", ())) <= schema["properties"].keys()
    )


def _add_properties(
    arguments: ArgumentSet,
    kind: str,
    whole: Mapping[str, Any],
    described: Mapping[str, Any],
    schemas: SchemaConverter,
    *,
    required: bool,
) -> None:
    needed = set(whole.get("required", ()))
    parts: list[BodyPart] = []
    encoding = {part.name: part for part in _encodings(kind, whole, described, schemas)}
    for name, schema in whole["properties"].items():
        argument = arguments.unique_name(name, "body")
        part = encoding.get(name) or BodyPart(name, name)
        shown_schema = _to_binary_schema(schemas.resolve_target(schema)) if part.binary else schema
        arguments.add(argument, shown_schema, required=name in needed)
        parts.append(BodyPart(argument, name, part.style, part.explode, binary=part.binary, media_type=part.media_type))
    arguments.body = RequestBody(kind, required, None, tuple(parts))


def _encodings(kind: str, whole: Any, described: Mapping[str, Any], schemas: SchemaConverter) -> Iterator[BodyPart]:
    """Yield the encodings of form properties that differ from the default."""
    if media_type(kind) not in (FORM, MULTIPART) or not isinstance(whole, dict):
        return
    declared = described.get("encoding")
    encoding = declared if isinstance(declared, dict) else {}
    for name, schema in whole.get("properties", {}).items():
        entry = encoding.get(name)
        about: Mapping[str, Any] = entry if isinstance(entry, dict) else {}
        style = about.get("style")
        content_type = about.get("contentType")
        part = BodyPart(
            name,
            name,
            _form_style(style) if media_type(kind) == FORM else None,
            about.get("explode", True) is True,
            binary=media_type(kind) == MULTIPART and _is_binary(schemas.resolve_target(schema)),
            media_type=content_type if isinstance(content_type, str) and MEDIA_TYPE.fullmatch(content_type) else None,
        )
        if part != BodyPart(name, name):
            yield part


def _form_style(style: Any) -> Style | None:
    return style if isinstance(style, str) and style in STYLES["query"] else None


def _is_binary(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    if schema.get("type") == "array":
        return _is_binary(schema.get("items"))
    return schema.get("format") == "binary" or "contentMediaType" in schema


def _to_binary_schema(schema: Any) -> dict[str, Any]:
    """Return the schema of bytes as callers send them: base64."""
    about = {key: schema[key] for key in ("title", "description") if key in schema}
    if schema.get("type") == "array":
        return {"type": "array", "items": dict(_BASE64), **about}
    return {**_BASE64, **about}
