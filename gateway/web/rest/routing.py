"""Routes: one endpoint per path of the table, and one for every path below `/v1` that is none."""

from itertools import groupby
from operator import attrgetter
from typing import Final

from starlette.routing import Route

from gateway.approvals.approving import Approvals
from gateway.serving.catching_up import CatchingUp
from gateway.serving.service import Service
from gateway.web.rest.approvals import APPROVAL_OPERATIONS
from gateway.web.rest.endpoints import MAX_BODY, Endpoint, nothing_here
from gateway.web.rest.operations import Operation, Rest
from gateway.web.rest.reading import reading_operations
from gateway.web.rest.streams import EventLogs
from gateway.web.rest.table import OPERATIONS

_DESCRIBED: Final = (*OPERATIONS, *APPROVAL_OPERATIONS)
ALL_OPERATIONS: Final[tuple[Operation, ...]] = (*_DESCRIBED, *reading_operations(_DESCRIBED))
OPEN_PATHS: Final = tuple(sorted({each.path for each in ALL_OPERATIONS if each.is_open}))
"""Paths that are answered without a credential."""


class _Nothing:
    """An instance, because Starlette wraps plain functions and would hand them its own requests."""

    __call__ = staticmethod(nothing_here)


def routes(
    service: Service,
    *,
    max_body: int = MAX_BODY,
    logs: EventLogs | None = None,
    approvals: Approvals | None = None,
    catch_up: CatchingUp | None = None,
) -> list[Route]:
    """What to mount at the root of the data plane. Whoever gives `logs` can hush the streams of events."""
    rest = Rest(service, logs or EventLogs(), approvals, catch_up)
    by_path = {
        path: list(operations)
        for path, operations in groupby(sorted(ALL_OPERATIONS, key=attrgetter("path")), key=attrgetter("path"))
    }
    # Starlette tries one path after the other, and no two of ours match the same: calls, which are most, come first.
    ordered = sorted(by_path, key=lambda path: (not path.endswith(("/call", "/calls")), path))
    served = [Route(path, Endpoint(rest, by_path[path], max_body=max_body)) for path in ordered]
    return [*served, Route("/v1/{rest:path}", _Nothing()), Route("/v1", _Nothing())]
