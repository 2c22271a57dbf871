"""Registry: dotted paths, isolation on both sides, and hostile paths or values."""

from collections import OrderedDict, defaultdict, namedtuple
from copy import copy, deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidInitialRegistryValue
from gateway.model.primitives.canonical_json import MAX_DEPTH
from gateway.model.primitives.containers import MAX_LIST_INDEX, DottedDict, deep_copy_containers, freeze

Pair = namedtuple("Pair", "left right")


class Connection:
    """A live object that must not be copied."""


def nested(levels: int) -> Any:
    value: Any = "leaf"
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize(
    "initial", [[], (), "text", 5, 0, False, {1: 2}, {"a": 1, None: 2}, DottedDict()], ids=lambda value: repr(value)
)
def test_registry_is_built_from_a_dict_with_string_keys(initial: Any) -> None:
    with pytest.raises(InvalidInitialRegistryValue):
        DottedDict(initial)


def test_registry_of_nothing_is_empty() -> None:
    assert DottedDict().all() == {}
    assert DottedDict(None).keys() == []


DATA: dict[str, Any] = {
    "rbac": {"scopes": ["read", "write"], "owner": None},
    "zero": 0,
    "empty": "",
    "no": False,
    "list": [{"x": 1}, [10, 20]],
    "nothing": {},
    "a.b": "unreachable",
    "7": "digit",
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("rbac.scopes", ["read", "write"]),
        ("rbac.scopes.1", "write"),
        ("rbac.owner", None),
        ("zero", 0),
        ("empty", ""),
        ("no", False),
        ("list.0.x", 1),
        ("list.1.1", 20),
        ("nothing", {}),
        ("7", "digit"),
    ],
)
def test_get_walks_the_dots(path: str, value: Any) -> None:
    registry = DottedDict(DATA)

    assert registry.get(path, "default") == value
    assert registry.has(path)


@pytest.mark.parametrize(
    "path",
    [
        "missing",
        "",
        ".",
        "rbac.",
        ".rbac",
        "rbac.owner.name",
        "zero.x",
        "empty.0",
        "empty.length",
        "no.x",
        "nothing.x",
        "list.2",
        "list.-1",
        "list.01",
        "list.١",
        "list.²",
        "list. 1",
        "list.x",
        "a.b",
        "rbac.scopes.0.0",
        "list." + "9" * 10_000,
        "rbac.keys",
        "list.append",
    ],
    ids=lambda path: path[:20],
)
def test_missing_path_gives_the_default(path: str) -> None:
    registry = DottedDict(DATA)

    assert registry.get(path, "default") == "default"
    assert registry.get(path) is None
    assert not registry.has(path)


