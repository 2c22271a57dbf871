"""The editor's schema: accepts every example, refuses typos, and agrees with the loader."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.field_docs import STRICTER, build_editor_schema, default_to_yaml
from gateway.config.kinds.validation import KINDS, validate_document
from tests.config.kinds.example_documents import DOCUMENTS, RAW, changed, label, without

SCHEMA = build_editor_schema()
EDITOR = jsonschema_rs.Draft7Validator(SCHEMA)

# Messages of the rules that only the loader has, each with its line of STRICTER.
LOADER_ONLY = {
    r"is not a property of the input schema|may omit|no combination of|the same name|twice|another case": STRICTER[1],
    r"write a day|write a date and time|write a time zone|write a full http|over https|require https": STRICTER[2],
    r"is larger than|not later than|can approve|both ok and failed|before since|the period of|takes no 'auth'"
    r"|no body|has no schema|only a|expects|must list tools|needs 'in'|fixed absolute path|whole argument"
    r"|an answer must be an object|brace in the URL|without '\.\.'|interval of anchors": STRICTER[3],
    r"the (?:selector|selection) is empty": STRICTER[4],
    r"reserved for the gateway|not be a plain header": STRICTER[5],
}


def plain(document: Any) -> Any:
    """Convert to JSON types: keys become strings."""
    return json.loads(json.dumps(document))


def objects_in(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for inner in schema.values():
            yield from objects_in(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from objects_in(inner)


def test_schema_is_valid_draft_seven() -> None:
    jsonschema_rs.meta.validate(SCHEMA)

    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"


def test_schema_is_the_same_each_time() -> None:
    assert json.dumps(build_editor_schema()) == json.dumps(SCHEMA)


def test_schema_branches_once_per_kind() -> None:
    assert SCHEMA["properties"]["kind"]["enum"] == list(KINDS)
    assert [branch["if"]["properties"]["kind"]["const"] for branch in SCHEMA["allOf"]] == list(KINDS)


def test_nothing_stands_beside_a_reference() -> None:
    assert [part for part in objects_in(SCHEMA) if "$ref" in part and len(part) > 1] == []


def test_every_property_is_described() -> None:
    properties = [
        (name, key, part)
        for name, definition in SCHEMA["definitions"].items()
        for key, part in definition["properties"].items()
    ]

    assert [(name, key) for name, key, part in properties if not part["description"].endswith(".")] == []


def test_defaults_are_written_as_in_yaml() -> None:
    rule = SCHEMA["definitions"]["GateRuleSpec"]["properties"]

    assert (rule["holdFor"]["default"], rule["mode"]["default"]) == ("45s", "enforce")
    assert SCHEMA["definitions"]["PublishSpec"]["properties"]["as"]["default"] == ["mcp", "http"]
    assert "default" not in rule["when"]


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("Tool-ticket_create", "spec.limits.max_output", "1MiB"),
        ("Tool-ticket_create", "spec.backend.auth.token.fromenv", "X"),
        ("Tool-ticket_create", "spec.backend.auth.token", "abc"),
        ("Tool-ticket_create", "spec.backend.auth.scheme", "bearr"),
        ("Tool-ticket_create", "spec.backend.methd", "GET"),
        ("Tool-ticket_create", "spec.input.schema.type", "array"),
        ("Tool-ticket_create", "spec.lifecycle", "deprecated"),
        ("Tool-ticket_create", "spec.backend.errors.200", "failed"),
        ("GateRule-deploy-hours", "spec.check.open.1.days.0", "friday"),
        ("GateRule-refunds-over-500", "spec.check.excludeRequester", False),
        ("PolicyTest-engineering", "spec.cases.3.as.roles.0", "finance-lead"),
        ("PolicyTest-engineering", "spec.cases.0.discover", True),
        ("Telemetry-default", "spec.traces.exporter.endpont", "x"),
    ],
)
def test_typo_at_depth_is_refused_at_its_place(name: str, path: str, value: Any) -> None:
    document = plain(changed(name, path, value))

    assert not EDITOR.is_valid(document)
    assert validate_document(changed(name, path, value))[1]


def test_editor_reports_the_branch_of_the_kind_only() -> None:
    document = plain(changed("Tool-ticket_create", "spec.limits.max_output", "1MiB"))

    errors = [(list(error.instance_path), error.message) for error in EDITOR.iter_errors(document)]

    assert len(errors) == 1
    assert errors[0][0] == ["spec", "limits"]


def test_own_backend_needs_input_in_the_editor_too() -> None:
    assert not EDITOR.is_valid(plain(without("Tool-ticket_create", "spec.input")))
    assert EDITOR.is_valid(plain(without("Tool-code_search", "spec.lifecycle")))


@pytest.mark.parametrize("key", ["accessKey", "secretKey"])
def test_keys_of_a_store_come_in_pairs_in_the_editor_too(key: str) -> None:
    assert not EDITOR.is_valid(plain(without("Storage-shared", f"spec.blobs.{key}")))


@pytest.mark.parametrize("document", RAW, ids=label)
def test_example_is_valid_as_the_editor_sees_it(document: dict[str, Any]) -> None:
    errors = [(error.instance_path, error.message) for error in EDITOR.iter_errors(plain(document))]

    assert errors == []


@pytest.mark.parametrize(
    ("value", "text"),
    [((), None), ({}, None), (None, None), (False, False), (("a",), ["a"]), ("x", "x"), (3, 3)],
    ids=repr,
)
def test_default_as_yaml_writes_it(value: Any, text: Any) -> None:
    assert default_to_yaml(value) == text


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key and entry, except inside free-form values."""
    free = {"annotations", "schema", "with", "meta", "options", "merge", "resolution"}
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, each in inner:
        found.append((*path, key))
        if key not in free:
            found += spots(each, (*path, key))
    return found


OTHER = st.sampled_from(["text", "", 5, -1, 1.5, True, False, None, [], {}, ["x"], [5], {"x": 1}])
MUTATIONS = st.sampled_from(["drop", "rename", "retype"])


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_editor_and_loader_agree_on_any_single_change(data: st.DataObject) -> None:
    document = deepcopy(data.draw(st.sampled_from(DOCUMENTS)))
    *parents, last = data.draw(st.sampled_from(spots(document)))
    holder: Any = document
    for part in parents:
        holder = holder[part]
    match data.draw(MUTATIONS):
        case "drop":
            del holder[last]
        case "rename" if isinstance(holder, dict):
            holder[f"{last}X"] = holder.pop(last)
        case _:
            holder[last] = data.draw(OTHER)

    accepted = EDITOR.is_valid(plain(document))
    _, problems = validate_document(document)

    if accepted:
        assert [problem for problem in problems if not is_documented(problem.message)] == []
    else:
        assert problems


def is_documented(message: str) -> bool:
    return any(re.search(pattern, message) for pattern in LOADER_ONLY)
