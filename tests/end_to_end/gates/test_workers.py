"""Gates with several processes: limits count across workers, state survives crashes, stops take effect at once."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.gateways.commands import run_gateway
from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.gateways.gate_projects import (
    ANA,
    HELD,
    LIZ,
    PEOPLE,
    approval_client,
    code_of,
    grant,
    pay,
    pending_id,
    rule,
    write,
)
from tests.support.gateways.projects import (
    CallCounter,
    Caller,
    Document,
    Person,
    Reply,
    environ_of,
    http_tool,
    send_http,
    start_call_counter,
)

pytestmark = pytest.mark.anyio

CLIENTS = 50


@asynccontextmanager
async def callers(gateway: GatewayFork, *people: Person) -> AsyncIterator[list[Caller]]:
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # spreads connections over the workers
    async with aiohttp.ClientSession(connector=connector) as session:
        yield [Caller(send_http(session, gateway.url), each.token) for each in people]


@contextmanager
def fork_gateway(forks: ForkServer, project: Path, data: Path, *, workers: int = 1) -> Iterator[GatewayFork]:
    env = {**environ_of(PEOPLE), "GATEWAY_DATA_DIR": str(data)}
    gateway = forks.start(project, data, env=env, options=("--workers", str(workers)))
    try:
        yield gateway
    finally:
        gateway.kill()


def written(tmp_path: Path, backend: CallCounter, *rules: Document) -> Path:
    return write(tmp_path / "p", approval_client(backend.port, rules=rules))


def command(*words: str, env: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    return run_gateway(*words, env={**os.environ, **env})


async def run_command(*words: str, env: Mapping[str, str]) -> str:
    done = await asyncio.to_thread(command, *words, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# Limits


async def flood(caller: Caller, calls: int) -> list[Reply]:
    """All callers at once, each with one call after the other."""

    async def one(client: int) -> list[Reply]:
        return [await caller.rest_call("desk", "plain", {"text": f"{client}-{number}"}) for number in range(calls)]

    found = await asyncio.gather(*(one(client) for client in range(CLIENTS)))
    return [each for answers in found for each in answers]


@pytest.mark.parametrize(
    ("check", "word"),
    [
        pytest.param({"type": "rate", "limit": 200, "per": "1h"}, "rate", id="rate"),
        pytest.param({"type": "quota", "limit": 200, "per": "1d"}, "quota", id="quota"),
    ],
)
async def test_limit_holds_over_workers(check: Any, word: str, forks: ForkServer, tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        project = written(tmp_path, backend, rule("limited", check, tools=["plain"]))
        with fork_gateway(forks, project, tmp_path / "data", workers=2) as gateway:
            async with callers(gateway, ANA) as [ana]:
                answers = await flood(ana, 6)

    allowed = sum(not each.json["isError"] for each in answers)
    refused = next(each for each in answers if each.json["isError"])
    assert len(backend.paths) == allowed
    assert abs(allowed - 200) <= (2 if word == "rate" else 0)
    assert f"the {word} 'limited' lets 200 calls through" in code_of(refused)
    assert "try again in" in refused.json["rendered"]


OBSERVED: dict[str, dict[str, Any]] = {
    "arguments": {"type": "arguments", "require": 'args.text == "y"', "message": "only y"},
    "rate": {"type": "rate", "limit": 1, "per": "1h"},
    "quota": {"type": "quota", "limit": 1, "per": "1d"},
}


async def test_rules_that_observe_refuse_nothing_and_are_on_record(forks: ForkServer, tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        rules = [rule(f"tried-{name}", check, mode="observe") for name, check in OBSERVED.items()]
        project, data = written(tmp_path, backend, *rules), tmp_path / "data"
        with fork_gateway(forks, project, data) as gateway:
            async with callers(gateway, ANA) as [ana]:
                answers = [await pay(ana) for _ in range(3)]
            gateway.stop()
        log = await run_command("audit", "export", "--database", str(data / "gateway.db"), "--format", "jsonl", env={})

    decided = [line for line in log.splitlines() if "tried-arguments" in line]
    assert [each.json["isError"] for each in answers] == [False] * 3
    assert len(decided) >= 3
    assert "tried-rate" not in decided[0]
    assert "tried-rate" in decided[-1]
    assert "tried-quota" in decided[-1]


# Approvals


async def test_decision_can_be_made_after_a_crash(forks: ForkServer, tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        project, data = written(tmp_path, backend, rule("leads-agree", HELD)), tmp_path / "data"
        with fork_gateway(forks, project, data) as gateway:
            async with callers(gateway, ANA) as [ana]:
                id = pending_id(await pay(ana))
            gateway.kill()
        with fork_gateway(forks, project, data) as gateway:
            async with callers(gateway, ANA, LIZ) as [ana, liz]:
                decided = await grant(liz, id)
            gateway.kill()
        with fork_gateway(forks, project, data) as gateway:
            async with callers(gateway, ANA) as [ana]:
                first, second = await pay(ana), await pay(ana)

    assert decided.json["state"] == "granted"
    assert (first.json["isError"], second.status) == (False, 202)
    assert backend.paths == ["/pay"]


async def test_approval_runs_out_while_no_process_serves(forks: ForkServer, tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        brief = rule("leads-agree", {**HELD, "timeout": "1s"})
        project, data = written(tmp_path, backend, brief), tmp_path / "data"
        with fork_gateway(forks, project, data) as gateway:
            async with callers(gateway, ANA) as [ana]:
                held = await pay(ana)
            gateway.kill()
        await asyncio.sleep(1.1)  # the approval is open for one second of wall-clock time
        with fork_gateway(forks, project, data) as gateway:
            async with callers(gateway, ANA, LIZ) as [ana, liz]:
                late = await grant(liz, pending_id(held))
                again = await pay(ana)

    assert (late.status, late.json["code"]) == (409, "E_APPROVAL_CLOSED")
    assert pending_id(again) != pending_id(held)
    assert backend.paths == []


async def test_racing_retries_run_once_over_workers(forks: ForkServer, tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        project = written(tmp_path, backend, rule("leads-agree", HELD))
        with fork_gateway(forks, project, tmp_path / "data", workers=2) as gateway:
            async with callers(gateway, ANA, LIZ) as [ana, liz]:
                await grant(liz, pending_id(await pay(ana)))
                await asyncio.gather(*(pay(ana) for _ in range(100)))

    assert backend.paths == ["/pay"]


async def test_call_waits_in_one_worker_while_another_gets_the_decision(forks: ForkServer, tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        waits = rule("leads-agree", HELD, holdFor="30s")
        project = written(tmp_path, backend, waits)
        with fork_gateway(forks, project, tmp_path / "data", workers=2) as gateway:
            async with callers(gateway, ANA, LIZ) as [ana, liz], asyncio.timeout(25):
                waiting = [asyncio.create_task(pay(ana, f"{number}")) for number in range(6)]
                found: list[Any] = []
                while len(found) < len(waiting):
                    found = (await liz.rest("GET", "/v1/approvals")).json["approvals"]
                for each in found:
                    await grant(liz, each["id"])
                answers = await asyncio.gather(*waiting)

    assert [each.json["isError"] for each in answers] == [False] * 6
    assert len(backend.paths) == 6


async def test_command_line_grants(forks: ForkServer, tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        project = written(tmp_path, backend, rule("leads-agree", HELD))
        with fork_gateway(forks, project, tmp_path / "data") as gateway:
            async with callers(gateway, ANA) as [ana]:
                id = pending_id(await pay(ana, "to \u202eeve"))
                env = {"GATEWAY_TOKEN": LIZ.token}
                listed = await run_command("approvals", "list", "--url", gateway.url, env=env)
                shown = await run_command("approvals", "show", id, "--url", gateway.url, env=env)
                await run_command("approvals", "grant", id, "--yes", "--url", gateway.url, env=env)
                answer = await pay(ana, "to \u202eeve")

    assert id in listed
    assert "\u202e" not in shown
    assert r"\u202e" in shown
    assert (answer.json["isError"], backend.paths) == (False, ["/pay"])


# Turn state


async def test_handle_is_tainted_whichever_worker_is_asked(forks: ForkServer, tmp_path: Path) -> None:
    untrusted = rule("no-egress", HELD, match={"flags": ["egress"]}, when='turn.saw("untrusted-output")')

    async def call(caller: Caller, tool: str, handle: str | None = None) -> Any:
        meta = {} if handle is None else {"gateway/turn": handle}
        return (await caller.modern_call("desk", tool, {"text": "x"}, **meta)).json["result"]["_meta"]

    async with start_call_counter() as backend:
        tools = [
            http_tool("read", backend.port, flags=["untrusted-output"]),
            http_tool("keep", backend.port, flags=["untrusted-output"], output={"artifact": "text", "inline": False}),
            http_tool("send", backend.port, flags=["egress"]),
        ]
        project = write(tmp_path / "p", approval_client(backend.port, tools=tools, rules=[untrusted]))
        with fork_gateway(forks, project, tmp_path / "data", workers=2) as gateway:
            async with callers(gateway, ANA) as [ana]:
                for _ in range(10):
                    handle = (await call(ana, "plain"))["gateway/turn"]
                    reading = [call(ana, "read", handle), *(call(ana, "plain", handle) for _ in range(5))]
                    await asyncio.gather(*reading)
                    sent = await asyncio.gather(*(call(ana, "send", handle) for _ in range(4)))

                    assert ["gateway/pending" in each for each in sent] == [True] * 4

                made = await call(ana, "keep")
                uri = f"artifact://calls/{made['gateway/turn']}/{made['gateway/call']}"
                for _ in range(5):
                    handle = (await call(ana, "plain"))["gateway/turn"]
                    await ana.modern("desk", "resources/read", {"uri": uri}, **{"gateway/turn": handle})
                    sent = await asyncio.gather(*(call(ana, "send", handle) for _ in range(4)))

                    assert ["gateway/pending" in each for each in sent] == [True] * 4
    assert "/send" not in backend.paths


# The kill switch


async def test_quarantine_stops_the_next_call_in_every_worker(forks: ForkServer, tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        project, data = written(tmp_path, backend), tmp_path / "data"
        database = ("--database", str(data / "gateway.db"))
        with fork_gateway(forks, project, data, workers=2) as gateway:
            async with callers(gateway, ANA) as [ana]:
                before = [await pay(ana) for _ in range(4)]
                await run_command("quarantine", "add", "tool:pay", "--reason", "pays too much", *database, env={})
                stopped = await asyncio.gather(*(pay(ana) for _ in range(20)))
                others = await ana.rest_call("desk", "plain", {"text": "x"})
                await run_command("quarantine", "lift", "tool:pay", "--reason", "repaired", *database, env={})
                after = [await pay(ana) for _ in range(4)]
            gateway.stop()
        log = await run_command("audit", "export", *database, "--format", "jsonl", env={})

    assert [each.json["isError"] for each in (*before, others, *after)] == [False] * 9
    assert {code_of(each) for each in stopped} == {"the tool is quarantined"}
    assert len([path for path in backend.paths if path == "/pay"]) == 8
    words = [json.loads(line) for line in log.splitlines()]
    assert sum("quarantined" in json.dumps(each) for each in words) >= 20
    assert "pays too much" in log
