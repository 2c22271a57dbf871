"""Operations as tools: their names, arguments, schemas, answers and credentials."""

from typing import Any

import pytest

from gateway.backends.openapi.request_builder import serialize_request
from gateway.backends.openapi.request_template import BodyPart, RequestBody, RequestParameter
from gateway.backends.openapi.tool_definitions import ANSWER_META, REQUEST_META, import_document, to_definition
from gateway.model.schema.schema import Schema
from tests.backends.openapi.small_documents import document, imported, json_body, operation, parameter, skipped


def test_operation_becomes_the_definition_of_a_tool() -> None:
    found = operation(
        {
            "operationId": "pets/get-one",
            "summary": "Get a pet",
            "description": "By its number.",
            "parameters": [parameter("id", "path", schema={"type": "integer"}, description="The number.")],
            "responses": {"200": {"content": {"application/json": {"schema": {"type": "object"}}}}},
        },
        path="/pets/{id}",
    )

    assert to_definition(found) == {
        "name": "pets_get-one",
        "title": "Get a pet",
        "description": "Get a pet\n\nBy its number.",
        "inputSchema": {
            "type": "object",
            "properties": {"id": {"type": "integer", "description": "The number."}},
            "required": ["id"],
            "additionalProperties": False,
        },
        "outputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True},
        "_meta": {
            REQUEST_META: {
                "method": "GET",
                "path": "/pets/{id}",
                "accept": "application/json",
                "parameters": [{"argument": "id", "in": "path"}],
            },
            ANSWER_META: {"artifact": "json"},
        },
    }


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"operationId": "getPetById"}, "getPetById"),
        ({"operationId": "repos/get content"}, "repos_get_content"),
        ({"operationId": "a\u202eb\x00c\nd"}, "a_b_c_d"),
        ({"operationId": "…"}, "delete_things_id"),
        ({"operationId": 7}, "delete_things_id"),
        ({}, "delete_things_id"),
        ({"operationId": "x" * 200}, "x" * 55 + "_aa20c23e"),
    ],
    ids=["as-it-is", "slashes", "control-characters", "nothing-left", "no-text", "no-id", "too-long"],
)
def test_name_comes_from_the_id_or_from_method_and_path(given: dict[str, Any], name: str) -> None:
    paths = {"/things/{id}": {"delete": {**given, "parameters": [parameter("id", "path")]}}}

    assert [each.name for each in imported(paths).operations] == [name]


def test_equal_ids_get_names_of_their_own() -> None:
    paths: dict[str, Any] = {
        "/a": {"get": {"operationId": "list"}, "post": {"operationId": "List"}},
        "/A": {"post": {"operationId": "list"}},
    }

    assert [each.name for each in imported(paths).operations] == ["list", "post_a", "post_A_2"]


def test_parameter_of_the_operation_replaces_that_of_the_path() -> None:
    paths = {
        "/things": {
            "parameters": [parameter("page", schema={"type": "string"}), parameter("size")],
            "get": {"parameters": [parameter("page", schema={"type": "integer"}, required=True)]},
        }
    }

    (found,) = imported(paths).operations

    assert found.input_schema["properties"] == {"page": {"type": "integer"}, "size": {"type": "string"}}
    assert found.input_schema["required"] == ["page"]


def test_equal_names_in_different_places_are_distinguished() -> None:
    places = [parameter("id", place) for place in ("query", "header", "cookie", "path")]
    body = json_body({"type": "object", "properties": {"id": {"type": "string"}, "id_body": {"type": "string"}}})

    found = operation({"parameters": places, "requestBody": body}, path="/things/{id}", method="post")

    arguments = ["id", "id_query", "id_header", "id_cookie", "id_body", "id_body_body"]
    assert list(found.input_schema["properties"]) == arguments
    parts = serialize_request(found.request, {name: name for name in arguments})
    assert parts.target() == "/things/id?id=id_query"
    assert (parts.headers["id"], parts.cookies) == ("id_header", (("id", "id_cookie"),))
    assert parts.body == b'{"id": "id_body", "id_body": "id_body_body"}'


