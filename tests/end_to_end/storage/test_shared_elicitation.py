"""Tools that ask their caller over MCP without sessions: the answer reaches another process, which finds the call."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.gateways.forkserver import ForkServer
from tests.support.gateways.gate_projects import ANA, EVA, PEOPLE, POLICY, approval_client, write
from tests.support.gateways.projects import (
    Caller,
    Document,
    document,
    environ_of,
    send_http,
    start_call_counter,
    write_project,
)
from tests.support.gateways.replicas import forked_replicas, postgres_documents, round_robin
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio

ASKABLE: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
PACKAGES = {"GATEWAY_PYTHON_PACKAGES": "tests.support.tools.asking_tools", "PYTHONPATH": str(ROOT)}
TIMES = 12


def asking_documents(port: int) -> list[Document]:
    spec = {
        "version": "1.0.0",
        "description": "Asks for two names.",
        "trust": {"tier": "internal", "flags": []},
        "input": {"schema": {"type": "object", "properties": {}}},
        "backend": {"type": "python", "entrypoint": "tests.support.tools.asking_tools:greet_twice", "run": "loop"},
    }
    return approval_client(port, tools=[document("Tool", "greet_twice", spec)])


@asynccontextmanager
async def open_session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:
        yield session


def answer(asked: Mapping[str, Any], name: str) -> dict[str, Any]:
    given = {"who": {"action": "accept", "content": {"name": name}}}
    return {"name": "greet_twice", "arguments": {}, "inputResponses": given, "requestState": asked["requestState"]}


async def answer_questions(caller: Caller, number: int) -> str:
    """Answer both questions of the tool, each with its own request, and return its result."""
    question = (await caller.modern_call("desk", "greet_twice", {}, **ASKABLE)).json["result"]
    for name in (f"a{number}", f"b{number}"):
        assert question["resultType"] == "input_required", question
        question = (await caller.modern("desk", "tools/call", answer(question, name), **ASKABLE)).json["result"]
    return str(question["content"][0]["text"])


async def test_answer_reaches_the_worker_that_asked(forks: ForkServer, tmp_path: Path) -> None:
    async with start_call_counter() as backend, open_session() as session:
        project = write(tmp_path / "p", asking_documents(backend.port))
        env = {**environ_of(PEOPLE), **PACKAGES, "GATEWAY_DATA_DIR": str(tmp_path / "data")}
        gateway = await asyncio.to_thread(forks.start, project, tmp_path / "data", env=env, options=("--workers", "3"))
        try:
            ana, eva = (Caller(send_http(session, gateway.url), each.token) for each in (ANA, EVA))
            greetings = [await answer_questions(ana, number) for number in range(TIMES)]
            question = (await ana.modern_call("desk", "greet_twice", {}, **ASKABLE)).json["result"]
            stolen = await eva.modern("desk", "tools/call", answer(question, "x"), **ASKABLE)
            forged = {**question, "requestState": "w99." + question["requestState"].partition(".")[2]}
            nowhere = await ana.modern("desk", "tools/call", answer(forged, "x"), **ASKABLE)
        finally:
            await asyncio.to_thread(gateway.kill)

    assert all(f"hello a{number} and b{number}" in each for number, each in enumerate(greetings))
    assert [each.json["error"]["code"] for each in (stolen, nowhere)] == [-32602, -32602]


async def test_answer_reaches_the_replica_and_the_worker_that_asked(
    forks: ForkServer, tmp_path: Path, new_database: Callable[[], str]
) -> None:
    async with start_call_counter() as backend, open_session() as session:
        project = write_project(tmp_path / "p", postgres_documents(asking_documents(backend.port)), policy=POLICY)
        more = {**PACKAGES, "GATEWAY_WORKERS": "2"}
        with forked_replicas(forks, project, tmp_path / "data", new_database(), count=2, env=more) as gateways:
            ana = Caller(round_robin(session, gateways), ANA.token)
            greetings = [await answer_questions(ana, number) for number in range(TIMES)]

    assert all(f"hello a{number} and b{number}" in each for number, each in enumerate(greetings))
