"""Schema: validation without coercion, readable refusals, models, and hostile documents or values."""

import re
from collections.abc import Callable
from datetime import date, datetime
from enum import Enum
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator, model_validator

from gateway.errors import ValidationException, problem
from gateway.model.schema.schema import ModelClass, Schema

pytestmark = pytest.mark.anyio


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


async def problems_of(document: dict[str, Any], value: Any) -> list[dict[str, Any]]:
    with pytest.raises(ValidationException) as caught:
        await Schema(document).validate(value)
    return caught.value.details


# --- documents that are not schemas ---


@pytest.mark.parametrize(
    ("document", "text"),
    [
        pytest.param("string", "is an object or a boolean", id="text"),
        pytest.param(None, "is an object or a boolean", id="nothing"),
        pytest.param({"type": "objekt"}, "at 'type': 'objekt' is not a JSON Schema type", id="unknown type"),
        pytest.param(an_object(a={"type": 5}), "at 'properties.a.type'", id="type that is a number"),
        pytest.param({"type": "object", "properties": []}, "at 'properties'", id="list of properties"),
        pytest.param({"type": "object", "$defs": ["x"]}, "at '$defs'", id="list of definitions"),
        pytest.param({"type": "object", "required": "a"}, "at 'required'", id="required that is a text"),
        pytest.param({"properties": {1: {}}}, "key must be str", id="key that is a number"),
        pytest.param({"const": b"x"}, "not a valid JSON Schema", id="bytes"),
        pytest.param(an_object(a={"pattern": "("}), "at 'properties.a.pattern'", id="broken pattern"),
        pytest.param(an_object(a={"pattern": "(a{1,999}){1,999}"}), "maxLength", id="pattern too large"),
        pytest.param({"$ref": "#/$defs/none"}, "/$defs/none", id="reference to nothing"),
        pytest.param({"$ref": "#/properties/a/none"}, "not a valid JSON Schema", id="reference past the end"),
        pytest.param({"$ref": "#none"}, "not a valid JSON Schema", id="unknown anchor"),
        pytest.param({"$ref": 5}, "at '$ref'", id="reference that is a number"),
        pytest.param({"$schema": "urn:mine", "type": "object"}, "dialect 'urn:mine'", id="unknown dialect"),
        pytest.param({"$schema": 5}, "dialect 5", id="dialect that is a number"),
        pytest.param(an_object(a={"$id": "urn:other"}), "starts another document", id="document in a document"),
        pytest.param(
            {"dependencies": {"a": ["b"]}}, "'dependencies' at the top has no effect", id="rule of another dialect"
        ),
        pytest.param(an_object(a={"$recursiveRef": "#"}), "at 'properties.a' has no effect", id="recursive reference"),
        pytest.param(
            an_object(a={"$ref": "#/x/y"}) | {"x": {"y": {"properties": []}}},
            "at 'properties'",
            id="defect in an unusual place",
        ),
    ],
)
def test_document_that_is_no_schema_is_refused_readably(document: Any, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        Schema(document)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "reference",
    ["http://127.0.0.1:9/schema", "https://example.com/s.json#/a", "file:///etc/passwd", "other.json", "//host/x"],
)
def test_reference_to_another_place_is_never_fetched(reference: str) -> None:
    with pytest.raises(ValueError, match="not a valid JSON Schema"):
        Schema(an_object(a={"$ref": reference}))


@pytest.mark.parametrize(
    "dialect",
    [
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "http://json-schema.org/draft-07/schema#",
    ],
)
def test_known_dialect_is_accepted_and_not_advertised(dialect: str) -> None:
    document = {"$schema": dialect, **an_object(a={"$ref": "#/definitions/n"}), "definitions": {"n": {"minimum": 3}}}

    schema = Schema(document)

    assert "$schema" not in schema.describe()
    assert schema.is_valid({"a": 3})
    assert not schema.is_valid({"a": 2})


