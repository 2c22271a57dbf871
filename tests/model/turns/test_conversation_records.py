"""Record sets preserve order, find by id, and count checksums; in-memory callbacks store their input."""

from datetime import UTC
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engine.turn_pipeline.dispatch_loop import in_memory_callbacks
from gateway.model.media import InMemoryMediaReader, Media
from gateway.model.primitives.canonical_json import call_id
from gateway.model.primitives.json_fingerprint import fingerprint_of
from gateway.model.tokenizer import Tokenizable
from gateway.model.tools.tool_call import ToolCall
from gateway.model.turns.conversation_records import (
    CALLBACKS,
    RECORD_KINDS,
    Memory,
    Message,
    RecordKind,
    RecordSet,
    Retrievable,
    Thought,
    ToolCallSet,
    TurnRecordSets,
    call_callback,
    record_kind_plural,
)
from gateway.model.turns.events import now


def note(id: str, text: str = "") -> Memory:
    return Memory(id, text)


def settled(id: str, n: int = 0) -> ToolCall:
    moment = now()
    return ToolCall(
        id=id,
        tool="echo",
        args={"n": n},
        is_complete=True,
        is_error=False,
        results=Tokenizable("said"),
        created_at=moment,
        updated_at=moment,
        completed_at=moment,
    )


def test_records_are_immutable_values_with_aware_moments() -> None:
    picture = Media.user_attachment("image", mime_type="image/png", filename="a.png", reader=InMemoryMediaReader(b""))
    records: list[Any] = [
        Message("m", "user", "hello", attachments=(picture,)),
        Thought("t", "hm"),
        Memory("y", "likes tea"),
        Retrievable("r", "text", "first-party"),
    ]

    for record in records:
        assert record.created_at.tzinfo is UTC
        with pytest.raises(AttributeError):
            record.id = "another"
    assert records[0].attachments == (picture,)
    assert records[3].inline


def test_set_keeps_the_order_of_adding() -> None:
    records = RecordSet([note("b"), note("a")])
    records.add(note("c"))

    assert [record.id for record in records] == ["b", "a", "c"]
    assert len(records) == 3


def test_set_finds_the_first_record_with_an_id() -> None:
    first, second = note("a", "first"), note("a", "second")
    records = RecordSet([first, second])

    assert records.find("a") is first
    assert records.find("unseen") is None


def test_replacing_keeps_the_position_of_the_first_and_drops_the_others() -> None:
    records = RecordSet([note("a"), note("x", "1"), note("b"), note("x", "2")])

    records.replace(note("x", "new"))

    assert [(record.id, record.content) for record in records] == [("a", ""), ("x", "new"), ("b", "")]
    found = records.find("x")
    assert found.content == "new"


def test_replacing_a_record_by_itself_drops_its_duplicates() -> None:
    record = note("x")
    records = RecordSet([record, note("a"), record])

    records.replace(record)

    assert [each.id for each in records] == ["x", "a"]


def test_replacing_an_unknown_id_adds_the_record() -> None:
    records = RecordSet([note("a")])

    records.replace(note("b"))

    assert [record.id for record in records] == ["a", "b"]
    assert records.find("b") is not None


def test_replacing_does_not_ask_records_whether_they_are_equal() -> None:
    class Unequal:
        def __init__(self, id: str) -> None:
            self.id = id

        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        __hash__ = object.__hash__

    records = RecordSet([Unequal("a"), Unequal("b")])

    records.replace(Unequal("b"))

    assert len(records) == 2


def test_removing_drops_every_record_with_that_id() -> None:
    records = RecordSet([note("x", "1"), note("a"), note("x", "2")])

    dropped = records.remove("x")

    assert [record.content for record in dropped] == ["1", "2"]
    assert [record.id for record in records] == ["a"]
    assert records.find("x") is None
    assert records.remove("x") == []


def test_set_can_be_changed_while_it_is_walked() -> None:
    records = RecordSet([note("a"), note("b")])

    for record in records:
        records.remove(record.id)

    assert len(records) == 0


