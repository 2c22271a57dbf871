"""Serialization of arguments into a request: target, headers, cookies and body (JSON, form, multipart, text, bytes).

Each argument goes only to its own place, and nothing is joined and parsed again. A key of an argument that would become
the name of another parameter or of a credential is refused. In a path, a query, a header or a cookie, each text is
percent-encoded separately and joined by characters that encoded texts do not contain.
"""

import json
import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Final
from urllib.parse import quote, unquote

from gateway.backends.openapi.document import InvalidArgument
from gateway.backends.openapi.request_template import BodyPart, RequestBody, RequestParameter, RequestTemplate

_MAX_DEPTH: Final = 8
_MAX_PAIRS: Final = 10_000
_RESERVED: Final = ":/?@!$'()*,;"
"""Characters that `allowReserved` permits: none that would start another pair, a fragment or an escape."""

_HEADER_VALUE: Final = re.compile(r"(?! )[\x20-\x7e]*(?<! )")
_DELIMITERS: Final = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}

Pair = tuple[str, str]
"""A name and a value, both encoded."""


def write_path_value(parameter: RequestParameter, value: Any) -> str:
    """Return the text that replaces the placeholder."""
    name = parameter.argument
    if value is None:
        raise InvalidArgument(name, "was not given")
    if parameter.as_json:
        return _quote(name, _to_json(name, value))
    match parameter.style:
        case "label":
            joined = _join(name, value, explode=parameter.explode, by="." if parameter.explode else ",")
            return f".{joined}"
        case "matrix":
            return _write_matrix(parameter, value)
        case _:
            return _join(name, value, explode=parameter.explode, by=",")


def write_query_pairs(parameter: RequestParameter, value: Any) -> list[Pair]:
    """Return the pairs of a value; none for a missing value and for an empty list."""
    safe = _RESERVED if parameter.reserved else ""
    argument, name = parameter.argument, _quote(parameter.argument, parameter.name)
    if value is None:
        return []
    if parameter.as_json:
        return [(name, _quote(argument, _to_json(argument, value), safe=safe))]
    if parameter.style == "deepObject":
        return list(write_deep_object(argument, parameter.name, value))
    delimiter = _DELIMITERS[parameter.style]
    match value:
        case list():
            texts = [_quote(argument, _to_text(argument, item), safe=safe) for item in value]
            if parameter.explode:
                return [(name, text) for text in texts]
            return [(name, delimiter.join(texts))] if texts else []
        case dict() if parameter.explode:
            return [
                (_quote(argument, key), _quote(argument, _to_text(argument, item), safe=safe))
                for key, item in _present_items(value)
            ]
        case dict():
            texts = [_quote(argument, text, safe=safe) for text in _flatten(argument, value)]
            return [(name, delimiter.join(texts))] if texts else []
        case _:
            return [(name, _quote(argument, _to_text(argument, value), safe=safe))]


def write_header_value(parameter: RequestParameter, value: Any) -> str:
    """Return one line of printable ASCII, unescaped: headers have no escapes."""
    name = parameter.argument
    if parameter.as_json:
        return check_header_text(name, json.dumps(value))
    match value:
        case list():
            return check_header_text(name, ",".join(_check_element(name, _to_text(name, item)) for item in value))
        case dict() if parameter.explode:
            pairs = ((key, _to_text(name, item)) for key, item in _present_items(value))
            return check_header_text(
                name, ",".join(f"{_check_element(name, key)}={_check_element(name, text)}" for key, text in pairs)
            )
        case dict():
            return check_header_text(name, ",".join(_check_element(name, text) for text in _flatten(name, value)))
        case _:
            return check_header_text(name, _to_text(name, value))


def write_deep_object(argument: str, name: str, value: Any, depth: int = 0) -> Iterator[Pair]:
    """Yield `name[key][0]=value` for every scalar; list items by index, nulls omitted."""
    if depth > _MAX_DEPTH:
        raise InvalidArgument(argument, f"is nested deeper than {_MAX_DEPTH} levels")
    match value:
        case None:
            return
        case dict():
            for key, item in value.items():
                if "[" in key or "]" in key:
                    raise InvalidArgument(argument, "has a key with a bracket")
                yield from write_deep_object(argument, f"{name}[{key}]", item, depth + 1)
        case list():
            if len(value) > _MAX_PAIRS:
                raise InvalidArgument(argument, f"has more than {_MAX_PAIRS} items")
            for index, item in enumerate(value):
                yield from write_deep_object(argument, f"{name}[{index}]", item, depth + 1)
        case _:
            yield _quote(argument, name), _quote(argument, _to_text(argument, value))


def is_unsafe_segment(segment: str) -> bool:
    """Whether clients or servers would remove an encoded segment: empty, or dots in any spelling."""
    return unquote(segment) in ("", ".", "..")


def check_header_text(argument: str, text: str) -> str:
    if not _HEADER_VALUE.fullmatch(text):
        raise InvalidArgument(argument, "has characters that are invalid in headers")
    return text