@pytest.mark.parametrize(
    ("reference", "extra"),
    [
        pytest.param("#/$defs/n", {}, id="pointer"),
        pytest.param("#/$defs/a%20b~1c", {}, id="escaped pointer"),
        pytest.param("#mark", {}, id="anchor"),
        pytest.param("#/properties/b", {}, id="another property"),
        pytest.param("#/allOf/0", {"allOf": [{"properties": {"x": {"default": 7}}}]}, id="member of a list"),
        pytest.param("#/x-shared/n", {"x-shared": {"n": an_object(x={"default": 7})}}, id="unusual place"),
        pytest.param("https://example.com/s#/$defs/n", {"$id": "https://example.com/s"}, id="own address"),
        pytest.param("#/$defs/n", {"$id": "https://example.com/s#"}, id="address with an empty fragment"),
        pytest.param("#/$defs/n", {"$id": "relative.json"}, id="relative address"),
    ],
)
async def test_reference_within_the_document_is_followed(reference: str, extra: dict[str, Any]) -> None:
    described = an_object(x={"type": "integer", "default": 7})
    definitions = {"n": described, "a b/c": described, "m": {**described, "$anchor": "mark"}}
    document = {**an_object(a={"$ref": reference}, b=described), "$defs": definitions, **extra}

    validated = await Schema(document).validate({"a": {}})

    assert validated["a"] == {"x": 7}


async def test_dynamic_reference_is_followed() -> None:
    document = {**an_object(x={"default": 7}, next={"$dynamicRef": "#node"}), "$dynamicAnchor": "node"}

    assert await Schema(document).validate({"next": {}}) == {"x": 7, "next": {"x": 7}}


def test_boolean_documents_mean_anything_and_nothing() -> None:
    assert Schema(True).is_valid({"a": 1})
    assert not Schema(False).is_valid({})


def test_document_is_copied() -> None:
    document = an_object(a={"type": "integer"})
    schema = Schema(document)

    document["properties"]["a"]["type"] = "string"
    schema.describe()["properties"].clear()

    assert schema.describe()["properties"] == {"a": {"type": "integer"}}
    assert schema.is_valid({"a": 1})


def test_tuples_in_a_document_are_lists() -> None:
    assert Schema({"type": "object", "properties": {}, "required": ()}).describe()["required"] == []


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param({"type": "object"}, True, id="object"),
        pytest.param({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}, True, id="by reference"),
        pytest.param({"$ref": "#/$defs/a", "$defs": {"a": {"minProperties": 1}}}, False, id="reference without a type"),
        pytest.param({"type": "string"}, False, id="text"),
        pytest.param({"properties": {}}, False, id="no type"),
    ],
)
def test_schema_knows_whether_it_describes_an_object(document: dict[str, Any], expected: bool) -> None:
    assert Schema(document).describes_object is expected


def test_repr_names_the_properties_only() -> None:
    assert repr(Schema(an_object(a={"const": "secret"}))) == "Schema(properties=['a'])"


# --- hostile documents ---


def doubled(step: Callable[[str], dict[str, Any]], times: int = 40) -> dict[str, Any]:
    """Definitions that each refer to the next one by `step`."""
    definitions = {f"d{index}": step(f"#/$defs/d{index + 1}") for index in range(times)}
    return {"type": "object", "$ref": "#/$defs/d0", "$defs": {**definitions, f"d{times}": {"type": "object"}}}


def cyclic() -> dict[str, Any]:
    document: dict[str, Any] = {"type": "object"}
    document["properties"] = {"a": document}
    return document


def nested(levels: int) -> dict[str, Any]:
    document: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        document = {"anyOf": [document]}
    return document


def shared(levels: int) -> dict[str, Any]:
    document: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        document = {"anyOf": [document, document]}
    return document


