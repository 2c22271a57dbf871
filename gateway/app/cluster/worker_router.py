"""Routing between workers behind one address: each request goes to the worker that has its session or turn in memory.

A connection reaches any worker. A mark before the id of an MCP session names its worker, and the name of a turn
determines its worker. An authenticated request for another worker is forwarded to it unchanged; the worker itself never
sees the mark. Workers prove to each other that the same parent started them.

The state of a call that waits for input of its caller names its gateway and worker before the sealed part:
`<digest of the gateway's address>.w<number of the worker>.<sealed>`; a part is left out if there is only one of a kind.
"""

import asyncio
import os
import re
import socket
from collections import deque
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import aiohttp
from yarl import URL

from gateway.app.cluster.event_merge import EventSource, is_event_request, merge_events
from gateway.app.cluster.peer_connector import PeerConnector
from gateway.app.cluster.proxy import PEER_GONE, PeerUnreachable, create_forwarding_session, forward_request
from gateway.app.cluster.reload_consensus import WORKERS_PATH as AMONG_WORKERS
from gateway.app.cluster.reload_consensus import ReloadConsensus, WorkerGroup
from gateway.app.metrics_collector import WORKER_METRICS_PATH, MetricsCollector
from gateway.app.revisions.reload import Reloader
from gateway.http_client import HttpSession, ResponseTooLarge
from gateway.server import (
    SCOPE_FIELDS,
    SCOPE_PRINCIPAL,
    AsgiApp,
    ChannelKey,
    HeaderFields,
    Kind,
    Receive,
    Scope,
    Send,
    problem_response,
)

SESSION: Final = b"mcp-session-id"


def session_of(scope: Scope) -> bytes | None:
    """Return the session id of a request, with its marks; `None` if it names none or several."""
    fields = _fields(scope)
    return None if SESSION in fields.repeated else fields.by_name.get(SESSION)


def is_of_a_session(scope: Scope) -> bool:
    return SESSION in _fields(scope).by_name


