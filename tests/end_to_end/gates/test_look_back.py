"""Rules about earlier calls: what each remembers, however the calls are made, and what resets it.

Each row makes the first calls in one way and then the call that the rule stops. A new session, and nothing else, resets
rules about the turn; rules about the caller are never reset.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.engine.turns.implicit_turns import implicit_id
from gateway.model.caller import Credential, Principal
from gateway.policy import TurnStateWrite
from gateway.storage.sql.postgres.database_setup import migrate_postgres
from gateway.storage.sql.sqlite.writer_client import WriterClient
from gateway.storage.sql.store import SqlStore
from tests.support.gateways.forkserver import ForkServer
from tests.support.gateways.gate_projects import approval_client, rule, write
from tests.support.gateways.projects import (
    Ask,
    CallCounter,
    Caller,
    Document,
    GatewayUnderTest,
    Person,
    catalogue,
    document,
    environ_of,
    http_tool,
    send_http,
    start_call_counter,
    start_gateway,
)
from tests.support.gateways.replicas import forked_replicas, postgres_documents, round_robin

pytestmark = pytest.mark.anyio

DENIED = {"type": "permission", "object": "class:secret"}
AMOUNT = {
    "type": "object",
    "required": ["amount"],
    "properties": {"amount": {"type": "number"}, "text": {"type": "string"}},
}
SECRET = {
    **{"description": "A secret.", "base": "text", "sensitivity": "restricted", "maxSize": "1MiB", "retain": "1d"},
    "flow": {"blockedBy": ["egress"]},
}
Made = tuple[str, dict[str, Any]]
SEND: Made = ("send", {"text": "x"})
READ: Made = ("read", {"text": "x"})
LEARN: Made = ("learn", {"text": "x"})
PAY: Made = ("refund", {"amount": 500.5})


@dataclass(frozen=True)
class Row:
    """A rule, the calls it allows, and the next call, which it stops."""

    check: Mapping[str, Any] | None
    before: Sequence[Made]
    stopped: Made
    when: str | None = None
    match: Mapping[str, Any] = field(default_factory=lambda: {"tools": ["send", "read"]})
    forgets: bool = False
    """Whether a new session resets the rule."""

    def rules(self, catalogue: str) -> list[Document]:
        if self.check is None:
            return []
        narrowed = {} if self.when is None else {"when": self.when}
        return [rule(f"rule-{catalogue}", self.check, match={**self.match, "catalogues": [catalogue]}, **narrowed)]


EGRESS = {"flags": ["egress"]}
LOOP, CALLS, BYTES = (
    {"type": "loop", "sameCall": 3},
    {"type": "budget", "calls": 3},
    {"type": "budget", "bytes": "10B"},
)
SUM = {"type": "quota", "sum": "args.amount", "limit": 2000, "per": "365d"}
OF_CALLER = {"scope": "caller", "within": "365d"}
ROWS = {
    # Must be first: it sees what callers read in the other catalogues.
    "taint-caller": Row(DENIED, [SEND, READ], SEND, 'caller.saw("untrusted-output", "1h")', EGRESS),
    "taint-turn": Row(DENIED, [SEND, READ], SEND, 'turn.saw("untrusted-output")', EGRESS, forgets=True),
    "calls-turn": Row(DENIED, [SEND, READ], SEND, 'turn.calls.exists(c, c.tool == "read")', EGRESS, forgets=True),
    "loop-turn": Row(LOOP, [SEND] * 3, SEND, forgets=True),
    "loop-caller": Row({**LOOP, **OF_CALLER}, [SEND, READ, SEND, SEND], SEND),
    "budget-turn": Row(CALLS, [SEND, READ, SEND], READ, forgets=True),
    "budget-caller": Row({**CALLS, **OF_CALLER}, [SEND, READ, SEND], READ),
    "bytes-turn": Row(BYTES, [SEND], READ, forgets=True),
    "bytes-caller": Row({**BYTES, **OF_CALLER}, [SEND], READ),
    "flow": Row(None, [SEND, LEARN], SEND, forgets=True),
    "sum": Row(SUM, [PAY] * 3, PAY, match={"tools": ["refund"]}),
}
TOOLS = ("read", "send", "learn", "refund")

Call = Callable[[Made], Awaitable[bool]]
"""Makes a call and returns whether it was allowed."""


def modern(caller: Caller, place: str) -> Call:
    async def call(made: Made) -> bool:
        return _is_allowed((await caller.modern_call(place, *made)).json["result"])

    return call


def with_handle(caller: Caller, place: str) -> Call:
    handles: list[str] = []

    async def call(made: Made) -> bool:
        meta = {"gateway/turn": handles[0]} if handles else {}
        result = (await caller.modern_call(place, *made, **meta)).json["result"]
        handles.append(result["_meta"]["gateway/turn"])
        return _is_allowed(result)

    return call


def in_session(caller: Caller, place: str) -> Call:
    sessions: list[str] = []

    async def call(made: Made) -> bool:
        if not sessions:
            sessions.append(await caller.begin_legacy(place))
        params = {"name": made[0], "arguments": made[1]}
        answer = await caller.legacy(place, "tools/call", params, session=sessions[0])
        return _is_allowed(answer.json["result"])

    return call


def in_turn(caller: Caller, place: str) -> Call:
    turns: list[str] = []

    async def call(made: Made) -> bool:
        if not turns:
            turns.append((await caller.rest("POST", "/v1/turns", {"catalogue": place})).json["id"])
        body = {"tool": made[0], "arguments": made[1]}
        return (await caller.rest("POST", f"/v1/turns/{turns[0]}/calls", body)).status == 200

    return call


def one_off(caller: Caller, place: str) -> Call:
    async def call(made: Made) -> bool:
        return (await caller.rest_call(place, *made)).status == 200

    return call


def _is_allowed(result: Any) -> bool:
    return not result.get("isError")


WAYS: dict[str, Callable[[Caller, str], Call]] = {
    "stateless": modern,
    "handle": with_handle,
    "session": in_session,
    "turn": in_turn,
    "one-off": one_off,
}
SPARE = Person("spare", ("agent",))
TWIN = Person("twin", ("agent",), subject="user:spare")
PEOPLE = [*(Person(f"caller{number}", ("agent",)) for number in range(10)), SPARE, TWIN]


def documents(backend: CallCounter, *, implicit: str = "30m") -> list[Document]:
    """Return one catalogue for each row, to which its rule applies."""
    port = backend.port
    tools = [
        http_tool("read", port, flags=["untrusted-output"]),
        http_tool("send", port, flags=["egress"]),
        http_tool("learn", port, output={"artifact": "secret"}),
        http_tool("refund", port, flags=["writes"], input={"schema": AMOUNT}),
    ]
    turns = {"turns": {"implicit": implicit}}
    places = [catalogue(name, ["role:agent"], TOOLS, **turns) for name in (*ROWS, "no-rules")]
    rules = [each for name, row in ROWS.items() for each in row.rules(name)]
    return [
        *approval_client(port, tools=tools, rules=rules, people=PEOPLE),
        *places,
        document("ArtifactClass", "secret", SECRET),
    ]


async def try_row(name: str, first: Call, then: Call) -> tuple[bool, bool]:
    """Return whether all calls allowed by the row were allowed, and whether the next one was."""
    row = ROWS[name]
    return all([await first(made) for made in row.before]), await then(row.stopped)


STOPPED = (True, False)


@asynccontextmanager
async def pair(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[GatewayUnderTest, GatewayUnderTest]]:
    """Two gateways on one store, each with its own memory."""
    async with start_call_counter() as backend:
        project, data = write(tmp_path / "p", documents(backend, **options)), tmp_path / "data"
        async with (
            start_gateway(project, data, people=PEOPLE) as one,
            start_gateway(project, data, people=PEOPLE) as other,
        ):
            yield one, other


async def test_rules_remember_however_calls_are_made(tmp_path: Path) -> None:
    outcomes: dict[str, tuple[bool, bool]] = {}
    async with pair(tmp_path) as (one, other):
        for name in ROWS:
            people = iter(PEOPLE)
            for way, made in WAYS.items():
                call = made(one.caller(next(people)), name)
                outcomes[f"{name} by {way}"] = await try_row(name, call, call)
            for way in ("stateless", "one-off"):
                person = next(people)
                here, there = (WAYS[way](each.caller(person), name) for each in (one, other))
                outcomes[f"{name} by {way} in another process"] = await try_row(name, here, there)

    assert [each for each, answers in outcomes.items() if answers != STOPPED] == []


async def test_new_session_makes_rules_about_turns_forget_and_no_others(tmp_path: Path) -> None:
    outcomes: dict[str, list[tuple[bool, bool]]] = {}
    async with pair(tmp_path) as (one, _):
        for name in ROWS:
            outcomes[name] = []
            for way, person in zip((in_session, in_turn, with_handle), PEOPLE, strict=False):
                caller = one.caller(person)
                outcomes[name].append(await try_row(name, way(caller, name), way(caller, name)))

    expected = {name: [(True, row.forgets), (True, row.forgets)] for name, row in ROWS.items()}
    assert {name: answers[:2] for name, answers in outcomes.items()} == expected
    # A call without a handle belongs to the implicit turn of the conversation's first call.
    taints = {name: answers[2] for name, answers in outcomes.items() if name in ("taint-turn", "taint-caller", "sum")}
    assert taints == {"taint-turn": (True, True), "taint-caller": STOPPED, "sum": STOPPED}


async def test_rules_remember_over_workers(forks: ForkServer, tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        project, data = write(tmp_path / "p", documents(backend)), tmp_path / "data"
        env = {**environ_of(PEOPLE), "GATEWAY_DATA_DIR": str(data)}
        gateway = forks.start(project, data, env=env, options=("--workers", "2"))
        try:
            connector = aiohttp.TCPConnector(limit=0, force_close=True)  # any worker may take each request
            async with aiohttp.ClientSession(connector=connector) as session:
                outcomes = await _try_all(send_http(session, gateway.url))
        finally:
            gateway.kill()

    assert [each for each, answers in outcomes.items() if answers != STOPPED] == []


async def test_rules_remember_over_replicas(forks: ForkServer, tmp_path: Path, new_database: Callable[[], str]) -> None:
    address = new_database()
    migrate_postgres(address)
    async with start_call_counter() as backend:
        project = write(tmp_path / "p", postgres_documents(documents(backend)))
        with forked_replicas(forks, project, tmp_path / "data", address, count=2, env=environ_of(PEOPLE)) as gateways:
            async with aiohttp.ClientSession() as session:
                outcomes = await _try_all(round_robin(session, gateways))  # every request goes to the next gateway

    assert [each for each, answers in outcomes.items() if answers != STOPPED] == []


async def _try_all(ask: Ask) -> dict[str, tuple[bool, bool]]:
    outcomes = {}
    for name in ROWS:
        for person, way in zip(PEOPLE, ("stateless", "one-off", "handle", "turn"), strict=False):
            call = WAYS[way](Caller(ask, person.token), name)
            outcomes[f"{name} by {way}"] = await try_row(name, call, call)
    return outcomes


async def test_credentials_and_catalogues_have_implicit_turns_of_their_own(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, _):
        first, second = one.caller(SPARE), one.caller(TWIN)
        await first.rest_call("taint-turn", *READ)
        same = (await first.rest_call("taint-turn", *SEND)).status
        other_credential = (await second.rest_call("taint-turn", *SEND)).status
        await first.rest_call("calls-turn", *SEND)
        other_catalogue = (await first.rest_call("calls-turn", *SEND)).status
        await first.rest_call("no-rules", *READ)
        of_caller = (await second.rest_call("taint-caller", *SEND)).status

    assert (same, other_credential, other_catalogue, of_caller) == (403, 200, 200, 403)


@pytest.mark.parametrize("way", ["stateless", "session"])
async def test_one_process_writes_states_of_concurrent_first_calls_in_order(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the writer process would have to merge the state of every later call with the stored one."""
    written: list[TurnStateWrite] = []
    reserved: list[str] = []
    write_states, reserve = WriterClient.write, SqlStore.reserve_call

    def record(client: WriterClient, *args: Any, states: Iterable[TurnStateWrite | None] = (), **more: Any) -> Any:
        states = list(states)
        written.extend(each for each in states if each is not None)
        return write_states(client, *args, states=states, **more)

    def record_reservation(store: Any, turn_id: str, *args: Any, **more: Any) -> Any:
        reserved.append(turn_id)
        return reserve(store, turn_id, *args, **more)

    monkeypatch.setattr(WriterClient, "write", record)
    monkeypatch.setattr(SqlStore, "reserve_call", record_reservation)
    async with start_call_counter() as backend:
        many = rule("many", {"type": "budget", "calls": 1000}, match={"tools": ["read"], "catalogues": ["no-rules"]})
        project = write(tmp_path / "p", [*documents(backend), many])
        async with start_gateway(project, tmp_path / "data", people=PEOPLE) as gateway:
            call = WAYS[way](gateway.caller(SPARE), "no-rules")
            allowed = [await call(READ)] if way == "session" else []  # which opens the session
            allowed += await asyncio.gather(*(call(READ) for _ in range(40)))

    assert all(allowed)
    assert len(written) >= 40
    assert [after.knowing for after in written[1:]] == [before.memory for before in written[:-1]]
    assert reserved == []  # by another writer