@pytest.mark.parametrize(
    ("document", "text"),
    [
        pytest.param(cyclic(), "nested deeper", id="contains itself"),
        pytest.param(nested(10_000), "nested deeper", id="ten thousand levels"),
        pytest.param(shared(40), "more than 50000 values", id="unfolds to a trillion"),
        pytest.param({"enum": [*range(60_000)]}, "more than 50000 values", id="many values"),
        pytest.param(an_object(**{f"p{n}": {} for n in range(6_000)}), "subschemas", id="many properties"),
        pytest.param(doubled(lambda ref: {"allOf": [{"$ref": ref}] * 2}), "to one value", id="doubles in place"),
        pytest.param(
            doubled(lambda ref: {**an_object(a={"$ref": ref}), "allOf": [an_object(a={"$ref": ref})]}),
            "to one value",
            id="doubles per level",
        ),
        pytest.param(
            doubled(lambda ref: {"patternProperties": {"a": {"$ref": ref}, "b": {"$ref": ref}}}),
            "to one value",
            id="doubles by patterns",
        ),
        pytest.param(
            doubled(lambda ref: {"not": {"anyOf": [{"$ref": ref}, {"$ref": ref}]}}), "to one value", id="by not"
        ),
        pytest.param(doubled(lambda ref: {"$ref": ref}, 2_000), "nested too deeply", id="chain of references"),
        pytest.param(doubled(lambda ref: an_object(a={"$ref": ref}), 1_500), "nested too deeply", id="chain of parts"),
        pytest.param(
            an_object(**{f"p{n}": {"$ref": "#/$defs/w"} for n in range(1_000)})
            | {"$defs": {"w": {"anyOf": [{}] * 1_000}}},
            "too many references to large subschemas",
            id="wide and often",
        ),
        pytest.param({"type": "object", "$ref": "#"}, "without end", id="is itself"),
        pytest.param(
            {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}},
            "without end",
            id="is another that is it",
        ),
    ],
)
def test_document_made_to_hurt_is_refused(document: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Schema(document)


def test_document_that_describes_parts_by_itself_is_fine() -> None:
    schema = Schema({**an_object(name={"type": "string"}), "$defs": {}, "additionalProperties": {"$ref": "#"}})

    assert schema.is_valid({"name": "a", "child": {"name": "b", "child": {}}})
    assert not schema.is_valid({"child": {"name": 5}})


# --- validation ---


@pytest.mark.parametrize(
    ("described", "value"),
    [
        pytest.param({"type": "integer"}, "1", id="text for an integer"),
        pytest.param({"type": "number"}, "1.5", id="text for a number"),
        pytest.param({"type": "boolean"}, "true", id="text for a truth value"),
        pytest.param({"type": "boolean"}, 1, id="one for a truth value"),
        pytest.param({"type": "integer"}, True, id="truth value for an integer"),
        pytest.param({"type": "string"}, 1, id="number for a text"),
        pytest.param({"type": "string"}, None, id="null for a text"),
        pytest.param({"type": "array"}, "a", id="text for a list"),
    ],
)
async def test_validation_never_coerces(described: dict[str, Any], value: Any) -> None:
    assert len(await problems_of(an_object(a=described), {"a": value})) == 1


@pytest.mark.parametrize(("described", "accepted"), [({}, True), ({"minLength": 1}, False)], ids=["plain", "minLength"])
def test_empty_text_is_a_text_unless_the_schema_states_otherwise(described: dict[str, Any], accepted: bool) -> None:
    assert Schema(an_object(a={"type": "string", **described})).is_valid({"a": ""}) is accepted


async def test_every_problem_is_collected_with_its_place() -> None:
    document = {
        **an_object(n={"type": "integer"}, list={"type": "array", "items": {"type": "string"}}),
        "required": ["x"],
    }

    found = await problems_of(document, {"n": "secret-1", "list": ["a", 5], "y": "secret-2"})

    assert found == [
        problem("'n': value is not of type \"integer\"", ["n"], "type", schemaPath=["properties", "n", "type"]),
        problem(
            "'list.1': value is not of type \"string\"",
            ["list", 1],
            "type",
            schemaPath=["properties", "list", "items", "type"],
        ),
        problem(
            "a member is not known; it takes n, list",
            [],
            "additionalProperties",
            schemaPath=["additionalProperties"],
        ),
        problem('"x" is a required property', [], "required", schemaPath=["required"]),
    ]


async def test_messages_are_joined() -> None:
    with pytest.raises(ValidationException) as caught:
        await Schema(an_object(a={"minimum": 3}, b={"minLength": 2})).validate({"a": 1, "b": "x"})

    assert caught.value.message == (
        "'a': value is less than the minimum of 3 and 'b': value is shorter than 2 characters"
    )


SECRET = "hunter2hunter2"


@pytest.mark.parametrize(
    ("described", "value"),
    [
        pytest.param({"type": "integer"}, SECRET, id="type"),
        pytest.param({"enum": ["x"]}, SECRET, id="enum"),
        pytest.param({"const": "x"}, SECRET, id="const"),
        pytest.param({"pattern": "^x"}, SECRET, id="pattern"),
        pytest.param({"maxLength": 3}, SECRET, id="maxLength"),
        pytest.param({"anyOf": [{"type": "integer"}, {"maxLength": 1}]}, SECRET, id="anyOf"),
        pytest.param({"oneOf": [{"type": "string"}, {"minLength": 1}]}, SECRET, id="oneOf"),
        pytest.param({"not": {"type": "string"}}, SECRET, id="not"),
        pytest.param({"type": "array", "contains": {"const": 1}}, [SECRET], id="contains"),
        pytest.param({"uniqueItems": True}, [SECRET, SECRET], id="uniqueItems"),
        pytest.param({"items": {"type": "integer"}}, [SECRET], id="items"),
        pytest.param({"additionalProperties": {"type": "integer"}}, {"k": SECRET}, id="additionalProperties"),
        pytest.param({"if": {"type": "string"}, "then": {"maxLength": 1}}, SECRET, id="then"),
        pytest.param(False, SECRET, id="nothing allowed"),
    ],
)
async def test_no_message_shows_the_value(described: Any, value: Any) -> None:
    found = await problems_of(an_object(a=described), {"a": value})

    assert found
    assert SECRET not in str(found)


async def test_what_is_wrong_with_the_fitting_alternative_is_reported() -> None:
    document = an_object(a={"anyOf": [an_object(x={"type": "integer"}), {"type": "null"}]})

    found = await problems_of(document, {"a": {"x": "no"}})

    assert [(entry["message"], entry["path"]) for entry in found] == [
        ("'a.x': value is not of type \"integer\"", ["a", "x"])
    ]


async def test_between_two_fitting_alternatives_none_is_chosen() -> None:
    document = an_object(a={"oneOf": [an_object(x={"const": 1}), an_object(x={"const": 2})]})

    (found,) = await problems_of(document, {"a": {"x": 3}})

    assert found["type"] == "oneOf"


async def test_unexpected_argument_of_a_tool_without_any_is_named() -> None:
    (found,) = await problems_of({"type": "object"}, {"a": 1})

    assert found["message"] == "a member is not known"


@pytest.mark.parametrize("value", [{"n": 5.0}, {"n": 5}], ids=["5.0", "5"])
async def test_equal_numbers_reach_the_handler_alike(value: dict[str, Any]) -> None:
    validated = await Schema(an_object(n={"type": "integer"})).validate(value)

    assert validated == {"n": 5}
    assert type(validated["n"]) is int


@pytest.mark.parametrize("number", [5.5, 1e300, -1e16], ids=str)
async def test_other_floats_stay_floats(number: float) -> None:
    validated = await Schema(an_object(n={})).validate({"n": number})

    assert type(validated["n"]) is float
    assert validated["n"] == number


async def test_validated_value_shares_nothing_with_the_given_one() -> None:
    given_value: dict[str, Any] = {"a": {"b": [1, {"c": 2}]}}

    validated = await Schema({"type": "object", "additionalProperties": True}).validate(given_value)
    validated["a"]["b"][1]["c"] = 3

    assert given_value == {"a": {"b": [1, {"c": 2}]}}


async def test_keys_that_the_schema_does_not_mention_are_kept() -> None:
    connection = object()

    assert await Schema(an_object(a={})).validate({"a": [connection, (1, 2.0)]}) == {"a": [connection, [1, 2]]}


# --- hostile values ---


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("levels", [600, 100_000])
@pytest.mark.parametrize("document", [{"type": "object"}, {"type": "object", "additionalProperties": True}], ids=str)
async def test_deep_value_is_refused(document: dict[str, Any], levels: int) -> None:
    (found,) = await problems_of(document, {"a": deep(levels)})

    assert found["type"] == "json"


async def test_value_as_deep_as_a_call_may_be_is_accepted() -> None:
    assert await Schema({"type": "object", "additionalProperties": True}).validate({"a": deep(500)})


@pytest.mark.parametrize(
    "value",
    [{"a": date(2026, 1, 1)}, {1: 2}, {"a": b"x"}, {"a": {1, 2}}, {"a": object()}],
    ids=["date", "number as key", "bytes", "set", "object"],
)
async def test_value_outside_json_is_refused(value: Any) -> None:
    found = await problems_of({**an_object(a={"type": ["string", "number"]}), "propertyNames": {"maxLength": 9}}, value)

    assert {entry["type"] for entry in found} == {"json"}


async def test_a_million_wrong_items_are_refused_with_one_entry() -> None:
    found = await problems_of(an_object(a={"items": {"type": "string"}}, b={"type": "string"}), {"a": [0] * 10**6})

    assert found == [problem("'a': value does not satisfy its schema", ["a"], "schema")]


async def test_large_value_is_refused_for_its_outermost_defects_too() -> None:
    document = {**an_object(a={"items": {"type": "string"}}, b=True), "required": ["c"]}

    found = await problems_of(document, {"a": [0] * 10**5, "d": 1})

    assert [entry["type"] for entry in found] == ["additionalProperties", "required", "schema"]


@pytest.mark.parametrize(
    "document", [{"items": {"type": "string"}}, {"allOf": [{"items": {"type": "string"}}]}], ids=["plain", "composed"]
)
async def test_large_value_without_properties_is_refused(document: dict[str, Any]) -> None:
    assert await problems_of(document, [0] * 10**5) == [problem("value does not satisfy the schema", type="schema")]


async def test_no_more_than_a_hundred_problems_are_listed() -> None:
    found = await problems_of(an_object(a={"items": {"type": "string"}}), {"a": [0] * 150})

    assert len(found) == 101
    assert found[-1]["message"] == "50 more problems"


@pytest.mark.parametrize("key", ["k" * 10**6, *[f"k{n}" for n in range(2)]], ids=["long", "first", "second"])
async def test_message_stays_short(key: str) -> None:
    found = await problems_of(an_object(), {key: 1, **{f"x{n}": n for n in range(5_000)}})

    assert all(len(entry["message"]) < 600 for entry in found)


def expression(depth: int, leaf: Any) -> Any:
    for _ in range(depth):
        leaf = {"op": "op3", "left": leaf}
    return leaf


EXPRESSIONS = {
    **an_object(filter={"$ref": "#/$defs/e"}),
    "$defs": {
        "e": {
            "oneOf": [
                *(
                    {**an_object(op={"const": f"op{n}"}, left={"$ref": "#/$defs/e"}), "required": ["op"]}
                    for n in range(5)
                ),
                {"type": "integer"},
            ]
        }
    },
}


async def test_alternatives_within_alternatives_are_refused_at_once() -> None:
    found = await problems_of(EXPRESSIONS, {"filter": expression(60, "bad")})

    assert found == [problem("'filter': value does not satisfy its schema", ["filter"], "schema")]


async def test_alternatives_within_alternatives_are_accepted() -> None:
    value = {"filter": expression(60, 1)}

    assert await Schema(EXPRESSIONS).validate(value) == value


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        pytest.param("^(a+)+$", "a" * 100_000 + "b", id="nested repetition"),
        pytest.param(r"^(a+)+\1$", "a" * 5_000 + "b", id="back-reference"),
        pytest.param("^(?=(a+)+$)a", "a" * 5_000 + "b", id="look-ahead"),
        pytest.param("^(?:(?!x).)*$", "a" * 1_000_000, id="more steps than allowed"),
    ],
)
async def test_pattern_made_to_hurt_is_refused_at_once(pattern: str, text: str) -> None:
    (found,) = await problems_of(an_object(a={"type": "string", "pattern": pattern}), {"a": text})

    assert found["type"] == "pattern"


