"""JSONPath: matches of each form of the dialect, comparisons in filters, and refused expressions."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.artifacts.formats.document_artifact import MAX_PATH_LENGTH, MAX_PIECES, JsonPath
from gateway.artifacts.formats.javascript_jsonpath import COMPARISONS, is_truthy
from gateway.errors import JsonPathInvalid, PatternNotSupported
from gateway.model.primitives.canonical_json import UNDEFINED

STORE: dict[str, Any] = {
    "store": {
        "book": [
            {"category": "reference", "author": "Nigel Rees", "title": "Sayings", "price": 8.95},
            {"category": "fiction", "author": "Evelyn Waugh", "title": "Sword", "price": 12.99, "isbn": ""},
            {"category": "fiction", "author": "Herman Melville", "title": "Moby", "isbn": "0-553", "price": 8.99},
            {"category": "fiction", "author": "Tolkien", "title": "Rings", "price": "22.99", "tags": ["a", "b", "c"]},
        ],
        "bicycle": {"color": "red", "price": 19.95},
    },
    "$schema": "s",
    "a:b": "prefixed",
    "#text": "hash",
    "in": "word",
    "x y": "space",
    "é": "accent",
    "0": "zero",
}
BOOKS = STORE["store"]["book"]
PIECES = ["$", "..", ".", "*", "[0]", "[?(", "@", ")", "]", "(", ",", ":", "^", "~", "a", "1", "'x'", "/a/", "length"]
PIECES += ["&&", "||", "!", "==", "===", "!==", "=~", "<"]
FAMILY = {
    "name": "root",
    "children": [{"name": "one", "children": [{"name": "one-one"}]}, {"name": "two"}, {"name": "three"}],
}


def find(path: str, document: Any = STORE) -> list[Any]:
    return JsonPath(path).values([document])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param("$", [STORE], id="root"),
        pytest.param("$.store.bicycle.color", ["red"], id="dots"),
        pytest.param("store.bicycle.color", ["red"], id="no dollar"),
        pytest.param("$['store'][\"bicycle\"]['color']", ["red"], id="quoted names"),
        pytest.param("$[store][bicycle][color]", ["red"], id="bare names in brackets"),
        pytest.param("$['x y']", ["space"], id="a name with a space"),
        pytest.param("$.a:b", ["prefixed"], id="a name with a colon"),
        pytest.param("$.#text", ["hash"], id="a name with a hash"),
        pytest.param("$.$schema", ["s"], id="a name with a dollar"),
        pytest.param("$..$schema", ["s"], id="descent to a name with a dollar"),
        pytest.param("$..in", ["word"], id="descent to a word of the library"),
        pytest.param("$.é", ["accent"], id="a name above ASCII"),
        pytest.param("$.0", ["zero"], id="a key of digits"),
        pytest.param("$.store.book.0.title", ["Sayings"], id="an index after a dot"),
        pytest.param("$.store.book[1].title", ["Sword"], id="index"),
        pytest.param("$.store.book[-1].title", ["Rings"], id="index from the end"),
        pytest.param("$.store.book[(@.length-1)].title", ["Rings"], id="length minus one"),
        pytest.param("$.store.book[( @.length - 2 )].title", ["Moby"], id="length minus two"),
        pytest.param("$.store.book[0,2].title", ["Sayings", "Moby"], id="union of indexes"),
        pytest.param("$.store.bicycle['price','color']", [19.95, "red"], id="union of names"),
        pytest.param("$.store.book[1:3].title", ["Sword", "Moby"], id="slice"),
        pytest.param("$.store.book[:2].title", ["Sayings", "Sword"], id="slice without a start"),
        pytest.param("$.store.book[-2:].title", ["Moby", "Rings"], id="slice from the end"),
        pytest.param("$.store.book[::2].title", ["Sayings", "Moby"], id="slice with a step"),
        pytest.param("$.store.book[*].author[0:2]", [], id="a slice never cuts text"),
        pytest.param("$.store.bicycle.*", ["red", 19.95], id="wildcard"),
        pytest.param("$..price", [8.95, 12.99, 8.99, "22.99", 19.95], id="descent"),
        pytest.param("$..book[0].title", ["Sayings"], id="descent and more"),
        pytest.param("$.store.book.length", [4], id="length of a list"),
        pytest.param("$.store.bicycle.length", [], id="objects have no length"),
        pytest.param("$.nothing.at.all", [], id="no match"),
        pytest.param("$.store.book[9]", [], id="no such index"),
        pytest.param("$.store.*~", ["book", "bicycle"], id="property names"),
        pytest.param("$.store.~", ["store"], id="property name after a dot"),
        pytest.param("$.store.book[1:3]~", [1, 2], id="the property names of items are indexes"),
        pytest.param("$~", [], id="the root has no name"),
    ],
)
def test_path_finds_values_in_document_order(path: str, expected: list[Any]) -> None:
    assert find(path) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param("$.children[0]^", [FAMILY["children"]], id="parent of one"),
        pytest.param("$.children[1:3]^", [FAMILY["children"], FAMILY["children"]], id="once for each match"),
        pytest.param("$.children[0].name^^[2].name", ["three"], id="grandparent, and down again"),
        pytest.param("$.name^", [FAMILY], id="the root"),
        pytest.param("name^^", [], id="above the root"),
        pytest.param("$..[?(@.name == 'two')]^[0].name", ["one"], id="sibling of a filtered item"),
        pytest.param("$..children^~", [0], id="name of a parent, where it has one"),
    ],
)
def test_parent_goes_one_level_up(path: str, expected: list[Any]) -> None:
    assert find(path, FAMILY) == expected


@pytest.mark.parametrize(
    ("condition", "titles"),
    [
        pytest.param("@.price < 10", ["Sayings", "Moby"], id="less"),
        pytest.param("@.price <= 8.95", ["Sayings"], id="less or equal"),
        pytest.param("@.price > 20", ["Rings"], id="a text is compared as a number"),
        pytest.param("@.price >= 12.99", ["Sword", "Rings"], id="greater or equal"),
        pytest.param("@.title > 'S'", ["Sayings", "Sword"], id="texts in their order"),
        pytest.param("@.price == 22.99", ["Rings"], id="loosely equal"),
        pytest.param("@.price === 22.99", [], id="strictly equal"),
        pytest.param("@.price != '22.99'", ["Sayings", "Sword", "Moby"], id="not equal"),
        pytest.param("@.title !== 'Sword'", ["Sayings", "Moby", "Rings"], id="strictly not equal"),
        pytest.param("@.isbn", ["Moby"], id="truthy, which the empty text is not"),
        pytest.param("!@.isbn", ["Sayings", "Sword", "Rings"], id="not"),
        pytest.param("!(@.isbn || @.tags)", ["Sayings", "Sword"], id="not of a group"),
        pytest.param("@.isbn == null", ["Sayings", "Rings"], id="null is like missing"),
        pytest.param("@.isbn === null", [], id="but not strictly"),
        pytest.param("@.isbn === undefined", ["Sayings", "Rings"], id="undefined"),
        pytest.param("@.isbn === ''", ["Sword"], id="the empty text"),
        pytest.param("@.category == 'fiction' && @.price < 10", ["Moby"], id="and"),
        pytest.param("@.price < 8.96 || @.title == 'Rings'", ["Sayings", "Rings"], id="or"),
        pytest.param("@.category=='fiction'&&(@.price<10||@.tags)", ["Moby", "Rings"], id="grouped, no spaces"),
        pytest.param("@.tags.length > 2", ["Rings"], id="length of a list"),
        pytest.param("@.title.length == 4", ["Moby"], id="length of a text"),
        pytest.param("length(@.title) == 4", ["Moby"], id="length as a function"),
        pytest.param("count(@.tags[*]) == 3", ["Rings"], id="count"),
        pytest.param("@.tags[*]", ["Rings"], id="any of several"),
        pytest.param("@.tags[1] == 'b'", ["Rings"], id="an item of a list"),
        pytest.param("@.tags[?(@ == 'c')]", ["Rings"], id="a filter in a filter"),
        pytest.param("@['price'] > 20", ["Rings"], id="brackets"),
        pytest.param("@.price > $.store.bicycle.price", ["Rings"], id="a path from the root"),
        pytest.param("@property == 1", ["Sword"], id="the property itself"),
        pytest.param("@.author =~ /^n/i", ["Sayings"], id="regular expression"),
        pytest.param("@.price =~ /8/", [], id="regular expression on a number"),
        pytest.param("search(@.author, 'zz?')", [], id="search without a match"),
        pytest.param("search(@.author, '[Ww]a')", ["Sword"], id="search"),
        pytest.param("match(@.author, 'Tol.*')", ["Rings"], id="match of a whole text"),
        pytest.param("match(@.author, 'Tol')", [], id="match of a part"),
        pytest.param("search(@.isbn, @.price)", [], id="search for something that is no text"),
    ],
)
def test_filter_compares_as_javascript_does(condition: str, titles: list[str]) -> None:
    assert find(f"$.store.book[?({condition})].title") == titles


def test_filter_needs_no_parentheses() -> None:
    assert find("$..book[?@.price<10].title") == ["Sayings", "Moby"]


def test_filter_of_an_object_looks_at_its_values() -> None:
    assert find("$.store[?(@.color)]") == [STORE["store"]["bicycle"]]


def test_filter_in_a_filter_sees_the_same_root() -> None:
    document = {"limit": 2, "groups": [{"items": [1]}, {"items": [1, 3]}]}

    assert find("$.groups[?(@.items[?(@ > $.limit)])].items", document) == [[1, 3]]


@pytest.mark.parametrize("root", [0, "", False, None, math.nan], ids=repr)
def test_falsy_root_has_nothing_to_find(root: Any) -> None:
    assert JsonPath("$").values([root]) == []
    assert JsonPath("$").filter([root]) == []


@pytest.mark.parametrize("root", [5, "text", True, [], {}], ids=repr)
def test_root_of_any_other_kind_is_found(root: Any) -> None:
    assert JsonPath("$").values([root]) == [root]
    assert JsonPath("$.x[0]..y").values([root]) == []


def test_records_are_searched_one_after_the_other() -> None:
    records = [{"id": 1, "ok": True}, 0, {"id": 2, "ok": False}, {"name": "no id"}]

    assert JsonPath("$.id").values(records) == [1, 2]
    assert JsonPath("$.ok").filter(records) == [records[0], records[2]]
    assert JsonPath("$[?(@ === true)]").filter(records) == [records[0]]


def test_places_know_what_contains_them() -> None:
    places = list(JsonPath("$..title").matches(STORE))

    assert [place.obj for place in places] == ["Sayings", "Sword", "Moby", "Rings"]
    assert [place.parent.obj for place in places if place.parent] == BOOKS


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("$[?(@.constructor.constructor('return process')())]", id="a function's constructor"),
        pytest.param("$..book[?(__import__('os').system('id'))]", id="a Python import"),
        pytest.param("$[?(@.name.match(/x/))]", id="a method call"),
        pytest.param("$[?(eval('1'))]", id="eval"),
        pytest.param("$[(@.length - 1 - 1)]", id="a script"),
        pytest.param("$[(process.exit())]", id="a script that calls"),
        pytest.param("$[?(@.price * 2 > 10)]", id="arithmetic"),
        pytest.param("$[?(@.a = 1)]", id="assignment"),
        pytest.param("$[?(@parent.x)]", id="an unknown property of the place"),
        pytest.param("$[?(@.a in [1,2])]", id="an operator of the library"),
        pytest.param("$[?(@.a contains 1)]", id="another operator of the library"),
        pytest.param("$[?(_.a)]", id="the library's context"),
        pytest.param("$ | $.a", id="the library's union of paths"),
        pytest.param("$[$.a]", id="a path in brackets"),
        pytest.param("$[?(@.* == 1)]", id="several values compared with one"),
        pytest.param("$[?(true)]", id="nothing compared"),
        pytest.param("$[?(@.a == 1e999)]", id="a number past all bounds"),
        pytest.param("$[1e5]", id="an index that is no integer"),
        pytest.param("$[99999999999999999999]", id="an index past all bounds"),
        pytest.param("$[?(@.a =~ 'x' /y/)]", id="a regular expression out of place"),
        pytest.param("$[?(unknown(@.a))]", id="an unknown function"),
        pytest.param("$[?(length() == 1)]", id="a function without its argument"),
        pytest.param("$.", id="ends in a dot"),
        pytest.param("$..", id="ends in dots"),
        pytest.param("$[", id="ends in a bracket"),
        pytest.param("$[]", id="empty brackets"),
        pytest.param("$[?(@.a", id="not closed"),
        pytest.param("$['a]", id="quote not closed"),
        pytest.param("", id="empty"),
        pytest.param("  ", id="blank"),
        pytest.param("$.\x00", id="control character"),
    ],
)
def test_what_is_not_a_path_is_refused(path: str) -> None:
    with pytest.raises(JsonPathInvalid) as refused:
        JsonPath(path)

    assert refused.value.code == "E_JSON_PATH_INVALID"
    assert "\n" not in refused.value.message


def test_refusal_states_where_and_what_is_possible() -> None:
    with pytest.raises(JsonPathInvalid, match=r"unexpected token at character 12") as refused:
        JsonPath("$[?(@.price*2 > 10)]")

    assert refused.value.help is not None
    assert "code is never run" in refused.value.help


def test_long_path_is_refused() -> None:
    assert find("$." + "a" * (MAX_PATH_LENGTH - 2)) == []
    with pytest.raises(JsonPathInvalid, match="longer than"):
        JsonPath("$." + "a" * MAX_PATH_LENGTH)


@pytest.mark.parametrize("piece", [".a", "^", "~", "(", "[0]", "!", "[?(@"], ids=repr)
def test_path_of_too_many_pieces_is_refused(piece: str) -> None:
    with pytest.raises(JsonPathInvalid, match="more than 128 dots, brackets and the like"):
        JsonPath("$" + piece * (MAX_PIECES + 1))


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("$" + ".a" * MAX_PIECES, id="names"),
        pytest.param("$" + ".*" * MAX_PIECES, id="wildcards"),
        pytest.param("$" + "..a" * (MAX_PIECES // 2), id="descents"),
        pytest.param("$" + "[?(@" * (MAX_PIECES // 2) + ")]" * (MAX_PIECES // 2), id="filters"),
        pytest.param("$[?" + "(" * (MAX_PIECES - 1) + "@" + ")" * (MAX_PIECES - 1) + "]", id="parentheses"),
        pytest.param("$[?" + "!" * (MAX_PIECES - 1) + "@]", id="negations"),
    ],
)
def test_path_of_as_many_pieces_as_allowed_runs(path: str) -> None:
    document: Any = {}
    for _ in range(MAX_PIECES // 2):
        document = [document]

    assert isinstance(find(path, document), list)


@pytest.mark.parametrize("filter", ["@.a =~ /(a+)+$/", "search(@.a, '(a+)+$')", "match(@.a, '(a|a)*b')"], ids=repr)
def test_regular_expression_takes_linear_time(filter: str) -> None:
    document = [{"a": "a" * 50_000 + "!"}]

    assert find(f"$[?({filter})]", document) == []


def test_regular_expression_that_needs_backtracking_is_refused() -> None:
    with pytest.raises(PatternNotSupported):
        JsonPath(r"$[?(@.a =~ /(a)\1/)]")


@settings(deadline=None)  # a busy machine is not a failure
@given(st.text(max_size=40))
def test_any_text_is_a_path_or_is_refused(text: str) -> None:
    try:
        found = find(text)
    except (JsonPathInvalid, PatternNotSupported):
        return
    assert isinstance(found, list)


@settings(deadline=None)  # a busy machine is not a failure
@given(st.lists(st.sampled_from(PIECES)))
def test_any_mixture_of_pieces_is_a_path_or_is_refused(pieces: list[str]) -> None:
    try:
        found = find("".join(pieces))
    except (JsonPathInvalid, PatternNotSupported):
        return
    assert isinstance(found, list)


@pytest.mark.parametrize(
    ("left", "operator", "right", "expected"),
    [
        pytest.param(1, "==", "1", True, id="1 == '1'"),
        pytest.param(1, "===", "1", False, id="1 === '1'"),
        pytest.param(1, "===", 1.0, True, id="1 === 1.0"),
        pytest.param(True, "==", 1, True, id="true == 1"),
        pytest.param(True, "===", 1, False, id="true === 1"),
        pytest.param(True, "==", "true", False, id="true == 'true'"),
        pytest.param(0, "==", "", True, id="0 == ''"),
        pytest.param(None, "==", UNDEFINED, True, id="null == undefined"),
        pytest.param(None, "===", UNDEFINED, False, id="null === undefined"),
        pytest.param(UNDEFINED, "===", UNDEFINED, True, id="undefined === undefined"),
        pytest.param(None, "==", 0, False, id="null == 0"),
        pytest.param(None, ">=", 0, True, id="null >= 0"),
        pytest.param(UNDEFINED, ">=", 0, False, id="undefined >= 0"),
        pytest.param("10", ">", 9, True, id="'10' > 9"),
        pytest.param("10", ">", "9", False, id="'10' > '9'"),
        pytest.param(" 7 ", "<", 8, True, id="' 7 ' < 8"),
        pytest.param("x", "<", 8, False, id="'x' < 8"),
        pytest.param("x", ">=", 8, False, id="'x' >= 8"),
        pytest.param("inf", ">", 8, False, id="'inf' > 8"),
        pytest.param([1, {"a": 2}], "==", [1, {"a": 2}], True, id="equal lists"),
        pytest.param([1], "==", 1, False, id="[1] == 1"),
        pytest.param({}, "!=", [], True, id="{} != []"),
        pytest.param([], "<", 1, False, id="[] < 1"),
        pytest.param(2**60, "!==", 2**60 + 1, True, id="large integers keep their digits"),
        pytest.param("a", "=~", "a", False, id="a text is no pattern"),
    ],
)
def test_comparison(left: Any, operator: str, right: Any, expected: bool) -> None:
    assert COMPARISONS[operator](left, right) is expected


def test_truth_is_javascripts() -> None:
    falsy: list[Any] = [0, 0.0, "", False, None, UNDEFINED, math.nan]
    truthy: list[Any] = [1, -1.5, "0", True, [], {}]

    assert [is_truthy(value) for value in falsy] == [False] * len(falsy)
    assert [is_truthy(value) for value in truthy] == [True] * len(truthy)
