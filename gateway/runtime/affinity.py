"""Several workers behind one address: what lives in the memory of one of them is answered by that one.

A connection goes to any worker. Sessions and calls that wait for an answer say whose they are, turns belong to a worker
by their name, and what is another worker's is passed on to it, as it came, over a socket that only we can open.
"""

import asyncio
import socket
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import aiohttp

from gateway.runtime.agreeing import INSIDE as AMONG_WORKERS
from gateway.runtime.agreeing import Crew, Workmates
from gateway.runtime.merging import Source, asks_for_events, merged
from gateway.runtime.metering import INSIDE, Metering
from gateway.runtime.passing import GONE, NobodyThere, carrier, passed_on
from gateway.runtime.reloading import Reloading
from gateway.runtime.states import OF_WORKER, may_have_a_state, owner_in_body
from gateway.web.edge import App, Receive, Scope, Send

_SESSION: Final = b"mcp-session-id"
_TURNS: Final = "/v1/turns/"
_SOON: Final = 2.0


class Affinity:
    """`front` takes what comes from outside, `back` what another worker passes on."""

    def __init__(self, app: App, *, index: int, count: int, folder: Path) -> None:
        self._app = app
        self._index = index
        self._count = count
        self._folder = folder
        self._sessions: dict[int, aiohttp.ClientSession] = {}
        self._metering: Metering | None = None
        self._workmates: Workmates | None = None

    def listener(self) -> socket.socket:
        """Where others reach this worker. One that had the place before left its name behind."""
        path = self._path(self._index)
        path.unlink(missing_ok=True)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bound.bind(str(path))
        return bound

    async def front(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Events come from all workers: calls of a turn that are not sent to its own path run wherever they arrive."""
        if asks_for_events(scope):
            await merged(self.back, self._sources, scope, receive, send)
            return
        owner = self._owner(scope) if scope["type"] == "http" else self._index
        if scope["type"] == "http" and may_have_a_state(scope) and not _is_of_a_session(scope):
            named, receive = await owner_in_body(receive, OF_WORKER)
            owner = int(named) if named is not None and int(named) < self._count else owner
        if owner == self._index:
            await self.back(scope, receive, send)
        else:
            await self._pass_on(owner, scope, receive, send)

    def shares(self, metering: Metering, reloading: Reloading) -> None:
        """Whichever worker is asked for metrics tells those of all, and has all reload if it is asked to."""
        self._metering = metering
        metering.worker, metering.others = self._index, self._asked
        self._workmates = Workmates(reloading, Crew(self._index, tuple(self._others), self._asked))
        reloading.together = self._workmates

    async def inside(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What comes from another worker: requests that are passed on, and questions of its own."""
        if scope["type"] == "http" and scope["path"] == INSIDE and self._metering is not None:
            await self._metering.inside(scope, receive, send)
        elif scope["type"] == "http" and scope["path"].startswith(AMONG_WORKERS) and self._workmates is not None:
            await self._workmates.inside(scope, receive, send)
        else:
            await self.back(scope, receive, send)

    async def _asked(
        self, path: str, *, within: float = _SOON, body: bytes | None = None, only: int | None = None
    ) -> dict[int, bytes]:
        """What each of the others answers; one that is being replaced, or too slow, is left out."""
        others = [each for each in self._others if only in (None, each)]
        patience = aiohttp.ClientTimeout(total=within)
        answers = await asyncio.gather(*(self._ask(each, path, patience, body) for each in others))
        return {each: answer for each, answer in zip(others, answers, strict=True) if answer is not None}

    async def _ask(self, owner: int, path: str, patience: aiohttp.ClientTimeout, body: bytes | None) -> bytes | None:
        method = "GET" if body is None else "POST"
        asking = self._session(owner).request(method, f"http://worker{path}", data=body, timeout=patience)
        try:
            async with asking as answer:
                return await answer.read() if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    @property
    def _others(self) -> list[int]:
        return [index for index in range(self._count) if index != self._index]

    async def back(self, scope: Scope, receive: Receive, send: Send) -> None:
        mark = b"%d." % self._index
        scope["headers"] = [
            (name, value.removeprefix(mark) if name == _SESSION else value) for name, value in scope["headers"]
        ]

        async def marked(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [(name, mark + value if name == _SESSION else value) for name, value in message["headers"]]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, marked)

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

    def _owner(self, scope: Scope) -> int:
        if scope["path"] == INSIDE or scope["path"].startswith(
            AMONG_WORKERS
        ):  # a question among workers, which nobody else may have passed on
            return self._index
        named = [value for name, value in scope["headers"] if name == _SESSION]
        if len(named) == 1:
            index, dot, _ = named[0].partition(b".")
            is_ours = dot and index.isdigit() and len(index) < 4 and int(index) < self._count
            return int(index) if is_ours else self._index
        path: str = scope["path"]
        if path.startswith(_TURNS):
            return crc32(path.split("/")[3].encode("utf-8", "replace")) % self._count
        return self._index

    async def _pass_on(self, owner: int, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await passed_on(self._session(owner), "http://worker", scope, receive, send)
        except NobodyThere:
            if _is_of_a_session(scope):
                await GONE(scope, receive, send)
            else:  # turns are stored, so that any worker can go on with one; a state of nobody is not valid anywhere
                await self.back(scope, receive, send)

    async def _sources(self) -> list[Source]:
        return [Source(str(each), self._session(each), "http://worker") for each in self._others]

    def _session(self, owner: int) -> aiohttp.ClientSession:
        if owner not in self._sessions:
            # No connection is kept: one to a worker that died meanwhile would take a request with it.
            self._sessions[owner] = carrier(aiohttp.UnixConnector(str(self._path(owner)), limit=0, force_close=True))
        return self._sessions[owner]

    def _path(self, index: int) -> Path:
        return self._folder / f"{index}.sock"


def _is_of_a_session(scope: Scope) -> bool:
    return any(name == _SESSION for name, _ in scope["headers"])
