"""Serialization of arguments into a request: target, headers, cookies and body (JSON, form, multipart, text, bytes).

Each argument goes only to its own place, and nothing is joined and parsed again. A key of an argument that would become
the name of another parameter or of a credential is refused.
"""

import json
import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Final
from urllib.parse import quote

from gateway.backends.openapi.document import InvalidArgument
from gateway.backends.openapi.request import BodyPart, RequestBody, RequestParameter, RequestTemplate
from gateway.backends.openapi.styles import (
    Pair,
    check_header_text,
    format_scalar,
    is_unsafe_segment,
    write_deep_object,
    write_header_value,
    write_path_value,
    write_query_pairs,
)

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
        return _to_json(body.argument or "body", data), body.media_type
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
            yield quote(part.name, safe=""), quote(_to_json(part.argument, value), safe="")
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
        return f"{head}\r\nContent-Type: {part.media_type or 'application/json'}", _to_json(part.argument, value)
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


def _to_json(argument: str, value: Any) -> bytes:
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
