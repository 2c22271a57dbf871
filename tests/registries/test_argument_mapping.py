"""Upstream tools with mapped arguments: what callers see, what the upstream gets, and mappings that do not fit."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.linking.upstream_schema_checks import find_wider_parts
from gateway.model.schema.schema import Schema
from gateway.registries.argument_mapping import ArgumentMapping

THEIRS: dict[str, Any] = {
    "type": "object",
    "required": ["owner", "query"],
    "additionalProperties": False,
    "properties": {
        "owner": {"type": "string", "minLength": 1},
        "query": {"type": "string", "maxLength": 100},
        "limit": {"type": "integer", "minimum": 1, "maximum": 50},
        "sort": {"enum": ["new", "old"]},
        "scope": {"$ref": "#/$defs/scope"},
    },
    "$defs": {"scope": {"type": "object", "additionalProperties": False, "properties": {"deep": {"type": "boolean"}}}},
}
SHAPING = ArgumentMapping(
    fixed={"owner": "acme"},
    hidden=frozenset({"scope"}),
    defaults={"limit": 10},
    renamed={"query": "words"},
    described={"query": "What to look for."},
)


def test_callers_are_shown_what_they_may_give() -> None:
    assert SHAPING.apply_to_schema(THEIRS) == {
        "type": "object",
        "required": ["words"],
        "additionalProperties": False,
        "properties": {
            "words": {"type": "string", "maxLength": 100, "description": "What to look for."},
            "limit": {"type": "integer", "minimum": 1, "maximum": 50, "default": 10},
            "sort": {"enum": ["new", "old"]},
        },
        "$defs": THEIRS["$defs"],
    }


@pytest.mark.parametrize(
    ("name", "theirs", "help"),
    [
        ("ownr", THEIRS, "did you mean 'owner'?"),
        ("x", THEIRS, "it has limit, owner, query, scope, sort"),
        ("x", {"type": "object"}, "it has none"),
    ],
)
def test_unknown_argument_is_refused_with_the_known_names(name: str, theirs: dict[str, Any], help: str) -> None:
    [problem] = ArgumentMapping(described={name: "What it is."}).check(theirs)

    assert problem.help == help


def test_upstream_gets_its_own_names_and_what_is_fixed() -> None:
    assert SHAPING.to_upstream({"words": "x", "limit": 5}) == {"query": "x", "limit": 5, "owner": "acme"}


def test_default_of_a_hidden_argument_is_always_sent() -> None:
    shaping = ArgumentMapping(hidden=frozenset({"limit"}), defaults={"limit": 3})

    assert shaping.to_upstream({}) == {"limit": 3}


@pytest.mark.parametrize("name", ["owner", "scope", "query"])
def test_what_no_caller_may_give_is_not_passed_on(name: str) -> None:
    assert SHAPING.to_upstream({"words": "x", name: "mine"}) == {"query": "x", "owner": "acme"}


def test_names_may_be_swapped() -> None:
    shaping = ArgumentMapping(renamed={"a": "b", "b": "a"})

    assert shaping.to_upstream({"a": 1, "b": 2}) == {"b": 1, "a": 2}


@given(
    st.fixed_dictionaries(
        {"words": st.text(max_size=100)},
        optional={"limit": st.integers(1, 50), "sort": st.sampled_from(["new", "old"])},
    )
)
def test_whatever_callers_may_give_the_upstream_takes(args: dict[str, Any]) -> None:
    accepted = Schema(SHAPING.apply_to_schema(THEIRS)).check(args)

    assert Schema(THEIRS).is_valid(SHAPING.to_upstream(accepted))


def test_open_upstream_is_closed_by_a_shape() -> None:
    theirs = {"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": True}

    shown = ArgumentMapping(hidden=frozenset({"b"})).apply_to_schema(theirs)

    assert not Schema(shown).is_valid({"b": 1})


def test_empty_shape_changes_nothing() -> None:
    assert ArgumentMapping().apply_to_schema(THEIRS) == THEIRS
    assert list(ArgumentMapping().check({"anyOf": []})) == []


MISFITS: list[tuple[str, ArgumentMapping, Any, str]] = [
    (
        "fixed-unknown",
        ArgumentMapping(fixed={"ownr": 1}),
        ("fixed", "ownr"),
        "the upstream's tool has no argument 'ownr'",
    ),
    (
        "hidden-unknown",
        ArgumentMapping(hidden=frozenset({"x"})),
        ("hidden",),
        "the upstream's tool has no argument 'x'",
    ),
    (
        "renamed-unknown",
        ArgumentMapping(renamed={"x": "y"}),
        ("renamed", "x"),
        "the upstream's tool has no argument 'x'",
    ),
    (
        "described-unknown",
        ArgumentMapping(described={"x": "y"}),
        ("described", "x"),
        "the upstream's tool has no argument 'x'",
    ),
    (
        "fixed-refused",
        ArgumentMapping(fixed={"limit": 99}),
        ("fixed", "limit"),
        "the upstream's tool refuses this value for 'limit'",
    ),
    (
        "default-refused",
        ArgumentMapping(defaults={"scope": {"deep": 1}}),
        ("defaults", "scope"),
        "the upstream's tool refuses this value for 'scope'",
    ),
    (
        "hidden-needed",
        ArgumentMapping(hidden=frozenset({"owner"})),
        ("hidden",),
        "the upstream requires 'owner', which is hidden and has no value",
    ),
    (
        "name-taken",
        ArgumentMapping(renamed={"query": "limit"}),
        ("renamed", "query"),
        "another argument has the name 'limit'",
    ),
]


@pytest.mark.parametrize(("shaping", "path", "message"), [row[1:] for row in MISFITS], ids=[row[0] for row in MISFITS])
def test_shape_that_does_not_fit_is_reported(shaping: ArgumentMapping, path: Any, message: str) -> None:
    assert [(each.path, each.message) for each in shaping.check(THEIRS)] == [(path, message)]


@pytest.mark.parametrize("keyword", ["anyOf", "allOf", "if", "dependentRequired", "minProperties"])
def test_schema_in_which_arguments_depend_on_each_other_cannot_be_shaped(keyword: str) -> None:
    (problem,) = ArgumentMapping(fixed={"a": 1}).check({"type": "object", "properties": {"a": {}}, keyword: {}})

    assert problem.message.startswith(f"the upstream's schema has {keyword!r} at its root")


def ours(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["owner", "query"],
        "properties": {"owner": {"type": "string", "minLength": 2}, **properties},
    }


Q = {"type": "string", "maxLength": 100}
NARROWER = [
    ("equal", ours(query=Q)),
    ("shorter", ours(query={"type": "string", "maxLength": 5})),
    ("listed", ours(query={"enum": ["a", "b"]})),
    ("constant", ours(query=Q, limit={"const": 7})),
    ("integer-bounds", ours(query=Q, limit={"type": "integer", "minimum": 2, "maximum": 3})),
    ("exclusive", ours(query=Q, limit={"type": "integer", "exclusiveMinimum": 1, "maximum": 3})),
    ("fewer-values", ours(query=Q, sort={"enum": ["new"]})),
    ("below", ours(query=Q, scope={"type": "object", "properties": {"deep": {"const": True}}})),
    ("own-reference", ours(query={"$ref": "#/$defs/q"}) | {"$defs": {"q": Q}}),
]


@pytest.mark.parametrize("schema", [row[1] for row in NARROWER], ids=[row[0] for row in NARROWER])
def test_schema_that_allows_no_more_is_fine(schema: dict[str, Any]) -> None:
    assert list(find_wider_parts(schema, THEIRS, ArgumentMapping())) == []


WIDER: list[tuple[str, dict[str, Any], Any, str]] = [
    ("unknown", ours(query=Q, other={}), ("properties", "other"), "the upstream's tool has no argument 'other'"),
    (
        "unbounded",
        ours(query={"type": "string"}),
        ("properties", "query"),
        "the upstream's tool requires maxLength 100",
    ),
    (
        "longer",
        ours(query={"type": "string", "maxLength": 101}),
        ("properties", "query", "maxLength"),
        "the upstream's tool requires maxLength 100",
    ),
    ("any-type", ours(query={"maxLength": 9}), ("properties", "query"), "the upstream's tool accepts only string"),
    (
        "another-type",
        ours(query={"type": ["string", "null"], "maxLength": 9}),
        ("properties", "query", "type"),
        "the upstream's tool accepts string, not null",
    ),
    (
        "value",
        ours(query=Q, sort={"enum": ["new", "best"]}),
        ("properties", "sort", "enum", 1),
        "the upstream's tool refuses this value",
    ),
    (
        "constant",
        ours(query=Q, limit={"const": 99}),
        ("properties", "limit", "const"),
        "the upstream's tool refuses this value",
    ),
    (
        "not-listed",
        ours(query=Q, sort={"type": "string"}),
        ("properties", "sort"),
        "the upstream's tool accepts only listed values",
    ),
    (
        "below",
        ours(query=Q, scope={"type": "object", "properties": {"wide": {}}}),
        ("properties", "scope", "properties", "wide"),
        "the upstream's tool has no property 'wide' here",
    ),
    (
        "optional",
        {**ours(query=Q), "required": ["owner"]},
        ("required",),
        "the upstream requires 'query', which callers may omit",
    ),
]


@pytest.mark.parametrize(("schema", "path", "message"), [row[1:] for row in WIDER], ids=[row[0] for row in WIDER])
def test_schema_that_allows_more_is_reported_at_its_place(schema: dict[str, Any], path: Any, message: str) -> None:
    assert list(find_wider_parts(schema, THEIRS, ArgumentMapping())) == [(path, message)]


def test_argument_that_is_fixed_cannot_be_listed() -> None:
    schema = {"type": "object", "required": ["words"], "properties": {"words": Q, "owner": {"type": "string"}}}

    assert list(find_wider_parts(schema, THEIRS, SHAPING)) == [
        (("properties", "owner"), "'owner' is fixed or hidden, so callers cannot set it")
    ]


def test_pattern_that_is_left_out_is_reported() -> None:
    theirs = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^x"}}}

    found = list(
        find_wider_parts({"type": "object", "properties": {"a": {"type": "string"}}}, theirs, ArgumentMapping())
    )

    assert found == [(("properties", "a"), "the upstream's tool requires a pattern")]


def test_items_are_compared() -> None:
    theirs = {"type": "object", "properties": {"a": {"type": "array", "maxItems": 3, "items": {"type": "string"}}}}
    mine = {"type": "object", "properties": {"a": {"type": "array", "maxItems": 2, "items": {"type": "integer"}}}}

    assert list(find_wider_parts(mine, theirs, ArgumentMapping())) == [
        (("properties", "a", "items", "type"), "the upstream's tool accepts string, not integer")
    ]
