"""Ownership: for every owner, reader and object, only the owner gets an answer."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from anyio import create_task_group, fail_after

from tests.server.rest.gateway import PEOPLE, Gateway, running, with_catalogue

pytestmark = pytest.mark.anyio

OWNERS = ("ann", "bob", "other-ann", "nobody-ann", "guest")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running(tmp_path) as started:
        yield started


async def own_things(client: Any, who: str) -> dict[str, str]:
    """A turn with a call under an id that all owners use, and one under a unique id."""
    turn = (await client.post("/v1/turns", json={"catalogue": "desk"})).json()["id"]
    for id in ("call_same", f"call_{who}"):
        body = {"tool": "echo", "arguments": {"text": f"canary of {who}"}, "id": id}
        assert (await client.post(f"/v1/turns/{turn}/calls", json=body)).status_code == 200
    return {"turn": turn, "call": f"call_{who}"}


def requests_about(turn: str, call: str) -> list[tuple[str, str, Any]]:
    return [
        ("GET", f"/v1/turns/{turn}", None),
        ("GET", f"/v1/turns/{turn}/tools", None),
        ("GET", f"/v1/turns/{turn}/calls", None),
        ("GET", f"/v1/turns/{turn}/calls/call_same", None),
        ("GET", f"/v1/turns/{turn}/render", None),
        ("GET", f"/v1/turns/{turn}/events", None),
        ("POST", f"/v1/turns/{turn}/calls", {"tool": "echo", "arguments": {"text": "intruder"}}),
        ("POST", f"/v1/turns/{turn}/end", {"as": "ack"}),
        ("POST", "/v1/catalogues/desk/tools/echo/call", {"arguments": {"text": "intruder"}, "turn": turn}),
        ("GET", f"/v1/calls/{call}", None),
        ("GET", f"/v1/calls/call_same?turn={turn}", None),
        ("GET", f"/v1/calls/{call}/verify", None),
        ("GET", f"/v1/artifacts/{call}", None),
        ("GET", f"/v1/artifacts/{call}/content", None),
        ("GET", f"/v1/artifacts/call_same/content?turn={turn}", None),
        ("POST", f"/v1/artifacts/{call}/query", {"method": "cat"}),
        ("POST", f"/v1/artifacts/call_same/query?turn={turn}", {"method": "cat"}),
    ]


async def send_request(client: Any, method: str, path: str, body: Any) -> Any:
    return await client.request(method, path, **({} if body is None else {"json": body}))


@pytest.mark.parametrize("owner", OWNERS)
async def test_foreign_and_unknown_things_are_the_same_bytes(gateway: Gateway, owner: str) -> None:
    async with gateway.client(owner) as client:
        things = await own_things(client, owner)
    for reader in OWNERS:
        if reader == owner:
            continue
        async with gateway.client(reader) as client:
            foreign = [await send_request(client, *each) for each in requests_about(**things)]
            unknown = [await send_request(client, *each) for each in requests_about("turn_unknown", "call_unknown")]

        answers = [(each.status_code, each.content, sorted(each.headers.items())) for each in foreign]
        assert answers == [(each.status_code, each.content, sorted(each.headers.items())) for each in unknown]
        assert {each.status_code for each in foreign} == {404}
    assert gateway.tried.runs == ["echo", "echo"]


async def test_equal_ids_lead_everyone_to_their_own(gateway: Gateway) -> None:
    for who in OWNERS:
        async with gateway.client(who) as client:
            await own_things(client, who)
    for who in OWNERS:
        async with gateway.client(who) as client:
            content = await client.get("/v1/artifacts/call_same/content")
            listed = (await client.get("/v1/calls")).json()["calls"]

        assert content.text == f"canary of {who}"
        assert {each["arguments"]["text"] for each in listed} == {f"canary of {who}"}


async def test_query_in_ones_own_turn_does_not_reach_foreign_artifacts(gateway: Gateway) -> None:
    async with gateway.client("bob") as client:
        await own_things(client, "bob")
    async with gateway.client("ann") as client:
        own = await own_things(client, "ann")
        body = {"tool": "artifact_cat", "arguments": {"callId": "call_bob"}}
        answer = await client.post(f"/v1/turns/{own['turn']}/calls", json=body)

    assert answer.json()["isError"] is True
    assert "canary of bob" not in answer.text


async def test_turn_is_lost_with_the_roles_it_was_opened_with(gateway: Gateway, monkeypatch: Any) -> None:
    async with gateway.client("ann") as client:
        things = await own_things(client, "ann")
        monkeypatch.setitem(PEOPLE, "ann", replace(PEOPLE["ann"], roles=frozenset({"role:guest"})))
        answer = await client.get(f"/v1/turns/{things['turn']}")

    assert answer.status_code == 404


async def test_catalogue_that_is_taken_away_takes_turns_and_artifacts_along(gateway: Gateway) -> None:
    async with gateway.client("ann") as client:
        things = await own_things(client, "ann")
        with_catalogue(gateway, "desk", audience=frozenset({"role:guest"}))
        answers = [await send_request(client, *each) for each in requests_about(**things)]

    shown = [each for each in answers if each.status_code != 404]
    assert all("canary" not in each.text or "/calls/" in str(each.url) for each in answers)
    assert {each.url.path.split("/")[2] for each in shown} <= {"calls"}
    assert all("result" not in each.json() for each in shown)


async def test_answers_of_many_callers_at_once_do_not_cross(gateway: Gateway) -> None:
    crossed: list[str] = []

    async def call_often(who: str) -> None:
        async with gateway.client(who) as client:
            turn = (await client.post("/v1/turns", json={"catalogue": "desk"})).json()["id"]
            for number in range(10):
                canary = f"{who} {number}"
                body = {"tool": "echo", "arguments": {"text": canary}, "id": f"call_{number}"}
                answer = (await client.post(f"/v1/turns/{turn}/calls", json=body)).json()
                content = await client.get(f"/v1/artifacts/call_{number}/content", params={"turn": turn})
                if (answer["result"]["text"], content.text, answer["turn"]) != (canary, canary, turn):
                    crossed.append(canary)

    with fail_after(60):
        async with create_task_group() as tasks:
            for who in OWNERS:
                tasks.start_soon(call_often, who)

    assert crossed == []