def test_odd_names_are_spelled_for_models_and_sent_as_they_are() -> None:
    found = operation({"parameters": [parameter("filter[name]"), parameter("$top"), parameter("§")]})

    assert list(found.input_schema["properties"]) == ["filter_name", "top", "query"]
    assert serialize_request(found.request, {"filter_name": "a", "top": 1, "query": "b"}).target() == (
        "/things?filter%5Bname%5D=a&%24top=1&%C2%A7=b"
    )


@pytest.mark.parametrize("name", ["Authorization", "Accept", "Content-Type", "Host", "Cookie", "X-Forwarded-For"])
def test_header_that_is_not_the_callers_to_set_is_no_argument(name: str) -> None:
    found = operation({"parameters": [parameter(name, "header"), parameter("X-Kind", "header")]})

    assert [each.name for each in found.request.parameters] == ["X-Kind"]


@pytest.mark.parametrize("place", ["header", "query", "cookie"])
def test_parameter_that_a_credential_fills_is_no_argument(place: str) -> None:
    components = {"securitySchemes": {"key": {"type": "apiKey", "in": place, "name": "X-Key"}}}

    found = operation(
        {"parameters": [parameter("X-Key", place, required=True)], "security": [{"key": []}]}, components=components
    )

    assert found.input_schema["properties"] == {}
    assert found.wants == (place,)


@pytest.mark.parametrize(
    ("security", "wants"),
    [
        ([{"bearer": []}, {"basic": []}], ("bearer", "basic")),
        ([{"bearer": []}, {}], ()),
        ([], ()),
        ([{"flow": ["read"]}], ("oauth2",)),
        ([{"unheard-of": []}], ("unheard-of",)),
    ],
    ids=["one-of-two", "optional", "none", "oauth", "unknown"],
)
def test_operation_names_the_credentials_it_wants(security: list[Any], wants: tuple[str, ...]) -> None:
    schemes = {
        "bearer": {"type": "http", "scheme": "Bearer"},
        "basic": {"type": "http", "scheme": "basic"},
        "flow": {"type": "oauth2", "flows": {}},
    }

    found = operation({"security": security}, components={"securitySchemes": schemes}, security=[{"basic": []}])

    assert found.wants == wants


def test_properties_of_a_plain_body_are_arguments() -> None:
    body = json_body({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}, "b": {}}})

    found = operation({"requestBody": body}, method="post")

    assert found.input_schema["required"] == ["a"]
    assert found.request.body == RequestBody("application/json", True, None, (BodyPart("a", "a"), BodyPart("b", "b")))


@pytest.mark.parametrize(
    ("schema", "required"),
    [
        ({"type": "array", "items": {"type": "string"}}, True),
        ({"oneOf": [{"type": "object", "properties": {"a": {}}}]}, True),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "string"}}, True),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, False),
        ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, True),
        ({}, True),
    ],
    ids=["list", "alternatives", "further-keys", "optional-with-required", "required-unlisted", "anything"],
)
def test_any_other_body_is_one_argument(schema: dict[str, Any], required: bool) -> None:
    found = operation({"requestBody": json_body(schema, required=required)}, method="post")

    assert list(found.input_schema["properties"]) == ["body"]
    assert found.request.body == RequestBody("application/json", required, "body")


@pytest.mark.parametrize(
    ("kinds", "chosen"),
    [
        (["text/plain", "application/json"], "application/json"),
        (["application/json-patch+json", "application/merge-patch+json"], "application/merge-patch+json"),
        (["multipart/form-data", "application/x-www-form-urlencoded"], "application/x-www-form-urlencoded"),
        (["application/octet-stream", "text/csv"], "text/csv"),
        (["*/*"], "application/json"),
        (["application/vnd.acme+json"], "application/vnd.acme+json"),
    ],
    ids=["json", "merge-patch", "form", "text", "anything", "vendor"],
)
def test_body_is_sent_in_the_type_that_is_written_best(kinds: list[str], chosen: str) -> None:
    content = {kind: {"schema": {"type": "object"}} for kind in kinds}

    found = operation({"requestBody": {"content": content}}, method="post")

    assert found.request.body is not None
    assert found.request.body.media_type == chosen


