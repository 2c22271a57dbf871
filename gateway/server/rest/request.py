"""REST requests as operations see them: with an authenticated caller and validated parameters and body."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from gateway.engine import RequestObservation
from gateway.errors import ValidationException
from gateway.model import Principal, Schema
from gateway.server.http.request_body import (
    BodyTooLarge,
    BodyTooSlow,
    NotStrictJson,
    Receive,
    TooManyBodyValues,
    parse_strict_json,
    read_body,
)
from gateway.server.rest.responses import (
    InvalidRequest,
    RequestTooLarge,
    RequestTooSlow,
    TooManyJsonValues,
    UnsupportedContentType,
    invalid_part,
)

RawHeaders = Sequence[tuple[bytes, bytes]]

_MAX_PARAMETERS: Final = 32


@dataclass(frozen=True, slots=True)
class RestRequest:
    """A request. `caller` is `None` only for operations that need no credential."""

    caller: Principal | None
    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: Any
    headers: RawHeaders
    is_head: bool = False
    """Whether the client requests only the head of the response."""
    seen: RequestObservation | None = None
    """The observation of the request, if any."""

    @property
    def principal(self) -> Principal:
        assert self.caller is not None, "the operation needs a principal"  # noqa: S101 - held by the endpoint
        return self.caller

    def header(self, name: bytes) -> str | None:
        """Return a header that may be given once. Raises `InvalidRequest` for two: parsers would disagree."""
        found = [value for key, value in self.headers if key == name]
        if len(found) > 1:
            raise InvalidRequest(f"the header {name.decode()} is given twice")
        return found[0].decode("latin-1").strip() if found else None


async def read_json(receive: Receive, headers: RawHeaders, *, limit: int, schema: Schema) -> Any:
    """Return the body exactly as it was sent. Raises a `GatewayError` for the caller if it is invalid."""
    named = dict(headers)
    kind = named.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json" or named.get(b"content-encoding", b"identity").lower() != b"identity":
        raise UnsupportedContentType()
    if len(named) != len(headers) and _disagree(headers):
        raise UnsupportedContentType()
    declared = named.get(b"content-length", b"0")
    if declared.isdigit() and int(declared[:20]) > limit:
        raise _too_large(limit)
    try:
        body = await parse_strict_json(await read_body(receive, limit=limit))
    except BodyTooLarge:
        raise _too_large(limit) from None
    except BodyTooSlow:
        raise RequestTooSlow() from None
    except TooManyBodyValues as error:
        raise TooManyJsonValues(f"the body cannot be read: {error}") from None
    except NotStrictJson as error:
        raise InvalidRequest(f"the body cannot be read: {error}") from None
    if not schema.accepts_parsed(body):
        _refuse(schema, body)
    return body


def _disagree(headers: RawHeaders) -> bool:
    """Whether Content-Type or Content-Encoding is given twice: two parsers may use different ones."""
    given = [name for name, _ in headers if name in (b"content-type", b"content-encoding")]
    return len(set(given)) != len(given)


def read_query(query: bytes, schema: Schema) -> dict[str, Any]:
    """Return parameters with their types and defaults. Raises `InvalidRequest` for unknown and repeated ones."""
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=_MAX_PARAMETERS,
        )
    except ValueError:
        raise InvalidRequest("the query is not a list of parameters") from None
    given = dict(pairs)
    if len(given) != len(pairs):
        raise InvalidRequest("a query parameter is given twice")
    try:
        parameters: dict[str, Any] = schema.coerce(given)
    except ValidationException as error:
        raise invalid_part("the query", error) from None
    return parameters


def _refuse(schema: Schema, body: Any) -> None:
    try:
        schema.check(body)
    except ValidationException as error:
        raise invalid_part("the body", error, help=_members(schema, body)) from None


def _members(schema: Schema, body: Any) -> str | None:
    """Return a help text with the members that the body may have, if it has others."""
    known = schema.describe().get("properties", {})
    if not known or not isinstance(body, dict) or body.keys() <= known.keys():
        return None
    inside = "; put arguments of the tool into 'arguments'" if "arguments" in known else ""
    return f"the body may have {', '.join(known)}{inside}"


def _too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"the body is larger than {limit} bytes")
