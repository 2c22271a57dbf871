"""Integers above 2^53 stay exact wherever equality decides, over both transports of a running gateway."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.audit_log import assert_good, entries
from tests.support.gateways.gate_projects import ANA, HELD, LIZ, PEOPLE, approval_client, grant, pending_id, rule, write
from tests.support.gateways.projects import CallCounter, GatewayUnderTest, http_tool, start_call_counter, start_gateway

pytestmark = pytest.mark.anyio

ACCOUNT = 2**53
OTHER = 2**53 + 1
SCHEMA = {"type": "object", "properties": {"account": {"type": "integer"}}, "required": ["account"]}


@asynccontextmanager
async def bank(tmp_path: Path, *rules: Any) -> AsyncIterator[tuple[GatewayUnderTest, CallCounter]]:
    async with start_call_counter() as backend:
        tools = [http_tool("move", backend.port, flags=["writes"], input={"schema": SCHEMA})]
        project = write(tmp_path / "p", approval_client(backend.port, tools=tools, rules=rules))
        async with start_gateway(project, tmp_path / "data", people=PEOPLE) as gateway:
            yield gateway, backend


def read_hashes(tmp_path: Path) -> list[Any]:
    """Return the argument hash in the last entry about each call, in order."""
    found = {}
    for each in entries(tmp_path / "data" / "gateway.db"):
        if each["event"] == "call-settled":
            found[each["call"]["id"]] = (each["v"], each["call"]["arguments"])
    return list(found.values())


async def test_one_key_is_not_good_for_another_account(tmp_path: Path) -> None:
    async with bank(tmp_path) as (gateway, backend):
        ana = gateway.caller(ANA)
        first = await ana.rest_call("desk", "move", {"account": ACCOUNT}, idempotency_key="k")
        other = await ana.rest_call("desk", "move", {"account": OTHER}, idempotency_key="k")
        again = await ana.rest_call("desk", "move", {"account": ACCOUNT}, idempotency_key="k")
        ran = [body for _, _, body in backend.requests]

    assert first.json["isError"] is False
    assert (other.status, other.json["code"]) == (409, "E_IDEMPOTENCY_CONFLICT")
    assert again.json["callId"] == first.json["callId"]
    assert len(ran) == 1


async def test_log_has_another_hash_for_another_account(tmp_path: Path) -> None:
    async with bank(tmp_path) as (gateway, _):
        ana = gateway.caller(ANA)
        for account in (ACCOUNT, OTHER, OTHER):
            assert (await ana.rest_call("desk", "move", {"account": account})).json["isError"] is False
            assert (await ana.modern_call("desk", "move", {"account": account})).json["result"]["isError"] is False

    (version, one), _, (_, other), *rest = read_hashes(tmp_path)
    assert version == 2
    assert one != other
    assert {hash for _, hash in rest} == {other}
    assert_good(tmp_path / "data" / "gateway.db")


@pytest.mark.parametrize(("made", "forged"), [(ACCOUNT, OTHER), (OTHER, ACCOUNT)])
async def test_changed_account_is_noticed(made: int, forged: int, tmp_path: Path) -> None:
    async with bank(tmp_path) as (gateway, _):
        ana = gateway.caller(ANA)
        called = (await ana.rest_call("desk", "move", {"account": made})).json
        path = f"/v1/calls/{called['callId']}"
        intact = (await ana.rest("GET", f"{path}/verify")).json
        with closing(sqlite3.connect(tmp_path / "data" / "gateway.db")) as database, database:
            changed = 0
            for table in ("calls", "fresh"):
                cursor = database.execute(f"UPDATE {table} SET args = replace(args, ?, ?)", (str(made), str(forged)))
                changed += cursor.rowcount
        verified = (await ana.rest("GET", f"{path}/verify")).json
        record = (await ana.rest("GET", path)).json

    assert changed == 1
    assert (intact["isIntact"], intact["digest"]) == (True, intact["computedDigest"])
    assert "detail" not in intact
    assert verified["isIntact"] is False
    assert verified["checksum"] == verified["computed"]
    assert verified["digest"] != verified["computedDigest"]
    assert "digits that the checksum does not cover" in verified["detail"]
    assert record["arguments"] == {"account": forged}
    assert "result" not in record


async def test_approval_does_not_cover_another_account(tmp_path: Path) -> None:
    held = rule("held", {**HELD, "reuse": {"for": "10m"}}, tools=["move"])
    async with bank(tmp_path, held) as (gateway, backend):
        ana = gateway.caller(ANA)
        asked = pending_id(await ana.rest_call("desk", "move", {"account": ACCOUNT}))
        assert (await grant(gateway.caller(LIZ), asked)).status == 200
        other = await ana.rest_call("desk", "move", {"account": OTHER})
        same = await ana.rest_call("desk", "move", {"account": ACCOUNT})

    assert pending_id(other) != asked
    assert same.json["isError"] is False
    assert len(backend.requests) == 1


async def test_loop_rule_counts_each_account_alone(tmp_path: Path) -> None:
    once = rule("once", {"type": "loop", "sameCall": 1}, tools=["move"])
    async with bank(tmp_path, once) as (gateway, backend):
        ana = gateway.caller(ANA)
        turn = (await ana.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"]
        errors = []
        for account in (ACCOUNT, OTHER, ACCOUNT, OTHER):
            body = {"tool": "move", "arguments": {"account": account}}
            errors.append((await ana.rest("POST", f"/v1/turns/{turn}/calls", body)).json["isError"])

    assert errors == [False, False, True, True]
    assert len(backend.requests) == 2
