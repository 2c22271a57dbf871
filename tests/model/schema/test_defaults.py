"""Defaults are filled in at every depth, checked when the schema is compiled, and never endless."""

from typing import Any

import pytest

from gateway.model.schema.schema import Schema

pytestmark = pytest.mark.anyio


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


WITH_DEFAULT = an_object(x={"type": "integer", "default": 7})


@pytest.mark.parametrize(
    ("document", "value", "filled"),
    [
        pytest.param(WITH_DEFAULT, {}, {"x": 7}, id="missing"),
        pytest.param(WITH_DEFAULT, {"x": 1}, {"x": 1}, id="given"),
        pytest.param(an_object(x={"default": 7}), {"x": None}, {"x": None}, id="null is given"),
        pytest.param(an_object(x={"default": None}), {}, {"x": None}, id="null is a default"),
        pytest.param(an_object(a=WITH_DEFAULT), {"a": {}}, {"a": {"x": 7}}, id="property"),
        pytest.param(an_object(a=WITH_DEFAULT), {}, {}, id="object that is missing"),
        pytest.param(an_object(a={**WITH_DEFAULT, "default": {}}), {}, {"a": {"x": 7}}, id="default of a default"),
        pytest.param(
            an_object(a={"items": WITH_DEFAULT}), {"a": [{}, {"x": 1}]}, {"a": [{"x": 7}, {"x": 1}]}, id="items"
        ),
        pytest.param(
            an_object(a={"prefixItems": [WITH_DEFAULT, True], "items": WITH_DEFAULT}),
            {"a": [{}, {}, {}]},
            {"a": [{"x": 7}, {}, {"x": 7}]},
            id="prefix and items",
        ),
        pytest.param(
            an_object(a={"prefixItems": [WITH_DEFAULT, True]}), {"a": []}, {"a": []}, id="shorter than its prefix"
        ),
        pytest.param(
            an_object(a={"additionalProperties": WITH_DEFAULT}), {"a": {"k": {}}}, {"a": {"k": {"x": 7}}}, id="map"
        ),
        pytest.param(
            an_object(a={"patternProperties": {"k": WITH_DEFAULT}, "additionalProperties": WITH_DEFAULT}),
            {"a": {"k": {}}},
            {"a": {"k": {}}},
            id="not behind patterns",
        ),
        pytest.param(
            {**an_object(a={"$ref": "#/$defs/D"}), "$defs": {"D": WITH_DEFAULT}},
            {"a": {}},
            {"a": {"x": 7}},
            id="reference",
        ),
        pytest.param(
            {**an_object(a={"$ref": "#/$defs/D"}), "$defs": {"D": {"default": 5}}},
            {},
            {"a": 5},
            id="default by reference",
        ),
        pytest.param(
            {**an_object(a={"$ref": "#/$defs/D", "default": 6}), "$defs": {"D": {"default": 5}}},
            {},
            {"a": 6},
            id="nearest default",
        ),
        pytest.param(
            {**an_object(a={"allOf": [{"$ref": "#/$defs/D"}]}), "$defs": {"D": {"default": 5}}},
            {},
            {"a": 5},
            id="default by allOf",
        ),
        pytest.param(
            {"type": "object", "allOf": [WITH_DEFAULT, True, an_object(y={"default": 8})]},
            {},
            {"x": 7, "y": 8},
            id="allOf",
        ),
        pytest.param(
            {**an_object(x={"default": 1}), "allOf": [{"properties": {"x": {"default": 2}}}]},
            {},
            {"x": 1},
            id="own first",
        ),
        pytest.param(
            an_object(a={"anyOf": [{"type": "null"}, WITH_DEFAULT]}), {"a": {}}, {"a": {"x": 7}}, id="alternative"
        ),
        pytest.param(
            an_object(a={"anyOf": [{"type": "null"}, WITH_DEFAULT]}), {"a": None}, {"a": None}, id="other one"
        ),
        pytest.param(
            an_object(
                a={"oneOf": [an_object(k={"const": 1}, y={"default": 8}), an_object(k={"const": 2}, y={"default": 9})]}
            ),
            {"a": {"k": 2}},
            {"a": {"k": 2, "y": 9}},
            id="the alternative that holds",
        ),
        pytest.param(
            {**an_object(a={"default": 1}), "anyOf": [{"properties": {"a": False, "x": {"default": 7}}}, True]},
            {},
            {"a": 1, "x": 7},
            id="alternatives are asked before anything is added",
        ),
        pytest.param(
            {
                **an_object(a={"default": 1}),
                "allOf": [{"anyOf": [{"properties": {"a": {"const": 0}, "x": {"default": 7}}}]}],
            },
            {},
            {"a": 1},
            id="no alternative holds any more",
        ),
        pytest.param(
            {**an_object(k=True), "if": {"required": ["k"]}, "then": WITH_DEFAULT, "else": an_object(y={"default": 8})},
            {"k": 1},
            {"k": 1, "x": 7},
            id="then",
        ),
        pytest.param(
            {**an_object(k=True), "if": {"required": ["k"]}, "then": WITH_DEFAULT, "else": an_object(y={"default": 8})},
            {},
            {"y": 8},
            id="else",
        ),
        pytest.param({**an_object(), "if": True, "then": WITH_DEFAULT}, {}, {"x": 7}, id="always"),
        pytest.param(
            {**an_object(k=True, l=True), "dependentSchemas": {"k": WITH_DEFAULT, "l": True}},
            {"k": 1, "l": 1},
            {"k": 1, "l": 1, "x": 7},
            id="dependent",
        ),
        pytest.param({**an_object(k=True), "dependentSchemas": {"k": WITH_DEFAULT}}, {}, {}, id="not dependent"),
        pytest.param(
            {**an_object(n={"default": 0}, child={"$ref": "#"})},
            {"child": {"child": {}}},
            {"n": 0, "child": {"n": 0, "child": {"n": 0}}},
            id="recursive",
        ),
    ],
)
async def test_defaults_are_filled_in(document: dict[str, Any], value: Any, filled: Any) -> None:
    assert await Schema(document).validate(value) == filled


