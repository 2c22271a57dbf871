"""Gates opened by handlers: approvers allowed by the policy resolve them over REST or the command line."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.gateways.commands import run_gateway
from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.gateways.gate_projects import ANA, EVA, LEO, LIZ, PEOPLE, code_of, write
from tests.support.gateways.projects import (
    Caller,
    Document,
    GatewayUnderTest,
    Person,
    Reply,
    base_documents,
    catalogue,
    document,
    environ_of,
    send_http,
    start_gateway,
    tokens_of,
)
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio

WAITING = "tests.support.tools.waiting_tools"
PACKAGES = {"GATEWAY_PYTHON_PACKAGES": WAITING, "PYTHONPATH": str(ROOT)}
SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "patience": {"type": "integer"}},
    "required": ["text"],
}
POLICY = """\
p, role:agent, *, tool:*, discover|invoke|read, community, allow
p, role:lead, *, tool:refund, approve, community, allow
p, role:lead, *, tool:announce, approve, community, allow
p, role:lead, *, tool:choosy, approve, community, allow
"""
NAMES = ("refund", "announce", "odd", "choosy")


def tool(name: str) -> Document:
    return document(
        "Tool",
        name,
        {
            "version": "1.0.0",
            "description": f"Does {name}.",
            "trust": {"tier": "internal", "flags": ["writes"] if name == "refund" else []},
            "input": {"schema": SCHEMA},
            "backend": {"type": "python", "entrypoint": f"{WAITING}:{name}", "run": "loop"},
        },
    )


def project(folder: Path) -> Path:
    placed = catalogue("desk", ["role:agent", "role:lead"], NAMES)
    return write(folder, [*base_documents(["tokens"]), tokens_of(PEOPLE), *map(tool, NAMES), placed], policy=POLICY)


@asynccontextmanager
async def desk(tmp_path: Path) -> AsyncIterator[GatewayUnderTest]:
    where = project(tmp_path / "p")
    async with start_gateway(where, tmp_path / "data", people=PEOPLE, python_packages=(WAITING,)) as gateway:
        yield gateway


def caller(gateway: GatewayUnderTest, person: Person) -> Caller:
    return Caller(gateway.ask, person.token)


async def wait_for_approval(who: Caller) -> dict[str, Any]:
    """Wait for the first approval that the caller can see."""
    for _ in range(600):
        found = (await who.rest("GET", "/v1/approvals?state=pending")).json["approvals"]
        if found:
            return dict((await who.rest("GET", f"/v1/approvals/{found[0]['id']}")).json)
        await asyncio.sleep(0.05)
    raise AssertionError("nobody is asked")


async def settle(who: Caller, id: str, verb: str, **body: Any) -> Reply:
    return await who.rest("POST", f"/v1/approvals/{id}/{verb}", body)


async def test_gate_of_a_handler_is_resolved_over_rest(tmp_path: Path) -> None:
    async with desk(tmp_path) as gateway:
        ana, liz, eva = (caller(gateway, each) for each in (ANA, LIZ, EVA))
        called = asyncio.create_task(ana.rest_call("desk", "refund", {"text": "order 7"}))
        asked = await wait_for_approval(liz)
        wrong = await settle(liz, asked["id"], "resolve", resolution={"amount": 500})
        own = await settle(ana, asked["id"], "resolve", resolution={"amount": 1})
        other = await settle(eva, asked["id"], "resolve", resolution={"amount": 1})
        assert not called.done()
        granted = await settle(liz, asked["id"], "resolve", resolution={"amount": "40"}, note="fine")
        done = (await called).json
        later = await settle(liz, asked["id"], "resolve", resolution={"amount": 1})
        record = (await liz.rest("GET", f"/v1/approvals/{asked['id']}")).json

    assert (asked["reason"], asked["rule"], asked["requester"]) == ("money leaves", "wait_for", "user:ana")
    assert (asked["callId"], asked["resolutionSchema"]["required"]) == (done["callId"], ["amount"])
    shown = {each["name"]: json.loads(each["value"]) for each in asked["arguments"]}
    assert (shown["payload"], shown["arguments"]) == ({"order": "order 7"}, {"text": "order 7"})
    assert (wrong.status, own.status, other.status, later.status) == (422, 403, 404, 409)
    assert granted.json["state"] == "granted"
    assert record["state"] == "used"
    assert done["result"]["text"] == "refunded 40"
    assert not done["isError"]


async def test_gate_of_a_handler_is_rejected_over_rest(tmp_path: Path) -> None:
    async with desk(tmp_path) as gateway:
        ana, liz = caller(gateway, ANA), caller(gateway, LIZ)
        called = asyncio.create_task(ana.rest_call("desk", "refund", {"text": "order 7"}))
        asked = await wait_for_approval(liz)
        await settle(liz, asked["id"], "reject", note="not this one")
        refused = await called

    assert "an approver refused: 'not this one'" in code_of(refused)


async def test_only_the_policy_chooses_who_decides(tmp_path: Path) -> None:
    async with desk(tmp_path) as gateway:
        ana, leo, eva = (caller(gateway, each) for each in (ANA, LEO, EVA))
        called = asyncio.create_task(leo.rest_call("desk", "announce", {"text": "x"}))
        liz = caller(gateway, LIZ)
        asked = await wait_for_approval(liz)
        lists = [(await each.rest("GET", "/v1/approvals")).json["approvals"] for each in (ana, eva, leo, liz)]
        own = await settle(leo, asked["id"], "resolve")  # a lead, and the requester
        unknown = [(await each.rest("GET", f"/v1/approvals/{asked['id']}")).status for each in (ana, eva)]
        await settle(liz, asked["id"], "resolve", resolution=[1, "two"])
        done = await called

    assert [len(each) for each in lists] == [0, 0, 1, 1]
    assert [each[0]["mayDecide"] for each in lists[2:]] == [False, True]
    assert asked["approvers"] == ["policy:approve", "policy:approve:desk:announce"]
    assert (own.status, unknown) == (403, [404, 404])
    assert done.json["result"]["text"] == "announced [1, 'two']"


async def test_gate_that_ends_otherwise_cannot_be_settled_any_more(tmp_path: Path) -> None:
    async with desk(tmp_path) as gateway:
        ana, liz = caller(gateway, ANA), caller(gateway, LIZ)
        called = asyncio.create_task(ana.rest_call("desk", "refund", {"text": "x", "patience": 60_000}))
        asked = await wait_for_approval(liz)
        called.cancel()
        await asyncio.gather(called, return_exceptions=True)
        for _ in range(200):
            state = (await liz.rest("GET", f"/v1/approvals/{asked['id']}")).json["state"]
            if state != "pending":
                break
            await asyncio.sleep(0.05)
        late = await settle(liz, asked["id"], "resolve", resolution={"amount": 1})
        timed_out = await ana.rest_call("desk", "refund", {"text": "x", "patience": 1})
        unshown = await ana.rest_call("desk", "odd", {"text": "x"})
        pending = (await liz.rest("GET", "/v1/approvals?state=pending")).json["approvals"]

    assert (state, late.status) == ("withdrawn", 409)
    assert "the gate timed out before it was resolved" in code_of(timed_out)
    assert "the gate timed out before it was resolved" in code_of(unshown)
    assert pending == []


async def test_answer_that_only_the_gate_can_check_is_checked_by_it(tmp_path: Path) -> None:
    async with desk(tmp_path) as gateway:
        ana, liz = caller(gateway, ANA), caller(gateway, LIZ)
        answers = []
        for number in (2, 3):
            called = asyncio.create_task(ana.rest_call("desk", "choosy", {"text": "x"}))
            asked = await wait_for_approval(liz)
            await settle(liz, asked["id"], "resolve", resolution={"number": number})
            answers.append((await called).json)

    assert answers[0]["result"]["text"] == "took 2"
    assert answers[1]["isError"]
    assert "does not fit" in answers[1]["result"]["text"]


async def test_time_of_a_call_stands_still_while_its_gate_is_open(tmp_path: Path) -> None:
    """The pipeline limits every call to 30 seconds; this test lowers that to 300 ms."""
    where = project(tmp_path / "p")
    text = (where / "configs" / "all.yaml").read_text().replace("after: 30s", "after: 300ms")
    assert "300ms" in text
    (where / "configs" / "all.yaml").write_text(text)
    async with start_gateway(where, tmp_path / "data", people=PEOPLE, python_packages=(WAITING,)) as gateway:
        ana, liz = caller(gateway, ANA), caller(gateway, LIZ)
        called = asyncio.create_task(ana.rest_call("desk", "refund", {"text": "x"}))
        asked = await wait_for_approval(liz)
        await asyncio.sleep(0.8)
        await settle(liz, asked["id"], "resolve", resolution={"amount": 1})
        done = await called

    assert done.json["result"]["text"] == "refunded 1"


@contextmanager
def fork_gateway(forks: ForkServer, where: Path, data: Path) -> Iterator[GatewayFork]:
    env = {**environ_of(PEOPLE), **PACKAGES, "GATEWAY_DATA_DIR": str(data)}
    gateway = forks.start(where, data, env=env, options=("--workers", "2"))
    try:
        yield gateway
    finally:
        gateway.kill()


def command(*words: str) -> "subprocess.CompletedProcess[str]":
    return run_gateway(*words, timeout=120)


async def test_gates_are_settled_at_any_worker_and_with_the_command_line(forks: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(LIZ.token)
    (tmp_path / "token").chmod(0o600)
    data = tmp_path / "data"
    with fork_gateway(forks, project(tmp_path / "p"), data) as gateway:
        there = ("--url", gateway.url, "--token-file", str(tmp_path / "token"))
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            ana, liz = (Caller(send_http(session, gateway.url), each.token) for each in (ANA, LIZ))
            calls = [asyncio.create_task(ana.rest_call("desk", "refund", {"text": f"{each}"})) for each in range(6)]
            for _ in range(600):
                found = (await liz.rest("GET", "/v1/approvals")).json["approvals"]
                if len(found) == len(calls):
                    break
                await asyncio.sleep(0.05)
            by_hand, refused, *others = [each["id"] for each in found]
            listed = await asyncio.to_thread(command, "approvals", "list", *there)
            answer = ("--resolution", '{"amount": 7}')
            granted = await asyncio.to_thread(command, "approvals", "grant", by_hand, "--yes", *answer, *there)
            denied = await asyncio.to_thread(command, "approvals", "refuse", refused, "--yes", *there)
            for id in others:
                assert (await settle(liz, id, "resolve", resolution={"amount": 1})).status == 200
            done = [(await each).json["result"]["text"] for each in calls]
        gateway.stop()
    log = await asyncio.to_thread(
        command, "audit", "export", "--database", str(data / "gateway.db"), "--format", "jsonl"
    )

    assert by_hand in listed.stdout
    assert (granted.returncode, denied.returncode) == (0, 0), granted.stderr + denied.stderr
    assert sorted(each.split(":")[0] for each in done) == sorted(
        ["refunded 7", *["refunded 1"] * 4, next(each for each in done if "approver refused" in each).split(":")[0]]
    )
    lines = [line for line in log.stdout.splitlines() if by_hand in line]
    assert any("user:liz" in line for line in lines)
    assert len(lines) >= 3  # requested, decided, used
