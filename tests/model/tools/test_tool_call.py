"""ToolCall: what a settled record accepts, normalises and refuses, and that it is immutable."""

import copy
import json
import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.artifacts.spool_stores import InMemoryReader
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.errors import InvalidInitialToolCallValue, ValidationException
from gateway.model.media import InMemoryMediaReader, Media
from gateway.model.primitives.canonical_json import call_id
from gateway.model.primitives.deadline import to_microseconds
from gateway.model.tokenizer import Tokenizable
from gateway.model.tools.tool_call import ToolCall, decode_arguments, parse_timestamp

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def a_call(**fields: Any) -> ToolCall:
    return ToolCall(
        **{
            "id": "call_xyz",
            "tool": "echo",
            "args": {"a": 1},
            "is_complete": True,
            "is_error": False,
            "results": Tokenizable("done"),
            "created_at": MOMENT,
            "updated_at": MOMENT,
            "completed_at": MOMENT,
            **fields,
        }
    )


def settled_call() -> ToolCall:
    """A finished call's record, made as the model itself makes it."""
    return ToolCall.from_result(
        id="call_xyz",
        tool="echo",
        args={"a": 1},
        checksum=call_id("echo", {"a": 1}),
        is_error=False,
        results=Tokenizable("done"),
        from_artifact_tool=False,
        inline=True,
        trusted=False,
        created=to_microseconds(MOMENT),
        completed=to_microseconds(MOMENT),
    )


def test_record_of_a_settled_call_is_as_good_as_one_that_was_checked() -> None:
    settled, checked = settled_call(), a_call(trusted=False)

    assert type(settled) is ToolCall
    same = [name for name in ToolCall.FIELDS if name != "results"]
    assert [getattr(settled, name) for name in same] == [getattr(checked, name) for name in same]
    assert str(settled.results) == str(checked.results)


@pytest.mark.parametrize("field", [name for name in ToolCall.FIELDS if name not in ("args", "payload", "results")])
def test_nothing_changes_the_record_of_a_settled_call(field: str) -> None:
    record: Any = settled_call()

    with pytest.raises(AttributeError, match=f"immutable; '{field}' cannot be set"):
        setattr(record, field, None)
    with pytest.raises(AttributeError, match=f"immutable; '{field}' cannot be deleted"):
        delattr(record, field)
    with pytest.raises(AttributeError, match="immutable"):
        record._args = {}
    with pytest.raises(AttributeError, match="immutable"):
        record.other = 1


def problems_of(**fields: Any) -> list[dict[str, Any]]:
    with pytest.raises(InvalidInitialToolCallValue) as caught:
        a_call(**fields)
    assert (caught.value.status, caught.value.fatal) == (500, True)
    assert isinstance(caught.value.cause, ValidationException)
    assert caught.value.cause.message in caught.value.message
    return caught.value.cause.details


def an_artifact(text: str = "x") -> SpooledArtifact:
    return SpooledArtifact(InMemoryReader(text))


def a_media() -> Media:
    return Media.tool_generated("image", mime_type="image/png", filename="a.png", reader=InMemoryMediaReader(b""))


# --- fields ---


def test_record_keeps_what_it_is_given() -> None:
    call = a_call()

    assert (call.id, call.tool, call.args) == ("call_xyz", "echo", {"a": 1})
    assert (call.is_complete, call.is_error) == (True, False)
    assert (call.created_at, call.updated_at, call.completed_at) == (MOMENT, MOMENT, MOMENT)
    assert (call.from_artifact_tool, call.inline, call.trusted) == (False, True, None)
    assert (call.payload, call.replay_compatibility) == (None, None)
    assert repr(call) == "ToolCall('call_xyz', 'echo', is_error=False)"


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("id", ["", None, 5, b"x"]),
        ("tool", ["", None, 5]),
        ("is_complete", [None, 1, "true"]),
        ("is_error", [None, 0, "false"]),
        ("from_artifact_tool", [None, 1]),
        ("inline", [None, 1, "yes"]),
        ("trusted", [1, "yes"]),
        (
            "results",
            [None, "text", b"bytes", [], {}, {"a": 1}, (an_artifact(),), [an_artifact(), a_media()], ["a"], Media],
        ),
        (
            "args",
            ["[1]", "1", '"a"', "null", "", "{", "{'a': 1}", '{"a": NaN}', [1], None, 5, b"{}", {1: 2}, {"a": b"x"}],
        ),
        ("created_at", [None, "yesterday", "", True, float("nan"), float("inf"), 10**30, 10**400, [], {}]),
        ("updated_at", ["2026-13-01"]),
        ("completed_at", [b"2026-01-01"]),
        ("checksum", ["", "abc123", 5]),
        ("replay_compatibility", ["", 5]),
        ("colour", ["red"]),
    ],
)
def test_wrong_field_is_refused(field: str, values: list[Any]) -> None:
    for value in values:
        (found,) = problems_of(**{field: value})
        assert found["path"] == [field]


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(InvalidInitialToolCallValue) as caught:
        ToolCall(colour="red", inline="yes", payload=1)  # type: ignore[arg-type]  # wrong on purpose

    assert isinstance(caught.value.cause, ValidationException)
    assert [entry["path"][0] for entry in caught.value.cause.details] == [
        "id",
        "tool",
        "args",
        "is_complete",
        "is_error",
        "inline",
        "results",
        "replay_compatibility",
        "created_at",
        "updated_at",
        "completed_at",
        "colour",
    ]
    assert {entry["type"] for entry in caught.value.cause.details} == {"required", "invalid", "unknown"}


