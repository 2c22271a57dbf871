"""Canonical JSON: the published vectors, the two implementations against each other, and refused values."""

import copy
import json
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from hashlib import sha256
from math import inf, nan
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.model.primitives.canonical_json import (
    MAX_DEPTH,
    UNDEFINED,
    Trail,
    _orjson_agrees,
    _write,
    call_id,
    canonical,
    canonical_unchecked,
    format_js_number,
    format_js_string,
    to_pretty_json,
)
from tests.support.paths import ROOT

VECTORS = ROOT.parent / "shared" / "spec" / "canonical-vectors.json"


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Text(str):
    __slots__ = ()


class Count(int):
    pass


class Ratio(float):
    def __repr__(self) -> str:
        return f"Ratio({float(self)})"


@dataclass
class Point:
    x: int = 1


def nested(levels: int) -> Any:
    """A scalar inside that many containers, lists and objects in turn."""
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def test_published_vectors_are_met_byte_for_byte() -> None:
    if not VECTORS.exists():
        pytest.skip("the published vectors (../shared/spec/canonical-vectors.json) are not beside this checkout")
    vectors = json.loads(VECTORS.read_text())

    assert len(vectors) >= 59
    for vector in vectors:
        value = json.loads(vector["input"])
        text = canonical(value)
        assert text == vector["canonical"], vector["name"]
        assert sha256(text.encode()).hexdigest() == vector["canonical_sha256"], vector["name"]
        if vector["is_object"]:
            assert canonical({"tool": "echo", "args": value}) == vector["call_canonical"], vector["name"]
            assert call_id("echo", value) == vector["sha256"], vector["name"]


@pytest.mark.parametrize(
    ("source", "text", "echo_id"),
    [
        (
            "{}",
            "{}",
            "28535312633cb507c5892dc9480230e55c182e23fa7f5912a5560bb6644d50b9",
        ),
        (
            '{"query":"hello"}',
            '{"query":"hello"}',
            "4d44bd175d2d282f690eab41bf461d0b2f15294e9fb8cca1a79a21874e65dd7b",
        ),
        (
            '{\n "b" : "2" ,\n\t"a" : "1"\n}',
            '{"a":"1","b":"2"}',
            "405b8106cae13d9fb41020a9628bcfc13c86456e29c87ee3d863603e84c6c679",
        ),
        (
            '{"z":{"b":1,"a":{"d":4,"c":3}},"a":[{"y":1,"x":2},{"w":3}]}',
            '{"a":[{"x":2,"y":1},{"w":3}],"z":{"a":{"c":3,"d":4},"b":1}}',
            "17a8e7170beb172244672564449dd97f71583877d912a55880ad0171b8c5e3f2",
        ),
        (
            '{"10":"ten","9":"nine","1":"one","2":"two"}',
            '{"1":"one","10":"ten","2":"two","9":"nine"}',
            "bcb55a649a5b27274e766834b97e0ad6356add0cbbaf48b864485416b7789000",
        ),
        (
            '{"\ue000":"pua","\U00010000":"linear-b","\uffff":"max-bmp"}',
            '{"\U00010000":"linear-b","\ue000":"pua","\uffff":"max-bmp"}',
            "735f6ffcaf3ae94db059d6c92f57b38b904fc981c02e1bf2488a68791c081e8c",
        ),
        (
            '{"a":1,"b":2,"a":3}',
            '{"a":3,"b":2}',
            "5e32502c5a550ad64053ffec1acb784ef317d731686844c01f787ce03f85eaed",
        ),
        (
            '{"n":1.0}',
            '{"n":1}',
            "059ef72a7200d52574717920f4cef1e04619210b0fdb17b24365c2fdc196e3ef",
        ),
        (
            '{"n":123456789012345678901234567890}',
            '{"n":1.2345678901234568e+29}',
            "3a4731d0c63d380642e362bb92c3736e4b854c919b3915e3806aa84dc2703557",
        ),
        (
            '{"n":1e400,"m":-1e400}',
            '{"m":null,"n":null}',
            "8fc477cc6939d7f744697d30ac97d37eec5de6c1a6075fe962f31b4049616fd0",
        ),
        (
            '{"a":0.1,"b":0.30000000000000004,"c":2.5,"d":1234.5678,"e":-1.5e-9,"f":3.14e2}',
            '{"a":0.1,"b":0.30000000000000004,"c":2.5,"d":1234.5678,"e":-1.5e-9,"f":314}',
            "c6575a289490503ce4022d90e43881f93dd9e6ab3becb82660d40ef9222a1b85",
        ),
        (
            '{"s":"\\u0000\\u0001\\u000b\\u001f\\u007f\\u0080"}',
            '{"s":"\\u0000\\u0001\\u000b\\u001f\x7f\x80"}',
            "6f0326af2cfd3bf182fdb2a71da80ad89a72e9b51923654b0c4ad71d9c450c57",
        ),
        (
            '{"s":"\\ude00\\ud83d"}',
            '{"s":"\\ude00\\ud83d"}',
            "c4f6bb94f45d1269dacebb964b613c1d1ec83c2e64dd9bf96f7c2e83ab96f520",
        ),
    ],
    ids=[
        "empty",
        "simple",
        "white space",
        "recursive sort",
        "numeric like keys",
        "utf16 key order pua",
        "duplicate keys last wins",
        "float one",
        "huge integer",
        "overflow to null",
        "shortest roundtrip",
        "string control escapes",
        "reversed surrogates",
    ],
)
def test_canonical_text_and_call_id(source: str, text: str, echo_id: str) -> None:
    value = json.loads(source)

    assert canonical(value) == text
    assert call_id("echo", value) == echo_id


