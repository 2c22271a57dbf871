"""The body of a request in the media type of its operation: JSON, a form, several parts, text or bytes."""

import json
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping
from secrets import token_hex
from typing import Any
from urllib.parse import quote

from gateway.openapi.refusals import NotWritable
from gateway.openapi.requests import Body, Parameter, Part
from gateway.openapi.styles import Pair, in_query, nested, plain_text

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"


def written_body(body: Body | None, args: Mapping[str, Any]) -> tuple[bytes | None, str | None]:
    """The bytes and their content type; nothing if no argument of the body was given and none is needed."""
    if body is None:
        return None, None
    if body.argument is None:
        given: Any = _members(body, args)
        if not given and not body.required:
            return None, None
    elif body.argument in args:
        given = args[body.argument]
    elif body.required:
        raise NotWritable(body.argument, "was not given")
    else:
        return None, None
    kind = media_type(body.media_type)
    if kind == FORM:
        return "&".join(f"{name}={value}" for name, value in _form(body, given)).encode("ascii"), body.media_type
    if kind == MULTIPART:
        return _multipart(body, given)
    if is_json(kind):
        return _json(body.argument or "body", given), body.media_type
    return _bytes(body, given), body.media_type


def media_type(text: str) -> str:
    return text.partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    return kind == "application/json" or kind.endswith("+json")


def is_text(kind: str) -> bool:
    return kind.startswith("text/") or kind in ("application/xml", "application/yaml") or kind.endswith("+xml")


def _members(body: Body, args: Mapping[str, Any]) -> dict[str, Any]:
    return {part.name: args[part.argument] for part in body.parts if part.argument in args}


def _parts(body: Body, given: Any) -> Iterator[tuple[Part, Any]]:
    """Every property with how it is written; an argument that is the whole body brings its own."""
    if not isinstance(given, dict):
        raise NotWritable(body.argument or "body", "is not an object, of which a form is made")
    known = {part.name: part for part in body.parts}
    for name, value in given.items():
        if value is not None:
            yield known.get(name) or Part(body.argument or name, name), value


def _form(body: Body, given: Any) -> Iterator[Pair]:
    for part, value in _parts(body, given):
        if part.style == "deepObject":
            yield from nested(part.argument, part.name, value)
        elif part.style is None and (isinstance(value, dict) or _has_objects(value)):
            yield quote(part.name, safe=""), quote(_json(part.argument, value), safe="")
        else:
            style = part.style or "form"
            yield from in_query(Parameter(part.argument, part.name, "query", style, part.explode), value)


def _multipart(body: Body, given: Any) -> tuple[bytes, str]:
    boundary = token_hex(16)
    pieces: list[bytes] = []
    for part, value in _parts(body, given):
        for item in value if isinstance(value, list) and not _has_objects(value) else [value]:
            head, content = _piece(part, item)
            pieces += [f"--{boundary}\r\n{head}\r\n\r\n".encode(), content, b"\r\n"]
    return b"".join([*pieces, f"--{boundary}--\r\n".encode()]), f"{MULTIPART}; boundary={boundary}"


def _piece(part: Part, value: Any) -> tuple[str, bytes]:
    # the three characters that could end the quoted name or the line
    name = part.name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
    head = f'Content-Disposition: form-data; name="{name}"'
    if part.binary:
        kind = part.media_type or "application/octet-stream"
        return f'{head}; filename="{name}"\r\nContent-Type: {kind}', _decoded(part.argument, value)
    if isinstance(value, dict | list):
        return f"{head}\r\nContent-Type: {part.media_type or 'application/json'}", _json(part.argument, value)
    kind_line = f"\r\nContent-Type: {part.media_type}" if part.media_type else ""
    return f"{head}{kind_line}", _encoded(part.argument, plain_text(part.argument, value))


def _bytes(body: Body, given: Any) -> bytes:
    argument = body.argument or "body"
    return _decoded(argument, given) if body.binary else _encoded(argument, plain_text(argument, given))


def _decoded(argument: str, value: Any) -> bytes:
    try:
        return b64decode(value, validate=True)
    except (NotBase64, ValueError, TypeError) as error:
        raise NotWritable(argument, "is not base64") from error


def _json(argument: str, value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise NotWritable(argument, "cannot be written as JSON") from error


def _encoded(argument: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise NotWritable(argument, "holds half a character") from None


def _has_objects(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict | list) for item in value)