def format_scalar(argument: str, value: Any) -> str:
    """Return a scalar as forms write it."""
    return _to_text(argument, value)


def _write_matrix(parameter: RequestParameter, value: Any) -> str:
    argument, name = parameter.argument, _quote(parameter.argument, parameter.name)
    match value:
        case list() if parameter.explode:
            return "".join(f";{name}={_quote(argument, _to_text(argument, item))}" for item in value)
        case dict() if parameter.explode:
            return f";{_join(argument, value, explode=True, by=';')}"
        case _:
            return f";{name}={_join(argument, value, explode=False, by=',')}"


def _join(argument: str, value: Any, *, explode: bool, by: str) -> str:
    match value:
        case list():
            return by.join(_quote(argument, _to_text(argument, item)) for item in value)
        case dict() if explode:
            pairs = ((_quote(argument, key), _to_text(argument, item)) for key, item in _present_items(value))
            return by.join(f"{key}={_quote(argument, text)}" for key, text in pairs)
        case dict():
            return by.join(_quote(argument, text) for text in _flatten(argument, value))
        case _:
            return _quote(argument, _to_text(argument, value))


def _flatten(argument: str, value: dict[str, Any]) -> Iterable[str]:
    for key, item in _present_items(value):
        yield key
        yield _to_text(argument, item)


def _present_items(value: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(key, item) for key, item in value.items() if item is not None]


def _check_element(argument: str, text: str) -> str:
    """Refuse an element with a comma: headers have no escapes, so it would become two."""
    if "," in text:
        raise InvalidArgument(argument, "has an element with a comma, which would become two")
    return text


