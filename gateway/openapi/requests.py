"""What a call of an operation becomes on the wire: which argument stands where, and how it is written there.

It is part of the tool's definition, as plain data, so what was reviewed is what is sent.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
Place = Literal["path", "query", "header", "cookie"]
Style = Literal["simple", "label", "matrix", "form", "spaceDelimited", "pipeDelimited", "deepObject"]

STYLES: Final[Mapping[Place, tuple[Style, ...]]] = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
"""The styles a place knows, its default first."""

_WORD: Final = r"[A-Za-z0-9!#$&^_.+*-]{1,127}"
MEDIA_TYPE: Final = re.compile(rf"{_WORD}/{_WORD}(?:; ?[A-Za-z0-9_-]+=[A-Za-z0-9_.-]+)*")

METHODS: Final[tuple[Method, ...]] = get_args(Method)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument in the path, the query, a header or a cookie. `as_json` ones are written as JSON instead."""

    argument: str
    name: str
    place: Place
    style: Style
    explode: bool
    reserved: bool = False
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A property of the body. Without a style it is written as its media type wants it; `binary` is given as base64."""

    argument: str
    name: str
    style: Style | None = None
    explode: bool = True
    binary: bool = False
    media_type: str | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """One argument is the whole body, or each of its properties is an argument of its own."""

    media_type: str
    required: bool
    argument: str | None = None
    parts: tuple[Part, ...] = ()
    binary: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    method: Method
    path: str
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    accept: str = "*/*"

    def data(self) -> dict[str, Any]:
        """As plain data that is stable and says only what differs from the defaults."""
        found: dict[str, Any] = {"method": self.method, "path": self.path}
        if self.accept != "*/*":
            found["accept"] = self.accept
        if self.parameters:
            found["parameters"] = [_parameter_data(each) for each in self.parameters]
        if self.body is not None:
            found["body"] = _body_data(self.body)
        return found


def request_from(data: Mapping[str, Any]) -> Request:
    """The other way round. Raises `ValueError` for data that `Request.data` does not write."""
    try:
        body = data.get("body")
        request = Request(
            data["method"],
            data["path"],
            tuple(_parameter(each) for each in data.get("parameters", ())),
            None if body is None else _body(body),
            data.get("accept", "*/*"),
        )
        if request.method not in METHODS or not request.path.startswith("/"):
            raise ValueError("a request has a method and a path from the root")
        if not all(map(MEDIA_TYPE.fullmatch, request.accept.split(", "))):
            raise ValueError("accept is a list of media types")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("this is not how a request is written down") from error
    return request


def default_explode(style: Style) -> bool:
    return style == "form"


def _parameter_data(each: Parameter) -> dict[str, Any]:
    found: dict[str, Any] = {"argument": each.argument, "in": each.place}
    if each.name != each.argument:
        found["name"] = each.name
    if each.style != STYLES[each.place][0]:
        found["style"] = each.style
    if each.explode != default_explode(each.style):
        found["explode"] = each.explode
    flags = {"allowReserved": each.reserved, "json": each.as_json}
    return found | {key: True for key, value in flags.items() if value}


def _parameter(data: Mapping[str, Any]) -> Parameter:
    place: Place = data["in"]
    style: Style = data.get("style", STYLES[place][0])
    if style not in STYLES[place]:
        raise ValueError(f"{style!r} is no style of a {place} parameter")
    return Parameter(
        data["argument"],
        data.get("name", data["argument"]),
        place,
        style,
        data.get("explode", default_explode(style)),
        reserved=data.get("allowReserved", False),
        as_json=data.get("json", False),
    )


def _body_data(body: Body) -> dict[str, Any]:
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


def _body(data: Mapping[str, Any]) -> Body:
    parts = tuple(_part(each) for each in data.get("parts", ()))
    return Body(
        _media_type(data["mediaType"]),
        data.get("required", False),
        data.get("argument"),
        parts,
        binary=data.get("binary", False),
    )


def _part_data(part: Part) -> dict[str, Any]:
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


def _part(data: Mapping[str, Any]) -> Part:
    return Part(
        data["argument"],
        data.get("name", data["argument"]),
        data.get("style"),
        data.get("explode", True),
        binary=data.get("binary", False),
        media_type=_media_type(data["mediaType"]) if "mediaType" in data else None,
    )


def _media_type(text: str) -> str:
    if not MEDIA_TYPE.fullmatch(text):
        raise ValueError("a media type has a type and a subtype")
    return text
