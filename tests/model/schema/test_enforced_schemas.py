"""Schemas of documents that were compiled before: compiled on first use, with the same answers, and without cycles."""

import gc
from typing import Any

import jsonschema_rs
import pytest

from gateway.errors import ValidationException
from gateway.model import Schema
from gateway.model.primitives.containers import freeze

ORDER: dict[str, Any] = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "string", "enum": ["a", "b"]}, "limit": {"type": "integer", "default": 20}},
}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every document that the library compiles from now on."""
    found: list[Any] = []
    compile_document = jsonschema_rs.Draft202012Validator

    def record(document: Any, **options: Any) -> Any:
        found.append(document)
        return compile_document(document, **options)

    monkeypatch.setattr(jsonschema_rs, "Draft202012Validator", record)
    return found


def test_enforced_schema_is_compiled_on_first_use(compiled: list[Any]) -> None:
    document = freeze(Schema(ORDER).describe())
    compiled.clear()

    schema = Schema.of_enforced(document)
    assert schema.describes_object
    assert schema.describe() == document
    assert compiled == []

    assert schema.check({"id": "a"}) == {"id": "a", "limit": 20}
    first = len(compiled)
    schema.check({"id": "b"})
    assert len(compiled) == first > 0


def test_large_enforced_schema_is_compiled_at_once(compiled: list[Any]) -> None:
    large = {"type": "object", "properties": {f"field_{number}": {"type": "string"} for number in range(1_000)}}
    document = freeze(Schema(large).describe())
    compiled.clear()

    Schema.of_enforced(document)

    assert len(compiled) == 1


@pytest.mark.parametrize("value", [{}, {"id": "c"}, {"id": "a", "more": 1}, {"id": 5}, {"id": "a", "limit": "x"}])
def test_enforced_schema_gives_the_same_problems(value: Any) -> None:
    original = Schema(ORDER)
    enforced = Schema.of_enforced(freeze(original.describe()))
    narrowed = Schema.of_enforced(freeze(original.describe())).with_enum("id", ["a"])

    for schema in (original, enforced, narrowed):
        with pytest.raises(ValidationException):
            schema.check(value)
    with pytest.raises(ValidationException) as expected:
        original.check(value)
    with pytest.raises(ValidationException) as found:
        enforced.check(value)
    assert found.value.details == expected.value.details


def test_narrowed_enforced_schema_refuses_other_choices() -> None:
    narrowed = Schema.of_enforced(freeze(Schema(ORDER).describe())).with_enum("id", ["a"])

    assert narrowed.check({"id": "a"}) == {"id": "a", "limit": 20}
    with pytest.raises(ValidationException):
        narrowed.check({"id": "b"})


def test_schemas_leave_no_cycles() -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            Schema(ORDER)
        assert gc.collect() == 0
    finally:
        gc.enable()
