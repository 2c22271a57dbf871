"""REST operations as data, and requests as they see them: an authenticated caller, validated parameters and body.

Routes, validation and the OpenAPI document are built from the operations.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import parse_qsl

from gateway.approvals import ApprovalService
from gateway.engine import ContentRenderer, RequestObservation, Service, TurnSync
from gateway.errors import ValidationException
from gateway.model import Principal, Schema
from gateway.server.http.asgi import Response
from gateway.server.http.request_body import (
    BodyTooLarge,
    BodyTooSlow,
    NotStrictJson,
    Receive,
    TooManyBodyValues,
    parse_strict_json,
    read_body,
)
from gateway.server.rest.events import EventLogs
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


@dataclass(slots=True)
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


Method = Literal["GET", "POST"]
Document = Mapping[str, Any]

JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class RestDependencies:
    """The dependencies of operations."""

    service: Service
    logs: EventLogs = field(default_factory=EventLogs)
    approvals: ApprovalService | None = None
    catch_up: TurnSync | None = None
    """Loads calls that other processes have made in a turn."""
    contents: ContentRenderer = field(default_factory=ContentRenderer)


OperationHandler = Callable[[RestDependencies, RestRequest], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class OperationParameter:
    """One query parameter or header."""

    name: str
    description: str
    schema: Document = field(default_factory=lambda: {"type": "string", "minLength": 1, "maxLength": 512})
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class SuccessResponse:
    """A response that is no problem document. `schema` names a component; a response without one is not JSON."""

    description: str
    schema: str | None = None
    status: int = 200
    type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that the response may have, with descriptions."""
    example: Document | None = None


@dataclass(frozen=True, slots=True)
class RestOperation:
    """One method of one path. `body` names the component that a request's body must satisfy."""

    id: str
    method: Method
    path: str
    summary: str
    run: OperationHandler
    success: SuccessResponse
    tag: str
    query: tuple[OperationParameter, ...] = ()
    headers: tuple[OperationParameter, ...] = ()
    body: str | None = None
    also: Mapping[int, str] = field(default_factory=dict)
    """Further statuses of problems besides those of every operation, with descriptions."""
    instead: tuple[SuccessResponse, ...] = ()
    """Other responses that are no problem documents, each with its own status."""
    is_open: bool = False
    """Whether it needs no credential."""

    @property
    def query_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {each.name: dict(each.schema) for each in self.query},
            "required": [each.name for each in self.query if each.is_required],
        }
