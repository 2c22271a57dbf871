"""All requests share a snapshot, so nothing reachable from it can be changed."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gateway.model.primitives.canonical_json import canonical
from gateway.model.primitives.containers import FrozenDict, FrozenList, deep_copy_containers, freeze
from gateway.model.schema.schema import Schema
from gateway.policy.rules.conditions import Condition, ConditionScope, compile_condition
from gateway.policy.rules.turn_state import TurnState
from gateway.registries.imported_definition import build_tool_definition
from gateway.registries.snapshot import Snapshot
from tests.config.linking.projects import catalogue, document, linked, pipeline, snapshot_of, tool, upstream

UNCHANGEABLE = (str, int, float, bool, type(None), date, time, timedelta, type, frozenset, ZoneInfo)
OPAQUE = (Condition,)
"""A compiled expression has a source and a program; only reassignment could change its decisions."""


def everything() -> Snapshot:
    return snapshot_of(
        linked(
            tool("a", labels={"x": "y"}, meta={"deep": {"list": [1, {"k": "v"}]}}, trust={"flags": ["destructive"]}),
            tool("b", trust={"tier": "inner", "flags": ["egress", "private-data"]}),
            upstream(),
            document(
                "ArtifactClass",
                "order",
                {"description": "x", "base": "json", "options": {"format": "json"}, "redact": ["$.a"]},
            ),
            document(
                "GateRule",
                "ask",
                {
                    "description": "x",
                    "match": {"labels": {"x": "y"}},
                    "when": "true",
                    "check": {
                        "type": "approval",
                        "from": ["role:lead"],
                        "timeout": "1m",
                        "reason": "x",
                        "resolution": {"type": "object", "properties": {"ok": {"enum": [True]}}},
                    },
                },
            ),
            document(
                "GateRule",
                "hours",
                {
                    "description": "x",
                    "match": {"tools": ["*"]},
                    "check": {
                        "type": "window",
                        "timezone": "UTC",
                        "open": [{"days": ["mon"], "from": "08:00", "to": "18:00"}],
                    },
                },
            ),
            document(
                "PolicyTest",
                "t",
                {
                    "cases": [
                        {
                            "name": "x",
                            "as": {"subject": "user:ana"},
                            "in": "desk",
                            "at": "2026-11-16T10:00:00Z",
                            "call": "a",
                            "with": {"deep": {"list": [1]}},
                            "expect": {"decision": "deny"},
                        }
                    ]
                },
            ),
            catalogue(
                forbidTogether=[["egress", "private-data"]],
                waivers=[
                    {
                        "forbidTogether": ["egress", "private-data"],
                        "until": "2027-01-01",
                        "by": "team-a",
                        "because": "x",
                    }
                ],
            ),
            stages=[pipeline(call=[{"use": "gates"}, {"use": "retry", "with": {"unlessFlags": ["writes"]}}])],
            imports=[
                build_tool_definition("wiki", "open", "x", {"type": "object", "properties": {"a": {"enum": ["b"]}}})
            ],
        )
    )


def reachable(value: Any, path: str = "snapshot") -> Iterator[tuple[str, Any]]:
    yield path, value
    if isinstance(value, dict):
        for key, each in value.items():
            yield from reachable(each, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from reachable(each, f"{path}[{index}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from reachable(getattr(value, field.name), f"{path}.{field.name}")


def is_unchangeable(value: Any) -> bool:
    if isinstance(value, (*UNCHANGEABLE, *OPAQUE, tuple, FrozenDict, FrozenList)):
        return True
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and parameters.frozen


def test_nothing_reachable_from_a_snapshot_can_be_changed() -> None:
    found = list(reachable(everything()))

    assert [path for path, value in found if not is_unchangeable(value)] == []
    assert len(found) > 300, "the snapshot is as full as this test needs it"


def test_every_kind_of_part_is_looked_at() -> None:
    snapshot = everything()

    assert all(
        len(getattr(snapshot, part)) for part in ("tools", "gates", "cases", "artifacts", "pipelines", "catalogues")
    )


CHANGES: list[Callable[[Any], object]] = [
    lambda mapping: mapping.__setitem__("a", 1),
    lambda mapping: mapping.__delitem__("a"),
    lambda mapping: mapping.update(a=1),
    lambda mapping: mapping.setdefault("b", 1),
    lambda mapping: mapping.pop("a"),
    lambda mapping: mapping.popitem(),
    lambda mapping: mapping.clear(),
    lambda mapping: mapping.__ior__({"b": 1}),
]
LIST_CHANGES: list[Callable[[Any], object]] = [
    lambda items: items.__setitem__(0, 1),
    lambda items: items.__delitem__(0),
    lambda items: items.append(1),
    lambda items: items.extend([1]),
    lambda items: items.insert(0, 1),
    lambda items: items.pop(),
    lambda items: items.remove(2),
    lambda items: items.reverse(),
    lambda items: items.sort(),
    lambda items: items.clear(),
    lambda items: items.__iadd__([1]),
    lambda items: items.__imul__(2),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_frozen_mapping_refuses_to_change(number: int) -> None:
    mapping = freeze({"a": {"b": 2}})

    with pytest.raises(TypeError, match="cannot be changed"):
        CHANGES[number](mapping)

    assert mapping == {"a": {"b": 2}}


@pytest.mark.parametrize("number", range(len(LIST_CHANGES)))
def test_frozen_list_refuses_to_change(number: int) -> None:
    items = freeze([2, 1])

    with pytest.raises(TypeError, match="cannot be changed"):
        LIST_CHANGES[number](items)

    assert items == [2, 1]


def test_every_method_that_changes_a_container_is_refused() -> None:
    reading = set(dir(tuple)) | set(dir(object)) | {"__reversed__", "__class_getitem__", "copy", "count", "index"}
    of_mappings = {"get", "items", "keys", "values", "fromkeys", "__or__", "__ror__"}

    assert {name for name in set(dir(list)) - reading if name not in vars(FrozenList)} == set()
    assert {name for name in set(dir(dict)) - reading - of_mappings if name not in vars(FrozenDict)} == set()


def test_frozen_data_reads_like_any_other() -> None:
    plain = {"type": "object", "properties": {"a": {"enum": ["b", 1]}}, "required": ["a"]}
    data = freeze(plain)

    assert data == plain
    assert Schema(dict(data)).check({"a": "b"}) == {"a": "b"}
    assert canonical(deep_copy_containers(data)) == canonical(plain)
    condition, _ = compile_condition('tool.labels.x == "y" && "a" in tool.flags')
    assert condition is not None
    seen = {"labels": freeze({"x": "y"}), "flags": freeze(["a"])}
    assert condition.evaluate(ConditionScope({}, {}, seen, TurnState(), datetime(2026, 11, 16, tzinfo=UTC))).value


def test_copy_of_frozen_data_can_be_changed_or_is_frozen_itself() -> None:
    data = freeze({"a": [1]})

    thawed = deep_copy_containers(data)
    thawed["a"].append(2)
    shallow: dict[str, Any] = {**data}
    shallow["b"] = 1

    assert data == {"a": [1]}
    assert copy.deepcopy(data) is data
    assert copy.copy(data) is data


def test_documents_of_a_snapshot_do_not_change_with_what_they_were_made_from() -> None:
    plain = {"a": [1]}
    data = freeze(plain)

    plain["a"].append(2)

    assert data == {"a": [1]}
