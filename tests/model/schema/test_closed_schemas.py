"""Closed schemas refuse unknown keys at every depth and in every composition, and never known ones."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.schema.schema import Schema
from gateway.model.schema.subschemas import Subschemas

INTEGER = {"type": "integer"}


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


X, Y = an_object(x=INTEGER), an_object(y=INTEGER)
PART_X, PART_Y = {"properties": {"x": INTEGER}}, {"properties": {"y": INTEGER}}


@pytest.mark.parametrize(
    ("document", "accepted", "refused"),
    [
        pytest.param(X, [{}, {"x": 1}], [{"z": 1}, {"x": 1, "z": 1}], id="plain"),
        pytest.param({"type": "object"}, [{}], [{"z": 1}], id="nothing listed"),
        pytest.param(an_object(a=X), [{"a": {"x": 1}}], [{"a": {"z": 1}}], id="property"),
        pytest.param(an_object(a={"items": X}), [{"a": [{"x": 1}]}], [{"a": [{"x": 1}, {"z": 1}]}], id="items"),
        pytest.param(an_object(a={"prefixItems": [X, True]}), [{"a": [{"x": 1}]}], [{"a": [{"z": 1}]}], id="prefix"),
        pytest.param(
            an_object(a={"additionalProperties": X}), [{"a": {"k": {"x": 1}}}], [{"a": {"k": {"z": 1}}}], id="map"
        ),
        pytest.param(
            an_object(a={"patternProperties": {"^k": X}}),
            [{"a": {"k1": {"x": 1}}}],
            [{"a": {"k1": {"z": 1}}}, {"a": {"z": 1}}],
            id="keys by pattern",
        ),
        pytest.param(an_object(a={"type": "object"}), [{"a": {"z": 1}}], [], id="free-form below the top"),
        pytest.param(
            an_object(a={"anyOf": [X, {"type": "null"}]}),
            [{"a": None}, {"a": {"x": 1}}],
            [{"a": {"z": 1}}],
            id="optional",
        ),
        pytest.param(
            an_object(a={"anyOf": [X, Y]}), [{"a": {"x": 1}}, {"a": {"y": 1}}], [{"a": {"x": 1, "y": 1}}], id="anyOf"
        ),
        pytest.param(an_object(a={"oneOf": [X, Y]}), [{"a": {"x": 1}}, {"a": {"y": 1}}], [{"a": {"z": 1}}], id="oneOf"),
        pytest.param(an_object(a={"allOf": [X, Y]}), [{"a": {"x": 1, "y": 1}}], [{"a": {"x": 1, "z": 1}}], id="allOf"),
        pytest.param(an_object(a={"allOf": [X]}), [{"a": {"x": 1}}], [{"a": {"z": 1}}], id="allOf of one"),
        pytest.param({**X, "allOf": [PART_Y]}, [{"x": 1, "y": 1}], [{"z": 1}], id="own and allOf"),
        pytest.param(
            {"type": "object", "allOf": [PART_X], "anyOf": [PART_Y, {"required": ["x"]}]},
            [{"x": 1, "y": 1}, {"x": 1}],
            [{"x": 1, "z": 1}],
            id="allOf and anyOf",
        ),
        pytest.param(
            {"type": "object", "anyOf": [PART_X, PART_Y]},
            [{"x": 1}, {"y": 1}],
            [{"z": 1}, {"x": "a"}],
            id="anyOf on top",
        ),
        pytest.param(
            {"type": "object", "anyOf": [PART_X, {"minProperties": 1}]},
            [{"x": 1}],
            [{"z": 1}],
            id="alternative that lists nothing",
        ),
        pytest.param(
            {**an_object(x=INTEGER, y=INTEGER), "anyOf": [{"required": ["x"]}, {"required": ["y"]}]},
            [{"x": 1}, {"y": 1}],
            [{}, {"x": 1, "z": 1}],
            id="either required",
        ),
        pytest.param(
            {
                **an_object(kind={"enum": ["p", "q"]}),
                "if": {"properties": {"kind": {"const": "p"}}, "required": ["kind"]},
                "then": PART_X,
                "else": PART_Y,
            },
            [{"kind": "p", "x": 1}, {"kind": "q", "y": 1}, {"y": 1}],
            [{"kind": "p", "y": 1}, {"kind": "q", "x": 1}, {"kind": "p", "z": 1}],
            id="if, then, else",
        ),
        pytest.param(
            {**an_object(p=True), "dependentSchemas": {"p": PART_X}},
            [{"p": 1, "x": 1}, {}],
            [{"x": 1}, {"p": 1, "z": 1}],
            id="dependent",
        ),
        pytest.param(
            {**an_object(a={"$ref": "#/$defs/X"}), "$defs": {"X": X}},
            [{"a": {"x": 1}}],
            [{"a": {"z": 1}}],
            id="reference",
        ),
        pytest.param(
            {**an_object(a={"$ref": "#/definitions/X"}), "definitions": {"X": X}},
            [{"a": {"x": 1}}],
            [{"a": {"z": 1}}],
            id="reference to an older place",
        ),
        pytest.param({"$ref": "#/$defs/X", "$defs": {"X": X}}, [{"x": 1}], [{"z": 1}], id="reference on top"),
        pytest.param(
            {**an_object(a={"$ref": "#/$defs/X", **PART_Y}), "$defs": {"X": X}},
            [{"a": {"x": 1, "y": 1}}],
            [{"a": {"z": 1}}],
            id="reference with siblings",
        ),
        pytest.param(
            {**an_object(a={"allOf": [{"$ref": "#/$defs/X"}, PART_Y]}, b={"$ref": "#/$defs/X"}), "$defs": {"X": X}},
            [{"a": {"x": 1, "y": 1}, "b": {"x": 1}}],
            [{"a": {"z": 1}}, {"b": {"y": 1}}, {"b": {"z": 1}}],
            id="reference in a sum and alone",
        ),
        pytest.param(
            {
                **an_object(
                    a={"allOf": [{"$ref": "#/$defs/X"}, PART_Y]}, b={"anyOf": [{"$ref": "#/$defs/X"}, {"type": "null"}]}
                ),
                "$defs": {"X": X},
            },
            [{"a": {"x": 1, "y": 1}, "b": {"x": 1}}, {"b": None}],
            [{"b": {"y": 1}}],
            id="reference in a sum and among alternatives",
        ),
        pytest.param(
            {**an_object(a={"allOf": [{"$ref": "#/$defs/W"}, PART_Y]}), "$defs": {"W": {"$ref": "#/$defs/X"}, "X": X}},
            [{"a": {"x": 1, "y": 1}}],
            [{"a": {"z": 1}}],
            id="reference to a reference in a sum",
        ),
        pytest.param(
            {"type": "object", "allOf": [{"properties": {"a": X}}, {"properties": {"b": Y}}]},
            [{"a": {"x": 1}, "b": {"y": 1}}],
            [{"a": {"z": 1}}, {"b": {"x": 1}}, {"c": 1}],
            id="below a sum",
        ),
        pytest.param(
            {"type": "object", "allOf": [{"properties": {"a": X}}, {"properties": {"a": Y}}]},
            [{"a": {"x": 1, "y": 1}}],
            [{"b": 1}],
            id="one part described twice",
        ),
        pytest.param(
            {**an_object(a=X), "allOf": [{"properties": {"a": {"minProperties": 1}}}]},
            [{"a": {"x": 1}}],
            [{"a": {"x": 1, "z": 1}}, {"a": {}}],
            id="one part described and limited",
        ),
        pytest.param(
            {**an_object(k=True), "oneOf": [an_object(k={"const": 1}, o=X), an_object(k={"const": 2}, o=Y)]},
            [{"k": 1, "o": {"x": 1}}, {"k": 2, "o": {"y": 1}}],
            [{"k": 1, "o": {"y": 1}}, {"k": 2, "o": {"z": 1}}, {"k": 1, "z": 1}],
            id="one part described by each alternative",
        ),
        pytest.param(
            {**an_object(v=INTEGER, child={"$ref": "#"})},
            [{"v": 1, "child": {"v": 2, "child": {}}}],
            [{"child": {"child": {"z": 1}}}],
            id="recursive",
        ),
    ],
)
def test_unknown_keys_are_refused(document: dict[str, Any], accepted: list[Any], refused: list[Any]) -> None:
    schema = Schema(document)

    assert [value for value in accepted if not schema.is_valid(value)] == []
    assert [value for value in refused if schema.is_valid(value)] == []


@pytest.mark.parametrize(
    ("document", "value"),
    [
        pytest.param({"type": "object", "additionalProperties": True}, {"z": 1}, id="open"),
        pytest.param({**X, "additionalProperties": True}, {"z": 1}, id="open besides what is listed"),
        pytest.param({**X, "additionalProperties": INTEGER}, {"z": 1}, id="open for some"),
        pytest.param({**X, "unevaluatedProperties": True}, {"z": 1}, id="open the other way"),
        pytest.param({**X, "allOf": [{"additionalProperties": INTEGER}]}, {"z": 1}, id="opened by a branch"),
        pytest.param(
            {"type": "object", "allOf": [{"additionalProperties": True}]}, {"z": 1}, id="opened by a branch alone"
        ),
        pytest.param(an_object(a={**X, "additionalProperties": {}}), {"a": {"z": 1}}, id="open below"),
        pytest.param(
            {**X, "anyOf": [{"patternProperties": {"^z": INTEGER}}]}, {"x": 1, "z": 1}, id="opened by a pattern"
        ),
        pytest.param(an_object(a={"anyOf": [X, {"type": "object"}]}), {"a": {"z": 1}}, id="free-form alternative"),
    ],
)
def test_what_the_schema_opens_stays_open(document: dict[str, Any], value: Any) -> None:
    assert Schema(document).is_valid(value)


@pytest.mark.parametrize(
    ("document", "value", "expected"),
    [
        pytest.param(
            {
                **an_object(a=True, b=True),
                "if": {"properties": {"a": X}, "required": ["a"]},
                "then": {"required": ["b"]},
            },
            {"a": {"x": 1, "other": 2}},
            False,
            id="if",
        ),
        pytest.param(
            {**an_object(a=True), "not": {"properties": {"a": X}}}, {"a": {"x": 1, "other": 2}}, False, id="not"
        ),
        pytest.param(
            an_object(
                a={
                    "items": an_object(kind=True, name=True),
                    "contains": {**an_object(kind={"const": 1}), "required": ["kind"]},
                }
            ),
            {"a": [{"kind": 1, "name": "n"}]},
            True,
            id="contains",
        ),
        pytest.param(
            {
                **an_object(a=True),
                "not": {"$ref": "#/$defs/N"},
                "$defs": {"N": an_object(a=an_object(n={"$ref": "#/$defs/N"}))},
            },
            {"a": {"n": {}, "other": 1}},
            False,
            id="condition by reference",
        ),
    ],
)
def test_conditions_ask_what_they_asked_before(document: dict[str, Any], value: Any, expected: bool) -> None:
    assert Schema(document).is_valid(value) is expected


@pytest.mark.parametrize(
    ("document", "closed"),
    [
        pytest.param(X, {**X, "additionalProperties": False}, id="plain"),
        pytest.param({"type": "object"}, {**an_object(), "additionalProperties": False}, id="empty"),
        pytest.param(
            {"type": "object", "anyOf": [{}]},
            {**an_object(), "anyOf": [{}], "unevaluatedProperties": False},
            id="composed",
        ),
        pytest.param(
            {**X, "anyOf": [{"required": ["x"]}]},
            {**X, "anyOf": [{"required": ["x"]}], "additionalProperties": False},
            id="branches that list nothing new",
        ),
        pytest.param({"type": "string"}, {"type": "string"}, id="text"),
    ],
)
def test_simplest_sufficient_keyword_is_advertised(document: dict[str, Any], closed: dict[str, Any]) -> None:
    assert Schema(document).describe() == closed


def test_schema_can_be_left_open() -> None:
    schema = Schema(X, closed=False)

    assert schema.describe() == X
    assert schema.is_valid({"z": 1})


def test_parts_that_overlap_in_countless_ways_are_refused() -> None:
    """Which definitions meet in a value depends on the whole path to it: two to the power of its length."""
    length = 15

    def both(target: str) -> dict[str, Any]:
        return an_object(a={"$ref": f"#/$defs/{target}"}, b={"$ref": f"#/$defs/{target}"})

    definitions = {f"d{n}": both(f"d{min(n + 1, length)}") for n in range(1, length + 1)}
    definitions["d0"] = {**both("d0"), "allOf": [{"properties": {"a": {"$ref": "#/$defs/d1"}}}]}

    with pytest.raises(ValueError, match="overlap in too many ways"):
        Schema({**an_object(start={"$ref": "#/$defs/d0"}), "$defs": definitions})


NAMES = st.sampled_from("abc")
LEAVES = st.dictionaries(NAMES, st.sampled_from([INTEGER, {"type": "string"}, True]), max_size=2).map(
    lambda properties: {"properties": properties}
)
COMPOSED = st.recursive(
    LEAVES,
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(NAMES, inner, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "items": inner,
        },
    ),
    max_leaves=6,
)
VALUES = st.recursive(
    st.integers(0, 2) | st.sampled_from(["x"]),
    lambda inner: st.dictionaries(st.sampled_from("abcz"), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=6,
)


@given(document=COMPOSED, value=VALUES)
def test_closing_never_accepts_more(document: dict[str, Any], value: Any) -> None:
    assert Schema(document, closed=False).is_valid(value) or not Schema(document).is_valid(value)


@given(document=COMPOSED, value=st.dictionaries(NAMES, st.integers(0, 2) | st.sampled_from(["x"]), max_size=3))
def test_closing_refuses_nothing_whose_every_key_is_known(document: dict[str, Any], value: dict[str, Any]) -> None:
    """A known key is listed on every way to satisfy the document."""
    root = Subschemas(document)
    layers = [root.node(key) for key in root.closure(document)]
    known = all(value.keys() <= layer.get("properties", {}).keys() for layer in layers)
    scalar_parts = not any("allOf" in node or "anyOf" in node for node in root if node is not document)

    if known and scalar_parts and Schema(document, closed=False).is_valid(value):
        assert Schema(document).is_valid(value)