def serve_here(app: AsgiApp, mark: bytes, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
    """Let `app` handle the request: remove the mark from its session id, and add it to that of the response."""
    session = session_of(scope)
    if session is not None and session.startswith(mark):
        headers = [(name, value.removeprefix(mark) if name == SESSION else value) for name, value in scope["headers"]]
        scope["headers"], scope[SCOPE_FIELDS] = headers, HeaderFields(headers)

    def send_marked(message: Any) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            headers = [(name, mark + value if name == SESSION else value) for name, value in message["headers"]]
            message = {**message, "headers": headers}
        return send(message)

    return app(scope, receive, send_marked)


def _fields(scope: Scope) -> HeaderFields:
    fields: HeaderFields | None = scope.get(SCOPE_FIELDS)
    if fields is None:
        fields = scope[SCOPE_FIELDS] = HeaderFields(scope["headers"])
    return fields


_MAX_SEARCHED: Final = 256 << 10
_WITHIN: Final = 10.0
"""Seconds to wait for a body that is searched for a state."""
OF_GATEWAY: Final = re.compile(rb'"requestState"\s*:\s*"([0-9a-f]{12})\.')
"""In JSON such a quote cannot be inside a string. A caller who forges it only reaches another gateway."""
OF_WORKER: Final = re.compile(rb'"requestState"\s*:\s*"(?:[0-9a-f]{12}\.)?w([0-9]{1,3})\.')


def build_state_prefix(gateway: str, worker: int | None) -> str:
    """Return the prefix of the states of a process. `gateway` is empty if there is only one."""
    return ".".join([*([gateway] if gateway else []), *([] if worker is None else [f"w{worker}"])])


def may_carry_state(scope: Scope) -> bool:
    """Whether the body is searched for a state: only POST to an MCP path, with a known and small length."""
    if scope["method"] != "POST" or not scope["path"].endswith("/mcp"):
        return False
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return length.isdigit() and len(length) < 7 and int(length) <= _MAX_SEARCHED


async def find_state_owner(receive: Receive, pattern: re.Pattern[bytes]) -> tuple[bytes | None, Receive]:
    """Return the owner of the call that the request continues, if any, and a `receive` that starts over."""
    received: deque[Any] = deque()
    body = b""
    more = True
    with suppress(TimeoutError):  # the app waits for the rest, and responds if it does not come
        async with asyncio.timeout(_WITHIN):
            while more and len(body) <= _MAX_SEARCHED:
                message = await receive()
                received.append(message)
                body += message.get("body", b"")
                more = message["type"] == "http.request" and message.get("more_body", False)
    found = pattern.search(body)

    async def again() -> Any:
        return received.popleft() if received else await receive()

    return None if found is None else found[1], again


_TURNS: Final = "/v1/turns/"
_SOON: Final = 2.0
_HOST: Final = "worker-"
_UNKNOWN_MESSAGE: Final = problem_response(404, "there is no such message between workers")


class WorkerRouter:
    """Router between workers: `route` handles requests of callers, `serve_forwarded` those that another worker
    forwarded, `control` messages of other workers.
    """

    def __init__(self, app: AsgiApp, *, index: int, count: int, folder: Path, key: ChannelKey) -> None:
        self.key = key
        self._app = app
        self._index = index
        self._count = count
        self._folder = folder
        self._mark = b"%d." % index
        self._carried: dict[Kind, HttpSession] = {}
        self._metering: MetricsCollector | None = None
        self._workmates: ReloadConsensus | None = None

    @property
    def name(self) -> str:
        """The name of this worker on the channel to it."""
        return f"{_HOST}{self._index}"

    def listener(self) -> socket.socket:
        """Bind the socket for other workers; an earlier worker with this index left its file behind."""
        path = self._path(self._index)
        path.unlink(missing_ok=True)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        os.fchmod(bound.fileno(), 0o600)
        bound.bind(str(path))
        path.chmod(0o600)
        return bound

    async def route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request of a caller. Only authenticated requests are forwarded.

        Events are merged from all workers, since calls of a turn can run in any of them.
        """
        if SCOPE_PRINCIPAL not in scope:
            await self._app(scope, receive, send)
            return
        if is_event_request(scope):
            await merge_events(self.serve_forwarded, self._sources, scope, receive, send)
            return
        owner = self._owner(scope)
        if may_carry_state(scope) and not is_of_a_session(scope):
            named, receive = await find_state_owner(receive, OF_WORKER)
            owner = int(named) if named is not None and int(named) < self._count else owner
        if owner == self._index:
            await self.serve_forwarded(scope, receive, send)
        else:
            await self._forward(owner, scope, receive, send)

    def serve_forwarded(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return serve_here(self._app, self._mark, scope, receive, send)

    def connect(self, metering: MetricsCollector, reloading: Reloader) -> None:
        """Connect metrics and reloads, so that each worker can report and reload all of them."""
        self._metering = metering
        metering.worker, metering.others = self._index, self._ask_others
        self._workmates = ReloadConsensus(reloading, WorkerGroup(self._index, tuple(self._others), self._ask_others))
        reloading.together = self._workmates

    async def control(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a message of another worker. Messages have their own kind of connection."""
        path = scope["path"]
        if path == WORKER_METRICS_PATH and self._metering is not None:
            await self._metering.handle_internal(scope, receive, send)
        elif path.startswith(AMONG_WORKERS) and self._workmates is not None:
            await self._workmates.handle_internal(scope, receive, send)
        else:
            await _UNKNOWN_MESSAGE(scope, receive, send)

    async def _ask_others(
        self, path: str, *, within: float = _SOON, body: bytes | None = None, only: int | None = None
    ) -> dict[int, bytes]:
        """Return the response of each other worker; one that is missing or too slow is left out."""
        others = [each for each in self._others if only in (None, each)]
        answers = await asyncio.gather(*(self._ask(each, path, within, body) for each in others))
        return {each: answer for each, answer in zip(others, answers, strict=True) if answer is not None}

    async def _ask(self, owner: int, path: str, within: float, body: bytes | None) -> bytes | None:
        method, session = "GET" if body is None else "POST", self._carrier("control")
        url = _origin(owner).with_path(path)
        try:
            async with asyncio.timeout(within), await session.send(method, url, body=body) as answer:
                return await session.read(answer) if answer.status == 200 else None
        except (aiohttp.ClientError, OSError, ResponseTooLarge):
            return None

    @property
    def _others(self) -> list[int]:
        return [index for index in range(self._count) if index != self._index]

    async def close(self) -> None:
        for session in self._carried.values():
            await session.close()
        self._carried = {}

    def _owner(self, scope: Scope) -> int:
        if is_of_a_session(scope):
            index, dot, _ = (session_of(scope) or b"").partition(b".")
            is_ours = dot and index.isdigit() and len(index) < 4 and int(index) < self._count
            return int(index) if is_ours else self._index
        path: str = scope["path"]
        if path.startswith(_TURNS):
            return crc32(path.split("/")[3].encode("utf-8", "replace")) % self._count
        return self._index

    async def _forward(self, owner: int, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await forward_request(self._carrier("forward"), _origin(owner), scope, receive, send)
        except PeerUnreachable:
            if is_of_a_session(scope):
                await PEER_GONE(scope, receive, send)
            else:  # any worker can load a stored turn; an unknown state is invalid in all of them
                await self.serve_forwarded(scope, receive, send)

    async def _sources(self) -> list[EventSource]:
        return [EventSource(str(each), self._carrier("forward"), _origin(each)) for each in self._others]

    def _carrier(self, kind: Kind) -> HttpSession:
        if kind not in self._carried:
            places = {f"{_HOST}{index}": self._path(index) for index in self._others}
            self._carried[kind] = create_forwarding_session(PeerConnector(self.key, kind, places.get))
        return self._carried[kind]

    def _path(self, index: int) -> Path:
        return self._folder / f"{index}.sock"


def _origin(index: int) -> URL:
    return URL.build(scheme="http", host=f"{_HOST}{index}")