def test_files_are_given_as_base64() -> None:
    properties = {"file": {"type": "string", "format": "binary", "description": "A scan."}, "note": {"type": "string"}}
    content = {"multipart/form-data": {"schema": {"type": "object", "properties": properties}}}

    found = operation({"requestBody": {"required": True, "content": content}}, method="post")

    assert found.input_schema["properties"]["file"] == {
        "type": "string",
        "contentEncoding": "base64",
        "description": "A scan.",
    }
    assert found.request.body == RequestBody(
        "multipart/form-data", True, None, (BodyPart("file", "file", binary=True), BodyPart("note", "note"))
    )


def test_form_is_written_in_its_declared_encoding() -> None:
    schema = {"type": "object", "properties": {"metadata": {"type": "object"}, "tags": {"type": "array"}}}
    encoding = {
        "metadata": {"style": "deepObject", "explode": True},
        "tags": {"style": "pipeDelimited", "explode": False},
    }
    content = {"application/x-www-form-urlencoded": {"schema": schema, "encoding": encoding}}

    found = operation({"requestBody": {"required": True, "content": content}}, method="post")

    args = {"metadata": {"order": 7}, "tags": ["a", "b"]}
    assert serialize_request(found.request, args).body == b"metadata%5Border%5D=7&tags=a%7Cb"


CONVERTED = [
    ("nullable", {"type": "string", "nullable": True}, {"type": ["string", "null"]}),
    (
        "nullable-enum",
        {"type": "string", "enum": ["a"], "nullable": True},
        {"type": ["string", "null"], "enum": ["a", None]},
    ),
    (
        "nullable-all-of",
        {"allOf": [{"type": "string"}], "nullable": True},
        {"anyOf": [{"allOf": [{"type": "string"}]}, {"type": "null"}]},
    ),
    (
        "exclusive",
        {"type": "integer", "exclusiveMinimum": True, "minimum": 1},
        {"type": "integer", "exclusiveMinimum": 1},
    ),
    ("not-exclusive", {"type": "integer", "maximum": 9, "exclusiveMaximum": False}, {"type": "integer", "maximum": 9}),
    ("example", {"type": "string", "example": "x"}, {"type": "string", "examples": ["x"]}),
    ("default", {"type": "integer", "default": 30}, {"type": "integer", "description": "Default: 30."}),
    (
        "default-told",
        {"type": "string", "description": "Order.", "default": "asc"},
        {"type": "string", "description": 'Order. Default: "asc".'},
    ),
    (
        "discriminator",
        {"oneOf": [{"type": "string"}], "discriminator": {"propertyName": "x"}},
        {"oneOf": [{"type": "string"}]},
    ),
    ("vendor", {"type": "string", "x-kind": "y", "xml": {}, "externalDocs": {}}, {"type": "string"}),
    ("file", {"type": "file"}, {}),
    ("required-as-a-word", {"type": "string", "required": True}, {"type": "string"}),
    ("pattern-for-another-engine", {"type": "string", "pattern": "(?<a>x)\\k<b>(?>"}, {"type": "string"}),
    ("controls", {"type": "string", "description": "a\x1b[2Jb\r\nc"}, {"type": "string", "description": "a[2Jb\nc"}),
]


@pytest.mark.parametrize(("given", "schema"), [row[1:] for row in CONVERTED], ids=[row[0] for row in CONVERTED])
def test_schema_of_3_0_means_the_same_in_2020_12(given: dict[str, Any], schema: dict[str, Any]) -> None:
    found = operation({"parameters": [parameter("a", schema=given)]}, version="3.0.3")

    assert found.input_schema["properties"]["a"] == schema


