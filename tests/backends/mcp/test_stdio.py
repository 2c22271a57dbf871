"""Servers that are programs (killed, noisy, talkative): they get nothing of ours and leave nothing behind."""

import asyncio
import json
import logging
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from gateway.backends.command.child_process import HostControls
from gateway.backends.mcp.server_process import ServerProgram
from gateway.backends.mcp.stdio_transport import StdioConnection
from gateway.backends.result_conversion import BackendUnusable
from gateway.model.tools.backend import BackendError
from tests.backends.mcp.servers.front_gateway import gateway, project, tool, upstream
from tests.support.paths import ROOT
from tests.support.python_folders import PYTHON_FOLDERS

pytestmark = pytest.mark.anyio

SANDBOX = {"readable": list(PYTHON_FOLDERS)}
STUBBORN = str(ROOT / "tests" / "backends" / "mcp" / "servers" / "stubborn_server.py")
HOST = HostControls.detect()
RESTARTS = int(os.environ.get("RESTART_ROUNDS", "6"))


@asynccontextmanager
async def start_server(**environment: str | Callable[[], str]) -> AsyncIterator[StdioConnection]:
    connection = StdioConnection(
        "program", ServerProgram((sys.executable, STUBBORN), environment, readable=PYTHON_FOLDERS), HOST, ids=count(1)
    )
    try:
        yield connection
    finally:
        await connection.close()


async def text(connection: StdioConnection, name: str) -> str:
    result = await connection.request("tools/call", {"name": name, "arguments": {}}, timeout=30)
    return str(result["content"][0]["text"])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


async def test_server_killed_in_a_call_is_reported_and_restarted() -> None:
    async with start_server() as connection:
        first = await text(connection, "pid")
        with pytest.raises(BackendError) as failed:
            await text(connection, "die")
        second = await text(connection, "pid")

    assert (failed.value.word, failed.value.message) == ("unavailable", "the upstream server has ended by signal 9")
    assert first != second


async def test_call_whose_server_is_killed_fails_with_the_reason_and_others_follow(tmp_path: Path) -> None:
    transport = {"type": "stdio", "argv": [sys.executable, STUBBORN], "sandbox": SANDBOX}
    tools = [tool(name, upstream="program") for name in ("die", "pid")]
    folder = project(tmp_path / "project", upstream("program", transport), *tools)
    async with gateway(folder) as started, Client(started.url) as client:
        first = await client.call_tool("pid")
        killed = await client.call_tool("die")
        second = await client.call_tool("pid")

    assert killed.is_error
    assert "the upstream server has ended by signal 9" in str(killed.content)
    assert (first.is_error, second.is_error, first.content == second.content) == (False, False, False)


async def test_server_that_keeps_ending_is_left_alone_for_a_while() -> None:
    async with start_server() as connection:
        for _ in range(2):
            with pytest.raises(BackendError, match="has ended"):
                await text(connection, "die")
        with pytest.raises(BackendError) as failed:
            await text(connection, "pid")

    assert failed.value.message.startswith("the upstream server keeps ending")


async def test_nothing_is_left_behind_by_many_ends() -> None:
    """Half of the servers are closed; the other half are killed while they have a child, and restarted."""
    ours, left = set(children()), []
    for number in range(RESTARTS):
        async with start_server() as connection:
            left += [int(await text(connection, "pid")), int(await text(connection, "child"))]
            if number % 2:
                os.kill(left[-2], signal.SIGKILL)
                left.append(await another(connection, left[-2]))

    async with asyncio.timeout(10):  # a killed process takes a moment to disappear
        while [pid for pid in left if is_alive(pid)]:
            await asyncio.sleep(0.01)
    assert set(children()) <= ours


async def another(connection: StdioConnection, killed: int) -> int:
    """The process that answers after one was killed. A request that was in flight meanwhile may fail."""
    async with asyncio.timeout(30):
        while True:
            with suppress(BackendError):
                if (found := int(await text(connection, "pid"))) != killed:
                    return found
            await asyncio.sleep(0.01)


