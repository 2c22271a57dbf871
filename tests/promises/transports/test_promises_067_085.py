"""Promises 67 to 85 over the wire: schemas, order, isolation, trust and gates."""

import asyncio
import random
from itertools import chain
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types

from gateway.model.turns.events import TurnGateOpen
from tests.promises.transports import tools as promised_tools
from tests.promises.transports.conversations import TALKS, Conversation, RestTalk
from tests.promises.transports.gateway import Gateway
from tests.promises.transports.readers import body, content, envelope, find_events, names, offered, queries, query

pytestmark = pytest.mark.anyio

ABSENT = object()
POOLS: dict[str, list[Any]] = {
    "name": ["kim", "ki", "eight888", "é" * 8, ABSENT, "k", "nine99999", 3, None, ["kim"], ""],
    "level": [ABSENT, ABSENT, 0, 9, 3.0, -1, 10, 2.5, "3", True, None],
    "colour": [ABSENT, ABSENT, "red", None, "blue", 0, False],
    "ratio": [ABSENT, ABSENT, 0.5, 2, 1.5, 0, -1, 0.3, "1"],
    "tags": [ABSENT, ABSENT, [], ["a", "b"], ["a", "a"], ["A"], ["a", "b", "c"], "a", [1], {}],
    "place": [ABSENT, ABSENT, "here", {"x": 1}, {}, {"x": "1"}, {"x": 1, "y": 2}, 7],
    "more": [ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, 1],
}


def generate_arguments(count: int) -> list[dict[str, Any]]:
    """Return argument objects, about half of them valid, mostly from the front of the pools."""
    chance = random.Random(67)
    found = []
    for number in range(count):
        weight = 3 if number % 2 else 11
        drawn = {name: pool[min(chance.randrange(len(pool)), weight - 1)] for name, pool in POOLS.items()}
        found.append({name: value for name, value in drawn.items() if value is not ABSENT})
    return found


async def test_wire_promise_067_advertised_schema_is_the_enforced_one(talk: Conversation) -> None:
    validator = Draft202012Validator((await talk.tools())["checked"]["inputSchema"])
    counts = {True: 0, False: 0}

    for args in generate_arguments(150):
        ran_before = len(promised_tools.done.seen)
        reply = await talk.call("checked", args)
        is_valid = validator.is_valid(args)
        assert (reply.refused is None and not reply.is_error) == is_valid, (args, reply)
        assert len(promised_tools.done.seen) - ran_before == int(is_valid), args
        counts[is_valid] += 1

    assert min(counts.values()) > 30, counts


async def test_wire_promise_068_four_shapes_of_results(talk: Conversation) -> None:
    kinds = {}
    for tool in ("raw", "echo", "picture", "pictures", "made_artifact", "several", "shapeless"):
        reply = await talk.call(tool)
        kinds[tool] = "error" if reply.is_error else (await talk.record(reply))["result"]["kind"]
    made = await talk.call("made_artifact")

    assert kinds == {
        "raw": "artifact",
        "echo": "artifact",
        "picture": "media",
        "pictures": "media",
        "made_artifact": "artifact",
        "several": "artifact",
        "shapeless": "error",
    }
    assert await content(talk.gateway, made) == b"made by hand"
    assert body((await query(talk, "artifact_head", made)).text) == "made by hand"


async def test_wire_promise_069_tool_runs_in_the_iteration_that_proposed_it(talk: Conversation) -> None:
    turn = await talk.begin()

    async with talk.gateway.following(turn) as heard:
        await talk.call("echo")
        await heard.wait_for_event("dispatchEnd")
    wanted = ("iterationStart", "toolExecutionStart", "toolExecutionEnd", "iterationEnd")
    [start] = find_events(heard, "dispatchStart")[-1:]

    assert names(heard, *wanted) == list(wanted)
    assert {each["dispatchId"] for name in wanted for each in find_events(heard, name)} == {start["dispatchId"]}


