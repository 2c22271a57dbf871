"""Operations of the REST API as data. Routes, validation and the OpenAPI document are built from them."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gateway.approvals import ApprovalService
from gateway.engine import ContentRenderer, Service, TurnSync
from gateway.server.http.asgi import Response
from gateway.server.rest.events import EventLogs
from gateway.server.rest.request import RestRequest

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
