"""Operations: what can be asked, as data. Routes, checks and the OpenAPI document are all made from these."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gateway.approvals.approving import Approvals
from gateway.serving.catching_up import CatchingUp
from gateway.serving.content import Contents
from gateway.serving.service import Service
from gateway.web.problems import Response
from gateway.web.rest.asking import Asked
from gateway.web.rest.streams import EventLogs

Method = Literal["GET", "POST"]
Document = Mapping[str, Any]

JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Rest:
    """What operations work with."""

    service: Service
    logs: EventLogs = field(default_factory=EventLogs)
    approvals: Approvals | None = None
    catch_up: CatchingUp | None = None
    """For turns that other processes serve, too."""
    contents: Contents = field(default_factory=Contents)


Run = Callable[[Rest, Asked], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One query parameter or header."""

    name: str
    description: str
    schema: Document = field(default_factory=lambda: {"type": "string", "minLength": 1, "maxLength": 512})
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Success:
    """An answer that is no problem document. `schema` names a component; an answer without one is not JSON."""

    description: str
    schema: str | None = None
    status: int = 200
    type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that the answer may have, and what they say."""
    example: Document | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `body` names the component that a request's body has to satisfy."""

    id: str
    method: Method
    path: str
    summary: str
    run: Run
    success: Success
    tag: str
    query: tuple[Parameter, ...] = ()
    headers: tuple[Parameter, ...] = ()
    body: str | None = None
    also: Mapping[int, str] = field(default_factory=dict)
    """Further statuses besides those that every operation may answer, and when."""
    instead: tuple[Success, ...] = ()
    """Other answers that are no problem documents, each with a status of its own."""
    is_open: bool = False
    """Whether it is answered without a credential."""

    @property
    def query_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {each.name: dict(each.schema) for each in self.query},
            "required": [each.name for each in self.query if each.is_required],
        }
