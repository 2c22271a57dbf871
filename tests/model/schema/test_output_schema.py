"""Output schemas of tools."""

import pytest

from gateway.model.schema.schema import NO_VALUE, OutputSchema, parse_output, to_plain_containers

TOTAL = {"type": "object", "required": ["total"], "properties": {"total": {"type": "integer"}}}
WRAPPED = {"type": "object", "required": ["result"], "properties": {"result": {"type": "string"}}}
NUMBER = {"type": "object", "properties": {"result": {"type": "integer"}}}


def test_value_keeps_a_promise_or_breaks_it_in_words() -> None:
    promise = OutputSchema(TOTAL)

    assert promise.matches({"total": 1, "more": [1]})
    assert not promise.matches(NO_VALUE)
    assert not promise.matches({"total": object()})
    assert "total" in promise.mismatch({"total": "three"})
    assert promise.mismatch(NO_VALUE) == "it is not JSON, or too large"


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        pytest.param(TOTAL, '{"total": 1, "more": 2}', {"total": 1, "more": 2}, id="the-value"),
        pytest.param(TOTAL, "[1]", NO_VALUE, id="another-value"),
        pytest.param(WRAPPED, "five", {"result": "five"}, id="a-wrapped-text"),
        pytest.param(WRAPPED, "5", {"result": "5"}, id="a-wrapped-text-that-is-json"),
        pytest.param(
            {"properties": {"result": {"type": "integer"}}, "type": "object"}, "5", {"result": 5}, id="wrapped"
        ),
    ],
)
def test_value_is_found_in_the_text_that_stands_for_it(schema: dict[str, object], text: str, value: object) -> None:
    found = OutputSchema(schema).extract(text)

    assert found is NO_VALUE if value is NO_VALUE else found == value


def test_schema_that_fetches_is_refused() -> None:
    with pytest.raises(ValueError, match="not a valid JSON Schema"):
        OutputSchema({"$ref": "https://elsewhere.example.com/schema.json"})


def test_frozen_documents_become_plain() -> None:
    assert to_plain_containers({"a": ({"b": 1},)}) == {"a": [{"b": 1}]}
    assert parse_output(b"[1]") == [1]
    assert parse_output("no") is NO_VALUE