def _to_text(argument: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return _to_json(argument, value)
    raise InvalidArgument(argument, "has a part that is not a text, a number or a boolean")


def _to_json(argument: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(argument, "cannot be written as JSON") from error


def _quote(argument: str, text: str, *, safe: str = "") -> str:
    try:
        return quote(text, safe=safe)
    except UnicodeEncodeError:
        raise InvalidArgument(argument, "contains an unpaired surrogate") from None


FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"


def write_body(body: RequestBody | None, args: Mapping[str, Any]) -> tuple[bytes | None, str | None]:
    """Return the bytes and their content type; `None` if the body is optional and has no arguments."""
    if body is None:
        return None, None
    if body.argument is None:
        data: Any = _collect_members(body, args)
        if not data and not body.required:
            return None, None
    elif body.argument in args:
        data = args[body.argument]
    elif body.required:
        raise InvalidArgument(body.argument, "was not given")
    else:
        return None, None
    kind = media_type(body.media_type)
    if kind == FORM:
        return "&".join(f"{name}={value}" for name, value in _write_form(body, data)).encode("ascii"), body.media_type
    if kind == MULTIPART:
        return _write_multipart(body, data)
    if is_json(kind):
        return _to_json_body(body.argument or "body", data), body.media_type
    return _write_bytes(body, data), body.media_type


def media_type(text: str) -> str:
    return text.partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    return kind == "application/json" or kind.endswith("+json")


def is_text(kind: str) -> bool:
    return kind.startswith("text/") or kind in ("application/xml", "application/yaml") or kind.endswith("+xml")


def _collect_members(body: RequestBody, args: Mapping[str, Any]) -> dict[str, Any]:
    return {part.name: args[part.argument] for part in body.parts if part.argument in args}


def _iterate_parts(body: RequestBody, data: Any) -> Iterator[tuple[BodyPart, Any]]:
    """Yield every property with its encoding; an argument that is the whole body supplies its own properties."""
    if not isinstance(data, dict):
        raise InvalidArgument(body.argument or "body", "is not an object, which a form needs")
    known = {part.name: part for part in body.parts}
    for name, value in data.items():
        if value is not None:
            yield known.get(name) or BodyPart(body.argument or name, name), value


def _write_form(body: RequestBody, data: Any) -> Iterator[Pair]:
    for part, value in _iterate_parts(body, data):
        if part.style == "deepObject":
            yield from write_deep_object(part.argument, part.name, value)
        elif part.style is None and (isinstance(value, dict) or _has_objects(value)):
            yield quote(part.name, safe=""), quote(_to_json_body(part.argument, value), safe="")
        else:
            style = part.style or "form"
            yield from write_query_pairs(
                RequestParameter(part.argument, part.name, "query", style, part.explode), value
            )


def _write_multipart(body: RequestBody, data: Any) -> tuple[bytes, str]:
    boundary = token_hex(16)
    pieces: list[bytes] = []
    for part, value in _iterate_parts(body, data):
        for item in value if isinstance(value, list) and not _has_objects(value) else [value]:
            head, content = _write_part(part, item)
            pieces += [f"--{boundary}\r\n{head}\r\n\r\n".encode(), content, b"\r\n"]
    return b"".join([*pieces, f"--{boundary}--\r\n".encode()]), f"{MULTIPART}; boundary={boundary}"


def _write_part(part: BodyPart, value: Any) -> tuple[str, bytes]:
    # escape the three characters that could end the quoted name or the line
    name = part.name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
    head = f'Content-Disposition: form-data; name="{name}"'
    if part.binary:
        kind = part.media_type or "application/octet-stream"
        return f'{head}; filename="{name}"\r\nContent-Type: {kind}', _decode_base64(part.argument, value)
    if isinstance(value, dict | list):
        return f"{head}\r\nContent-Type: {part.media_type or 'application/json'}", _to_json_body(part.argument, value)
    kind_line = f"\r\nContent-Type: {part.media_type}" if part.media_type else ""
    return f"{head}{kind_line}", _encode_text(part.argument, format_scalar(part.argument, value))


def _write_bytes(body: RequestBody, data: Any) -> bytes:
    argument = body.argument or "body"
    return _decode_base64(argument, data) if body.binary else _encode_text(argument, format_scalar(argument, data))


def _decode_base64(argument: str, value: Any) -> bytes:
    try:
        return b64decode(value, validate=True)
    except (NotBase64, ValueError, TypeError) as error:
        raise InvalidArgument(argument, "is not base64") from error


def _to_json_body(argument: str, value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(argument, "cannot be written as JSON") from error


def _encode_text(argument: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(argument, "contains an unpaired surrogate") from None


def _has_objects(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict | list) for item in value)


_PLACEHOLDER: Final = re.compile(r"\{([^{}/]+)\}")
_LITERAL: Final = "/:@!$&'()*+,;=-._~"
"""Characters that stay as they are. Not the percent sign: paths in documents are not encoded."""


@dataclass(frozen=True, slots=True)
class SerializedRequest:
    """An encoded request. `target` is path and query, relative to the server's address."""

    path: str
    query: tuple[Pair, ...]
    headers: Mapping[str, str]
    cookies: tuple[Pair, ...]
    body: bytes | None = field(repr=False)

    def target(self, extra: Collection[Pair] = ()) -> str:
        pairs = [f"{name}={value}" for name, value in (*self.query, *extra)]
        return self.path + (f"?{'&'.join(pairs)}" if pairs else "")


def serialize_request(
    request: RequestTemplate, args: Mapping[str, Any], *, taken: Collection[str] = ()
) -> SerializedRequest:
    """Serialize the arguments; `taken` are names of credentials in query and cookies. Raise `InvalidArgument`."""
    by_place: dict[str, list[RequestParameter]] = {"path": [], "query": [], "header": [], "cookie": []}
    for parameter in request.parameters:
        by_place[parameter.place].append(parameter)
    headers = {
        each.name.lower(): write_header_value(each, args[each.argument])
        for each in by_place["header"]
        if args.get(each.argument) is not None
    }
    body, content_type = write_body(request.body, args)
    if content_type is not None:
        headers["content-type"] = content_type
    headers["accept"] = request.accept
    return SerializedRequest(
        _write_path(request.path, {each.name: each for each in by_place["path"]}, args),
        tuple(_to_pairs(by_place["query"], args, taken=taken)),
        headers,
        tuple(_to_pairs(by_place["cookie"], args, taken=taken)),
        body,
    )


def cookie_header(pairs: Collection[Pair]) -> str | None:
    return "; ".join(f"{name}={check_header_text(name, value)}" for name, value in pairs) or None


def find_placeholders(path: str) -> list[str]:
    return _PLACEHOLDER.findall(path)


def _write_path(path: str, parameters: Mapping[str, RequestParameter], args: Mapping[str, Any]) -> str:
    return "/".join(_write_segment(segment, parameters, args) for segment in path.split("/"))


def _write_segment(segment: str, parameters: Mapping[str, RequestParameter], args: Mapping[str, Any]) -> str:
    pieces = _PLACEHOLDER.split(segment)
    if len(pieces) == 1:
        return quote(segment, safe=_LITERAL)
    last = ""
    for index, piece in enumerate(pieces):
        if index % 2:
            parameter = parameters[piece]
            last = parameter.argument
            pieces[index] = write_path_value(parameter, args.get(parameter.argument))
        else:
            pieces[index] = quote(piece, safe=_LITERAL)
    filled = "".join(pieces)
    if is_unsafe_segment(filled):
        raise InvalidArgument(last, "would change the path it is part of")
    return filled


def _to_pairs(parameters: list[RequestParameter], args: Mapping[str, Any], *, taken: Collection[str]) -> list[Pair]:
    """Return all pairs of a place. Keys of an exploded object must not equal the names of other parameters."""
    found: list[Pair] = []
    reserved = {quote(each.name, safe=""): each.argument for each in parameters}
    credentials = {quote(name, safe="") for name in taken}
    for parameter in parameters:
        pairs = write_query_pairs(parameter, args.get(parameter.argument))
        for name, _ in pairs:
            if name in credentials or reserved.get(name, parameter.argument) != parameter.argument:
                raise InvalidArgument(parameter.argument, "has a key that is the name of another parameter")
        found += pairs
    return found