def test_look_ahead_of_generated_schemas_works() -> None:
    email = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
    schema = Schema(an_object(a={"type": "string", "pattern": email}))

    assert schema.is_valid({"a": "ada.lovelace@example.com"})
    assert not schema.is_valid({"a": "ada..lovelace@example.com"})


# --- custom checks and models ---


async def test_checks_run_after_the_schema_and_may_wait() -> None:
    seen: list[Any] = []

    async def even(value: Any) -> None:
        seen.append(value)
        if value["n"] % 2:
            raise ValidationException([problem("'n' is even", ["n"])])

    schema = Schema(an_object(n={"type": "integer", "default": 4}), checks=[even, seen.append])

    assert await schema.validate({}) == {"n": 4}
    assert seen == [{"n": 4}, {"n": 4}]
    with pytest.raises(ValidationException, match="'n' is even"):
        await schema.validate({"n": 3})
    with pytest.raises(ValidationException, match="not of type"):
        await schema.validate({"n": "x"})


async def test_other_errors_of_a_check_pass_through() -> None:
    def check(value: Any) -> None:
        raise LookupError("no such customer")

    with pytest.raises(LookupError, match="no such customer"):
        await Schema(an_object(), checks=[check]).validate({})


async def test_check_cannot_change_what_was_given() -> None:
    given_value: dict[str, Any] = {"a": []}

    await Schema(an_object(a={}), checks=[lambda value: value["a"].append(1)]).validate(given_value)

    assert given_value == {"a": []}


