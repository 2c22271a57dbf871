"""Callers never get another caller's answers, turns, sessions, records or artifacts, whatever ids they share or guess.

A handle grants no access: another caller's handle answers like one that does not exist, and the caller's own stops
working when the access behind it is revoked.
"""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.server.rest.operation_table import OPERATIONS
from tests.support.gateways.process import start_gateway_process
from tests.support.gateways.projects import (
    Caller,
    Document,
    GatewayUnderTest,
    Person,
    Reply,
    base_documents,
    catalogue,
    environ_of,
    http_tool,
    send_http,
    start_call_counter,
    start_gateway,
    tokens_of,
    write_project,
)

pytestmark = pytest.mark.anyio

ANA = Person("ana", ("staff",), "acme")
BOB = Person("bob", ("staff",), "acme")
OTHER_ANA = Person("other_ana", ("staff",), "umbrella", "user:ana")
NO_ANA = Person("no_ana", ("staff",), None, "user:ana")
PROMOTED_ANA = Person("promoted_ana", ("staff", "boss"), "acme", "user:ana")
CROWD = [Person(f"p{number}", ("staff",), f"t{number % 5}") for number in range(10)]
PEOPLE = [ANA, BOB, OTHER_ANA, NO_ANA, PROMOTED_ANA, *CROWD]
ALLOWED = "p, role:staff, *, tool:*, discover|invoke, internal, allow\n"


def documents_of(port: int) -> list[Document]:
    tools = [http_tool("echo", port), http_tool("large", port, output={"inline": False})]
    return [*base_documents(["tokens"]), tokens_of(PEOPLE), *tools, catalogue("desk", ["role:staff"], ["*"])]


def written(folder: Path, port: int, policy: str = ALLOWED) -> Path:
    return write_project(folder, documents_of(port), policy=policy)


# --- answers ---

CLIENTS = 500
CALLS = 4


async def talk(url: str, number: int) -> list[str]:
    """Return the foreign answers one client got; "own" stands for a correct answer.

    All clients use the same ids and keys. Answers that report a slow disk are skipped.
    """
    person = CROWD[number % len(CROWD)]
    answers = []
    async with aiohttp.ClientSession() as session:
        caller = Caller(send_http(session, url), person.token)
        for call in range(CALLS):
            canary = f"canary-{number}-{call}-end"
            key = f"key-{number // len(CROWD)}-{call}"  # the same for every caller
            if call % 2:
                reply = await caller.rest_call("desk", "echo", {"text": canary}, idempotency_key=key)
            else:
                if number % 10 == 3:
                    await abandon_call(caller, canary)
                meta = {"gateway/idempotencyKey": key}
                reply = await caller.modern_call("desk", "echo", {"text": canary}, id=call, **meta)
                assert reply.json["id"] == call
            found = set(re.findall(r"canary-[-0-9]+-end", reply.body.decode()))
            if found or b"E_STORE_UNAVAILABLE" not in reply.body:
                answers.append("own" if found == {canary} else f"{canary}: {reply.body[:300]!r}")
    return answers