def test_call_id_hashes_exactly_tool_and_args() -> None:
    expected = '{"args":{"n":1},"tool":"caf\\u0000é"}'.encode()

    assert call_id("caf\0é", {"n": 1.0}) == sha256(expected).hexdigest()


def test_call_id_of_a_huge_name_is_that_of_its_text() -> None:
    name = "x" * 100_000

    assert call_id(name, {}) == sha256(canonical({"tool": name, "args": {}}).encode()).hexdigest()


@pytest.mark.parametrize("name", [None, 5, b"echo", ["echo"]], ids=repr)
def test_call_id_wants_a_name(name: Any) -> None:
    with pytest.raises(TypeError, match="the name of a tool must be a string"):
        call_id(name, {})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"n": 1}, {"n": 1.0}),
        ({"n": 0}, {"n": -0.0}),
        ({"n": None}, {"n": nan}),
        ({"n": inf}, {"n": -inf}),
        ({"n": None}, {"n": 10**400}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, {"a": 1, "b": UNDEFINED}),
        ([None], [UNDEFINED]),
        ({"\ud83d\ude00": "\ud83d\ude00"}, {"😀": "😀"}),
    ],
    ids=["1.0", "-0", "nan", "infinities", "overflow", "key order", "dropped", "null in an array", "joined pair"],
)
def test_known_equal_calls_share_an_id(one: Any, other: Any) -> None:
    assert call_id("echo", one) == call_id("echo", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"n": 1}, {"n": "1"}),
        ({"n": 1}, {"n": True}),
        ({"n": 0}, {"n": False}),
        ({"n": None}, {}),
        ([1, 2], [2, 1]),
        ({"é": 1}, {"e\u0301": 1}),
        ({"a": [None]}, {"a": []}),
    ],
    ids=["text", "true", "false", "null", "array order", "normal forms", "empty array"],
)
def test_different_calls_have_different_ids(one: Any, other: Any) -> None:
    assert call_id("echo", one) != call_id("echo", other)


def test_key_order_never_matters() -> None:
    shuffle = Random(5).shuffle
    members = [(key, index) for index, key in enumerate(["", "a", "Z", "é", "\ue000", "😀", "\ud800", "10", "9"])]
    ids = set()

    for _ in range(100):
        shuffle(members)
        ids.add(call_id("echo", {"deep": [dict(members)]}))

    assert len(ids) == 1


JSON_TEXT = (
    st.text() | st.text(st.characters(max_codepoint=127)) | st.text(st.characters(categories=("Cs", "Cc", "So")))
)
JSON_NUMBERS = (
    st.integers()
    | st.integers(-(2**60), 2**60)
    | st.floats()
    | st.floats(-1e-4, 1e-4)
    | st.floats(1e14, 1e22)
    | st.sampled_from([2**53 - 1, 2**53, -(2**53), 1e15, 1e15 - 0.125, 1e-5, 1e21, 1e-6, 1e-7, 5e-324])
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | JSON_NUMBERS | JSON_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(JSON_TEXT, inner),
)


def has_colliding_keys(value: Any) -> bool:
    """Whether an object holds the same key twice, once as a character and once as two halves."""
    if isinstance(value, dict):
        joined = {key.encode("utf-16", "surrogatepass") for key in value}
        return len(joined) < len(value) or any(map(has_colliding_keys, value.values()))
    return isinstance(value, list) and any(map(has_colliding_keys, value))


