"""The request template of an operation: where each argument goes and in which style it is written.

The template is part of the tool's definition, as plain data, so the request that was reviewed is the one that is sent.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
ParameterLocation = Literal["path", "query", "header", "cookie"]
Style = Literal["simple", "label", "matrix", "form", "spaceDelimited", "pipeDelimited", "deepObject"]

STYLES: Final[Mapping[ParameterLocation, tuple[Style, ...]]] = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
"""The styles of each place, its default first."""

_WORD: Final = r"[A-Za-z0-9!#$&^_.+*-]{1,127}"
MEDIA_TYPE: Final = re.compile(rf"{_WORD}/{_WORD}(?:; ?[A-Za-z0-9_-]+=[A-Za-z0-9_.-]+)*")

METHODS: Final[tuple[Method, ...]] = get_args(Method)


@dataclass(frozen=True, slots=True)
class RequestParameter:
    """An argument in the path, the query, a header or a cookie. With `as_json` it is written as JSON."""

    argument: str
    name: str
    place: ParameterLocation
    style: Style
    explode: bool
    reserved: bool = False
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class BodyPart:
    """A property of the body. Without a style, its media type determines how it is written; `binary` is base64."""

    argument: str
    name: str
    style: Style | None = None
    explode: bool = True
    binary: bool = False
    media_type: str | None = None


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A request body: one argument is the whole body, or each property is a separate argument."""

    media_type: str
    required: bool
    argument: str | None = None
    parts: tuple[BodyPart, ...] = ()
    binary: bool = False


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    method: Method
    path: str
    parameters: tuple[RequestParameter, ...] = ()
    body: RequestBody | None = None
    accept: str = "*/*"

    def to_data(self) -> dict[str, Any]:
        """Return stable plain data without default values."""
        found: dict[str, Any] = {"method": self.method, "path": self.path}
        if self.accept != "*/*":
            found["accept"] = self.accept
        if self.parameters:
            found["parameters"] = [_parameter_data(each) for each in self.parameters]
        if self.body is not None:
            found["body"] = _body_data(self.body)
        return found


def parse_request(data: Mapping[str, Any]) -> RequestTemplate:
    """Parse the data of `RequestTemplate.to_data`. Raise `ValueError` for any other data."""
    try:
        body = data.get("body")
        request = RequestTemplate(
            data["method"],
            data["path"],
            tuple(_parse_parameter(each) for each in data.get("parameters", ())),
            None if body is None else _parse_body(body),
            data.get("accept", "*/*"),
        )
        if request.method not in METHODS or not request.path.startswith("/"):
            raise ValueError("a request has a method and a path from the root")
        if not all(map(MEDIA_TYPE.fullmatch, request.accept.split(", "))):
            raise ValueError("accept is a list of media types")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("this is not a request template") from error
    return request


def default_explode(style: Style) -> bool:
    return style == "form"


def _parameter_data(each: RequestParameter) -> dict[str, Any]:
    found: dict[str, Any] = {"argument": each.argument, "in": each.place}
    if each.name != each.argument:
        found["name"] = each.name
    if each.style != STYLES[each.place][0]:
        found["style"] = each.style
    if each.explode != default_explode(each.style):
        found["explode"] = each.explode
    flags = {"allowReserved": each.reserved, "json": each.as_json}
    return found | {key: True for key, value in flags.items() if value}


def _parse_parameter(data: Mapping[str, Any]) -> RequestParameter:
    place: ParameterLocation = data["in"]
    style: Style = data.get("style", STYLES[place][0])
    if style not in STYLES[place]:
        raise ValueError(f"{style!r} is not a style of a {place} parameter")
    return RequestParameter(
        data["argument"],
        data.get("name", data["argument"]),
        place,
        style,
        data.get("explode", default_explode(style)),
        reserved=data.get("allowReserved", False),
        as_json=data.get("json", False),
    )


def _body_data(body: RequestBody) -> dict[str, Any]:
    found: dict[str, Any] = {"mediaType": body.media_type}
    if body.required:
        found["required"] = True
    if body.argument is not None:
        found["argument"] = body.argument
    if body.binary:
        found["binary"] = True
    if body.parts:
        found["parts"] = [_part_data(each) for each in body.parts]
    return found


def _parse_body(data: Mapping[str, Any]) -> RequestBody:
    parts = tuple(_parse_part(each) for each in data.get("parts", ()))
    return RequestBody(
        _check_media_type(data["mediaType"]),
        data.get("required", False),
        data.get("argument"),
        parts,
        binary=data.get("binary", False),
    )


def _part_data(part: BodyPart) -> dict[str, Any]:
    found: dict[str, Any] = {"argument": part.argument}
    if part.name != part.argument:
        found["name"] = part.name
    if part.style is not None:
        found |= {"style": part.style, "explode": part.explode}
    if part.binary:
        found["binary"] = True
    if part.media_type is not None:
        found["mediaType"] = part.media_type
    return found


def _parse_part(data: Mapping[str, Any]) -> BodyPart:
    return BodyPart(
        data["argument"],
        data.get("name", data["argument"]),
        data.get("style"),
        data.get("explode", True),
        binary=data.get("binary", False),
        media_type=_check_media_type(data["mediaType"]) if "mediaType" in data else None,
    )


def _check_media_type(text: str) -> str:
    if not MEDIA_TYPE.fullmatch(text):
        raise ValueError("a media type has a type and a subtype")
    return text
