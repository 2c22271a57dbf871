"""Tools that ask their caller over MCP without sessions: the answer comes to another process, and finds the call."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from forked import Forking
from gated import ANA, EVA, PEOPLE, POLICY, desk, write
from replicated import forked_replicas, on_postgres, round_robin
from secured import Caller, Document, counting, document, environ_of, over_http, write_project

pytestmark = pytest.mark.anyio

ASKABLE: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
HERE = Path(__file__).parent
PACKAGES = {"GATEWAY_PYTHON_PACKAGES": "asking_tools", "PYTHONPATH": str(HERE)}
TIMES = 12


def asking(port: int) -> list[Document]:
    spec = {
        "version": "1.0.0",
        "description": "Asks for two names.",
        "trust": {"tier": "internal", "flags": []},
        "input": {"schema": {"type": "object", "properties": {}}},
        "backend": {"type": "python", "entrypoint": "asking_tools:greet_twice", "run": "loop"},
    }
    return desk(port, tools=[document("Tool", "greet_twice", spec)])


@asynccontextmanager
async def connected() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:
        yield session


def answer(asked: Mapping[str, Any], name: str) -> dict[str, Any]:
    given = {"who": {"action": "accept", "content": {"name": name}}}
    return {"name": "greet_twice", "arguments": {}, "inputResponses": given, "requestState": asked["requestState"]}


async def greeted(caller: Caller, number: int) -> str:
    """What the tool says once it was told two names, each with a request of its own."""
    question = (await caller.modern_call("desk", "greet_twice", {}, **ASKABLE)).json["result"]
    for name in (f"a{number}", f"b{number}"):
        assert question["resultType"] == "input_required", question
        question = (await caller.modern("desk", "tools/call", answer(question, name), **ASKABLE)).json["result"]
    return str(question["content"][0]["text"])


async def test_answer_reaches_the_worker_that_asked(forks: Forking, tmp_path: Path) -> None:
    async with counting() as backend, connected() as session:
        project = write(tmp_path / "p", asking(backend.port))
        env = {**environ_of(PEOPLE), **PACKAGES, "GATEWAY_DATA_DIR": str(tmp_path / "data")}
        gateway = await asyncio.to_thread(forks.start, project, tmp_path / "data", env=env, options=("--workers", "3"))
        try:
            ana, eva = (Caller(over_http(session, gateway.url), each.token) for each in (ANA, EVA))
            said = [await greeted(ana, number) for number in range(TIMES)]
            question = (await ana.modern_call("desk", "greet_twice", {}, **ASKABLE)).json["result"]
            stolen = await eva.modern("desk", "tools/call", answer(question, "x"), **ASKABLE)
            forged = {**question, "requestState": "w99." + question["requestState"].partition(".")[2]}
            nowhere = await ana.modern("desk", "tools/call", answer(forged, "x"), **ASKABLE)
        finally:
            await asyncio.to_thread(gateway.kill)

    assert all(f"hello a{number} and b{number}" in each for number, each in enumerate(said))
    assert [each.json["error"]["code"] for each in (stolen, nowhere)] == [-32602, -32602]


async def test_answer_reaches_the_replica_and_the_worker_that_asked(
    forks: Forking, tmp_path: Path, new_database: Callable[[], str]
) -> None:
    async with counting() as backend, connected() as session:
        project = write_project(tmp_path / "p", on_postgres(asking(backend.port)), policy=POLICY)
        more = {**PACKAGES, "GATEWAY_WORKERS": "2"}
        with forked_replicas(forks, project, tmp_path / "data", new_database(), count=2, env=more) as gateways:
            ana = Caller(round_robin(session, gateways), ANA.token)
            said = [await greeted(ana, number) for number in range(TIMES)]

    assert all(f"hello a{number} and b{number}" in each for number, each in enumerate(said))
