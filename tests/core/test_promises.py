"""What tools promise of their results."""

import pytest

from gateway.core.promises import NOTHING, Promise, parsed, plain

TOTAL = {"type": "object", "required": ["total"], "properties": {"total": {"type": "integer"}}}
WRAPPED = {"type": "object", "required": ["result"], "properties": {"result": {"type": "string"}}}
NUMBER = {"type": "object", "properties": {"result": {"type": "integer"}}}


def test_value_keeps_a_promise_or_breaks_it_in_words() -> None:
    promise = Promise(TOTAL)

    assert promise.is_kept({"total": 1, "more": [1]})
    assert not promise.is_kept(NOTHING)
    assert not promise.is_kept({"total": object()})
    assert "total" in promise.broken({"total": "three"})
    assert promise.broken(NOTHING) == "it is not JSON, or too large"


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        pytest.param(TOTAL, '{"total": 1, "more": 2}', {"total": 1, "more": 2}, id="the-value"),
        pytest.param(TOTAL, "[1]", NOTHING, id="another-value"),
        pytest.param(WRAPPED, "five", {"result": "five"}, id="a-wrapped-text"),
        pytest.param(WRAPPED, "5", {"result": "5"}, id="a-wrapped-text-that-is-json"),
        pytest.param(
            {"properties": {"result": {"type": "integer"}}, "type": "object"}, "5", {"result": 5}, id="wrapped"
        ),
    ],
)
def test_value_is_found_in_the_text_that_stands_for_it(schema: dict[str, object], text: str, value: object) -> None:
    found = Promise(schema).found_in(text)

    assert found is NOTHING if value is NOTHING else found == value


def test_schema_that_fetches_is_refused() -> None:
    with pytest.raises(ValueError, match="not a valid JSON Schema"):
        Promise({"$ref": "https://elsewhere.example.com/schema.json"})


def test_frozen_documents_become_plain() -> None:
    assert plain({"a": ({"b": 1},)}) == {"a": [{"b": 1}]}
    assert parsed(b"[1]") == [1]
    assert parsed("no") is NOTHING