def children() -> list[str]:
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()


async def test_environment_is_the_declared_one() -> None:
    async with start_server(GIVEN="yes", SECRET=lambda: "hush") as connection:
        seen = json.loads(await text(connection, "env"))

    assert "PATH" in os.environ
    assert {name for name in seen if not name.startswith("LC_")} == {"GIVEN", "SECRET"}
    assert seen["SECRET"] == "hush"


async def test_secrets_of_the_gateway_are_not_inherited(tmp_path: Path) -> None:
    transport = {
        "type": "stdio",
        "argv": [sys.executable, STUBBORN],
        "env": {"API_KEY": {"fromEnv": "WIKI_KEY"}},
        "sandbox": SANDBOX,
    }
    documents = [upstream("remote", transport), tool("env")]
    environ = {"WIKI_KEY": "for-the-wiki", "OTHER_KEY": "for-nobody-else"}
    async with (
        gateway(project(tmp_path / "project", *documents), environ=environ) as running,
        Client(running.url, mode="2026-07-28") as client,
    ):
        seen = str((await client.call_tool("env")).content)

    assert "API_KEY" in seen
    for hidden in ("OTHER_KEY", "for-nobody-else", "WIKI_KEY", "PATH"):
        assert hidden not in seen


async def test_noise_is_skipped_and_complaints_are_logged_briefly(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="gateway.backends.mcp")
    async with start_server(KEY=lambda: "TOP-SECRET") as connection:
        answer = await text(connection, "noise")
        while "stderr: further lines are not logged" not in caplog.text:
            await asyncio.sleep(0.01)

    assert answer == "after the noise"
    assert "TOP-SECRET" not in caplog.text
    assert "\x1b" not in caplog.text
    assert len(caplog.records) < 100


async def test_last_words_of_a_program_are_for_operators_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="gateway.backends.mcp")
    script = "echo starting >&2; echo no settings for $KEY >&2; exit 3"
    program = ServerProgram(("/bin/sh", "-c", script), {"KEY": lambda: "TOP-SECRET"})
    connection = StdioConnection("wiki", program, HOST, ids=count(1))

    with pytest.raises(BackendError) as failed:
        await text(connection, "pid")
    await connection.close()

    assert failed.value.message == "the upstream server has ended with status 3"
    assert "upstream wiki: it has ended: the upstream server has ended with status 3: no settings for" in caplog.text
    assert re.search(r"upstream wiki, process \d+, stderr: starting", caplog.text)
    assert "TOP-SECRET" not in caplog.text


async def test_line_without_an_end_ends_the_server() -> None:
    async with start_server() as connection:
        with pytest.raises(BackendError, match="more than 67108864 bytes"):
            await text(connection, "flood")


async def test_large_result_comes_whole() -> None:
    async with start_server() as connection:
        assert len(await text(connection, "much")) == 33_000_000


async def test_calls_that_come_at_once_start_one_process() -> None:
    async with start_server() as connection:
        pids = await asyncio.gather(*(text(connection, "pid") for _ in range(20)))

    assert len(set(pids)) == 1


def test_program_that_is_none_is_refused_when_it_is_declared() -> None:
    with pytest.raises(BackendUnusable, match="is not an executable file"):
        StdioConnection("program", ServerProgram(("/no/such/program",)), HOST, ids=count(1))


