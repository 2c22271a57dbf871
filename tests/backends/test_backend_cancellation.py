"""Calls given up at any moment leave no process, no task and no open file, on either event loop."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import backend_functions as functions
import pytest
from invocations import invocation, other_tasks
from loopback import plain, serving

from gateway.backends.command import Command, CommandBackend
from gateway.backends.connections import Connections
from gateway.backends.http import HttpBackend, HttpRequest
from gateway.backends.processes import HostControls
from gateway.backends.python import PythonBackend, PythonFunction
from gateway.governance.ports import Backend

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


async def given_up(backend: Backend, args: dict[str, Any]) -> None:
    """Cancels calls after more and more steps of the loop."""
    for count in range(30):
        call = asyncio.ensure_future(backend.run(invocation(args)))
        await steps(count)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled() or call.exception() is None
    await backend.close()


async def command() -> None:
    made = Command(("/bin/echo", "hi"), network="host", readable=("/",), writable=("/",))
    await given_up(CommandBackend(made, HostControls()), {})


async def process() -> None:
    await given_up(PythonBackend(PythonFunction(functions.greeting, run="process")), {"name": "ann"})


async def http() -> None:
    async with serving(plain(b"x" * 100_000)) as service:
        connections = Connections()
        await given_up(HttpBackend(HttpRequest("GET", service.url), connections), {})
        await connections.close()


@pytest.mark.parametrize("kind", [command, process, http], ids=["command", "process", "http"])
async def test_nothing_is_left_behind(kind: Callable[[], Awaitable[None]]) -> None:
    await kind()  # a loop opens some files of its own with the first socket
    await steps()  # transports close theirs a little later
    before, files = (other_tasks(), children()), open_files()

    await kind()
    await steps()

    assert (other_tasks(), children()) == before
    assert open_files() <= files
