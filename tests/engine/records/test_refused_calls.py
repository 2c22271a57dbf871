"""Refused calls are stored once each, as excerpts, and only counted above a limit."""

import asyncio
import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.engine.call import Call
from gateway.engine.records.call_mapper import from_stored_call
from gateway.engine.records.recorder import LONGEST, excerpt_of
from gateway.errors import StoreUnavailable
from gateway.model.primitives.json_fingerprint import call_identity, exact_json
from gateway.registries.snapshot import ArtifactClass
from gateway.storage.call_store import CallFilter
from gateway.storage.refusal_store import Refusal
from tests.engine.records.test_auditor import audited, gate
from tests.engine.service_gateway import ANA, HERE, Plan, declared, running

pytestmark = pytest.mark.anyio

OPEN = ("text", "count", "flag", "nothing", "many", "inner", "deep", "named", "password", "callback", "code")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        **{name: {} for name in OPEN},
        "hidden": {"type": "string", "writeOnly": True},
        "typed": {"anyOf": [{"type": "string", "format": "password"}, {"type": "null"}]},
        "elsewhere": {"$ref": "#/$defs/somewhere"},
        "tuple": {"enum": ["a", "b"]},
    },
}


def call(args: dict[str, Any], *, schema: Any = SCHEMA) -> Call:
    try:
        checksum, text, exact = call_identity("pay", args)
    except ValueError:
        checksum, text, exact = "", "", None
    tool = replace(declared("pay"), input_schema=schema)
    return Call("c", "pay", args, ANA, "desk", "r", checksum=checksum, args_text=text, declared=tool, exact=exact)


def kind(**fields: Any) -> ArtifactClass:
    return ArtifactClass("kind", SpooledArtifact, HERE, **fields)


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ({"text": "hello"}, 'text="hello"'),
        ({"text": "a" * 5000}, f'text="{"a" * 38}…'),
        ({"text": "\u202e\n"}, 'text="\\u202e\\n"'),
        ({"count": 3, "flag": True, "nothing": None}, "count=3 flag=true nothing=null"),
        ({"count": 1.5}, "count=1.5"),
        ({"count": 10**60}, "count=…"),
        ({"many": [1, 2], "inner": {"a": "secret"}}, "many=[2] inner={1}"),
        ({"tuple": "a"}, 'tuple="a"'),
        ({"hidden": "s", "typed": "s", "elsewhere": "s"}, "hidden=[redacted] typed=[redacted] elsewhere=[redacted]"),
        ({"password": "s", "undeclared": "s"}, "password=[redacted] undeclared=[redacted]"),
        ({}, ""),
    ],
)
def test_excerpt_shows_what_is_declared_and_no_secret(args: dict[str, Any], shown: str) -> None:
    found = excerpt_of(call(args), None)

    text = exact_json(args).encode()
    assert (found.text, found.bytes, found.sha256) == (shown, len(text), sha256(text).hexdigest())


def test_excerpt_of_many_arguments_is_cut() -> None:
    found = excerpt_of(call({f"name-{number}": number for number in range(10_000)}), None)

    assert len(found.text) == LONGEST
    assert found.text.startswith("name-0=[redacted] name-1=[redacted]")


@pytest.mark.parametrize("schema", [None, {"type": "object"}, {"properties": True}])
def test_nothing_is_shown_where_nothing_is_declared(schema: Any) -> None:
    assert excerpt_of(call({"text": "s"}, schema=schema), None).text == "text=[redacted]"
    assert excerpt_of(replace(call({"text": "s"}), declared=None), None).text == "text=[redacted]"


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("$.text", 'text=[redacted] named="n"'),
        ("$.text.inner[0]", 'text=[redacted] named="n"'),
        ("$['text']", 'text=[redacted] named="n"'),
        ('$["text"][*]', 'text=[redacted] named="n"'),
        ("$..text", "text=[redacted] named=[redacted]"),
        ("$[*]", "text=[redacted] named=[redacted]"),
        ("$", "text=[redacted] named=[redacted]"),
    ],
)
def test_what_the_artifact_class_masks_is_masked(path: str, shown: str) -> None:
    assert excerpt_of(call({"text": "t", "named": "n"}), kind(redact=(path,))).text == shown


def test_what_must_not_be_traced_is_not_shown() -> None:
    args = call({"text": "t", "named": "n"})

    assert excerpt_of(args, kind(capture_arguments="keys")).text == "text=[redacted] named=[redacted]"
    assert excerpt_of(args, kind(capture_arguments="none")).text == ""
    assert excerpt_of(args, kind()).text == 'text="t" named="n"'


def test_arguments_that_cannot_be_hashed_have_no_size() -> None:
    found = excerpt_of(call({"text": "\ud800"}), None)

    assert found.bytes in (0, len(exact_json({"text": "\ud800"}).encode("utf-8", "surrogatepass")))
    assert found.text == 'text="\\ud800"'


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(OPEN) | st.text(), _JSON))
def test_excerpt_of_anything_is_short_and_plain(args: dict[str, Any]) -> None:
    found = excerpt_of(call({**args, "password": "canary-4711"}), None)

    assert len(found.text) <= LONGEST
    assert found.text.replace("…", "").isascii()
    assert "canary-4711" not in found.text


# Served