def test_deep_arguments_and_payloads_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(600):
        deep = [deep]

    assert [entry["path"] for entry in problems_of(args={"a": deep})] == [["args"]]
    assert [entry["path"] for entry in problems_of(payload=deep, replay_compatibility="v1")] == [["payload"]]


@pytest.mark.parametrize(
    ("payload", "compatibility", "accepted"),
    [
        (None, None, True),
        (None, "v1", True),
        ({"a": 1}, "v1", True),
        (0, "v1", True),
        ({"a": 1}, None, False),
        (0, None, False),
    ],
)
def test_payload_needs_its_compatibility(payload: Any, compatibility: str | None, accepted: bool) -> None:
    if accepted:
        call = a_call(payload=payload, replay_compatibility=compatibility)
        assert (call.payload, call.replay_compatibility) == (payload, compatibility)
    else:
        (found,) = problems_of(payload=payload, replay_compatibility=compatibility)
        assert found["path"] == ["replay_compatibility"]


# --- results ---


@pytest.mark.parametrize(
    "results",
    [
        an_artifact(),
        [an_artifact()],
        [an_artifact(), an_artifact()],
        Tokenizable("text"),
        a_media(),
        [a_media(), a_media()],
    ],
    ids=["artifact", "list of one artifact", "artifacts", "text", "media", "list of media"],
)
def test_shapes_of_results(results: Any) -> None:
    call = a_call(results=results)

    if isinstance(results, list):
        assert [id(member) for member in call.results] == [id(member) for member in results]  # type: ignore[union-attr]  # a list
    else:
        assert call.results is results


def test_subclass_of_an_artifact_is_a_result() -> None:
    class Report(SpooledArtifact):
        pass

    assert isinstance(a_call(results=Report(InMemoryReader(""))).results, Report)


# --- arguments ---


def test_arguments_as_text_make_the_same_record() -> None:
    as_object, as_text = a_call(args={"b": [1, 2.5], "a": None}), a_call(args='{"a": null, "b": [1, 2.5]}')

    assert as_object.args == as_text.args
    assert as_object.checksum == as_text.checksum


