"""Several workers behind one address: what lives in the memory of one of them is answered by that one.

A connection goes to any worker. Sessions and calls that wait for an answer say whose they are, turns belong to a worker
by their name, and what is another worker's is passed on to it, as it came, once its caller was let in. Workers prove
to each other that the same parent started them.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable
from pathlib import Path
from typing import Final
from zlib import crc32

import aiohttp
from yarl import URL

from gateway.runtime.agreeing import INSIDE as AMONG_WORKERS
from gateway.runtime.agreeing import Crew, Workmates
from gateway.runtime.merging import Source, asks_for_events, merged
from gateway.runtime.metering import INSIDE, Metering
from gateway.runtime.passing import GONE, NobodyThere, carrier, passed_on
from gateway.runtime.peer_channel import ChannelConnector
from gateway.runtime.peer_proof import ChannelKey, Kind
from gateway.runtime.reloading import Reloading
from gateway.runtime.session_marks import answered_here, is_of_a_session, session_of
from gateway.runtime.states import OF_WORKER, may_have_a_state, owner_in_body
from gateway.web.edge import PRINCIPAL, App, Receive, Scope, Send
from gateway.web.problems import problem_response

_TURNS: Final = "/v1/turns/"
_SOON: Final = 2.0
_HOST: Final = "worker-"
_NOT_ASKED: Final = problem_response(404, "workers do not ask each other this")


class Affinity:
    """`front` takes what comes from callers, `back` what another worker passes on, `control` what workers ask."""

    def __init__(self, app: App, *, index: int, count: int, folder: Path, key: ChannelKey) -> None:
        self.key = key
        self._app = app
        self._index = index
        self._count = count
        self._folder = folder
        self._mark = b"%d." % index
        self._carried: dict[Kind, aiohttp.ClientSession] = {}
        self._metering: Metering | None = None
        self._workmates: Workmates | None = None

    @property
    def name(self) -> str:
        """What this worker is called on the channel to it."""
        return f"{_HOST}{self._index}"

    def listener(self) -> socket.socket:
        """Where others reach this worker. One that had the place before left its name behind."""
        path = self._path(self._index)
        path.unlink(missing_ok=True)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        os.fchmod(bound.fileno(), 0o600)
        bound.bind(str(path))
        path.chmod(0o600)
        return bound

    async def front(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Events come from all workers: calls of a turn that are not sent to its own path run wherever they arrive.

        Nothing is passed on for callers who were not let in, as on paths that need no credential.
        """
        if PRINCIPAL not in scope:
            await self._app(scope, receive, send)
            return
        if asks_for_events(scope):
            await merged(self.back, self._sources, scope, receive, send)
            return
        owner = self._owner(scope)
        if may_have_a_state(scope) and not is_of_a_session(scope):
            named, receive = await owner_in_body(receive, OF_WORKER)
            owner = int(named) if named is not None and int(named) < self._count else owner
        if owner == self._index:
            await self.back(scope, receive, send)
        else:
            await self._pass_on(owner, scope, receive, send)

    def back(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return answered_here(self._app, self._mark, scope, receive, send)

    def shares(self, metering: Metering, reloading: Reloading) -> None:
        """Whichever worker is asked for metrics tells those of all, and has all reload if it is asked to."""
        self._metering = metering
        metering.worker, metering.others = self._index, self._asked
        self._workmates = Workmates(reloading, Crew(self._index, tuple(self._others), self._asked))
        reloading.together = self._workmates

    async def control(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Questions of another worker. They come over a listener and a kind of connection of their own."""
        path = scope["path"]
        if path == INSIDE and self._metering is not None:
            await self._metering.inside(scope, receive, send)
        elif path.startswith(AMONG_WORKERS) and self._workmates is not None:
            await self._workmates.inside(scope, receive, send)
        else:
            await _NOT_ASKED(scope, receive, send)

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
        asking = self._carrier("control").request(method, _origin(owner).with_path(path), data=body, timeout=patience)
        try:
            async with asking as answer:
                return await answer.read() if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError):
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

    async def _pass_on(self, owner: int, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await passed_on(self._carrier("forward"), _origin(owner), scope, receive, send)
        except NobodyThere:
            if is_of_a_session(scope):
                await GONE(scope, receive, send)
            else:  # turns are stored, so that any worker can go on with one; a state of nobody is not valid anywhere
                await self.back(scope, receive, send)

    async def _sources(self) -> list[Source]:
        return [Source(str(each), self._carrier("forward"), _origin(each)) for each in self._others]

    def _carrier(self, kind: Kind) -> aiohttp.ClientSession:
        if kind not in self._carried:
            places = {f"{_HOST}{index}": self._path(index) for index in self._others}
            self._carried[kind] = carrier(ChannelConnector(self.key, kind, places.get))
        return self._carried[kind]

    def _path(self, index: int) -> Path:
        return self._folder / f"{index}.sock"


def _origin(index: int) -> URL:
    return URL.build(scheme="http", host=f"{_HOST}{index}")
