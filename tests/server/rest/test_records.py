"""Records over REST: the caller's own, page by page, and whether they still verify."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from anyio import create_task_group, fail_after

from tests.server.rest.gateway import Gateway, running

pytestmark = pytest.mark.anyio


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running(tmp_path) as started:
        yield started


async def call(client: Any, tool: str, arguments: Any = None, *, status: int = 200) -> Any:
    answer = await client.post(f"/v1/catalogues/desk/tools/{tool}/call", json={"arguments": arguments or {}})
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_record_shows_what_was_called_and_what_came_of_it(gateway: Gateway) -> None:
    async with gateway.client() as client:
        called = await call(client, "echo", {"text": "hi"})
        record = (await client.get(f"/v1/calls/{called['callId']}")).json()

    assert record["arguments"] == {"text": "hi"}
    assert record["checksum"] == called["checksum"]
    assert record["result"] == called["result"]
    assert (record["status"], record["decision"], record["isError"]) == ("settled", "allow", False)
    assert "because" not in record


async def test_pages_lead_through_all_calls_newest_first(gateway: Gateway) -> None:
    async with gateway.client() as client:
        ids = [(await call(client, "echo", {"text": str(number)}))["callId"] for number in range(5)]
        found, path = [], "/v1/calls?limit=2"
        while path:
            page = (await client.get(path)).json()
            assert len(page["calls"]) <= 2
            found += [each["callId"] for each in page["calls"]]
            path = f"/v1/calls?limit=2&cursor={page['next']}" if "next" in page else ""

    assert found == ids[::-1]


async def test_filters_choose_by_tool_catalogue_and_turn(gateway: Gateway) -> None:
    async with gateway.client() as client:
        first = await call(client, "echo", {"text": "a"})
        await call(client, "facts")
        counts = {
            query: len((await client.get(f"/v1/calls?{query}")).json()["calls"])
            for query in ("tool=echo", "catalogue=desk", "catalogue=plain", f"turn={first['turn']}", "status=unknown")
        }

    assert counts == {
        "tool=echo": 1,
        "catalogue=desk": 2,
        "catalogue=plain": 0,
        f"turn={first['turn']}": 1,
        "status=unknown": 0,
    }


@pytest.mark.parametrize("cursor", ["x", "-1", "1;2", "9" * 30])
async def test_cursor_that_is_none_is_refused(gateway: Gateway, cursor: str) -> None:
    async with gateway.client() as client:
        answer = await client.get("/v1/calls", params={"cursor": cursor})

    assert (answer.status_code, answer.json()["code"]) == (400, "E_INVALID_REQUEST")


async def test_record_exists_only_once_the_call_is_over(gateway: Gateway) -> None:
    with fail_after(10):
        async with gateway.client() as client:
            turn = (await client.post("/v1/turns", json={"catalogue": "desk"})).json()["id"]

            async def run() -> None:
                await client.post(f"/v1/turns/{turn}/calls", json={"tool": "slow", "id": "call_slow"})

            async with create_task_group() as tasks:
                tasks.start_soon(run)
                await gateway.tried.running.wait()
                missing = await client.get(f"/v1/turns/{turn}/calls/call_slow")
                listed = (await client.get(f"/v1/turns/{turn}/calls")).json()["calls"]
                gateway.tried.go_on.set()
            found = await client.get(f"/v1/turns/{turn}/calls/call_slow")

    assert (missing.status_code, listed) == (404, [])
    assert found.json()["status"] == "settled"


async def test_refused_call_is_on_record_with_its_decision(gateway: Gateway) -> None:
    gateway.grants.only_shown = {"pay"}
    async with gateway.client() as client:
        called = await call(client, "pay", status=403)
        record = (await client.get(f"/v1/calls/{called['callId']}")).json()

    assert (called["isError"], record["decision"]) == (True, "deny")
    assert "does not permit" in record["result"]["text"]
    assert "only to be seen" not in str(record)
    assert gateway.tried.runs == []


async def test_changed_arguments_are_noticed(gateway: Gateway) -> None:
    async with gateway.client() as client:
        called = await call(client, "echo", {"text": "honest"})
        intact = (await client.get(f"/v1/calls/{called['callId']}/verify")).json()
        with closing(sqlite3.connect(gateway.folder / "records.db")) as database, database:
            changed = database.execute("UPDATE calls SET args = replace(args, 'honest', 'forged')").rowcount
        verified = (await client.get(f"/v1/calls/{called['callId']}/verify")).json()
        record = await client.get(f"/v1/calls/{called['callId']}")
        content = await client.get(f"/v1/artifacts/{called['callId']}/content")

    assert changed == 1
    assert (intact["isIntact"], intact["computed"]) == (True, called["checksum"])
    assert (verified["isIntact"], verified["checksum"]) == (False, called["checksum"])
    assert "result" not in record.json()
    assert content.status_code == 404


async def test_result_is_not_shown_any_more_when_it_may_not_be_read(gateway: Gateway) -> None:
    async with gateway.client() as client:
        called = await call(client, "handle")
        query = {"arguments": {"callId": called["callId"]}, "turn": called["turn"]}
        asked = (await client.post("/v1/catalogues/desk/tools/artifact_head/call", json=query)).json()
        gateway.grants.rows -= {("role:staff", "desk", "handle")}
        record = (await client.get(f"/v1/calls/{called['callId']}")).json()
        answer = (await client.get(f"/v1/calls/{asked['callId']}")).json()
        listed = (await client.get("/v1/calls")).text

    assert "result" not in record
    assert "result" not in answer
    assert "byteLength" not in listed