def test_schema_of_3_1_is_taken_as_it_is() -> None:
    given = {"type": ["string", "null"], "exclusiveMinimum": 3, "const": "x", "examples": ["y"], "$comment": "z"}

    found = operation({"parameters": [parameter("a", schema=given)]})

    assert found.input_schema["properties"]["a"] == {"type": ["string", "null"], "exclusiveMinimum": 3, "const": "x"}


def test_what_contains_itself_stays_finite() -> None:
    node = {
        "type": "object",
        "properties": {"children": {"type": "array", "items": {"$ref": "#/components/schemas/Node"}}},
    }

    found = operation(
        {"requestBody": json_body({"$ref": "#/components/schemas/Node"})},
        method="post",
        components={"schemas": {"Node": node}},
    )

    assert list(found.input_schema["$defs"]) == ["Node"]
    schema = Schema(dict(found.input_schema))
    assert schema.is_valid({"children": [{"children": []}]})
    assert not schema.is_valid({"children": [{"other": 1}]})


def test_what_only_the_service_sets_is_no_argument() -> None:
    schema = {
        "type": "object",
        "required": ["id", "name"],
        "properties": {"id": {"type": "integer", "readOnly": True}, "name": {"type": "string"}},
    }

    found = operation({"requestBody": json_body(schema)}, method="post")

    assert list(found.input_schema["properties"]) == ["name"]
    assert found.input_schema["required"] == ["name"]


def test_schema_past_the_bound_is_cut_where_it_is_deepest() -> None:
    wide = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(2_000)}}
    schemas = {
        "Near": {"type": "object", "properties": {"far": {"$ref": "#/components/schemas/Far"}}},
        "Far": {"type": "object", "properties": {"a": wide, "b": wide, "c": wide}},
    }
    body = json_body({"type": "object", "properties": {"near": {"$ref": "#/components/schemas/Near"}}})

    found = operation({"requestBody": body}, method="post", components={"schemas": schemas})

    schema = Schema(dict(found.input_schema))
    assert schema.is_valid({"near": {"far": {"anything": 1}}})
    assert not schema.is_valid({"near": {"near": 1}})


ANSWERS = [
    ("json", {"200": ["application/json"]}, "application/json", {"artifact": "json"}),
    ("json-of-several", {"200": ["text/html", "application/json"]}, "application/json", {"artifact": "json"}),
    ("problem", {"200": ["application/hal+json"]}, "application/hal+json", {"artifact": "json"}),
    ("markdown", {"201": ["text/markdown"]}, "text/markdown", {"artifact": "markdown"}),
    ("yaml", {"2XX": ["application/yaml"]}, "application/yaml", {"artifact": "yaml"}),
    ("xml", {"200": ["application/atom+xml"]}, "application/atom+xml", {"artifact": "xml"}),
    ("picture", {"200": ["image/png"]}, "image/png", {"artifact": "text", "media": "image/png"}),
    ("drawing", {"200": ["image/svg+xml"]}, "image/svg+xml", {"artifact": "text"}),
    ("bytes", {"200": ["application/octet-stream"]}, "application/octet-stream", {"artifact": "text"}),
    ("nothing", {"204": []}, "*/*", {"artifact": "text"}),
    ("not-a-type", {"200": ["a\r\nb: c"]}, "*/*", {"artifact": "text"}),
]


@pytest.mark.parametrize(
    ("responses", "accept", "answer"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS]
)
def test_answer_is_asked_for_and_read_as_declared(responses: Any, accept: str, answer: dict[str, str]) -> None:
    declared: dict[str, Any] = {
        status: {"content": {kind: {} for kind in kinds}} for status, kinds in responses.items()
    }

    found = operation({"responses": declared})

    assert found.request.accept == accept
    assert to_definition(found)["_meta"][ANSWER_META] == answer