class Colour(Enum):
    RED = "red"


class Options(BaseModel):
    retries: int = 3


class Order(BaseModel):
    number: int
    when: datetime = datetime(2026, 1, 1)
    colour: Colour = Colour.RED
    tags: set[str] = set()
    pair: tuple[int, str] | None = None
    options: Options | None = None
    children: list["Order"] = []

    @field_validator("number")
    @classmethod
    def even(cls, number: int) -> int:
        if number % 2:
            raise ValueError("numbers are even")
        return number


async def test_model_fills_its_defaults_at_every_depth() -> None:
    validated = await Schema.of_model(Order).validate({"number": 2.0, "options": {}, "children": [{"number": 4}]})

    defaults: dict[str, Any] = {"when": "2026-01-01T00:00:00", "colour": "red", "tags": [], "pair": None}
    child = {"number": 4, **defaults, "options": None, "children": []}
    assert validated == {"number": 2, **defaults, "options": {"retries": 3}, "children": [child]}


@pytest.mark.parametrize(
    "value",
    [
        {"number": 2, "when": "2026-05-01T10:00:00Z"},
        {"number": 2, "colour": "red"},
        {"number": 2, "tags": ["a", "b"]},
        {"number": 2, "pair": [1, "a"]},
    ],
    ids=["moment", "enum", "set", "tuple"],
)
async def test_model_accepts_what_its_schema_advertises(value: dict[str, Any]) -> None:
    validated = await Schema.of_model(Order).validate(value)

    assert value.items() <= validated.items()


