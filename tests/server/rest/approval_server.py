"""The REST operations of approvals behind a plain server; the bearer token names the caller."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from gateway.engine.live_revision import LiveRevision
from gateway.engine.service import Service
from gateway.errors import GatewayError
from gateway.model.caller import Principal
from gateway.model.schema.schema import Schema
from gateway.policy.access import Access
from gateway.registries.snapshot import Snapshot
from gateway.server.http.asgi import error_response, problem_response
from gateway.server.rest.approvals import REQUESTS
from gateway.server.rest.operation import RestDependencies, RestOperation, RestRequest
from gateway.server.rest.operation_table import APPROVAL_OPERATIONS
from gateway.server.rest.router import read_json, read_query
from tests.approvals.held_calls import ADA, LEA, LEO, LIV, MAX, STRANGER, ApprovalFixture

PEOPLE: dict[str, Principal] = {each.subject.removeprefix("user:"): each for each in (ADA, LEA, LEO, LIV, MAX)}
PEOPLE["stranger"] = STRANGER


class ApprovalRestServer:
    """An ASGI application that serves no tools, under the revision that calls are held under."""

    def __init__(self, desk: ApprovalFixture) -> None:
        self.answered = 0
        self._desk = desk
        self._operations = [(_pattern(each), each) for each in APPROVAL_OPERATIONS]
        self._service = Service(published("r1"), desk.records, None)  # type: ignore[arg-type] # nothing is spooled
        self._rest = RestDependencies(self._service, approvals=desk.approvals)

    def publish(self, revision: str) -> None:
        self._service.publish(published(revision))
        self._desk.served = revision

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await (await self._response(scope, receive))(scope, receive, send)
            self.answered += 1

    async def _response(self, scope: Any, receive: Any) -> Any:
        token = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
        if token not in PEOPLE:
            return problem_response(401, "a credential is needed")
        for pattern, operation in self._operations:
            match = pattern.fullmatch(scope["path"])
            if match and operation.method == scope["method"]:
                try:
                    asked = await _read_request(operation, PEOPLE[token], match.groupdict(), scope, receive)
                    return await operation.run(self._rest, asked)
                except GatewayError as error:
                    return error_response(error)
        return problem_response(404, "nothing is served at this path")


def published(revision: str) -> LiveRevision:
    snapshot = Snapshot("desk", {}, {}, {}, {}, {}, {}, {}, {}, {}, revision=revision)
    return LiveRevision(Access(snapshot, None), {}, None)  # type: ignore[arg-type] # no tool is called


async def _read_request(
    operation: RestOperation, caller: Principal, path: dict[str, str], scope: Any, receive: Any
) -> RestRequest:
    query = read_query(scope["query_string"], Schema(operation.query_schema))
    body = None
    if operation.body:
        schema = Schema(dict(REQUESTS[operation.body]))
        body = await read_json(receive, scope["headers"], limit=1 << 20, schema=schema)
    return RestRequest(caller, path, query, body, scope["headers"])


def _pattern(operation: RestOperation) -> re.Pattern[str]:
    return re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", operation.path))


@asynccontextmanager
async def serve_approvals(app: Any) -> AsyncIterator[str]:
    """Serve the application on a real socket and return its URL."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning", ws="none"))
        serving = asyncio.create_task(server.serve([bound]))
        while not server.started:
            await asyncio.sleep(0.001)
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        server.should_exit = True
        await serving
