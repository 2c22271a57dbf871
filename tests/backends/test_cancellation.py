"""Calls cancelled at any moment leave no process, no task and no open file, on either event loop."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from gateway.backends.command.backend import Command, CommandBackend
from gateway.backends.command.child_process import HostControls
from gateway.backends.http.backend import HttpBackend, HttpRequest
from gateway.backends.python.backend import PythonBackend, PythonFunction
from gateway.http_client.allowed_addresses import LOOPBACK
from gateway.http_client.pool import HttpConnections
from gateway.model.tools.backend import Backend
from tests.backends import sample_functions as functions
from tests.backends.invocations import invocation, other_tasks
from tests.backends.loopback_service import plain, start_service

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param}


def children() -> list[str]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return file.read().split()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def steps(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def cancel_calls(backend: Backend, args: dict[str, Any]) -> None:
    """Cancel calls after more and more steps of the loop."""
    for count in range(30):
        call = asyncio.ensure_future(backend.run(invocation(args)))
        await steps(count)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled() or call.exception() is None
    await backend.close()


async def command() -> None:
    made = Command(("/bin/echo", "hi"), network="host", readable=("/",), writable=("/",))
    await cancel_calls(CommandBackend(made, HostControls()), {})


async def process() -> None:
    await cancel_calls(PythonBackend(PythonFunction(functions.greeting, run="process")), {"name": "ann"})


async def http() -> None:
    async with start_service(plain(b"x" * 100_000)) as service:
        connections = HttpConnections()
        await cancel_calls(HttpBackend(HttpRequest("GET", service.url), connections), {})
        await connections.close()


async def several_addresses() -> None:
    async def lookup(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.3", "127.0.0.1"]  # the first one refuses

    async with start_service(plain(b"x" * 100_000)) as service:
        connections = HttpConnections(lookup=lookup)
        request = HttpRequest("GET", f"http://service.example:{service.port}", networks=LOOPBACK)
        await cancel_calls(HttpBackend(request, connections), {})
        await connections.close()


@pytest.mark.parametrize("kind", [command, process, http, several_addresses])
async def test_nothing_is_left_behind(kind: Callable[[], Awaitable[None]]) -> None:
    await kind()  # a loop opens some files of its own with the first socket
    await steps()  # transports close theirs a little later
    before, files = (other_tasks(), children()), open_files()

    await kind()
    await steps()

    assert (other_tasks(), children()) == before
    assert open_files() <= files