@pytest.mark.parametrize(
    ("before", "path", "after"),
    [
        ({}, "a", {"a": 1}),
        ({}, "a.b.c", {"a": {"b": {"c": 1}}}),
        ({}, "a.0", {"a": [1]}),
        ({}, "a.2", {"a": [None, None, 1]}),
        ({}, "a.0.b.1", {"a": [{"b": [None, 1]}]}),
        ({}, "0.a", {"0": {"a": 1}}),
        ({"a": {"b": 1, "c": 2}}, "a", {"a": 1}),
        ({"a": 5}, "a.b", {"a": {"b": 1}}),
        ({"a": None}, "a.b", {"a": {"b": 1}}),
        ({"a": "text"}, "a.0", {"a": [1]}),
        ({"a": [5, 6]}, "a.0", {"a": [1, 6]}),
        ({"a": [5]}, "a.3", {"a": [5, None, None, 1]}),
        ({"a": [{"x": 2}]}, "a.0.y", {"a": [{"x": 2, "y": 1}]}),
        ({"a": [5]}, "a.b", {"a": {"b": 1}}),
        ({"a": {"b": 5}}, "a.0", {"a": {"b": 5, "0": 1}}),
        ({"a": {}}, "a.20260102", {"a": {"20260102": 1}}),
        ({}, "a.01", {"a": {"01": 1}}),
        ({}, "a.١", {"a": {"١": 1}}),
        ({}, "", {"": 1}),
        ({}, "a..b", {"a": {"": {"b": 1}}}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_set_makes_its_way(before: dict[str, Any], path: str, after: dict[str, Any]) -> None:
    registry = DottedDict(before)

    registry.set(path, 1)

    assert registry.all() == after
    assert registry.get(path) == 1


@pytest.mark.parametrize("path", ["__proto__", "a.__proto__.b", "constructor.prototype.x", "a.prototype"])
def test_path_into_a_prototype_is_ignored(path: str) -> None:
    registry = DottedDict({"a": 1})

    registry.set(path, "harm")

    assert registry.all() == {"a": 1}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (f"a.{MAX_LIST_INDEX + 1}", "list index"),
        ("a.b.0.99999999999999999999", "list index"),
        ("a." + "9" * 10_000, "list index"),
        (f"list.{MAX_LIST_INDEX + 1}", "list index"),
        ("a" + ".a" * MAX_DEPTH, "at most 512 segments"),
        ("a" + ".0" * 100_000, "at most 512 segments"),
    ],
    ids=["index", "long index", "endless index", "existing list", "deep", "very deep"],
)
def test_greedy_path_is_refused_and_changes_nothing(path: str, message: str) -> None:
    registry = DottedDict({"list": [1]})

    with pytest.raises(ValueError, match=message):
        registry.set(path, 1)

    assert registry.all() == {"list": [1]}


def test_largest_list_index_is_accepted() -> None:
    registry = DottedDict()

    registry.set(f"a.{MAX_LIST_INDEX}", 1)

    assert len(registry.get("a")) == MAX_LIST_INDEX + 1


def test_data_may_be_as_deep_as_canonical_json() -> None:
    registry = DottedDict()
    longest = ".".join("a" * MAX_DEPTH)

    registry.set("b.c", nested(MAX_DEPTH - 2))
    registry.set(longest, "leaf")

    assert registry.keys() == ["b.c", longest]
    assert DottedDict(registry.all()).get(longest) == "leaf"


@pytest.mark.parametrize("levels", [MAX_DEPTH + 2, 50_000])
def test_deeper_data_is_refused(levels: int) -> None:
    registry = DottedDict({"a": 1})

    with pytest.raises(ValueError, match="nested deeper than 512 levels"):
        registry.set("b", nested(levels))
    with pytest.raises(InvalidInitialRegistryValue, match="nested deeper than 512 levels"):
        DottedDict({"a": nested(levels)})

    assert registry.all() == {"a": 1}


def test_frozen_registry_cannot_be_set() -> None:
    registry = DottedDict({"a": 1}, frozen=True)

    with pytest.raises(TypeError, match="read-only"):
        registry.set("a", 2)

    assert registry.get("a") == 1


def test_initial_dict_is_isolated() -> None:
    initial = {"a": {"b": [1]}}
    registry = DottedDict(initial)

    initial["a"]["b"].append(2)

    assert registry.all() == {"a": {"b": [1]}}


def test_initial_dict_of_a_subclass_is_isolated() -> None:
    initial: OrderedDict[str, Any] = OrderedDict(a=defaultdict(list, b=[1]))
    registry = DottedDict(initial)

    initial["c"] = 1
    initial["a"]["b"].append(2)
    registry.set("a.d", 3)

    assert registry.all() == {"a": {"b": [1], "d": 3}}
    assert initial["a"] == {"b": [1, 2]}


def test_value_is_isolated_when_set() -> None:
    value = {"b": [1]}
    registry = DottedDict()

    registry.set("a", value)
    value["b"].append(2)

    assert registry.get("a") == {"b": [1]}


def test_value_is_isolated_when_read() -> None:
    registry = DottedDict({"a": {"b": [1]}})

    registry.get("a")["b"].append(2)
    registry.get("a.b").append(2)
    registry.all()["a"]["b"].append(2)

    assert registry.all() == {"a": {"b": [1]}}


def test_live_object_is_kept_as_it_is() -> None:
    connection = Connection()
    registry = DottedDict({"db": connection, "many": [connection]})

    registry.set("other", {"db": connection})

    assert registry.get("db") is connection
    assert registry.get("many.0") is connection
    assert registry.get("other.db") is connection


def test_keys_are_the_paths_of_the_leaves() -> None:
    connection = Connection()
    data: dict[str, Any] = {
        "a": {"b": 1, "c": {"d": [1, {"x": 1}]}},
        "e": None,
        "f": {},
        "g": connection,
        "h": (1,),
        "i": {"j": {}},
    }

    assert DottedDict(data).keys() == ["a.b", "a.c.d", "e", "g", "h"]


def test_keys_name_inner_keys_that_are_not_strings() -> None:
    assert DottedDict({"a": {1: 2, None: {True: 3}}}).keys() == ["a.1", "a.None.True"]


def test_repr_shows_keys_and_no_values() -> None:
    assert repr(DottedDict({"token": "secret"})) == "Registry(keys=['token'])"


def test_data_that_contains_itself_is_kept_and_listed() -> None:
    loop: dict[str, Any] = {"x": 1}
    loop["self"] = loop
    registry = DottedDict({"loop": loop})

    again = registry.get("loop")

    assert again["self"] is again
    assert again is not loop
    assert registry.keys() == ["loop.x", "loop.self"]


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, (2, [3])]},
        [{"a": {1, 2}}],
        bytearray(b"x"),
        ({"a": []},),
        "text",
        b"bytes",
        None,
        frozenset({1}),
    ],
    ids=repr,
)
def test_copy_is_equal(value: Any) -> None:
    copied = deep_copy_containers(value)

    assert copied == value
    assert type(copied) is type(value)


