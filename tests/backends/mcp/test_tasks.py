"""Calls that a server runs as tasks: the gateway polls them, forwards their questions, and cancels them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client

from tests.backends.mcp.servers.asgi_host import serve_app
from tests.backends.mcp.servers.front_gateway import Gateway, gateway, project, upstream
from tests.backends.mcp.servers.task_server import TaskServer

pytestmark = pytest.mark.anyio

MODES = ("2026-07-28", "legacy")


@asynccontextmanager
async def serve_tasks(folder: Path, **spec: Any) -> AsyncIterator[tuple[Gateway, TaskServer]]:
    server = TaskServer()
    async with serve_app(server.app) as origin:
        remote = upstream("remote", {"type": "streamable-http", "url": f"{origin}/mcp"}, **spec)
        async with gateway(project(folder / "project", remote)) as started:
            yield started, server


async def answer_elicitation(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ana"})


@pytest.mark.parametrize("mode", MODES)
async def test_task_is_one_call_with_its_result(tmp_path: Path, mode: Any) -> None:
    questions: list[Any] = []

    async def logged(params: Any) -> None:
        questions.append(params.data)

    async with (
        serve_tasks(tmp_path) as (started, server),
        Client(started.url, mode=mode, logging_callback=logged) as client,
    ):
        if mode == "legacy":
            await client.set_logging_level("info")
        result: Any = await client.call_tool("remote_slow", {"how": "work"})

    assert (result.is_error, result.content[0].text) == (False, "at last")
    [(id, looks)] = server.looks.items()
    assert looks == 3
    assert {(method, about) for method, about, _ in server.asked} == {("tasks/get", id)}
    assert all(named is not None and named.startswith("=?base64?") for *_, named in server.asked)
    assert server.declared[0]["extensions"] == {"io.modelcontextprotocol/tasks": {}}
    if mode == "legacy":
        assert [str(each) for each in questions if "look" in str(each)] != []


@pytest.mark.parametrize("mode", MODES)
async def test_what_a_task_asks_is_asked_of_its_caller_once(tmp_path: Path, mode: Any) -> None:
    async with (
        serve_tasks(tmp_path) as (started, server),
        Client(started.url, mode=mode, elicitation_callback=answer_elicitation) as client,
    ):
        result: Any = await client.call_tool("remote_slow", {"how": "ask"})

    assert (result.is_error, result.content[0].text) == (False, "Ana")
    assert [method for method, *_ in server.asked].count("tasks/update") == 1


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("fail", "out of paper"),
        ("wrong", "at last"),
        ("cancelled", "has cancelled the call"),
        ("nonsense", "an unknown status"),
        ("empty", "an unknown status"),
        ("nameless", "created a task without an id"),
    ],
)
async def test_task_that_comes_to_nothing_is_a_failed_call(tmp_path: Path, how: str, words: str) -> None:
    async with serve_tasks(tmp_path) as (started, _), Client(started.url) as client:
        result: Any = await client.call_tool("remote_slow", {"how": how})

    assert result.is_error
    assert words in result.content[0].text


async def test_task_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    async with serve_tasks(tmp_path, limits={"timeout": "1s"}) as (started, server), Client(started.url) as client:
        result: Any = await client.call_tool("remote_slow", {"how": "for ever"})
        await until_given_up(server)

    assert result.is_error
    assert "no answer within 1s" in result.content[0].text


@pytest.mark.parametrize("mode", MODES)
async def test_task_of_a_caller_that_has_gone_is_given_up(tmp_path: Path, mode: Any) -> None:
    async with serve_tasks(tmp_path) as (started, server), Client(started.url, mode=mode) as client:
        async with anyio.create_task_group() as calls:
            calls.start_soon(client.call_tool, "remote_slow", {"how": "for ever"})
            with anyio.fail_after(10):
                while not server.looks:
                    await anyio.sleep(0.01)
            calls.cancel_scope.cancel()
        await until_given_up(server)


async def test_task_with_an_unanswerable_question_is_cancelled(tmp_path: Path) -> None:
    async with serve_tasks(tmp_path) as (started, server), Client(started.url, mode="legacy") as client:
        result: Any = await client.call_tool("remote_slow", {"how": "ask"})
        await until_given_up(server)

    assert result.is_error


async def until_given_up(server: TaskServer) -> None:
    with anyio.fail_after(10):
        while "cancelled" not in server.tasks.values():
            await anyio.sleep(0.01)
