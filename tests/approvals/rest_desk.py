"""The REST operations of approvals behind a plain server: whoever a bearer token names is who asks."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from held_calls import ADA, LEA, LEO, LIV, MAX, STRANGER, Desk

from gateway.access import Access
from gateway.core.schemas import Schema
from gateway.errors import GatewayError
from gateway.governance.principals import Principal
from gateway.serving.published import Published
from gateway.serving.service import Service
from gateway.snapshot import Snapshot
from gateway.web.problems import problem_response, refusal
from gateway.web.rest.approvals import APPROVAL_OPERATIONS, REQUESTS
from gateway.web.rest.asking import Asked, read_json, read_query
from gateway.web.rest.operations import Operation, Rest

PEOPLE: dict[str, Principal] = {each.subject.removeprefix("user:"): each for each in (ADA, LEA, LEO, LIV, MAX)}
PEOPLE["stranger"] = STRANGER


class RestDesk:
    """An ASGI application. What is served are no tools at all, under the revision that calls are held under."""

    def __init__(self, desk: Desk) -> None:
        self.answered = 0
        self._desk = desk
        self._operations = [(_pattern(each), each) for each in APPROVAL_OPERATIONS]
        self._service = Service(published("r1"), desk.records, None)  # type: ignore[arg-type] # nothing is spooled
        self._rest = Rest(self._service, approvals=desk.approvals)

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
                    asked = await _asked(operation, PEOPLE[token], match.groupdict(), scope, receive)
                    return await operation.run(self._rest, asked)
                except GatewayError as error:
                    return refusal(error)
        return problem_response(404, "nothing is served at this path")


def published(revision: str) -> Published:
    snapshot = Snapshot("desk", {}, {}, {}, {}, {}, {}, {}, {}, {}, revision=revision)
    return Published(Access(snapshot, None), {}, None)  # type: ignore[arg-type] # nobody calls anything


async def _asked(operation: Operation, caller: Principal, path: dict[str, str], scope: Any, receive: Any) -> Asked:
    query = read_query(scope["query_string"], Schema(operation.query_schema))
    body = None
    if operation.body:
        schema = Schema(dict(REQUESTS[operation.body]))
        body = await read_json(receive, scope["headers"], limit=1 << 20, schema=schema)
    return Asked(caller, path, query, body, scope["headers"])


def _pattern(operation: Operation) -> re.Pattern[str]:
    return re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", operation.path))


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """The application behind a real socket; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning", ws="none"))
        serving = asyncio.create_task(server.serve([bound]))
        while not server.started:
            await asyncio.sleep(0.001)
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        server.should_exit = True
        await serving