@pytest.mark.parametrize(("implicit", "is_allowed"), [("off", True), ("300ms", True), ("30m", False)])
async def test_implicit_turn_ends_when_no_call_came_for_so_long(
    implicit: str, is_allowed: bool, tmp_path: Path
) -> None:
    async with pair(tmp_path, implicit=implicit) as (one, other):
        await modern(one.caller(SPARE), "taint-turn")(READ)
        await asyncio.sleep(0.5)
        here, there = [await modern(each.caller(SPARE), "taint-turn")(SEND) for each in (one, other)]

    assert (here, there) == (is_allowed, is_allowed)


async def test_implicit_turn_outlives_the_process(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, _):
        await modern(one.caller(SPARE), "taint-turn")(READ)
    async with pair(tmp_path) as (one, _):
        assert not await modern(one.caller(SPARE), "taint-turn")(SEND)


async def test_callers_cannot_name_or_end_an_implicit_turn(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, _):
        caller = one.caller(SPARE)
        assert (await caller.rest_call("taint-turn", *READ)).status == 200
        [id] = one.running.service.turns._implicit._known
        made = {"tool": "send", "arguments": {"text": "x"}}
        answers = [
            await caller.rest("GET", f"/v1/turns/{id}"),
            await caller.rest("POST", f"/v1/turns/{id}/end", {"as": "ack"}),
            await caller.rest("POST", f"/v1/turns/{id}/calls", made),
            await caller.rest_call("taint-turn", "send", {"text": "x"}),
        ]
        by_handle = await caller.modern_call("taint-turn", *SEND, **{"gateway/turn": id})

    assert [each.status for each in answers] == [404, 404, 404, 403]
    assert "error" in by_handle.json


def test_implicit_turns_of_different_callers_have_different_names() -> None:
    ways = (None, Credential("token"), Credential("token", "a", "b"), Credential("token", "ab", ""))
    callers = [
        Principal(subject, tenant=tenant, credential=way)
        for subject in ("user:a", "user:ab")
        for tenant in (None, "", "b")
        for way in ways
    ]

    assert len({implicit_id(each, place) for each in callers for place in ("x", "xy")}) == 2 * len(callers)
    roles = [Principal("user:a", frozenset(each)) for each in ((), ("role:b",))]
    assert len({implicit_id(each, "x") for each in roles}) == 1
