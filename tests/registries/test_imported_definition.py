"""Definitions of upstreams: stored whole, one digest each, refused if they could not be stored."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.registries.imported_definition import (
    MAX_DEPTH,
    MAX_SIZE,
    InvalidDefinition,
    UpstreamDefinition,
    build_tool_definition,
    hash_definition,
)

TOOL = {
    "name": "find",
    "title": "Find",
    "description": "Finds pages.",
    "inputSchema": {"type": "object", "properties": {"query": {"type": "string", "enum": ["a", "b"]}}},
    "outputSchema": {"type": "object"},
    "annotations": {"destructiveHint": False},
    "icons": [{"src": "https://example.com/a.png"}],
    "_meta": {"x": 1},
}

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def test_definition_is_read_as_it_was_given() -> None:
    found = UpstreamDefinition.read("wiki", TOOL)

    assert (found.identity, found.kind, found.title) == ("wiki.find", "tool", "Find")
    assert (found.description, found.input_schema) == ("Finds pages.", TOOL["inputSchema"])
    assert (found.output_schema, found.annotations) == ({"type": "object"}, {"destructiveHint": False})
    assert found.given is TOOL
    assert not found.is_pinned


def test_parts_that_are_missing_have_plain_defaults() -> None:
    found = UpstreamDefinition.read("wiki", {"name": "find"})

    assert (found.title, found.description, found.output_schema, found.annotations) == (None, "", None, {})
    assert found.input_schema == {"type": "object"}


@pytest.mark.parametrize(
    "path",
    [
        ("title",),
        ("description",),
        ("inputSchema", "properties", "query", "enum", 1),
        ("_meta", "x"),
        ("icons", 0, "src"),
    ],
    ids=str,
)
def test_change_anywhere_is_another_digest(path: tuple[str | int, ...]) -> None:
    changed = json.loads(json.dumps(TOOL))
    place = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = "another"

    assert hash_definition("tool", changed) != hash_definition("tool", TOOL)


def test_order_of_keys_and_frozen_containers_are_the_same_digest() -> None:
    turned = dict(reversed(TOOL.items()))
    frozen: Mapping[str, Any] = MappingProxyType({**TOOL, "icons": tuple(TOOL["icons"])})

    assert hash_definition("tool", turned) == hash_definition("tool", frozen) == hash_definition("tool", TOOL)


def test_kind_is_part_of_the_digest() -> None:
    assert hash_definition("prompt", {"name": "a"}) != hash_definition("tool", {"name": "a"})


def test_large_numbers_do_not_round_to_one_digest() -> None:
    assert hash_definition("tool", {"maximum": 2**53}) != hash_definition("tool", {"maximum": 2**53 + 1})


@given(VALUES)
def test_what_comes_back_from_json_has_the_same_digest(value: Any) -> None:
    given = {"name": "a", "x": value}

    found = UpstreamDefinition.read("wiki", given)

    assert UpstreamDefinition.read("wiki", json.loads(json.dumps(given))).digest == found.digest


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ([], "tool", "it is not an object"),
        ({}, "tool", "it has no name"),
        ({"name": ""}, "tool", "it has no name"),
        ({"name": 5}, "tool", "it has no name"),
        ({"name": "a", "description": 5}, "tool", "its description is not a text"),
        ({"name": "a", "title": []}, "tool", "its title is not a text"),
        ({"name": "a", "inputSchema": True}, "tool", "its inputSchema is not an object"),
        ({"name": "a", "annotations": "no"}, "tool", "its annotations is not an object"),
        ({"name": "a"}, "resourceTemplate", "it has no uriTemplate"),
        ({"name": "a", "x": float("nan")}, "tool", "it has a number that JSON does not support"),
        ({"name": "a", "x": 2**64}, "tool", "it has a number that is too large to be stored exactly"),
        ({"name": "a", "x": "\ud800"}, "tool", "it has a lone surrogate, which a text file cannot store"),
        ({"name": "a", "x": {"\udfff": 1}}, "tool", "it has a lone surrogate, which a text file cannot store"),
        ({"name": "a", "x": b""}, "tool", "bytes is outside the JSON grammar"),
        ({"name": "a", "x": deep(MAX_DEPTH)}, "tool", f"it is nested deeper than {MAX_DEPTH} levels"),
        ({"name": "a", "x": "y" * MAX_SIZE}, "tool", f"it is larger than {MAX_SIZE >> 10} KiB"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_could_not_be_kept_is_refused(given: Any, kind: Any, message: str) -> None:
    with pytest.raises(InvalidDefinition, match=message):
        UpstreamDefinition.read("wiki", given, kind=kind)


def test_tool_is_made_from_its_parts() -> None:
    given = {"name": "find", "description": "Finds.", "inputSchema": {"type": "object"}}

    assert build_tool_definition("wiki", "find", "Finds.") == UpstreamDefinition.read("wiki", given)
