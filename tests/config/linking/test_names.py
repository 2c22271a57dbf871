"""Names in a catalogue: which tool gets a name that two tools want, with real documents and real imports."""

from itertools import product
from typing import Final

import pytest

from gateway.config.linking.linker import LinkResult
from gateway.registries.imported_definition import build_tool_definition
from tests.config.linking.projects import catalogue, linked, list_codes, policy, problem, snapshot_of, tool, upstream

WORDS: Final = ("throw", "replace", "keep")
HONOURS: Final = ("always", "sameOrHigherTrust", "never")

# The outcome for the name, by (honourTool, the incoming tool's word): one per policy word throw, replace, keep.
AS_TRUSTED: Final = {
    ("always", "throw"): ("throw", "replace", "keep"),
    ("always", "replace"): ("replace", "replace", "replace"),
    ("always", "keep"): ("keep", "keep", "keep"),
    ("sameOrHigherTrust", "throw"): ("throw", "replace", "keep"),
    ("sameOrHigherTrust", "replace"): ("replace", "replace", "replace"),
    ("sameOrHigherTrust", "keep"): ("keep", "keep", "keep"),
    ("never", "throw"): ("throw", "replace", "keep"),
    ("never", "replace"): ("throw", "replace", "keep"),
    ("never", "keep"): ("throw", "replace", "keep"),
}
MORE_TRUSTED: Final = {  # nothing prevents it from taking the name
    key: tuple("throw" if word == "keep" else word for word in words) for key, words in AS_TRUSTED.items()
}
LESS_TRUSTED: Final = {
    key: tuple("throw" if word == "replace" else word for word in words) for key, words in AS_TRUSTED.items()
}


def names_in(found: LinkResult, name: str = "desk") -> dict[str, str]:
    return dict(snapshot_of(found).catalogues[name].tools)


@pytest.mark.parametrize(
    ("tier", "table"),
    [("inner", MORE_TRUSTED), ("middle", AS_TRUSTED), ("outer", LESS_TRUSTED)],
    ids=["more trusted", "as trusted", "less trusted"],
)
@pytest.mark.parametrize(("own", "honour", "decided"), list(product(WORDS, HONOURS, WORDS)))
def test_collision_is_decided_by_the_table(
    own: str, honour: str, decided: str, tier: str, table: dict[tuple[str, str], tuple[str, ...]]
) -> None:
    """The imported tool of tier `middle` is registered first; the declared one is the incoming tool."""
    careful = policy(onCollision=decided, honourTool=honour, order=["upstreams", "tools"], imports={"prefix": ""})
    incoming = tool("find", onCollision=own, trust={"tier": tier})

    found = linked(incoming, upstream(), catalogue(), names=[careful], imports=[build_tool_definition("wiki", "find")])

    expected = table[honour, own][WORDS.index(decided)]
    if expected == "throw":
        assert list_codes(found) == ["name-collision"]
        assert found.snapshot is None
    else:
        assert names_in(found) == {"find": "find" if expected == "replace" else "wiki.find"}
        (collision,) = snapshot_of(found).catalogues["desk"].collisions
        assert collision.outcome == expected


def test_imports_are_prefixed_by_their_upstream() -> None:
    found = linked(tool("find"), upstream(), catalogue(), imports=[build_tool_definition("wiki", "find")])

    assert names_in(found) == {"find": "find", "wiki_find": "wiki.find"}


@pytest.mark.parametrize(
    ("prefix", "name"), [("", "find"), ("{upstream}.", "wiki.find"), ("x-{upstream}-{upstream}_", "x-wiki-wiki_find")]
)
def test_prefix_is_the_policy_s(prefix: str, name: str) -> None:
    careful = policy(imports={"prefix": prefix})

    found = linked(upstream(), catalogue(), names=[careful], imports=[build_tool_definition("wiki", "find")])

    assert names_in(found) == {name: "wiki.find"}


def test_policy_of_the_catalogue_counts_before_the_default() -> None:
    bare = policy("bare", imports={"prefix": ""})

    found = linked(
        bare,
        upstream(),
        catalogue("a"),
        catalogue("b", collisionPolicy="bare"),
        imports=[build_tool_definition("wiki", "find")],
    )

    assert names_in(found, "a") == {"wiki_find": "wiki.find"}
    assert names_in(found, "b") == {"find": "wiki.find"}


def test_imported_tool_that_a_document_publishes_is_not_imported_twice() -> None:
    mine = tool("pages", backend={"type": "mcp", "upstream": "wiki", "tool": "search"})

    found = linked(
        mine,
        upstream(),
        catalogue(),
        imports=[build_tool_definition("wiki", "search"), build_tool_definition("wiki", "open")],
    )

    assert names_in(found) == {"pages": "pages", "wiki_open": "wiki.open"}
    assert set(snapshot_of(found).tools) == {"pages", "wiki.open"}


def test_tool_of_the_same_name_on_another_upstream_is_imported() -> None:
    mine = tool("pages", backend={"type": "mcp", "upstream": "wiki", "tool": "search"})

    found = linked(
        mine, upstream("wiki"), upstream("docs"), catalogue(), imports=[build_tool_definition("docs", "search")]
    )

    assert names_in(found) == {"pages": "pages", "docs_search": "docs.search"}


