"""Authenticated connections to other processes of the deployment, by their name.

The content of a forwarded request has no influence on its target.
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

from gateway.server import ANSWER_SIZE, PROOF_SECONDS, ChannelKey, ChannelRefused, ClientProof, Kind

_CONNECT_SECONDS: Final = 2.0
_LOG_EVERY: Final = 60.0
_log: Final = logging.getLogger(__name__)

Address = Path | tuple[str, int]
Locate = Callable[[str], Address | None]
"""Returns the address of a process, or `None` if there is none."""


class ChannelSilent(aiohttp.ClientConnectionError):
    """The other process accepts connections but does not answer in time. Nothing was sent."""


class PeerConnector(aiohttp.BaseConnector):
    """Connects only to the processes that `locate` finds for the host of a URL.

    Connections are not reused: a request on a connection to a process that died would be lost.
    """

    def __init__(self, key: ChannelKey, kind: Kind, locate: Locate) -> None:
        super().__init__(limit=0, force_close=True)
        self._secret = key
        self._kind: Kind = kind
        self._locate = locate
        self._log_at = 0.0

    async def _create_connection(
        self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        name = req.url.host or ""
        address = self._locate(name)
        try:
            if address is None:
                raise ConnectionRefusedError("there is no process of that name")
            async with asyncio.timeout(_CONNECT_SECONDS):
                bound = await _connect_any(address)
        except OSError as error:  # includes TimeoutError
            raise aiohttp.ClientConnectorError(req.connection_key, OSError(*error.args)) from error
        try:
            async with asyncio.timeout(2 * PROOF_SECONDS):
                await _prove(bound, ClientProof(self._secret.of(self._kind, name), self._kind))
                return await self._to_protocol(bound)
        except ChannelRefused as error:
            bound.close()
            self._log_refused(address)
            raise aiohttp.ClientConnectorError(req.connection_key, PermissionError(str(error))) from error
        except OSError as error:  # a timeout or a reset: other clients may occupy all connections
            bound.close()
            raise ChannelSilent("the other process does not answer") from error
        except BaseException:
            bound.close()
            raise

    async def _to_protocol(self, bound: socket.socket) -> ResponseHandler:
        loop = asyncio.get_running_loop()
        if bound.family == socket.AF_UNIX:
            _, protocol = await loop.create_unix_connection(self._factory, sock=bound)
        else:
            _, protocol = await loop.create_connection(self._factory, sock=bound)
        return protocol

    def _log_refused(self, address: Address) -> None:
        if monotonic() >= self._log_at:
            self._log_at = monotonic() + _LOG_EVERY
            if isinstance(address, Path):
                _log.warning("nothing is sent to %s: the process there is not a worker of this gateway", address)
            else:
                _log.warning(
                    "nothing is sent to %s, port %d: it does not prove that it has the secret of GATEWAY_PEER_KEY_FILE",
                    *address,
                )


async def _connect_any(address: Address) -> socket.socket:
    loop = asyncio.get_running_loop()
    if isinstance(address, Path):
        return await _connect_socket(socket.AF_UNIX, str(address))
    error: OSError = ConnectionRefusedError("the name has no address")
    for family, _, _, _, place in await loop.getaddrinfo(*address, type=socket.SOCK_STREAM):
        try:
            return await _connect_socket(family, place)
        except OSError as refused:
            error = refused
    raise error


async def _connect_socket(family: int, place: str | tuple[object, ...]) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, place)
    except BaseException:
        opened.close()
        raise
    return opened


async def _prove(bound: socket.socket, proof: ClientProof) -> None:
    """Authenticate both sides. Raises `ChannelRefused` or `OSError`."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(bound, proof.hello)
    answer = b""
    while len(answer) < ANSWER_SIZE:
        piece = await loop.sock_recv(bound, ANSWER_SIZE - len(answer))
        if not piece:
            raise ChannelRefused("it does not speak the protocol") if answer else ConnectionResetError("no answer")
        answer += piece
    await loop.sock_sendall(bound, proof.take(answer))