async def test_wire_promise_070_result_is_in_the_next_prompt(talk: Conversation) -> None:
    reply = await talk.call("say", {"text": "to be read next"})
    roles = [each["role"] for each in await talk.gateway.prompt(reply.turn)]
    [shown] = await talk.gateway.shown(reply.turn, reply.id)

    assert body(shown["text"]) == "to be read next"
    assert roles[-2:] == ["assistant", "tool"]


@pytest.mark.parametrize("wire", TALKS)
async def test_wire_promise_071_stages_never_run_a_tool_again(gateway: Gateway, wire: type[Conversation]) -> None:
    talk = wire(gateway, catalogue="guarded")
    reply = await talk.call("count")
    for _ in range(3):
        await gateway.prompt(reply.turn)
        await talk.record(reply)
        await query(talk, "artifact_cat", reply)

    assert promised_tools.done.counted == 1


async def test_wire_promise_072_names_are_unique_in_every_list(talk: Conversation) -> None:
    await talk.call("facts")
    await talk.call("page")

    assert len(await offered(talk)) == len({*await offered(talk)})
    if talk.wire != "rest":
        listed = (await talk.request("tools/list"))["result"]["tools"]  # type: ignore[attr-defined]  # of MCP
        assert len({each["name"] for each in listed}) == len(listed)


async def test_wire_promise_073_edits_of_one_turn_do_not_leak(talk: Conversation) -> None:
    dropped = await talk.call("drops_tool")
    same_turn = await talk.call("say", {"text": "still there"})
    other = type(talk)(talk.gateway)

    assert body(dropped.text) == "False"
    assert not same_turn.is_error
    assert not (await other.call("say", {"text": "there, too"})).is_error
    assert "say" in await other.tools()


async def test_wire_promise_074_turns_side_by_side_are_isolated(talk: Conversation) -> None:
    other = type(talk)(talk.gateway)
    stranger = type(talk)(talk.gateway, who="kim")
    mine, _, theirs, _ = await asyncio.gather(
        talk.call("say", {"text": "mine"}),
        talk.call("drops_tool"),
        other.call("say", {"text": "theirs"}),
        other.call("facts"),
    )
    secret = await query(stranger, "artifact_cat", mine)
    peeked = await talk.gateway.ask("GET", f"/v1/turns/{mine.turn}", who="kim")

    assert mine.turn != theirs.turn
    assert {each["callId"] for each in await talk.gateway.records(mine.turn)}.isdisjoint(
        each["callId"] for each in await talk.gateway.records(theirs.turn)
    )
    assert secret.is_error or secret.refused
    assert "mine" not in secret.text
    assert peeked.status == 404


async def test_wire_promise_077_baseline_stays_as_it_was(talk: Conversation) -> None:
    before = (await talk.gateway.ask("GET", "/v1/catalogues/promises/tools")).body
    for ending in ("ack", "nack", "abort"):
        each = type(talk)(talk.gateway)
        for tool in ("drops_tool", "facts", "broken"):
            await each.call(tool)
        await talk.gateway.end(each.turn, ending)

    assert (await talk.gateway.ask("GET", "/v1/catalogues/promises/tools")).body == before


async def test_wire_promise_078_forged_tools_go_with_an_ack(talk: Conversation) -> None:
    reply = await talk.call("report", {"lines": 2})
    assert await queries(talk) != set()
    await talk.gateway.end(reply.turn, "ack")

    assert await queries(talk) == set()
    assert "say" in await offered(talk)


@pytest.mark.parametrize("ending", ["nack", "abort"])
async def test_wire_promise_079_only_an_ack_prunes(talk: Conversation, ending: str) -> None:
    reply = await talk.call("facts")
    before = await queries(talk)
    await talk.gateway.end(reply.turn, ending)

    assert await queries(talk) == before != set()