@pytest.mark.parametrize("value", ["text", [], None], ids=repr)
async def test_what_is_no_object_gets_no_defaults(value: Any) -> None:
    document = {"properties": {"a": WITH_DEFAULT, "x": {"default": 7}}, "dependentSchemas": {"a": WITH_DEFAULT}}

    assert await Schema(document).validate(value) == value


async def test_filled_default_is_a_copy() -> None:
    schema = Schema(an_object(list={"default": [1]}))

    (await schema.validate({}))["list"].append(2)

    assert await schema.validate({}) == {"list": [1]}
    assert schema.describe()["properties"]["list"]["default"] == [1]


async def test_defaults_reach_as_deep_as_a_value_may_be() -> None:
    schema = Schema({**an_object(n={"default": 0}), "additionalProperties": {"$ref": "#"}})
    value: dict[str, Any] = {}
    for _ in range(120):
        value = {"child": value}

    filled = await schema.validate(value)
    for _ in range(120):
        assert filled.pop("n") == 0
        (filled,) = filled.values()

    assert filled == {"n": 0}


@pytest.mark.parametrize(
    ("document", "place"),
    [
        pytest.param(an_object(a={"type": "integer", "default": "x"}), "'properties.a'", id="type"),
        pytest.param(an_object(a={"enum": [1], "default": 2}), "'properties.a'", id="enum"),
        pytest.param(an_object(a={**WITH_DEFAULT, "default": {"z": 1}}), "'properties.a'", id="unknown key"),
        pytest.param({"type": "object", "default": 5}, "the top", id="top"),
        pytest.param(
            {**an_object(a={"$ref": "#/definitions/D"}), "definitions": {"D": {"type": "integer", "default": "x"}}},
            "'definitions.D'",
            id="definition",
        ),
        pytest.param(
            {**an_object(a={"$ref": "#/$defs/D", "maximum": 3}), "$defs": {"D": {"default": 5}}},
            "'$defs.D'",
            id="refused where it is referred to",
        ),
        pytest.param(
            an_object(a={"anyOf": [{"items": {"type": "null", "default": 1}}]}),
            "'properties.a.anyOf.0.items'",
            id="deep",
        ),
    ],
)
def test_bad_default_is_refused_with_its_place(document: dict[str, Any], place: str) -> None:
    with pytest.raises(ValueError, match="does not satisfy its own schema") as caught:
        Schema(document)

    assert f"the default at {place} " in str(caught.value)


def test_default_behind_an_older_reference_is_checked_in_its_document() -> None:
    number = {"definitions": {"n": {"type": "integer"}}}

    assert Schema({**an_object(a={"$ref": "#/definitions/n", "default": 1}), **number})
    with pytest.raises(ValueError, match="does not satisfy"):
        Schema({**an_object(a={"$ref": "#/definitions/n", "default": "x"}), **number})


def test_default_that_contains_itself_is_refused() -> None:
    node = an_object(left={"$ref": "#/$defs/N", "default": {}}, right={"$ref": "#/$defs/N", "default": {}})

    with pytest.raises(ValueError, match="contains itself, without end"):
        Schema({**an_object(tree={"$ref": "#/$defs/N"}), "$defs": {"N": node}})


def test_defaults_that_multiply_are_refused() -> None:
    definitions = {
        f"d{n}": an_object(**{side: {"$ref": f"#/$defs/d{n + 1}", "default": {}} for side in ("left", "right")})
        for n in range(40)
    }

    with pytest.raises(ValueError, match="grows past 1000 values"):
        Schema({**an_object(tree={"$ref": "#/$defs/d0"}), "$defs": {**definitions, "d40": {"type": "object"}}})
