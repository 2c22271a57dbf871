"""Connections to other processes of the deployment, which are known by name: each is proved before it is used.

What the caller of a forwarded request wrote has no part in where it goes.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from aiohttp.tracing import Trace

from gateway.runtime.peer_proof import ANSWER_SIZE, PROOF_SECONDS, ChannelKey, ChannelRefused, ClientProof, Kind

_CONNECT_SECONDS: Final = 2.0
_TELL_EVERY: Final = 60.0
_log: Final = logging.getLogger(__name__)

Address = Path | tuple[str, int]
Locate = Callable[[str], Address | None]
"""Where a process of that name is; `None` if there is none."""


class ChannelSilent(aiohttp.ClientConnectionError):
    """The other side accepts connections, but does not answer, or not in time. Nothing was sent."""


class ChannelConnector(aiohttp.BaseConnector):
    """Connects to the process that the host of a URL names, wherever `locate` says that is, and to nothing else.

    No connection is kept: one to a process that died meanwhile would take a request with it.
    """

    def __init__(self, key: ChannelKey, kind: Kind, locate: Locate) -> None:
        super().__init__(limit=0, force_close=True)
        self._secret = key
        self._kind: Kind = kind
        self._locate = locate
        self._tell_at = 0.0

    async def _create_connection(
        self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        name = req.url.host or ""
        address = self._locate(name)
        try:
            if address is None:
                raise ConnectionRefusedError("there is no process of that name")
            async with asyncio.timeout(_CONNECT_SECONDS):
                bound = await _connected(address)
        except OSError as error:  # which a timeout is, too
            raise aiohttp.ClientConnectorError(req.connection_key, OSError(*error.args)) from error
        try:
            async with asyncio.timeout(2 * PROOF_SECONDS):
                await _prove(bound, ClientProof(self._secret.of(self._kind, name), self._kind))
                return await self._handed_over(bound)
        except ChannelRefused as error:
            bound.close()
            self._tell(address)
            raise aiohttp.ClientConnectorError(req.connection_key, PermissionError(str(error))) from error
        except OSError as error:  # too late, or cut off: where strangers hold every place, it has none for us
            bound.close()
            raise ChannelSilent("the other process does not answer") from error
        except BaseException:
            bound.close()
            raise

    async def _handed_over(self, bound: socket.socket) -> ResponseHandler:
        loop = asyncio.get_running_loop()
        if bound.family == socket.AF_UNIX:
            _, protocol = await loop.create_unix_connection(self._factory, sock=bound)
        else:
            _, protocol = await loop.create_connection(self._factory, sock=bound)
        return protocol

    def _tell(self, address: Address) -> None:
        if monotonic() >= self._tell_at:
            self._tell_at = monotonic() + _TELL_EVERY
            if isinstance(address, Path):
                _log.warning("nothing is sent to %s: whoever listens there is no worker of this gateway", address)
            else:
                _log.warning(
                    "nothing is sent to %s, port %d: it does not prove that it has the secret of GATEWAY_PEER_KEY_FILE",
                    *address,
                )


async def _connected(address: Address) -> socket.socket:
    loop = asyncio.get_running_loop()
    if isinstance(address, Path):
        return await _opened(socket.AF_UNIX, str(address))
    error: OSError = ConnectionRefusedError("the name has no address")
    for family, _, _, _, place in await loop.getaddrinfo(*address, type=socket.SOCK_STREAM):
        try:
            return await _opened(family, place)
        except OSError as refused:
            error = refused
    raise error


async def _opened(family: int, place: str | tuple[object, ...]) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, place)
    except BaseException:
        opened.close()
        raise
    return opened


async def _prove(bound: socket.socket, proof: ClientProof) -> None:
    """Raises `ChannelRefused`, `OSError`."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(bound, proof.hello)
    answer = b""
    while len(answer) < ANSWER_SIZE:
        piece = await loop.sock_recv(bound, ANSWER_SIZE - len(answer))
        if not piece:
            raise ChannelRefused("it does not speak the protocol") if answer else ConnectionResetError("no answer")
        answer += piece
    await loop.sock_sendall(bound, proof.take(answer))