async def abandon_call(caller: Caller, canary: str) -> None:
    """Cancel a call while it may be running."""
    task = asyncio.create_task(caller.modern_call("desk", "echo", {"text": f"gone {canary}"}, id=0))
    await asyncio.wait([task], timeout=0.003)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_500_clients_with_the_same_ids_and_keys_get_their_own_answers(tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        project = written(tmp_path / "p", backend.port)
        with start_gateway_process(project, tmp_path / "data", env=environ_of(PEOPLE)) as gateway:
            clients = await asyncio.gather(*(talk(gateway.url, number) for number in range(CLIENTS)))

    answers = [each for client in clients for each in client]
    assert [each for each in answers if each != "own"] == []
    assert len(answers) > CLIENTS
    ran = [body for _, _, body in backend.requests if b"gone" not in body]
    assert len(ran) == len(set(ran)) >= len(answers)


# --- handles ---


class OwnedNames:
    """One caller's turn, session and calls."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.turn = self.call = self.handle = self.alone = self.session = ""

    async def begin(self) -> "OwnedNames":
        caller = self.caller
        self.turn = (await caller.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"]
        called = await caller.rest(
            "POST", f"/v1/turns/{self.turn}/calls", {"tool": "large", "arguments": {"text": "mine"}}
        )
        self.call = called.json["callId"]
        result = (await caller.modern_call("desk", "large", {"text": "mine"})).json["result"]
        self.handle = result["_meta"]["gateway/turn"]
        self.alone = result["_meta"]["gateway/call"]
        self.session = await caller.begin_legacy("desk")
        return self

    @property
    def names(self) -> dict[str, str]:
        """Map each id to one of the same form that does not exist."""
        return {
            self.turn: _other(self.turn),
            self.call: _other(self.call),
            self.handle: _other(self.handle),
            self.alone: _other(self.alone),
            self.session: _other(self.session),
        }


def _other(name: str) -> str:
    """Return a name of the same length and alphabet."""
    return name[:-6] + "".join("a" if each != "a" else "b" for each in name[-6:])


BODIES: dict[str, Any] = {
    "endTurn": {"as": "abort"},
    "callInTurn": {"tool": "echo", "arguments": {"text": "x"}},
    "queryArtifact": {"method": "grep", "arguments": {"pattern": "mine"}},
}


def rest_requests(turn: str, call: str) -> Iterator[tuple[str, str, Any]]:
    for operation in OPERATIONS:
        if "{turn}" in operation.path or "{callId}" in operation.path:
            path = operation.path.replace("{turn}", turn).replace("{callId}", call)
            yield operation.method, path, BODIES.get(operation.id)
            if any(each.name == "turn" for each in operation.query):
                yield operation.method, f"{path}?turn={turn}", BODIES.get(operation.id)


async def ask_everything(caller: Caller, names: list[str]) -> list[Reply]:
    """Make every request about these names, in a fixed order."""
    turn, call, handle, alone, session = names
    answers = [await caller.rest(*each) for each in rest_requests(turn, call)]
    answers += [await caller.rest("GET", f"/v1/calls?turn={turn}")]
    echo = {"arguments": {"text": "x"}, "turn": handle}
    answers += [await caller.rest("POST", "/v1/catalogues/desk/tools/echo/call", echo)]
    answers += [await caller.modern_call("desk", "echo", {"text": "x"}, **{"gateway/turn": handle})]
    uris = [
        f"artifact://calls/{turn}/{call}",
        f"artifact://calls/{handle}/{alone}",
        f"artifact://calls/{turn}/{call}/0",
    ]
    answers += [await caller.modern("desk", "resources/read", {"uri": uri}) for uri in uris]
    answers += [await caller.legacy("desk", "tools/list", session=session)]
    answers += [await caller.legacy("desk", "resources/list", session=session)]
    answers += [await caller.raw("DELETE", "/desk/mcp", mcp_session_id=session, mcp_protocol_version="2025-11-25")]
    answers += [await caller.raw("GET", "/desk/mcp", mcp_session_id=session, accept="text/event-stream")]
    return answers


def mask_names(answers: list[Reply], names: list[str]) -> list[tuple[int, Any, bytes]]:
    """Return the answers without the names that they repeat."""
    found = []
    for each in answers:
        body = each.body
        for name in names:
            body = body.replace(name.encode(), b"NAME")
        found.append((each.status, sorted(name for name, _ in each.headers), body))
    return found


@pytest.mark.parametrize("person", [BOB, OTHER_ANA, NO_ANA], ids=lambda person: str(person.name))
async def test_names_of_another_caller_answer_like_names_that_never_were(person: Person, tmp_path: Path) -> None:
    async with (
        start_call_counter() as backend,
        start_gateway(written(tmp_path / "p", backend.port), tmp_path / "data", people=PEOPLE) as gateway,
    ):
        owned = await OwnedNames(gateway.caller(ANA)).begin()
        stranger = gateway.caller(person)
        before = len(backend.requests)
        theirs, unknown = list(owned.names), list(owned.names.values())

        assert mask_names(await ask_everything(stranger, theirs), theirs) == mask_names(
            await ask_everything(stranger, unknown), unknown
        )
        assert len(backend.requests) == before
        query = {"callId": owned.alone, "pattern": "mine"}
        no_query = {"callId": owned.names[owned.alone], "pattern": "mine"}
        assert (
            mask_names([await stranger.modern_call("desk", "artifact_grep", query)], theirs)[0][2].count(b"mine") == 0
        )
        await is_same_but_for_ids(stranger, query, no_query)
        for path in ("/v1/calls", f"/v1/calls?turn={owned.turn}"):
            assert {each["tool"] for each in (await stranger.rest("GET", path)).json["calls"]} <= {"artifact_grep"}
        assert (await stranger.modern("desk", "resources/list")).json["result"]["resources"] == []
        assert b"mine" in (await gateway.caller(ANA).rest("GET", f"/v1/artifacts/{owned.call}/content")).body


async def is_same_but_for_ids(caller: Caller, one: dict[str, str], other: dict[str, str]) -> None:
    texts = []
    for arguments in (one, other):
        found = (await caller.modern_call("desk", "artifact_grep", arguments)).json["result"]
        assert found["isError"] is True
        texts.append(re.sub(r"[0-9a-f]{32,}", "", found["content"][0]["text"]).replace(arguments["callId"], ""))
    assert texts[0] == texts[1]


async def test_ids_that_callers_choose_alike_stay_apart(tmp_path: Path) -> None:
    async with (
        start_call_counter() as backend,
        start_gateway(written(tmp_path / "p", backend.port), tmp_path / "data", people=PEOPLE) as gateway,
    ):
        for person in (ANA, BOB, OTHER_ANA):
            caller = gateway.caller(person)
            turn = (await caller.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"]
            body = {"id": "call-1", "tool": "large", "arguments": {"text": f"of {person.name}."}}
            assert (await caller.rest("POST", f"/v1/turns/{turn}/calls", body)).json["callId"] == "call-1"

        for person in (ANA, BOB, OTHER_ANA):
            content = await gateway.caller(person).rest("GET", "/v1/artifacts/call-1/content")
            assert f"of {person.name}.".encode() in content.body
        assert (await gateway.caller(NO_ANA).rest("GET", "/v1/artifacts/call-1/content")).status == 404


# --- revoked rights ---

TAKEN = {
    "everything": "p, role:boss, *, tool:*, discover|invoke, internal, allow\n",
    "the right to call": "p, role:staff, *, tool:*, discover, internal, allow\n",
    "by a denial": f"{ALLOWED}p, user:ana, *, tool:large, invoke|read, internal, deny\n",
    "the right to read": f"{ALLOWED}p, role:staff, *, tool:large, read|invoke, internal, deny\n",
}


async def assert_nothing_left(gateway: GatewayUnderTest, owned: OwnedNames, key: str) -> None:
    caller = gateway.caller(ANA)
    answers = await ask_everything(caller, list(owned.names))
    query = {"callId": owned.alone, "pattern": "t[a-z]+e"}
    answers.append(await caller.modern_call("desk", "artifact_grep", query))
    answers.append(await caller.modern_call("desk", "artifact_grep", query, **{"gateway/turn": owned.handle}))
    answers.append(await caller.rest_call("desk", "large", {"text": "mine"}, idempotency_key=key))
    answers.append(await caller.modern("desk", "resources/list"))
    assert [each for each in answers if b"treasure" in each.body] == []


@pytest.mark.parametrize("policy", TAKEN.values(), ids=TAKEN)
async def test_results_go_with_the_right_to_them_at_the_next_start(policy: str, tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        backend.answer = lambda body: b"treasure" if b"mine" in body else b"nothing"
        project, data = written(tmp_path / "p", backend.port), tmp_path / "data"
        async with start_gateway(project, data, people=PEOPLE) as gateway:
            owned = await OwnedNames(gateway.caller(ANA)).begin()
            await owned.caller.rest_call("desk", "large", {"text": "mine"}, idempotency_key="k1")
            before = len(backend.requests)
            assert b"treasure" in (await owned.caller.rest("GET", f"/v1/artifacts/{owned.call}/content")).body
        written(project, backend.port, policy)
        async with start_gateway(project, data, people=PEOPLE) as gateway:
            await assert_nothing_left(gateway, owned, "k1")

        assert [path for path in backend.paths[before:] if path == "/large"] == []


@pytest.mark.parametrize("policy", TAKEN.values(), ids=TAKEN)
async def test_results_go_with_the_right_to_them_while_their_turn_is_open(policy: str, tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        backend.answer = lambda body: b"treasure" if b"mine" in body else b"nothing"
        project = written(tmp_path / "p", backend.port)
        changed = written(tmp_path / "changed", backend.port, policy)
        async with (
            start_gateway(project, tmp_path / "data", people=PEOPLE) as gateway,
            start_gateway(changed, tmp_path / "other", people=PEOPLE) as another,
        ):
            owned = await OwnedNames(gateway.caller(ANA)).begin()
            await owned.caller.rest_call("desk", "large", {"text": "mine"}, idempotency_key="k1")
            before = len(backend.requests)
            gateway.running.service.publish(another.running.service.published)
            await assert_nothing_left(gateway, owned, "k1")

        assert [path for path in backend.paths[before:] if path == "/large"] == []


async def test_turn_does_not_carry_the_roles_its_caller_had_once(tmp_path: Path) -> None:
    async with (
        start_call_counter() as backend,
        start_gateway(written(tmp_path / "p", backend.port), tmp_path / "data", people=PEOPLE) as gateway,
    ):
        turn = (await gateway.caller(PROMOTED_ANA).rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"]
        body = {"tool": "echo", "arguments": {"text": "x"}}

        assert (await gateway.caller(ANA).rest("POST", f"/v1/turns/{turn}/calls", body)).status == 404
        assert (await gateway.caller(PROMOTED_ANA).rest("POST", f"/v1/turns/{turn}/calls", body)).status == 200
