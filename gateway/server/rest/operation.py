"""REST operations as data, and requests as they see them: an authenticated caller, validated parameters and body.

Routes, validation and the OpenAPI document are built from the operations.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gateway.approvals import ApprovalService
from gateway.engine import ContentRenderer, RequestObservation, Service, TurnSync
from gateway.model import Principal
from gateway.policy import GrantService
from gateway.server.http.asgi import Response
from gateway.server.rest.events import EventLogs
from gateway.server.rest.responses import (
    InvalidRequest,
)

RawHeaders = Sequence[tuple[bytes, bytes]]


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
    grants: GrantService | None = None


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