def test_terms_of_the_import_choose_what_comes_in() -> None:
    terms = upstream(include=["get_*", "search"], exclude=["get_secret"])
    names = ("get_page", "get_secret", "search", "search_all", "delete")

    found = linked(terms, catalogue(), imports=[build_tool_definition("wiki", name) for name in names])

    assert names_in(found) == {"wiki_get_page": "wiki.get_page", "wiki_search": "wiki.search"}


def test_import_of_an_undeclared_upstream_is_left_out() -> None:
    found = linked(tool(), catalogue(), imports=[build_tool_definition("stranger", "search")])

    assert set(snapshot_of(found).tools) == {"order_read"}


def test_upstreams_come_by_name_and_tools_by_place() -> None:
    careful = policy(imports={"prefix": ""}, onCollision="keep")
    imports = [build_tool_definition(name, "find") for name in ("c", "a", "b")]

    found = linked(upstream("b"), upstream("c"), upstream("a"), catalogue(), names=[careful], imports=imports)

    assert names_in(found) == {"find": "a.find"}
    assert [
        (each.existing.source, each.incoming.source) for each in snapshot_of(found).catalogues["desk"].collisions
    ] == [
        ("a", "b"),
        ("a", "c"),
    ]


def test_imports_listed_in_another_order_link_alike() -> None:
    imports = [
        build_tool_definition("wiki", "b"),
        build_tool_definition("docs", "a"),
        build_tool_definition("wiki", "a"),
    ]
    texts = (tool(), upstream("wiki"), upstream("docs"), catalogue())

    forwards, backwards = linked(*texts, imports=imports), linked(*texts, imports=imports[::-1])

    assert list(snapshot_of(forwards).tools) == ["order_read", "docs.a", "wiki.a", "wiki.b"]
    assert list(snapshot_of(forwards).tools) == list(snapshot_of(backwards).tools)
    assert list(names_in(forwards)) == list(names_in(backwards))


def test_upstream_called_like_the_folder_s_own_source_takes_no_name() -> None:
    """An upstream named `tools` brings `find`; the name still leads to the declared `find`."""
    careful = policy(imports={"prefix": ""}, onCollision="keep")

    found = linked(
        tool("find"), upstream("tools"), catalogue(), names=[careful], imports=[build_tool_definition("tools", "find")]
    )

    assert names_in(found) == {"find": "find"}


def test_declared_tool_may_not_have_an_imported_tool_s_identity() -> None:
    found = linked(tool("wiki.find"), upstream(), catalogue(), imports=[build_tool_definition("wiki", "find")])

    assert "duplicate-name" in list_codes(found)
    assert [words for words, _ in problem(found, "duplicate-name").related] == ["declared here"]


@pytest.mark.parametrize(
    ("names", "first", "second", "code"),
    [
        ({}, "order_read", "Order-Read", "name-collision"),
        ({"compare": "exact", "lookalikes": "ignore"}, "order_read", "Order-Read", None),
        ({}, "order_read", "order_r3ad", "look-alike"),
        ({"lookalikes": "ignore"}, "order_read", "order_r3ad", None),
        ({}, "order_1ist", "order_list", "look-alike"),
        ({}, "form_rnake", "form_make", "look-alike"),
        ({}, "order_read", "order_find", None),
        ({"reserved": ["admin*"]}, "order_read", "Admin.x", "reserved-name"),
        ({}, "order_read", "Artifact_grep", "reserved-name"),
    ],
)
def test_names_that_are_one_to_a_reader(names: dict[str, object], first: str, second: str, code: str | None) -> None:
    found = linked(tool(first), tool(second), catalogue(), names=[policy(names=names)])

    assert list_codes(found, besides=("name-style",)) == ([code] if code else [])
    assert (found.snapshot is None) == (code is not None)


def test_names_only_meet_inside_a_catalogue() -> None:
    found = linked(
        tool("order_read"),
        tool("order_r3ad"),
        catalogue("a", include=[{"tools": ["order_read"]}]),
        catalogue("b", include=[{"tools": ["order_r3ad"]}]),
    )

    assert list_codes(found) == []


def test_collision_is_reported_at_the_incoming_name_with_both_places() -> None:
    found = linked(tool("order_read"), tool("Order.Read"), catalogue())

    collision = problem(found, "name-collision")
    assert collision.position.width == len('"Order.Read"')
    assert [words for words, _ in collision.related] == ["the other tool", "in the catalogue"]
    assert "CollisionPolicy careful" in (collision.help or "")


@pytest.mark.parametrize("name", ["orderRead", "Order", "order-read", "order__read", "2fast", "ORDER_READ"])
def test_name_that_is_no_snake_case_is_advised_against(name: str) -> None:
    assert list_codes(linked(tool(name), catalogue())) == ["name-style"]


@pytest.mark.parametrize("name", ["order", "order_read", "order_2", "a"])
def test_snake_case_is_fine(name: str) -> None:
    assert list_codes(linked(tool(name), catalogue())) == []