@settings(deadline=None)  # a busy machine is not a failure
@given(JSON_VALUES.filter(lambda value: not has_colliding_keys(value)))
@example({"a": 1e-5, "b": 1.5e-5, "c": 123456789012345.6, "d": 1e15 + 0.5})
@example(["\x7f\x80\u2028\ufeff", '\x00\x1f\b\t\n\f\r"\\/'])
def test_both_paths_print_the_same(value: Any) -> None:
    assert canonical(value) == _write(value, Trail())


@settings(deadline=None)  # a busy machine is not a failure
@given(
    st.recursive(
        st.none() | JSON_NUMBERS | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_canonical_text_is_a_fixed_point(value: Any) -> None:
    text = canonical(value)

    assert canonical(json.loads(text)) == text


@settings(deadline=None)  # a busy machine is not a failure
@given(JSON_NUMBERS.filter(lambda number: abs(number) < 1.7e308))
def test_printed_number_is_the_same_double(number: float) -> None:
    assert float(format_js_number(number)) == float(number)


@pytest.mark.parametrize(
    ("value", "agrees"),
    [
        ({"a": [1, "x", None, True, 1.5]}, True),
        (2**53 - 1, True),
        (2**53, False),
        (1.0, False),
        (1e-5, False),
        ({"é": 1}, False),
        ([UNDEFINED], False),
        ((1,), False),
        (b"x", False),
        ([Count(1)], False),
        ({Text("a"): 1}, False),
        ({1: 1}, False),
        ([OrderedDict()], False),
        (nested(MAX_DEPTH + 2), False),
    ],
    ids=range(14),
)
def test_fast_path_is_taken_only_where_it_is_right(value: Any, agrees: bool) -> None:
    assert _orjson_agrees(value, 0) is agrees


@pytest.mark.parametrize(
    "value",
    [
        b"bytes",
        bytearray(b"x"),
        (1, 2),
        {1, 2},
        uuid4(),
        Colour.RED,
        Level.LOW,
        datetime(2026, 1, 2, tzinfo=UTC),
        Decimal("1.5"),
        Point(),
        Text("text"),
        Count(1),
        Ratio(1.5),
        OrderedDict(a=1),
        1j,
        object(),
        range(3),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("inside", [lambda value: value, lambda value: [value], lambda value: {"a": [{"b": value}]}])
def test_value_outside_the_grammar_is_refused(value: Any, inside: Any) -> None:
    with pytest.raises(TypeError, match="outside the JSON grammar"):
        canonical(inside(value))
    with pytest.raises(TypeError, match="outside the JSON grammar"):
        call_id("echo", inside(value))


def test_undefined_is_dropped_in_objects_and_null_in_arrays() -> None:
    assert canonical({"a": UNDEFINED, "b": [UNDEFINED, 1]}) == '{"b":[null,1]}'

    with pytest.raises(TypeError, match="outside the JSON grammar"):
        canonical(UNDEFINED)


@pytest.mark.parametrize("key", [1, None, True, 1.5, b"a", (1,), Text("a"), Colour.RED], ids=repr)
def test_key_that_is_not_a_string_is_refused(key: Any) -> None:
    with pytest.raises(TypeError, match="an object key must be a string"):
        canonical({"a": {key: 1}})
    with pytest.raises(TypeError, match="an object key must be a string"):
        to_pretty_json({"a": {key: 1}})


def test_two_spellings_of_one_key_are_refused() -> None:
    with pytest.raises(ValueError, match="the same text"):
        canonical({"\ud83d\ude00": 1, "😀": 2})


def looped_list() -> Any:
    loop: list[Any] = []
    loop.append({"a": loop})
    return loop


def looped_dict() -> Any:
    loop: dict[str, Any] = {}
    loop["a"] = {"b": [loop]}
    return loop


def wide_loop() -> Any:
    loop: list[Any] = []
    loop.extend([loop] * 50)
    return loop


@pytest.mark.parametrize("make", [looped_list, looped_dict, wide_loop], ids=["list", "dict", "wide"])
def test_cycle_is_refused(make: Any) -> None:
    for write in (canonical, to_pretty_json):
        with pytest.raises(TypeError, match="JSON has no cycles"):
            write(make())


def test_value_used_twice_is_no_cycle() -> None:
    shared = {"x": [1.0]}

    assert canonical([shared, shared]) == '[{"x":[1]},{"x":[1]}]'
    assert to_pretty_json([shared["x"], shared["x"]], 0) == "[\n[\n1\n],\n[\n1\n]\n]"


@pytest.mark.parametrize("write", [canonical, to_pretty_json])
def test_nesting_is_bounded(write: Any) -> None:
    assert write(nested(MAX_DEPTH))

    with pytest.raises(ValueError, match="nested deeper than 512 levels"):
        write(nested(MAX_DEPTH + 1))
    with pytest.raises(ValueError, match="nested deeper than 512 levels"):
        write(nested(200_000))


def test_nesting_past_the_fast_encoder_prints_alike() -> None:
    assert canonical(nested(300)) == json.dumps(nested(300), separators=(",", ":"))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (-1.5, "-1.5"),
        (2**53, "9007199254740992"),
        (2**53 + 1, "9007199254740992"),
        (-(2**53) - 1, "-9007199254740992"),
        (10**20, "100000000000000000000"),
        (10**21, "1e+21"),
        (123456789012345678901234567890, "1.2345678901234568e+29"),
        (0.000001, "0.000001"),
        (0.0000015, "0.0000015"),
        (0.0000001, "1e-7"),
        (1.5e-7, "1.5e-7"),
        (1.5e300, "1.5e+300"),
        (5e-324, "5e-324"),
        (123456.789e3, "123456789"),
        (nan, "null"),
        (inf, "null"),
        (-inf, "null"),
        (10**400, "null"),
        (-(10**5000), "null"),
        (Count(7), "7"),
        (Level.LOW, "1"),
        (Ratio(0.5), "0.5"),
    ],
    ids=lambda value: None if isinstance(value, str) else f"{value}"[:20] if value != -(10**5000) else "-1e5000",
)
def test_number_prints_as_in_javascript(number: float, text: str) -> None:
    assert format_js_number(number) == text


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("", '""'),
        ('a"b\\c/', '"a\\"b\\\\c/"'),
        ("\b\t\n\f\r\0\x1f\x7f", '"\\b\\t\\n\\f\\r\\u0000\\u001f\x7f"'),
        ("é\u2028\u2029\ufeff<&>", '"é\u2028\u2029\ufeff<&>"'),
        ("\ud800", '"\\ud800"'),
        ("a\udfffb", '"a\\udfffb"'),
        ("\ude00\ud83d", '"\\ude00\\ud83d"'),
        ("\ud83d\ude00", '"😀"'),
        ("\ud83d\ud83d\ude00", '"\\ud83d😀"'),
    ],
    ids=["empty", "quotes", "controls", "raw", "high", "low", "reversed", "pair", "high and pair"],
)
def test_string_literal_is_javascripts(text: str, literal: str) -> None:
    assert format_js_string(text) == literal
    assert canonical(text) == literal


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "{}"),
        ([], "[]"),
        ((), "[]"),
        ({"b": 1, "a": [1.0, {}]}, '{\n  "b": 1,\n  "a": [\n    1,\n    {}\n  ]\n}'),
        (("x", None), '[\n  "x",\n  null\n]'),
        ({"é": "中😀"}, '{\n  "é": "中😀"\n}'),
        ({"a": UNDEFINED}, "{}"),
        ([UNDEFINED, 1], "[\n  null,\n  1\n]"),
        (OrderedDict(a=True), '{\n  "a": true\n}'),
        ("text", '"text"'),
        (1e21, "1e+21"),
        (False, "false"),
    ],
    ids=range(12),
)
def test_pretty_prints_for_readers(value: Any, text: str) -> None:
    assert to_pretty_json(value) == text


def test_pretty_indents_as_requested() -> None:
    assert to_pretty_json([{"a": 1}], 4) == '[\n    {\n        "a": 1\n    }\n]'


def test_pretty_refuses_what_json_has_not() -> None:
    with pytest.raises(TypeError, match="bytes is outside the JSON grammar"):
        to_pretty_json({"a": b"x"})


def test_undefined_is_one_object_wherever_it_goes() -> None:
    assert repr(UNDEFINED) == "UNDEFINED"
    assert copy.copy(UNDEFINED) is UNDEFINED
    assert copy.deepcopy([UNDEFINED])[0] is UNDEFINED
    assert pickle.loads(pickle.dumps({"a": UNDEFINED}))["a"] is UNDEFINED


@pytest.mark.parametrize("text", ["plain", "Grüße", "half \ud800 of a pair", ""])
def test_value_of_our_own_making_is_written_alike(text: str) -> None:
    value = [{"kind": "text", "text": text, "byteLength": 12}]

    assert canonical_unchecked(value) == canonical(value)
