"""The decision log of a running gateway: it holds every call once, verifies, and detects tampering."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from tests.support.audit_log import assert_good, ends_of_calls, entries, filter_call_entries, run_audit_command, shards
from tests.support.gateways.forkserver import ForkServer
from tests.support.gateways.gate_projects import (
    ANA,
    HELD,
    LIZ,
    PEOPLE,
    approval_client,
    grant,
    pay,
    pending_id,
    rule,
    write,
)
from tests.support.gateways.projects import CallCounter, GatewayUnderTest, http_tool, start_call_counter, start_gateway
from tests.support.servers.orders_service import PROJECT, connect_orders_client, orders_service

pytestmark = pytest.mark.anyio

CANARY = "canary-4711"
APPROVED = rule("leads-agree", HELD)
NEVER = rule("never", {"type": "arguments", "require": "false", "message": "not this one"}, tools=("shred",))
POLICY = """\
p, role:agent, *, tool:*, discover|invoke|read, community, allow
p, role:agent, *, tool:secret, discover|invoke|read, community, deny
p, role:agent, *, tool:shown, invoke, community, deny
p, role:lead, *, tool:*, approve, community, allow
"""


@asynccontextmanager
async def gateway_of(tmp_path: Path, *, anchors: bool = False) -> AsyncIterator[tuple[GatewayUnderTest, CallCounter]]:
    async with start_call_counter() as backend:
        tools = [http_tool(name, backend.port, flags=["writes"]) for name in ("secret", "shown", "shred")]
        documents = approval_client(backend.port, tools=tools, rules=[APPROVED, NEVER])
        if anchors:
            key = tmp_path / "anchors.key"
            if not key.exists():
                assert run_audit_command("keygen", key).exit_code == 0
            anchor = {"path": str(tmp_path / "anchors.jsonl"), "signingKey": {"fromFile": str(key)}}
            documents[0]["spec"]["audit"] = {"anchors": anchor}
        project = write(tmp_path / "p", documents, policy=POLICY)
        async with start_gateway(project, tmp_path / "data", people=PEOPLE) as gateway:
            yield gateway, backend


def database_of(tmp_path: Path) -> Path:
    return tmp_path / "data" / "gateway.db"


# --- contents ---


async def test_every_call_is_in_the_log_with_what_was_decided(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, backend):
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)
        arguments = {"text": CANARY}
        await ana.rest_call("desk", "plain", arguments)
        await ana.modern_call("desk", "plain", arguments)
        held = await pay(ana, CANARY)
        await grant(liz, pending_id(held))
        await pay(ana, CANARY)
        await ana.rest_call("desk", "shred", arguments)
        await ana.rest_call("desk", "shown", arguments)
        await ana.rest_call("desk", "plain", {"text": 7, "more": CANARY})
        for tool in ("secret", "nothing-like-it"):
            await ana.rest_call("desk", tool, arguments)
            await ana.modern_call("desk", tool, arguments)
        assert backend.paths == ["/plain", "/plain", "/pay"]
    database = database_of(tmp_path)

    assert_good(database)
    assert filter_call_entries(database) == [
        ("call-settled", "plain", "allow", "permitted"),
        ("call-settled", "plain", "allow", "permitted"),
        ("call-decided", "pay", "hold", "approval-pending"),
        ("call-started", "pay", "allow", "approval-approved"),
        ("call-settled", "pay", "allow", "approval-approved"),
        ("call-decided", "shred", "deny", "rule-denied"),
        ("call-decided", "shown", "deny", "not-permitted"),
        ("call-decided", "plain", "deny", "arguments-invalid"),
        *[("call-decided", "secret", "deny", "unknown-tool")] * 2,
        *[("call-decided", "nothing-like-it", "deny", "unknown-tool")] * 2,
    ]
    assert set(ends_of_calls(database).values()) == {1}
    around = {each["event"] for each in entries(database) if not each["event"].startswith("call-")}
    assert around >= {"shard-opened", "gateway-started", "gateway-stopped", "config-published"}
    assert around >= {"approval-requested", "approval-granted", "approval-used"}


async def test_vote_right_before_the_end_is_in_the_log(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, _):
        id = pending_id(await pay(gateway.caller(ANA)))
        await grant(gateway.caller(LIZ), id)
    [granted] = [each for each in entries(database_of(tmp_path)) if each["event"] == "approval-granted"]

    assert granted["gate"]["approval"] == id
    assert [each["approver"] for each in granted["gate"]["entries"]] == ["user:liz"]


async def test_neither_arguments_nor_results_nor_tokens_are_in_the_log(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, backend):
        backend.answer = lambda body: f"result {CANARY}".encode()
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)
        for tool in ("plain", "shred", "secret", "nothing"):
            await ana.rest_call("desk", tool, {"text": CANARY})
            await ana.modern_call("desk", tool, {"text": CANARY, "more": CANARY})
        await grant(liz, pending_id(await pay(ana, CANARY)))
        await pay(ana, CANARY)
    with closing(sqlite3.connect(database_of(tmp_path))) as opened:
        written = b"\n".join(body for [body] in opened.execute("SELECT body FROM audit"))

    assert b'"call-settled"' in written
    for secret in (CANARY, ANA.token, LIZ.token):
        assert secret.encode() not in written


async def test_hidden_and_unknown_tools_are_answered_and_logged_alike(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, backend):
        ana = gateway.caller(ANA)
        answers = [await ana.rest_call("desk", tool, {"text": "x"}) for tool in ("secret", "nothing")]
        assert backend.paths == []
    hidden, unknown = [each for each in entries(database_of(tmp_path)) if each["event"] == "call-decided"]

    assert [each.status for each in answers] == [404, 404]
    assert answers[0].body.replace(b"secret", b"nothing") == answers[1].body
    for entry in (hidden, unknown):
        del entry["at"], entry["call"]
    assert hidden | {"target": {**hidden["target"], "tool": "nothing"}} == unknown


# --- restarts, workers, export ---


async def test_gateway_that_starts_again_follows_what_was_there(tmp_path: Path) -> None:
    database = database_of(tmp_path)
    before: dict[str, list[str]] = {}
    for _ in range(3):
        async with gateway_of(tmp_path) as (gateway, _):
            await gateway.caller(ANA).rest_call("desk", "plain", {"text": "x"})
        found = shards(database)
        ends = set(before) - {name for followed in before.values() for name in followed}
        now_followed = {name for shard in set(found) - set(before) for name in found[shard]}
        assert now_followed >= ends
        before = found

    assert_good(database)


async def test_workers_have_shards_of_their_own(forks: ForkServer, tmp_path: Path) -> None:
    async with orders_service() as orders:
        alone = await asyncio.to_thread(
            forks.start, PROJECT, tmp_path / "one", env={"ORDERS_URL": orders.url}, options=()
        )
        await asyncio.to_thread(alone.stop)
        both = await asyncio.to_thread(
            forks.start, PROJECT, tmp_path / "two", env={"ORDERS_URL": orders.url}, options=("--workers", "2")
        )
        async with connect_orders_client(both.url) as shop:
            await asyncio.gather(*(shop.rest("order_read", {"order": f"o{number}"}) for number in range(20)))
            await asyncio.gather(*(shop.rest("order_place", {"order": f"o{number}"}) for number in range(20)))
        await asyncio.to_thread(both.stop)
    one, two = (tmp_path / name / "data" / "gateway.db" for name in ("one", "two"))

    assert_good(one)
    assert_good(two)
    assert len(shards(two)) >= 2 * len(shards(one))  # the writer process of a worker has its own, too
    assert len([each for each in filter_call_entries(two) if each[0] == "call-settled"]) == 40


async def test_exported_log_verifies_again(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, _):
        for _ in range(5):
            await gateway.caller(ANA).rest_call("desk", "plain", {"text": "x"})
        running = run_audit_command("verify", "--database", database_of(tmp_path))  # the gateway is still running
    exported = run_audit_command("export", "--database", database_of(tmp_path))
    (tmp_path / "log.jsonl").write_bytes(exported.stdout_bytes)
    again = run_audit_command("verify", tmp_path / "log.jsonl")

    assert (running.exit_code, exported.exit_code, again.exit_code) == (0, 0, 0), again.output
    assert len(exported.stdout.splitlines()) == len(entries(database_of(tmp_path)))


# --- tampering ---


LONGEST = "(SELECT shard FROM audit GROUP BY shard ORDER BY count(*) DESC LIMIT 1)"
FLIP = "substr(body, 1, length(body) - 2) || x'20' || substr(body, length(body))"
TAMPERING = {
    "one byte changed": ([f"UPDATE audit SET body = {FLIP} WHERE shard = {LONGEST} AND seq = 3"], "altered"),
    "a row deleted": ([f"DELETE FROM audit WHERE shard = {LONGEST} AND seq = 3"], "missing"),
    "two rows swapped": (
        [
            f"UPDATE audit SET seq = -3 WHERE shard = {LONGEST} AND seq = 3",
            f"UPDATE audit SET seq = 3 WHERE shard = {LONGEST} AND seq = 4",
            "UPDATE audit SET seq = 4 WHERE seq = -3",
        ],
        "altered",
    ),
    "the end cut off": ([f"DELETE FROM audit WHERE shard = {LONGEST} AND seq > 3"], "truncated"),
    "a shard removed": ([f"DELETE FROM audit WHERE shard = {LONGEST}"], "truncated"),
}


@pytest.mark.parametrize(("statements", "fault"), TAMPERING.values(), ids=TAMPERING)
async def test_tampering_is_named(statements: list[str], fault: str, tmp_path: Path) -> None:
    async with gateway_of(tmp_path, anchors=True) as (gateway, _):
        for number in range(6):
            await gateway.caller(ANA).rest_call("desk", "plain", {"text": str(number)})
    database = database_of(tmp_path)
    given = ("--anchors", tmp_path / "anchors.jsonl", "--public-key", tmp_path / "anchors.key.pub")
    assert_good(database, *given)
    with closing(sqlite3.connect(database)) as opened:
        [shard] = opened.execute(f"SELECT {LONGEST}").fetchone()
        for statement in statements:
            opened.execute(statement)
        opened.commit()
    answer = run_audit_command("verify", "--database", database, *given, "--format", "json")

    assert answer.exit_code == 1, answer.output
    found = [(each["shard"], each["fault"]) for each in json.loads(answer.stdout)["findings"]]
    assert (shard, fault) in found


# --- fail closed ---


async def test_without_its_log_nothing_runs_and_it_recovers_by_itself(tmp_path: Path) -> None:
    database = database_of(tmp_path)
    async with gateway_of(tmp_path) as (gateway, backend):
        ana = gateway.caller(ANA)
        await ana.rest_call("desk", "plain", {"text": "x"})
        rename(database, "audit", "away")
        shown = await ana.rest_call("desk", "pay", {"text": "x"})
        consequential = await ana.rest_call("desk", "shred", {"text": "x"})
        harmless = await ana.rest_call("desk", "plain", {"text": "x"})
        over_mcp = await ana.modern_call("desk", "plain", {"text": "x"})
        unknown = await ana.rest_call("desk", "nothing", {"text": "x"})
        rename(database, "away", "audit")
        after = await ana.rest_call("desk", "plain", {"text": "x"})

    assert [each.status for each in (consequential, harmless, unknown)] == [503, 424, 503]
    assert "E_STORE_UNAVAILABLE" in consequential.body.decode()
    assert "E_OUTCOME_NOT_RECORDED" in harmless.body.decode()
    assert shown.status == 503
    assert "error" in over_mcp.json or over_mcp.json["result"]["isError"]
    assert after.status == 200
    assert set(backend.paths) == {"/plain"}
    assert_good(database)


def rename(database: Path, before: str, after: str) -> None:
    with closing(sqlite3.connect(database, timeout=10)) as opened:
        opened.execute(f"ALTER TABLE {before} RENAME TO {after}")