@pytest.mark.parametrize(
    ("text", "args"),
    [
        (' {"a": 1} \n', {"a": 1}),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ('{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        ('{"a": 1e400}', {"a": float("inf")}),
        ('{"a": -' + "9" * 10_000 + "}", {"a": float("-inf")}),
        ('{"a": ' + "9" * 400 + "}", {"a": int("9" * 400)}),
    ],
    ids=["space", "repeated key", "surrogates", "overflow", "ten thousand digits", "four hundred digits"],
)
def test_text_is_read_as_javascript_reads_it(text: str, args: dict[str, Any]) -> None:
    assert decode_arguments(text) == args


@pytest.mark.parametrize(
    ("args", "defect"),
    [
        ("{", "the argument text is not JSON: "),
        ("", "the argument text is not JSON: "),
        ('{"a": Infinity}', "Infinity is not a JSON value"),
        ("[" * 100_000, "nested too deeply"),
        ("[1]", "the arguments must be a JSON object, not list"),
        (None, "the arguments must be a JSON object, not NoneType"),
    ],
    ids=["broken", "empty", "constant", "deep", "list", "nothing"],
)
def test_defect_of_arguments_is_named(args: Any, defect: str) -> None:
    with pytest.raises(ValueError, match=re.escape(defect)):
        decode_arguments(args)


# --- the checksum ---


def test_checksum_is_of_tool_and_arguments() -> None:
    assert a_call().checksum == call_id("echo", {"a": 1})
    assert a_call(id="another").checksum == a_call().checksum
    assert a_call(tool="other").checksum != a_call().checksum
    assert a_call(args={"a": 2}).checksum != a_call().checksum


def test_right_checksum_is_accepted_and_a_wrong_one_refused() -> None:
    assert a_call(checksum=call_id("echo", {"a": 1})).checksum == call_id("echo", {"a": 1})

    (found,) = problems_of(checksum=call_id("echo", {"a": 2}))

    assert found["message"] == "the checksum does not belong to this tool and these arguments"


@given(
    args=st.dictionaries(st.text(max_size=3), st.integers() | st.booleans() | st.text(max_size=3), max_size=3),
    other=st.dictionaries(st.text(max_size=3), st.integers() | st.booleans(), max_size=3),
)
def test_changed_arguments_never_keep_their_checksum(args: dict[str, Any], other: dict[str, Any]) -> None:
    stored = a_call(args=args).checksum

    if call_id("echo", other) == stored:
        assert a_call(args=other, checksum=stored).checksum == stored
    else:
        assert [entry["path"] for entry in problems_of(args=other, checksum=stored)] == [["checksum"]]


# --- moments ---


class NoOffset(tzinfo):
    def utcoffset(self, moment: datetime | None) -> None: ...

    def dst(self, moment: datetime | None) -> None: ...

    def tzname(self, moment: datetime | None) -> None: ...


@pytest.mark.parametrize(
    ("given_value", "moment"),
    [
        pytest.param(MOMENT, MOMENT, id="aware"),
        pytest.param(MOMENT.replace(tzinfo=None), MOMENT, id="naive"),
        pytest.param(MOMENT.replace(tzinfo=NoOffset()), MOMENT, id="aware of nothing"),
        pytest.param("2026-01-02T03:04:05Z", MOMENT, id="text"),
        pytest.param("2026-01-02T04:04:05+01:00", MOMENT, id="text with an offset"),
        pytest.param("2026-01-02T03:04:05", MOMENT, id="naive text"),
        pytest.param("2026-01-02", datetime(2026, 1, 2, tzinfo=UTC), id="text of a day"),
        pytest.param(date(2026, 1, 2), datetime(2026, 1, 2, tzinfo=UTC), id="day"),
        pytest.param(MOMENT.timestamp(), MOMENT, id="seconds"),
        pytest.param(int(MOMENT.timestamp()), MOMENT, id="whole seconds"),
        pytest.param(MOMENT.timestamp() * 1000, MOMENT, id="milliseconds"),
        pytest.param(0, datetime(1970, 1, 1, tzinfo=UTC), id="zero"),
        pytest.param(-86400, datetime(1969, 12, 31, tzinfo=UTC), id="before zero"),
    ],
)
def test_moments_become_aware(given_value: Any, moment: datetime) -> None:
    normalised = parse_timestamp(given_value)

    assert normalised == moment
    assert normalised.utcoffset() is not None
    assert a_call(created_at=given_value).created_at == moment


def test_offset_of_a_moment_is_kept() -> None:
    moment = MOMENT.astimezone(timezone(timedelta(hours=5)))

    assert a_call(updated_at=moment).updated_at.utcoffset() == timedelta(hours=5)


# --- immutability ---


def test_record_is_read_only() -> None:
    call = a_call()

    for field in ("id", "args", "results", "checksum", "is_error", "inline", "new"):
        with pytest.raises(AttributeError):
            setattr(call, field, "x")


def test_nothing_reaches_into_a_record() -> None:
    args, results, payload = {"list": [1]}, [an_artifact()], {"k": [1]}
    call = a_call(args=args, results=results, payload=payload, replay_compatibility="v1")

    args["list"].append(2)
    results.append(an_artifact())
    payload["k"].append(2)
    call.args["list"].append(3)
    call.results.clear()  # type: ignore[union-attr]  # a list
    call.payload.clear()

    assert (call.args, call.payload) == ({"list": [1]}, {"k": [1]})
    assert call.results == results[:1]
    assert call.checksum == call_id("echo", call.args)


def test_copy_of_a_record_is_the_record() -> None:
    call = a_call()

    assert copy.copy(call) is call
    assert copy.deepcopy([call])[0] is call


def test_replaced_record_is_a_new_one() -> None:
    call = a_call(
        inline=False, trusted=True, from_artifact_tool=True, payload={"a": 1}, replay_compatibility="v1", is_error=True
    )

    changed = call.replace(inline=True, updated_at="2026-05-05")

    assert (call.inline, changed.inline) == (False, True)
    assert changed.updated_at == datetime(2026, 5, 5, tzinfo=UTC)
    for field in (
        "id",
        "tool",
        "args",
        "checksum",
        "results",
        "payload",
        "replay_compatibility",
        "trusted",
        "is_error",
    ):
        assert getattr(changed, field) == getattr(call, field)
    assert call.replace(args={"b": 2}).checksum == call_id("echo", {"b": 2})
    with pytest.raises(InvalidInitialToolCallValue):
        call.replace(checksum="0" * 64)
    with pytest.raises(InvalidInitialToolCallValue):
        call.replace(colour="red")


def test_record_can_be_made_again_from_its_fields() -> None:
    call = a_call(payload={"a": 1}, replay_compatibility="v1", trusted=False)

    again = ToolCall(**{name: getattr(call, name) for name in ToolCall.FIELDS})

    assert all(getattr(again, name) == getattr(call, name) for name in ToolCall.FIELDS)


def test_records_are_distinguished_from_look_alikes() -> None:
    assert ToolCall.is_tool_call(a_call())
    assert not ToolCall.is_tool_call({"id": "x"})


def test_arguments_of_a_record_are_plain_data() -> None:
    class Odd(dict[str, Any]):
        pass

    call = a_call(args=Odd(a=Odd(b=1)))

    assert type(call.args) is dict
    assert json.dumps(call.args) == '{"a": {"b": 1}}'