def test_copy_shares_no_container() -> None:
    value = {"list": [1], "tuple": ([2],), "set": {3}, "bytes": bytearray(b"4")}

    copied = deep_copy_containers(value)
    copied["list"].append(0)
    copied["tuple"][0].append(0)
    copied["set"].add(0)
    copied["bytes"].append(0)

    assert value == {"list": [1], "tuple": ([2],), "set": {3}, "bytes": bytearray(b"4")}


def test_copy_keeps_what_is_shared_shared() -> None:
    inner = [1]

    copied = deep_copy_containers({"a": inner, "b": (inner,)})

    assert copied["a"] is copied["b"][0]


def test_copy_of_doubled_tuples_takes_no_exponential_time() -> None:
    value: Any = ()
    for _ in range(200):
        value = (value, value)

    copied = deep_copy_containers(value)

    assert copied[0] is copied[1]


def test_copy_of_a_tuple_that_contains_itself_ends() -> None:
    inner: list[Any] = []
    loop = (inner,)
    inner.append(loop)

    copied = deep_copy_containers(loop)

    assert copied[0] is not inner
    assert copied[0][0][0] is copied[0]


def test_named_tuple_counts_as_a_live_object() -> None:
    pair = Pair([1], 2)

    assert deep_copy_containers([pair])[0] is pair


paths = st.lists(st.sampled_from(["a", "b", "", "0", "1", "01", "10", "110"]), min_size=1, max_size=5).map(".".join)


@given(st.lists(st.tuples(paths, st.integers() | st.lists(st.integers())), max_size=12))
def test_what_was_set_last_can_be_read(settings_made: list[tuple[str, Any]]) -> None:
    registry = DottedDict()

    for path, value in settings_made:
        registry.set(path, value)
        assert registry.get(path) == value
        assert registry.has(path)

    assert DottedDict(registry.all()).all() == registry.all()


def test_copies_of_what_is_frozen_are_the_same_object() -> None:
    frozen = freeze({"list": [1, {"a": 2}]})

    for each in (frozen, frozen["list"], frozen["list"][1]):
        assert copy(each) is each
        assert deepcopy(each) is each