@pytest.mark.skipif(HOST.landlock < 3 or not HOST.network, reason="the kernel has no Landlock")
async def test_program_that_replaces_its_folder_with_a_link_is_not_started_again(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "work").mkdir(parents=True)
    script = f"mv {own}/work {own}/old; ln -s / {own}/work"
    program = ServerProgram(
        ("/bin/sh", "-c", script), {"PATH": os.defpath}, folder=str(own / "work"), writable=(str(own),)
    )
    connection = StdioConnection("wiki", program, HOST, ids=count(1))

    with pytest.raises(BackendError, match="has become a link"):  # it is started twice
        await text(connection, "pid")
    await connection.close()
    assert (own / "work").is_symlink()

    declared_again = replace(program)
    with pytest.raises(BackendUnusable, match="which the program itself can change"):
        StdioConnection("wiki", declared_again, HOST, ids=count(1))
    with pytest.raises(BackendError, match="which the program itself can change"):
        await declared_again.start("wiki", lambda *_: None)


async def answer_elicitation(context: Any, params: Any) -> Any:
    return types.ElicitResult(action="accept", content={"name": "Ana"})


@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
async def test_programs_of_either_era_ask_callers_of_either_era(tmp_path: Path, mode: Any) -> None:
    reference = str(ROOT / "tests" / "backends" / "mcp" / "servers" / "reference_server.py")
    documents = [
        upstream("older", {"type": "stdio", "argv": [sys.executable, STUBBORN], "sandbox": SANDBOX}),
        upstream(
            "modern",
            {"type": "stdio", "argv": [sys.executable, reference], "env": {"LANG": "C.UTF-8"}, "sandbox": SANDBOX},
        ),
        tool("ask", upstream="older"),
        tool("greet", upstream="modern"),
    ]
    async with gateway(project(tmp_path / "project", *documents)) as running:
        async with Client(running.url, mode=mode, elicitation_callback=answer_elicitation) as client:
            asked = await client.call_tool("ask")
            greeted = await client.call_tool("greet")
        async with Client(running.url, mode=mode) as silent:
            unasked = await silent.call_tool("ask")
        eras = {each["name"]: each["era"] for each in running.running.upstreams.status()}

    assert eras == {"older": "legacy", "modern": "modern"}
    assert "hello Ana" in str(asked.content)
    assert "hello Ana" in str(greeted.content)
    assert "nobody would say" in str(unasked.content)


async def test_wiki_is_searched_and_read_through_the_gateway(tmp_path: Path) -> None:
    transport = {"type": "stdio", "argv": [sys.executable, "-m", "gateway.examples.wiki_server"], "sandbox": SANDBOX}
    documents: list[dict[str, Any]] = [
        upstream("wiki", transport),
        tool("wiki_search", "query", upstream="wiki", remote="search_pages"),
        tool("wiki_read", "page", upstream="wiki", remote="read_page", output={"artifact": "markdown"}),
    ]
    async with (
        gateway(project(tmp_path / "project", *documents)) as running,
        Client(running.url, mode="2026-07-28") as client,
    ):
        found = str((await client.call_tool("wiki_search", {"query": "a"})).content[0])
        page = found.partition("text='")[2].partition(":")[0]
        read = await client.call_tool("wiki_read", {"page": page})
        missing = await client.call_tool("wiki_read", {"page": "no such page"})
        [state] = running.running.upstreams.status()

    assert not read.is_error
    assert "# " in str(read.content)
    assert missing.is_error
    assert "there is no such page" in str(missing.content)
    assert (state["state"], state["era"], state["server"]["name"]) == ("up", "legacy", "acme-wiki")


async def test_server_reads_only_what_it_may_and_its_failure_names_the_cause(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("canary-4711", encoding="ascii")
    complaints: list[tuple[str, str]] = []
    program = ServerProgram(("/bin/cat", str(tmp_path / "secret")))

    running = await program.start("program", lambda what, why: complaints.append((what, why)))
    messages = [message async for message in running.messages()]
    ended = await running.exit_reason()
    words = running.last_stderr_line
    await running.end(timedelta(seconds=1))

    assert messages == []
    assert complaints == []  # a line of the file would be one that is not JSON
    assert "status 1" in ended.message
    assert "ermission denied" in words
    assert "sandbox.readable" in words
