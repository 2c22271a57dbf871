"""Calls that a server works on as tasks: waited for, asked through, and given up with whoever made them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client
from tasking_upstream import TaskingServer
from upstream_gateway import Gateway, gateway, project, upstream
from upstream_serving import listening

pytestmark = pytest.mark.anyio

MODES = ("2026-07-28", "legacy")


@asynccontextmanager
async def served(folder: Path, **spec: Any) -> AsyncIterator[tuple[Gateway, TaskingServer]]:
    server = TaskingServer()
    async with listening(server.app) as origin:
        remote = upstream("remote", {"type": "streamable-http", "url": f"{origin}/mcp"}, **spec)
        async with gateway(project(folder / "project", remote)) as started:
            yield started, server


async def elicited(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ana"})


@pytest.mark.parametrize("mode", MODES)
async def test_task_is_one_call_with_its_result(tmp_path: Path, mode: Any) -> None:
    said: list[Any] = []

    async def logged(params: Any) -> None:
        said.append(params.data)

    async with (
        served(tmp_path) as (started, server),
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
        assert [str(each) for each in said if "look" in str(each)] != []


@pytest.mark.parametrize("mode", MODES)
async def test_what_a_task_asks_is_asked_of_its_caller_once(tmp_path: Path, mode: Any) -> None:
    async with (
        served(tmp_path) as (started, server),
        Client(started.url, mode=mode, elicitation_callback=elicited) as client,
    ):
        result: Any = await client.call_tool("remote_slow", {"how": "ask"})

    assert (result.is_error, result.content[0].text) == (False, "Ana")
    assert [method for method, *_ in server.asked].count("tasks/update") == 1


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("fail", "out of paper"),
        ("wrong", "at last"),
        ("cancelled", "has given the call up"),
        ("nonsense", "a state that is not known here"),
        ("empty", "a state that is not known here"),
        ("nameless", "began a task without a name"),
    ],
)
async def test_task_that_comes_to_nothing_is_a_failed_call(tmp_path: Path, how: str, words: str) -> None:
    async with served(tmp_path) as (started, _), Client(started.url) as client:
        result: Any = await client.call_tool("remote_slow", {"how": how})

    assert result.is_error
    assert words in result.content[0].text


async def test_task_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    async with served(tmp_path, limits={"timeout": "1s"}) as (started, server), Client(started.url) as client:
        result: Any = await client.call_tool("remote_slow", {"how": "for ever"})
        await until_given_up(server)

    assert result.is_error
    assert "no answer within 1s" in result.content[0].text


@pytest.mark.parametrize("mode", MODES)
async def test_task_of_a_caller_that_has_gone_is_given_up(tmp_path: Path, mode: Any) -> None:
    async with served(tmp_path) as (started, server), Client(started.url, mode=mode) as client:
        async with anyio.create_task_group() as calls:
            calls.start_soon(client.call_tool, "remote_slow", {"how": "for ever"})
            with anyio.fail_after(10):
                while not server.looks:
                    await anyio.sleep(0.01)
            calls.cancel_scope.cancel()
        await until_given_up(server)


async def test_task_that_asks_what_nobody_can_answer_is_given_up(tmp_path: Path) -> None:
    async with served(tmp_path) as (started, server), Client(started.url, mode="legacy") as client:
        result: Any = await client.call_tool("remote_slow", {"how": "ask"})
        await until_given_up(server)

    assert result.is_error


async def until_given_up(server: TaskingServer) -> None:
    with anyio.fail_after(10):
        while "cancelled" not in server.tasks.values():
            await anyio.sleep(0.01)
