"""Documents made to be expensive are refused or cut, with little time and memory."""

import json
from typing import Any

import pytest

from gateway.backends.openapi.document import MAX_BYTES, OpenApiInvalid, read_document
from gateway.backends.openapi.tool_definitions import MAX_OPERATIONS, import_document
from tests.backends.openapi.small_documents import document, imported, json_body, operation, parameter, skipped

HEAD = "openapi: 3.1.0\ninfo: {title: T, version: '1'}\n"
BOMB = (
    HEAD
    + "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 10)}]\n" for n in range(12))
)
REFUSED = [
    ("empty", b"", "the OpenAPI document is not a mapping"),
    ("list", b"[1]", "the OpenAPI document is not a mapping"),
    ("half-json", b'{"openapi": "3.1.0"', "the OpenAPI document is not JSON: unexpected end of data"),
    ("deep-json", b'{"a":' * 5_000, "the OpenAPI document is not JSON: "),
    ("half-yaml", b"openapi: [", "the OpenAPI document is not YAML: "),
    ("two-yaml", b"openapi: 3.1.0\n---\nopenapi: 3.1.0\n", "the OpenAPI document is not YAML: "),
    ("tag", b"openapi: !!python/object/apply:os.system ['true']\n", "the OpenAPI document is not YAML: "),
    ("bomb", BOMB.encode(), "the OpenAPI document is not YAML: "),
    ("deep-yaml", b"a: " + b"[" * 50_000, "the OpenAPI document is not YAML: "),
    ("bytes", b"\xff\xfe\x00", "the OpenAPI document is not UTF-8 text"),
    ("swagger", b'{"swagger": "2.0"}', "this is Swagger 2.0, which is not supported"),
    ("version", b'{"openapi": "4.0.0"}', "the 'openapi' version is '4.0.0'"),
    ("version-number", b"openapi: 3.1\n", "the 'openapi' version is missing or no text"),
    ("paths", b'{"openapi": "3.1.0", "paths": [1]}', "the 'paths' of the OpenAPI document are not a mapping"),
    ("huge", b"{" + b" " * MAX_BYTES, "the OpenAPI document is larger than 32 MiB"),
    ("huge-yaml", b"#" * (9 << 20), "the OpenAPI document is YAML of more than 8 MiB"),
]


@pytest.mark.parametrize(("data", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_document_that_is_none_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(OpenApiInvalid) as refused:
        read_document(data)

    assert refused.value.message.startswith(message)
    assert "\n" not in refused.value.message


def test_yaml_is_read_like_json() -> None:
    text = HEAD + "paths:\n  /a:\n    get:\n      operationId: a\n      responses: {200: {description: ok}}\n"

    assert [each.name for each in import_document(text.encode(), lambda found: True).operations] == ["a"]


def test_hundred_thousand_operations_are_refused() -> None:
    paths: dict[str, Any] = {f"/p{number}": {"get": {}} for number in range(100_000)}

    with pytest.raises(OpenApiInvalid, match=f"more than {MAX_OPERATIONS} operations"):
        import_document(document(paths), lambda found: False)


def test_schema_nested_without_end_is_left_out() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(400):
        schema = {"type": "object", "properties": {"a": schema}}

    assert skipped({"requestBody": json_body(schema)}, method="post") == "a schema is nested deeper than 20 levels"


def test_references_in_a_circle_are_left_out() -> None:
    components = {
        "parameters": {"A": {"$ref": "#/components/parameters/B"}, "B": {"$ref": "#/components/parameters/A"}}
    }

    reason = skipped({"parameters": [{"$ref": "#/components/parameters/A"}]}, components=components)

    assert reason == "references lead in a circle"


def test_schema_that_is_nothing_but_itself_is_left_out_or_harmless() -> None:
    components = {"schemas": {"A": {"$ref": "#/components/schemas/B"}, "B": {"$ref": "#/components/schemas/A"}}}

    result = imported(
        {"/a": {"post": {"requestBody": json_body({"$ref": "#/components/schemas/A"})}}}, components=components
    )

    assert len(result.operations) + len(result.skipped) == 1


def test_schemas_that_double_at_every_step_do_not_unfold() -> None:
    schemas: dict[str, Any] = {
        f"S{n}": {"type": "object", "properties": {key: {"$ref": f"#/components/schemas/S{n + 1}"} for key in "ab"}}
        for n in range(60)
    }
    schemas["S60"] = {"type": "string"}

    result = imported(
        {"/a": {"post": {"requestBody": json_body({"$ref": "#/components/schemas/S0"})}}},
        components={"schemas": schemas},
    )

    assert len(result.operations) + len(result.skipped) == 1


def test_alternatives_by_the_thousand_are_left_out_or_bounded() -> None:
    many = {"anyOf": [{"type": "object", "properties": {f"p{n}": {}}} for n in range(10_000)]}

    result = imported({"/a": {"post": {"requestBody": json_body(many)}}})

    assert [each.reason for each in result.skipped] == [
        "its arguments cannot be checked: the schema has more than 5000 subschemas"
    ]


def test_arguments_by_the_thousand_are_left_out() -> None:
    assert skipped({"parameters": [parameter(f"p{n}") for n in range(2_000)]}) == "it takes more than 500 arguments"


def test_endless_texts_are_cut() -> None:
    found = operation(
        {
            "summary": "s" * 10_000,
            "description": "d" * 1_000_000,
            "parameters": [parameter("a", description="x" * 9_999)],
        }
    )

    assert len(found.title or "") == 200
    assert len(found.description) < 10_000
    assert len(json.dumps(found.input_schema)) < 2_000