def test_copy_changes_on_its_own() -> None:
    records = TurnRecordSets()
    records["message"].add(Message("m", "user", "hello"))
    records["tool_call"].add(settled("c"))

    copied = records.copy()
    for kind in RECORD_KINDS:
        assert list(copied[kind]) == list(records[kind])
        assert type(copied[kind]) is type(records[kind])
        copied[kind].add(settled("new"))

    assert [len(records[kind]) for kind in RECORD_KINDS] == [1, 0, 0, 0, 1]


def test_tool_calls_are_counted_by_checksum() -> None:
    calls = ToolCallSet([settled("a", 1), settled("b", 1), settled("c", 2)])

    assert calls.count(settled("any", 1).checksum) == 2
    assert calls.count(settled("any", 2).checksum) == 1
    assert calls.count("unseen") == 0


operations = st.lists(
    st.tuples(st.sampled_from(["add", "replace", "remove"]), st.sampled_from("abc"), st.integers(0, 2)), max_size=30
)


@given(operations)
def test_counts_always_agree_with_the_records(changes: list[tuple[str, str, int]]) -> None:
    calls = ToolCallSet()
    for operation, id, n in changes:
        if operation == "remove":
            calls.remove(id)
        else:
            getattr(calls, operation)(settled(id, n))
        if operation == "replace":
            assert [call.id for call in calls].count(id) == 1

    for n in range(3):
        checksum = settled("any", n).checksum
        assert calls.count(checksum) == sum(1 for record in calls if record.checksum == checksum)
    for id in "abc":
        assert calls.find(id) is next((record for record in calls if record.id == id), None)


def test_every_kind_of_record_has_its_callbacks() -> None:
    assert set(CALLBACKS) == {
        "store_message", "mutate_message", "delete_message", "fetch_messages",
        "store_memory", "mutate_memory", "delete_memory", "fetch_memories",
        "store_retrievable", "mutate_retrievable", "delete_retrievable", "fetch_retrievables",
        "store_thought", "mutate_thought", "delete_thought", "fetch_thoughts",
        "store_tool_call", "mutate_tool_call", "delete_tool_call", "fetch_tool_calls",
        "fetch_tools", "store_media_bytes", "store_retrievable_bytes",
    }  # fmt: skip  # one kind per line
    assert set(in_memory_callbacks()) == set(CALLBACKS)


@pytest.mark.parametrize("kind", RECORD_KINDS)
def test_callbacks_in_memory_keep_what_they_are_given(kind: RecordKind) -> None:
    callbacks = in_memory_callbacks()
    first, second, changed = settled("a", 1), settled("b", 2), settled("a", 3)

    callbacks[f"store_{kind}"](None, first)
    callbacks[f"store_{kind}"](None, second)
    callbacks[f"mutate_{kind}"](None, changed)
    assert callbacks[f"fetch_{record_kind_plural(kind)}"](None) == [changed, second]

    callbacks[f"delete_{kind}"](None, "a")
    assert callbacks[f"fetch_{record_kind_plural(kind)}"](None) == [second]


def test_callbacks_in_memory_read_bytes_back_and_know_no_tools() -> None:
    callbacks = in_memory_callbacks()

    assert callbacks["store_media_bytes"](None, "a", b"\x00\x01").byte_length() == 2
    assert callbacks["store_retrievable_bytes"](None, "a", b"one\ntwo").line_count() == 2
    assert callbacks["fetch_tools"](None) == []


def test_two_sets_of_callbacks_share_nothing() -> None:
    one, other = in_memory_callbacks(), in_memory_callbacks()

    one["store_message"](None, note("a"))

    assert other["fetch_messages"](None) == []


@pytest.mark.anyio
async def test_callbacks_may_be_sync_or_async() -> None:
    async def later(n: int) -> int:
        return n + 1

    assert await call_callback(lambda n: n + 1, 1) == 2
    assert await call_callback(later, 1) == 2


def test_calls_are_counted_exactly() -> None:
    first, second = 2**53, 2**53 + 1
    calls = ToolCallSet([settled("a", first), settled("b", second), settled("c", second)])

    assert calls.count(call_id("echo", {"n": first})) == 3
    assert calls.count_exactly(fingerprint_of("echo", {"n": first})) == 1
    assert calls.count_exactly(fingerprint_of("echo", {"n": second})) == 2
