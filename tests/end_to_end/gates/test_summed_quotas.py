"""Quotas that sum an argument: many small calls count like one large call, and both need approval."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.gateways.gate_projects import (
    ANA,
    EVA,
    HELD,
    LIZ,
    PEOPLE,
    approval_client,
    grant,
    pending_id,
    rule,
    write,
)
from tests.support.gateways.projects import (
    CallCounter,
    Caller,
    Document,
    Reply,
    http_tool,
    start_call_counter,
    start_gateway,
)

pytestmark = pytest.mark.anyio

AMOUNT = {"type": "object", "properties": {"amount": {"type": "number"}, "text": {"type": "string"}}}
PEOPLE_DECIDE = {key: value for key, value in HELD.items() if key != "type"}
SUM = {"type": "quota", "sum": "args.amount", "limit": 9999, "per": "365d", "onExhausted": "hold"}


def project(tmp_path: Path, backend: CallCounter, check: dict[str, Any]) -> Path:
    tool: Document = http_tool("refund", backend.port, flags=["writes"], input={"schema": AMOUNT})
    return write(
        tmp_path / "p", approval_client(backend.port, tools=[tool], rules=[rule("sums", check, tools=["refund"])])
    )


async def refund(caller: Caller, amount: Any, **more: Any) -> Reply:
    return await caller.rest_call("desk", "refund", {"amount": amount, **more})


async def test_many_small_refunds_need_the_approval_of_a_large_one(tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        folder = project(tmp_path, backend, {**SUM, "approval": PEOPLE_DECIDE})
        async with start_gateway(folder, tmp_path / "data", people=PEOPLE) as gateway:
            ana, eva, liz = (gateway.caller(each) for each in (ANA, EVA, LIZ))
            small = [await refund(ana, 500) for _ in range(20)]
            large = await refund(eva, 10_000)
            ran = len(backend.paths)
            for held, caller, amount in ((small[-1], ana, 500), (large, eva, 10_000)):
                await grant(liz, pending_id(held))
                assert (await refund(caller, amount)).status == 200
            after = await refund(ana, 499)

    assert [each.status for each in small] == [200] * 19 + [202]
    assert (large.status, ran, after.status) == (202, 19, 202)


async def test_without_people_calls_beyond_the_sum_are_limited(tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        folder = project(tmp_path, backend, {**SUM, "onExhausted": "deny"})
        async with start_gateway(folder, tmp_path / "data", people=PEOPLE) as gateway:
            ana = gateway.caller(ANA)
            exact = [await refund(ana, amount) for amount in (9998.9, 0.1)]
            beyond = [await refund(ana, amount) for amount in (0.000001, 0, 1)]

    assert [each.status for each in (*exact, *beyond)] == [200, 200, 429, 429, 429]


@pytest.mark.parametrize("amount", [None, -1, -0.01, True, "500", [500], {"of": 500}, 1e13, 10**30])
async def test_what_is_no_amount_is_denied_and_spends_nothing(amount: Any, tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        loose = http_tool(
            "refund", backend.port, flags=["writes"], input={"schema": {"type": "object", "properties": {"amount": {}}}}
        )
        check = {**SUM, "approval": PEOPLE_DECIDE}
        documents = approval_client(backend.port, tools=[loose], rules=[rule("sums", check, tools=["refund"])])
        async with start_gateway(write(tmp_path / "p", documents), tmp_path / "data", people=PEOPLE) as gateway:
            ana = gateway.caller(ANA)
            denied = [await refund(ana, amount), await ana.rest_call("desk", "refund", {})]
            allowed = await refund(ana, 9999)

    assert denied[0].status == (400 if amount == 10**30 else 403)  # JSON has no such integer
    assert denied[1].status == 403
    assert allowed.status == 200
    assert backend.paths == ["/refund"]