@pytest.mark.parametrize(
    ("value", "path", "text"),
    [
        pytest.param({"number": "2"}, ["number"], "not of type", id="no coercion"),
        pytest.param({"number": 2, "other": 1}, [], "a member is not known", id="closed"),
        pytest.param({"number": 2, "options": {"x": 1}}, ["options"], "a member is not known", id="closed below"),
        pytest.param({"number": 3}, ["number"], "numbers are even", id="own validator"),
        pytest.param({"number": 2, "when": "soon"}, ["when"], "'when': ", id="moment"),
    ],
)
async def test_model_refuses(value: dict[str, Any], path: list[Any], text: str) -> None:
    with pytest.raises(ValidationException) as caught:
        await Schema.of_model(Order).validate(value)

    assert caught.value.details[0]["path"] == path
    assert text in caught.value.message


@pytest.mark.parametrize("number", [2**70, 2.0**70, 1e300, 4.0], ids=str)
async def test_whole_number_of_any_size_is_an_integer_to_a_model(number: Any) -> None:
    validated = await Schema.of_model(Order).validate({"number": number})

    assert validated["number"] == number


async def test_model_cannot_be_asked_about_what_is_outside_json() -> None:
    class Anything(BaseModel):
        a: Any = None

    with pytest.raises(ValidationException, match="not a JSON value"):
        await Schema.of_model(Anything).validate({"a": object()})


async def test_problem_of_a_whole_model_has_no_place() -> None:
    class Range(BaseModel):
        low: int
        high: int

        @model_validator(mode="after")
        def ordered(self) -> Self:
            if self.low > self.high:
                raise ValueError("low is above high")
            return self

    with pytest.raises(ValidationException) as caught:
        await Schema.of_model(Range).validate({"low": 2, "high": 1})

    assert caught.value.details == [problem("Value error, low is above high", [], "value_error")]