async def test_wire_promise_080_description_is_name_text_and_schema(talk: Conversation) -> None:
    await talk.call("facts")
    anthropic = (await talk.gateway.get(f"/v1/turns/{talk.turn}/tools?format=anthropic"))["tools"]

    assert {frozenset(each) for each in anthropic} == {frozenset({"name", "description", "input_schema"})}
    for tool in (await talk.tools()).values():
        assert (
            {"name", "description", "inputSchema"}
            <= tool.keys()
            <= {
                "name",
                "description",
                "inputSchema",
                "title",
                "annotations",
                "outputSchema",
            }
        )


async def test_wire_promise_081_trusted_changes_the_envelope(talk: Conversation) -> None:
    untrusted, trusted = [await talk.call(tool, {"text": "a"}) for tool in ("say", "trusted_say")]
    handle = await talk.call("trusted_report", {"lines": 1})
    asked = await query(talk, "artifact_head", trusted)

    assert [envelope(each.text)["authority"] for each in (untrusted, trusted, handle, asked)] == [
        "untrusted",
        "trusted",
        "untrusted",
        "untrusted",
    ]
    assert [(await talk.record(each))["trusted"] for each in (untrusted, trusted)] == [False, True]
    if talk.wire != "rest":
        assert [each.blocks[0]["_meta"]["trusted"] for each in (untrusted, trusted)] == [False, True]


async def test_wire_promise_082_no_tool_is_trusted_by_default(talk: Conversation) -> None:
    for tool in ("say", "from_elsewhere"):
        assert envelope((await talk.call(tool, {"text": "a"})).text)["authority"] == "untrusted"


async def test_wire_promise_083_trusted_does_not_reach_media(talk: Conversation) -> None:
    reply = await talk.call("found_picture")
    [media] = (await talk.record(reply))["result"]["media"]

    assert media["trustTier"] == "third-party-public"
    if talk.wire != "rest":
        assert reply.blocks[0]["_meta"] == {
            "tier": "third-party-public",
            "trusted": False,
            "hazard": "opaque-perceptual",
        }


async def test_wire_promise_084_gate_is_in_the_handler(talk: Conversation) -> None:
    turn = await talk.begin()
    effects: list[int] = []

    def approve(event: TurnGateOpen) -> None:
        effects.append(len(promised_tools.done.paid))
        event.gate.resolve("ann")

    async with talk.gateway.following(turn) as heard:
        refused = await talk.call("gated", {"patience": 1})
        unpaid = list(promised_tools.done.paid)
        stop = talk.gateway.running.service.buses.observability.on("turnGateOpen", approve)
        let_through = await talk.call("gated", {"patience": 60_000})
        stop()
        await talk.gateway.end(turn)
        await heard.wait_for_event("turnEnd")
    order = ["toolExecutionStart", "turnGateOpen", "turnGateClosed", "toolExecutionEnd"]

    assert names(heard, *order) == order * 2
    assert [each["result"] for each in find_events(heard, "turnGateClosed")] == ["timeout", "resolved"]
    assert refused.is_error
    assert unpaid == []
    assert effects == [0]
    assert body(let_through.text) == "let through by ann"
    assert promised_tools.done.paid == [1]


async def test_wire_promise_085_nothing_is_asked_without_a_gate(talk: Conversation) -> None:
    turn = await talk.begin()

    async with talk.gateway.following(turn) as heard:
        reply = await talk.call("pay", {"amount": 500})
        await talk.gateway.end(turn)
        await heard.wait_for_event("turnEnd")

    assert not reply.is_error
    assert promised_tools.done.paid == [500]
    assert names(heard, "turnGateOpen") == []


def test_fuzz_has_every_kind_of_value() -> None:
    drawn = list(chain.from_iterable(each.items() for each in generate_arguments(400)))

    for name, pool in POOLS.items():
        seen = [repr(value) for key, value in drawn if key == name]
        assert {repr(value) for value in pool if value is not ABSENT} <= set(seen), name


async def test_turn_of_rest_is_opened_once(gateway: Gateway) -> None:
    talk = RestTalk(gateway)

    assert await talk.begin() == await talk.begin()
