"""Callers see exactly the tools they can find: over both MCP versions and REST, for every tool and caller.

A tool hidden from a caller answers with the same bytes as one that does not exist, and its backend is not called.
"""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.support.gateways.process import start_gateway_process
from tests.support.gateways.projects import (
    CallCounter,
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

TIERS = ("internal", "partner", "community")
ROLES = tuple(f"team-{number}" for number in range(8))
PLACES = ("front", "back", "side", "secret")
ALIKE = "no_such_tool"


def people_of(chosen: random.Random, count: int) -> list[Person]:
    """Callers with none to three roles; some share a subject name across tenants."""
    return [
        Person(
            f"p{number}", tuple(chosen.sample(ROLES, chosen.randrange(4))), chosen.choice([None, "acme", "umbrella"])
        )
        for number in range(count)
    ]


def tools_of(chosen: random.Random, count: int, port: int) -> list[Document]:
    return [http_tool(f"t{number}", port, tier=chosen.choice(TIERS)) for number in range(count)]


def catalogues_of(chosen: random.Random, names: list[str]) -> list[Document]:
    """Four overlapping catalogues, each for some of the teams and with some hidden tools."""
    return [
        catalogue(
            place,
            [f"role:{role}" for role in sorted(chosen.sample(ROLES, 5))],
            held := sorted(chosen.sample(names, len(names) // 2)),
            hidden=held[::7],
        )
        for place in PLACES
    ]


def policy_of(chosen: random.Random, names: list[str], people: list[Person]) -> str:
    """Ceilings, single tools, denials, and rows about seeing and calling, for roles and for persons."""
    rows = []
    for role in ROLES:
        place = chosen.choice(["*", *PLACES])
        rows.append(f"p, role:{role}, {place}, tool:*, discover|invoke, {chosen.choice(TIERS)}, allow")
        for name in chosen.sample(names, len(names) // 10):
            effect = chosen.choice(["allow", "deny", "deny"])
            act = chosen.choice(["discover", "invoke", "discover|invoke", "read"])
            rows.append(f"p, role:{role}, {chosen.choice(['*', *PLACES])}, tool:{name}, {act}, community, {effect}")
    for person in people[::3]:
        for name in chosen.sample(names, 3):
            effect = chosen.choice(["allow", "deny"])
            rows.append(f"p, user:{person.name}, *, tool:{name}, discover|invoke, community, {effect}")
    return "\n".join(rows) + "\n"


def generate_project(
    folder: Path, *, tools: int, people: int, port: int, seed: int
) -> tuple[Path, list[Person], list[str]]:
    chosen = random.Random(seed)
    callers = people_of(chosen, people)
    declared = tools_of(chosen, tools, port)
    names = [each["metadata"]["name"] for each in declared]
    documents = [*base_documents(["tokens"]), tokens_of(callers), *declared, *catalogues_of(chosen, names)]
    write_project(folder, documents, policy=policy_of(chosen, names, callers))
    return folder, callers, names


async def list_tools(caller: Caller, place: str) -> tuple[Reply, set[str]]:
    """Return the tools listed by all three transports, which must agree; query tools are visible to all callers."""
    modern = await caller.modern(place, "tools/list")
    rest = await caller.rest("GET", f"/v1/catalogues/{place}/tools")
    if modern.status != 200:
        legacy = await caller.legacy(place, "initialize", {"protocolVersion": "2025-11-25"})
        assert (modern.status, rest.status, legacy.status) == (404, 404, 404)
        return modern, set()
    session = await caller.begin_legacy(place)
    legacy = await caller.legacy(place, "tools/list", session=session)
    shown = [
        {each["name"] for each in tools if not each["name"].startswith("artifact_")}
        for tools in (modern.json["result"]["tools"], legacy.json["result"]["tools"], rest.json["tools"])
    ]
    assert shown[0] == shown[1] == shown[2]
    return modern, shown[0]


class Proof:
    """Calls every tool over every transport and compares the answers with the lists."""

    def __init__(self, backend: CallCounter, names: list[str], hidden: dict[str, set[str]]) -> None:
        self.backend = backend
        self.names = names
        self.hidden = hidden
        self.found = self.refused = 0

    async def of(self, caller: Caller, place: str) -> None:
        answer, shown = await list_tools(caller, place)
        if answer.status == 404:
            await self.is_nothing(caller, place)
            return
        unknown = [await caller.modern_call(place, ALIKE, {}), await caller.rest_call(place, ALIKE, {})]
        described = await caller.rest("GET", f"/v1/catalogues/{place}/tools/{ALIKE}")
        assert [each.status for each in unknown] == [400, 404]
        for name in self.names:
            before = len(self.backend.requests)
            answers = [await caller.modern_call(place, name, {"text": "x"})]
            answers.append(await caller.rest_call(place, name, {"text": "x"}))
            if answers == unknown:
                assert name not in shown
                assert await caller.rest("GET", f"/v1/catalogues/{place}/tools/{name}") == described
                assert len(self.backend.requests) == before
                self.refused += 1
                continue
            denied = answers[1].json["isError"]
            assert [each.status for each in answers] == [200, 403 if denied else 200], (place, name, answers)
            assert name in shown or name in self.hidden[place], (place, name)
            self.same_outcome(name, answers, before)

    def same_outcome(self, name: str, answers: list[Reply], before: int) -> None:
        """Both transports agree with each other and with the backend on whether a visible tool ran."""
        modern, rest = answers[0].json["result"], answers[1].json
        assert modern.get("isError", False) == rest["isError"]
        ran = 0 if rest["isError"] else 2
        assert self.backend.paths[before:] == [f"/{name}"] * ran
        self.found += 1

    async def is_nothing(self, caller: Caller, place: str) -> None:
        """A catalogue that does not admit its caller answers like one that does not exist."""
        pairs = [
            (
                await caller.modern_call(place, self.names[0], {}),
                await caller.modern_call("nowhere", self.names[0], {}),
            ),
            (await caller.legacy(place, "tools/list"), await caller.legacy("nowhere", "tools/list")),
            (await caller.rest_call(place, self.names[0], {}), await caller.rest_call("nowhere", self.names[0], {})),
            (await caller.rest("GET", f"/v1/catalogues/{place}"), await caller.rest("GET", "/v1/catalogues/nowhere")),
        ]
        for theirs, missing in pairs:
            assert theirs == missing
            assert theirs.status == 404


def hidden_in(gateway: GatewayUnderTest) -> dict[str, set[str]]:
    found = gateway.running.service.published.snapshot.catalogues
    return {name: set(each.hidden) for name, each in found.items()}


async def test_visible_is_callable_for_100_tools_and_30_callers(tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        project, people, names = generate_project(tmp_path / "p", tools=100, people=30, port=backend.port, seed=1)
        async with start_gateway(project, tmp_path / "data", people=people) as gateway:
            proof = Proof(backend, names, hidden_in(gateway))
            for number, person in enumerate(people):
                # every caller asks for every tool, each in two of the four catalogues
                for place in (PLACES[number % 4], PLACES[(number + 1) % 4]):
                    await proof.of(gateway.caller(person), place)

    assert proof.found > 300
    assert proof.refused > 300


@asynccontextmanager
async def small_process(tmp_path: Path, backend: CallCounter) -> AsyncIterator[tuple[str, list[Person], list[str]]]:
    project, people, names = generate_project(tmp_path / "p", tools=10, people=6, port=backend.port, seed=2)
    with start_gateway_process(project, tmp_path / "data", env=environ_of(people)) as gateway:
        yield gateway.url, people, names


async def test_visible_is_callable_in_a_real_process(tmp_path: Path) -> None:
    async with (
        start_call_counter() as backend,
        small_process(tmp_path, backend) as (url, people, names),
        aiohttp.ClientSession() as session,
    ):
        proof = Proof(backend, names, {place: set(names) for place in PLACES})
        for person in people:
            for place in PLACES[:2]:
                await proof.of(Caller(send_http(session, url), person.token), place)

    assert proof.found > 5
    assert proof.refused > 5


@pytest.mark.parametrize("lifecycle", ["draft", "retired"])
async def test_tool_that_is_not_in_use_is_unknown_to_calls_as_it_is_to_lists(lifecycle: str, tmp_path: Path) -> None:
    person = Person("ana", ("team-0",))
    async with start_call_counter() as backend:
        idle = http_tool("idle", backend.port, lifecycle=lifecycle)
        documents = [*base_documents(["tokens"]), tokens_of([person]), idle, http_tool("busy", backend.port)]
        documents.append(catalogue("front", ["role:team-0"], ["idle", "busy"]))
        policy = "p, role:team-0, *, tool:*, discover|invoke, internal, allow\n"
        write_project(tmp_path / "p", documents, policy=policy)
        async with start_gateway(tmp_path / "p", tmp_path / "data", people=[person]) as gateway:
            caller = gateway.caller(person)

            assert (await list_tools(caller, "front"))[1] == {"busy"}
            assert await caller.modern_call("front", "idle", {}) == await caller.modern_call("front", ALIKE, {})
            assert await caller.rest_call("front", "idle", {}) == await caller.rest_call("front", ALIKE, {})
            assert backend.requests == []


async def test_catalogue_of_one_protocol_does_not_exist_for_the_other(tmp_path: Path) -> None:
    person = Person("ana", ("team-0",))
    async with start_call_counter() as backend:
        documents = [*base_documents(["tokens"]), tokens_of([person]), http_tool("busy", backend.port)]
        for name in ("mcp", "http"):
            documents.append(catalogue(f"only-{name}", ["role:team-0"], ["busy"], publish={"as": [name]}))
        policy = "p, role:team-0, *, tool:*, discover|invoke, internal, allow\n"
        write_project(tmp_path / "p", documents, policy=policy)
        async with start_gateway(tmp_path / "p", tmp_path / "data", people=[person]) as gateway:
            caller = gateway.caller(person)
            arguments = {"text": "x"}

            assert (await caller.modern_call("only-mcp", "busy", arguments)).status == 200
            assert (await caller.rest_call("only-http", "busy", arguments)).status == 200
            assert len(backend.requests) == 2
            for asked in ("only-http", "nowhere"):
                assert (await caller.modern_call(asked, "busy", arguments)).status == 404
                assert (await caller.legacy(asked, "tools/list")).status == 404
            assert await caller.rest_call("only-mcp", "busy", arguments) == await caller.rest_call(
                "nowhere", "busy", {}
            )
            metadata = "/.well-known/oauth-protected-resource/only-http/mcp"
            unknown = await caller.rest("GET", metadata.replace("only-http", "nowhere"))
            reply = await caller.rest("GET", metadata)
            assert (reply.status, reply.headers) == (unknown.status, _same_length(unknown, reply))
            assert reply.body == unknown.body.replace(b"nowhere", b"only-http")
            assert len(backend.requests) == 2


def _same_length(one: Reply, other: Reply) -> tuple[tuple[str, str], ...]:
    """Return the headers of one answer with the length of another."""
    length = other.header("content-length")
    return tuple((name, str(length) if name == "content-length" else value) for name, value in one.headers)