class OtherLibrary:
    """A model class of another library, whose errors have no list of details."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return an_object()

    @classmethod
    def model_validate_json(cls, json_data: str, *, strict: bool | None = None) -> Any:
        raise ValueError(f"{json_data} is never right, {strict=}")


async def test_foreign_refusal_of_a_model_passes_through() -> None:
    assert isinstance(OtherLibrary, ModelClass)

    with pytest.raises(ValueError, match="is never right, strict=True"):
        await Schema.of_model(OtherLibrary).validate({})


# --- coercion, for gates ---


@pytest.mark.parametrize(
    ("described", "text", "expected"),
    [
        ({"type": "boolean"}, " TRUE ", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, " -5.0 ", -5),
        ({"type": "integer"}, "9007199254740993", 2**53 + 1),
        ({"type": "integer"}, "-9223372036854775808", -(2**63)),
        ({"type": "number"}, "1.5e2", 150),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": ["integer", "null"]}, "5", 5),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "true", True),
        ({"$ref": "#/$defs/n"}, "7", 7),
        ({"type": ["integer", "string"]}, "5", "5"),
        ({"type": "string"}, "5", "5"),
        ({}, "5", "5"),
    ],
    ids=repr,
)
def test_texts_become_what_the_schema_asks_for(described: dict[str, Any], text: str, expected: Any) -> None:
    document = {**an_object(a=described), "$defs": {"n": {"type": "integer"}}}

    coerced = Schema(document).coerce({"a": text})

    assert coerced == {"a": expected}
    assert type(coerced["a"]) is type(expected)


@pytest.mark.parametrize(
    ("described", "text"),
    [
        ({"type": "boolean"}, "yes"),
        ({"type": "boolean"}, "1"),
        ({"type": "integer"}, "five"),
        ({"type": "integer"}, "1_000"),
        ({"type": "integer"}, "٣"),
        ({"type": "integer"}, "5.5"),
        ({"type": "integer"}, ""),
        ({"type": "number"}, "nan"),
        ({"type": "number"}, "inf"),
        ({"type": "number"}, "1e999"),
        ({"type": "number"}, "9" * 5_000),
        ({"type": "integer"}, "18446744073709551616"),
        ({"type": "object"}, "{}"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_text_that_is_something_else_is_refused(described: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationException, match="not of type"):
        Schema(an_object(a=described)).coerce({"a": text})


def test_coercion_reaches_every_depth() -> None:
    number = {"type": "integer"}
    document = {
        **an_object(
            list={"prefixItems": [{"type": "boolean"}, True], "items": number}, map={"additionalProperties": number}
        ),
        "allOf": [{"properties": {"deep": an_object(n=number)}}],
    }

    coerced = Schema(document).coerce({"list": ["true", "x", "2", 5], "map": {"k": "3"}, "deep": {"n": "4"}})

    assert coerced == {"list": [True, "x", 2, 5], "map": {"k": 3}, "deep": {"n": 4}}


def test_coercion_of_a_bare_value_fills_defaults_and_leaves_the_input() -> None:
    given_value = {"ok": "true"}

    assert Schema({"type": "boolean"}).coerce("true") is True
    assert Schema(an_object(ok={"type": "boolean"}, note={"default": ""})).coerce(given_value) == {
        "ok": True,
        "note": "",
    }
    assert given_value == {"ok": "true"}


def test_coerced_value_is_checked() -> None:
    assert Schema.of_model(Options).coerce({"retries": "4"}) == {"retries": 4}
    with pytest.raises(ValidationException, match="numbers are even"):
        Schema.of_model(Order).coerce({"number": "3"})


def test_check_that_waits_cannot_run_in_a_coercion() -> None:
    async def check(value: Any) -> None:
        raise AssertionError("never started")

    class Later:
        def __await__(self) -> Any:
            raise AssertionError("never awaited")

    for waiting in (check, lambda value: Later()):
        with pytest.raises(TypeError, match="cannot run here"):
            Schema({}, checks=[waiting]).coerce({})


@pytest.mark.parametrize("value", [deep(600), deep(100_000)], ids=["600", "100000"])
def test_coercion_of_a_deep_value_is_refused(value: Any) -> None:
    with pytest.raises(ValidationException, match="not a JSON value"):
        Schema({}).coerce(value)


# --- narrowing ---


async def test_narrowed_schema_limits_one_property() -> None:
    schema = Schema({**an_object(id={"type": "string", "description": "Which."}, n={"default": 1}), "required": ["id"]})

    narrowed = schema.with_enum("id", ["a", "b"])

    assert narrowed.describe() == {
        **schema.describe(),
        "properties": {"id": {"type": "string", "description": "Which.", "enum": ["a", "b"]}, "n": {"default": 1}},
    }
    assert await narrowed.validate({"id": "a"}) == {"id": "a", "n": 1}
    assert schema.is_valid({"id": "c"})
    with pytest.raises(ValidationException, match="'id': value is not one of"):
        await narrowed.validate({"id": "c"})


async def test_narrowed_schema_is_explained_like_any_other() -> None:
    narrowed = Schema(an_object(id={"type": "string"}, list={"items": {"type": "string"}})).with_enum("id", ["a"])

    with pytest.raises(ValidationException) as caught:
        await narrowed.validate({"id": "c", "list": [1] * 10**5})

    assert [entry["path"] for entry in caught.value.details] == [["id"], ["list"]]


# --- the advertised schema is the enforced one ---

Described = dict[str, Any]
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "integer": st.integers(-5, 5) | st.sampled_from([1.0, 2.0]),
    "number": st.floats(-5, 5),
    "string": st.text("ab", max_size=3),
    "boolean": st.booleans(),
    "null": st.none(),
}


def schemas_of(children: st.SearchStrategy[Described]) -> st.SearchStrategy[Described]:
    lists = st.builds(lambda items: {"type": "array", "items": items}, children)
    return lists | objects(children)


@st.composite
def objects(draw: st.DrawFn, children: st.SearchStrategy[Described]) -> Described:
    properties = draw(st.dictionaries(st.sampled_from("abc"), children, max_size=3))
    document: Described = {"type": "object", "properties": properties}
    document["required"] = sorted(draw(st.sets(st.sampled_from(sorted(properties))))) if properties else []
    openness = draw(st.sampled_from([None, True, False]))
    return document if openness is None else {**document, "additionalProperties": openness}


SCALAR_SCHEMAS = st.sampled_from(sorted(SCALARS)).map(lambda name: {"type": name})
DOCUMENTS = objects(st.recursive(SCALAR_SCHEMAS, schemas_of, max_leaves=6))
VALUES = st.recursive(
    st.one_of(*SCALARS.values()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)


def matching(described: Described) -> st.SearchStrategy[Any]:
    """Values of the described shape, some with wrong parts."""
    if described["type"] == "array":
        return st.lists(matching(described["items"]), max_size=2)
    if described["type"] == "object":
        return st.fixed_dictionaries(
            {}, optional={name: matching(child) | VALUES for name, child in described["properties"].items()}
        )
    return SCALARS[described["type"]]


def accepts(described: Described, value: Any) -> bool:
    """JSON Schema for the documents above, implemented a second time."""
    if described["type"] == "array":
        return isinstance(value, list) and all(accepts(described["items"], item) for item in value)
    if described["type"] == "object":
        if not isinstance(value, dict) or not set(described["required"]) <= value.keys():
            return False
        known = described["properties"]
        return all(
            accepts(known[name], item) if name in known else described["additionalProperties"]
            for name, item in value.items()
        )
    if described["type"] == "null":
        return value is None
    if described["type"] == "string":
        return isinstance(value, str)
    if isinstance(value, bool):
        return bool(described["type"] == "boolean")
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return (described["type"] == "integer" and whole) or (
        described["type"] == "number" and isinstance(value, int | float)
    )


@given(data=st.data(), document=DOCUMENTS)
def test_what_is_advertised_is_what_is_enforced(data: st.DataObject, document: Described) -> None:
    schema = Schema(document)
    value = data.draw(matching(document) | VALUES)

    assert schema.is_valid(value) == accepts(schema.describe(), value)


CANARY = "canary-of-the-caller"


@pytest.mark.parametrize(
    ("document", "value", "expected"),
    [
        (an_object(a={}), {CANARY: 1, "b": 2}, "2 members are not known; it takes a"),
        (
            an_object(d={"anyOf": [an_object(q={}), {"type": "null"}]}),
            {"d": {CANARY: 1}},
            "'d': a member is not known; it takes q",
        ),
        (
            {**an_object(d={"$ref": "#/$defs/x"}), "$defs": {"x": an_object(q={})}},
            {"d": {CANARY: 1}},
            "'d': a member is not known",
        ),
        (
            an_object(n={"type": "object", "additionalProperties": {"type": "integer"}}),
            {"n": {CANARY: CANARY}},
            "'n.*': value is not of type \"integer\"",
        ),
        (
            an_object(n={"type": "object", "propertyNames": {"maxLength": 3}, "additionalProperties": True}),
            {"n": {CANARY: 1}},
            "'n': the name of a member does not satisfy 'maxLength'",
        ),
        (
            an_object(**{f"p{number}": {} for number in range(30)}),
            {CANARY: 1},
            "a member is not known; it takes " + ", ".join([*(f"p{number}" for number in range(20)), "…"]),
        ),
    ],
    ids=["several", "alternative", "reference", "name in a path", "name of a member", "many"],
)
async def test_names_that_the_caller_chose_are_not_repeated(document: Any, value: Any, expected: str) -> None:
    found = await problems_of(document, value)

    assert found[0]["message"].startswith(expected)
    assert CANARY not in str(found)