async def test_refusals_above_the_number_leave_no_record(tmp_path: Path) -> None:
    async with running(tmp_path, Plan(gates=gate("deny")).tool("pay", "paid"), most_refusals=2) as gateway:
        service = gateway.service
        settled = [await service.call_tool(ANA, "desk", "pay", {"note": "n"}) for _ in range(5)]
        found, _ = await service.list_calls(CallFilter())
        counts = await gateway.store.refusals_by_reason()

    assert all(each.record.is_error for each in settled)
    assert [each.excerpt is not None for each in found] == [True] * len(found)
    assert sum(counts["rule-denied"]) == 5
    assert counts["rule-denied"][0] == len(found) >= 2


async def test_turn_goes_on_after_refusals_that_were_counted(tmp_path: Path) -> None:
    async with running(
        tmp_path, Plan(gates=gate("deny")).tool("pay", "p").tool("see", "s"), most_refusals=0
    ) as gateway:
        service = gateway.service
        turn = await service.turns.open(ANA, "desk")
        await service.call_in_turn(turn, "pay", {})
        seen = await service.call_in_turn(turn, "see", {})
        found = await gateway.store.list_turn_calls(turn.id)
        stored = await gateway.store.read_turn_state(turn.id)

    assert not seen.record.is_error
    assert [each.tool for each in found] == ["see"]
    assert json.loads(stored or b"{}")["calls"] >= 1


async def test_shared_turn_is_stored_with_the_first_call_that_is_kept(tmp_path: Path) -> None:
    async with running(
        tmp_path, Plan(gates=gate("deny")).tool("pay", "p").tool("see", "s"), most_refusals=0
    ) as gateway:
        service = gateway.service
        turn = await service.turns.open(ANA, "desk", is_kept=False, is_shared=True)
        await service.call_in_turn(turn, "pay", {})
        before = turn.is_stored
        await service.call_in_turn(turn, "see", {})

        assert (before, turn.is_stored) == (False, True)
        assert [each.tool for each in await gateway.store.list_turn_calls(turn.id)] == ["see"]


@pytest.mark.parametrize("most", [0, 5])
async def test_key_of_a_refused_call_is_free_again(most: int, tmp_path: Path) -> None:
    plan = Plan(gates=gate("deny")).tool("pay", "paid")
    async with running(tmp_path, plan, most_refusals=most) as gateway:
        service = gateway.service
        for _ in range(2):
            settled = await service.call_tool(ANA, "desk", "pay", {"note": "n"}, key="k")
            assert settled.record.is_error
            assert not settled.is_replay
        found, _ = await service.list_calls(CallFilter())

    assert len(found) == min(most, 2)
    assert [each.status for each in found] == ["settled"] * len(found)


async def test_large_query_that_fails_leaves_an_excerpt(tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("pay", "paid")) as gateway:
        service = gateway.service
        turn = await service.turns.open(ANA, "desk")
        await service.call_in_turn(turn, "pay", {})
        [query, *_] = [tool.name for tool in turn.query_tools()]
        await service.call_in_turn(turn, query, {"callId": "unknown"})
        await service.call_in_turn(turn, query, {"callId": "x" * 5000})
        found = await gateway.store.list_turn_calls(turn.id)
        again = await service.turns._from_store(ANA, turn.id)

    assert [(each.is_error, each.excerpt is None) for each in found] == [(False, True), (True, True), (True, False)]
    assert again is not None


async def test_refusal_is_counted_once_if_its_caller_goes_away(tmp_path: Path) -> None:
    plan = Plan(gates=gate("deny")).tool("pay", "paid")
    async with audited(tmp_path, plan) as found:
        store, reached = found.gateway.store, asyncio.Event()
        refuse, writing = store.refuse, []

        async def slowly(refusal: Refusal) -> bool:
            writing.append(asyncio.create_task(refuse(refusal)))
            reached.set()
            await asyncio.Event().wait()
            return True

        store.refuse = slowly  # type: ignore[method-assign] # a slow disk
        waiting = asyncio.create_task(found.call())
        await reached.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.gather(*writing)
        counts = await store.refusals_by_reason()

    assert counts == {"rule-denied": (1, 0)}


async def test_refusal_that_could_not_be_written_is_tried_again(tmp_path: Path) -> None:
    async with audited(tmp_path, Plan(gates=gate("deny")).tool("pay", "paid")) as found:
        store, attempts = found.gateway.store, 0
        refuse = store.refuse

        async def unwilling(refusal: Refusal) -> bool:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                raise StoreUnavailable("the disk is full")
            return await refuse(refusal)

        store.refuse = unwilling  # type: ignore[method-assign] # fails once
        settled = await found.call()
        counts = await store.refusals_by_reason()

    assert settled.record.is_error
    assert sum(map(sum, counts.values())) == 1


async def test_record_of_a_refused_call_is_restored_with_its_checksum(tmp_path: Path) -> None:
    async with running(tmp_path, Plan(gates=gate("deny")).tool("pay", "paid")) as gateway:
        service = gateway.service
        settled = await service.call_tool(ANA, "desk", "pay", {"note": "n"})
        stored, record = await service.find_call(ANA, settled.record.id)
        types = service.published.types
        without_end = await from_stored_call(replace(stored, completed=None), types, service._spool)

    assert (record.args, record.checksum) == ({}, settled.record.checksum)
    assert without_end.completed == stored.created