def test_deprecated_operation_is_marked_as_such() -> None:
    found = operation({"summary": "Old", "deprecated": True})

    assert (found.deprecated, found.description) == (True, "Deprecated. Old")


def test_chosen_operations_only_are_looked_into() -> None:
    paths: dict[str, Any] = {
        "/a": {"get": {"operationId": "good", "tags": ["x"]}},
        "/b": {"get": {"operationId": "bad", "parameters": "broken"}},
    }

    result = import_document(document(paths), lambda found: "x" in found.tags)

    assert [each.name for each in result.operations] == ["good"]
    assert (result.skipped, result.total) == ((), 2)


SKIPPED = [
    ("external-file", {"$ref": "other.yaml#/a"}, "the reference 'other.yaml#/a' leads out of the document"),
    (
        "external-url",
        {"$ref": "https://evil.example/x"},
        "the reference 'https://evil.example/x' leads out of the document",
    ),
    ("script", {"$ref": "javascript:alert(1)"}, "the reference 'javascript:alert(1)' leads out of the document"),
    ("nowhere", {"$ref": "#/components/schemas/No"}, "the reference '#/components/schemas/No' leads nowhere"),
    ("anchor", {"$ref": "#pet"}, "the reference '#pet' is not a path from the root of the document"),
    ("not-text", {"$ref": 7}, "a reference is not a text"),
    ("dynamic", {"$dynamicRef": "#x"}, "a schema refers to something dynamic, which is not followed"),
    ("list", [], "a schema is not a mapping"),
]


@pytest.mark.parametrize(("schema", "reason"), [row[1:] for row in SKIPPED], ids=[row[0] for row in SKIPPED])
def test_operation_with_a_schema_that_cannot_be_followed_is_left_out(schema: Any, reason: str) -> None:
    assert skipped({"parameters": [parameter("a", schema=schema)]}) == reason


BROKEN = [
    ("parameters", {"parameters": {"a": 1}}, "/a", "its parameters are not a list"),
    ("nameless", {"parameters": [{"in": "query"}]}, "/a", "a parameter has no name or no known place"),
    ("placeless", {"parameters": [{"name": "x", "in": "body"}]}, "/a", "a parameter has no name or no known place"),
    (
        "style",
        {"parameters": [parameter("x", style="matrix")]},
        "/a",
        "the parameter 'x' has a style that its location does not allow",
    ),
    (
        "header",
        {"parameters": [parameter("x\r\ny", "header")]},
        "/a",
        "the parameter 'x\\r\\ny' is not a valid header name",
    ),
    ("undeclared", {}, "/a/{b}", "the path has a placeholder 'b' without a parameter"),
    ("unused", {"parameters": [parameter("b", "path")]}, "/a", "the path has no placeholder for its parameter 'b'"),
    ("brace", {}, "/a/}", "the path has a brace that is not part of a placeholder"),
    ("relative", {}, "a", "its path is not a plain path from the root"),
    ("query", {}, "/a?b=c", "its path is not a plain path from the root"),
    ("dots", {}, "/a/../b", "its path is not a plain path from the root"),
    ("host", {}, "//evil.example/x", "its path is not a plain path from the root"),
    ("line", {}, "/a\r\nb", "its path is not a plain path from the root"),
]


@pytest.mark.parametrize(("given", "path", "reason"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_operation_that_cannot_be_called_is_left_out(given: dict[str, Any], path: str, reason: str) -> None:
    assert skipped(given, path=path) == reason


def test_parameter_may_be_referred_to() -> None:
    components = {"parameters": {"Page": {"$ref": "#/components/parameters/P2"}, "P2": parameter("page")}}

    found = operation({"parameters": [{"$ref": "#/components/parameters/Page"}]}, components=components)

    assert found.request.parameters == (RequestParameter("page", "page", "query", "form", True),)
