"""Declared effects of tools: levels, patterns, methods, claims, and the problems reported about them."""

from collections.abc import Mapping
from itertools import product
from typing import Any, Final

import pytest

from gateway.backends.openapi.tool_definitions import REQUEST_META
from gateway.registries.imported_definition import UpstreamDefinition
from gateway.registries.snapshot import DeclaredTool, compute_revision, describe_tool
from gateway.registries.tool_flags import CHANGES, EFFECT_FLAGS, find_claimed_flags, method_flags
from tests.config.linking.projects import (
    TRUST,
    catalogue,
    document,
    flag,
    linked,
    list_codes,
    only_tool,
    pipeline,
    policy,
    problem,
    snapshot_of,
    tier,
    tool,
    upstream,
)

UNTOLD: Final = {"tier": "inner", "flags": None}
MIDDLE: Final = {"tier": "middle", "flags": None}
WORST: Final = sorted(EFFECT_FLAGS)
RULE: Final = document(
    "GateRule",
    "writers",
    {"description": "A rule.", "match": {"flags": ["writes"]}, "check": {"type": "rate", "limit": 5, "per": "1m"}},
)


def make_definition(name: str, source: Any = "wiki", **annotations: Any) -> UpstreamDefinition:
    given = {"name": name, "inputSchema": {"type": "object"}, "annotations": annotations}
    return UpstreamDefinition(source, name, given, is_pinned=True)


def operation(name: str, method: str, source: str = "shop") -> UpstreamDefinition:
    meta = {REQUEST_META: {"method": method, "path": "/", "arguments": []}}
    given = {"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": False}, "_meta": meta}
    return UpstreamDefinition(source, name, given, is_pinned=True)


def service(name: str = "shop", **import_: Any) -> str:
    terms = {"include": ["*"], "trust": {"tier": "inner"}, **import_}
    terms["trust"] = {key: value for key, value in terms["trust"].items() if value is not None}
    transport = {"type": "openapi", "document": "shop.json", "server": "http://127.0.0.1:9002"}
    return document("Upstream", name, {"transport": transport, "import": terms})


def wrapped(name: str, remote: str, *, kind: str = "mcp", source: str = "wiki", **spec: Any) -> str:
    return tool(name, **{"backend": {"type": kind, "upstream": source, "tool": remote}, **spec})


def http(method: str, **spec: Any) -> str:
    return tool(backend={"type": "http", "method": method, "url": "http://127.0.0.1:9000/"}, **spec)


def effects_of(found: DeclaredTool) -> tuple[str, list[str]]:
    return found.trust.effects, sorted(found.trust.flags)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_tool_without_flags_counts_as_the_worst(method: str) -> None:
    found = linked(http(method, trust=UNTOLD, idempotent=True), RULE, catalogue())
    declared = only_tool(found)

    assert effects_of(declared) == ("unknown", WORST)
    assert (dict(declared.hints), declared.idempotent) == ({}, False)
    assert "annotations" not in (describe_tool("x", declared, snapshot_of(found).catalogues["desk"]) or {})
    assert snapshot_of(found).gates["writers"].match.matches(declared.to_governed)
    assert list_codes(found) == ["effects-undeclared"]
    (warning,) = found.diagnostics
    assert (warning.severity, warning.position.width) == ("warning", len('"trust"'))
    assert "trust: {flags: [" in (warning.help or "")


def test_tool_without_trust_is_reported_at_its_name() -> None:
    untold = tool("order_find").replace(', "trust": {"flags": [], "tier": "inner"}', "")

    assert problem(linked(untold, catalogue()), "effects-undeclared").position.width == len('"order_find"')


@pytest.mark.parametrize(("flags", "read_only"), [([], True), (["private-data"], True), (["writes"], False)])
def test_any_list_of_flags_declares_all_effects(flags: list[str], read_only: bool) -> None:
    found = linked(tool(trust={"tier": "inner", "flags": flags}), catalogue())

    assert effects_of(only_tool(found)) == ("declared", flags)
    assert only_tool(found).hints["readOnly"] == read_only
    assert list_codes(found) == []


def test_worst_case_needs_no_flag_documents() -> None:
    """A project without any TrustFlag still has rules about effects, and a document can only add to them."""
    tiers = [each for each in TRUST if '"TrustTier"' in each]
    plain = linked(
        tool("a", trust=UNTOLD),
        tool("b", trust={"tier": "inner", "flags": ["destructive"]}),
        RULE,
        catalogue(),
        trust=tiers,
    )
    tools = snapshot_of(plain).tools
    assert effects_of(tools["a"]) == ("unknown", WORST)
    assert effects_of(tools["b"]) == ("declared", ["destructive", "writes"])
    assert (tools["b"].hints["readOnly"], tools["b"].hints["destructive"]) == (False, True)

    harmless = flag("writes", hint={"readOnly": True}, implies=["egress"])
    changed = linked(tool(trust={"tier": "inner", "flags": ["writes"]}), catalogue(), trust=[*tiers, harmless])
    assert effects_of(only_tool(changed)) == ("declared", ["egress", "writes"])
    assert only_tool(changed).hints["readOnly"] is False


def test_condition_may_name_an_effect_without_a_document() -> None:
    tiers = [each for each in TRUST if '"TrustTier"' in each]
    when = {
        "description": "A rule.",
        "match": {"tools": ["*"]},
        "when": 'caller.saw("egress", "1h")',
        "check": {"type": "rate", "limit": 5, "per": "1m"},
    }

    assert list_codes(linked(tool(), document("GateRule", "r", when), catalogue(), trust=tiers)) == []


LEVELS: Final[Mapping[str, dict[str, Any]]] = {
    "nothing": {"trust": MIDDLE},
    "import": {"trust": {"tier": "middle", "flags": ["private-data"]}},
    "empty import": {"trust": {"tier": "middle", "flags": []}},
    "pattern": {"trust": MIDDLE, "tools": {"*": {"flags": ["private-data"]}}},
    "name": {
        "trust": {"tier": "middle", "flags": ["writes"]},
        "tools": {"*": {"flags": ["egress"]}, "x*": {"flags": []}},
    },
}
DECLARED: Final[Mapping[str, frozenset[str] | None]] = {
    "nothing": None,
    "import": frozenset({"private-data"}),
    "empty import": frozenset(),
    "pattern": frozenset({"private-data"}),
    "name": frozenset(),
}
HINTS: Final = tuple(
    {
        key: value
        for key, value in zip(("readOnlyHint", "destructiveHint", "openWorldHint"), values, strict=True)
        if value is not None
    }
    for values in product((None, True, False), repeat=3)
)


@pytest.mark.parametrize("level", LEVELS)
def test_no_claim_at_any_level_lowers_caution(level: str) -> None:
    """An MCP server's tools with every combination of claims: declarations and claims both count."""
    names = {f"x{number}": hints for number, hints in enumerate(HINTS)}
    found = linked(
        upstream(**LEVELS[level]),
        catalogue(),
        imports=[make_definition(name, **hints) for name, hints in names.items()],
    )
    tools, declared = snapshot_of(found).tools, DECLARED[level]
    for name, hints in names.items():
        each, claims = tools[f"wiki.{name}"], find_claimed_flags(hints)
        assert each.trust.flags == (claims | EFFECT_FLAGS if declared is None else declared | claims)
        assert each.trust.effects == ("unknown" if declared is None else "declared")
        assert each.hints.get("readOnly", False) <= each.trust.flags.isdisjoint(CHANGES)
        assert (each.hints == {}) == (declared is None)
    assert set(list_codes(found)) == ({"effects-undeclared"} if declared is None else {"effects-contradicted"})
    assert len(found.diagnostics) == 1


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("level", LEVELS)
def test_method_implies_effects_unless_a_document_names_the_operation(level: str, method: str) -> None:
    found = linked(service(**LEVELS[level]), catalogue(), imports=[operation("x", method)])
    each, declared, implied = snapshot_of(found).tools["shop.x"], DECLARED[level], method_flags(method)

    if level in ("pattern", "name"):
        assert effects_of(each) == ("declared", sorted(declared or ()))
    else:  # a statement about all operations does not lower the effects of a method
        assert effects_of(each) == (
            "implied" if declared is None else "declared",
            sorted(implied | (declared or frozenset())),
        )
    assert each.hints["readOnly"] == each.trust.flags.isdisjoint(CHANGES)
    contradicted = level in ("pattern", "name") and method in ("PUT", "PATCH", "DELETE")
    assert list_codes(found) == (["effects-contradicted"] if contradicted else [])


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_document_of_an_operation_without_flags_has_those_of_its_method(method: str) -> None:
    untold = wrapped("x", "do", kind="openapi", source="shop", trust=UNTOLD)
    silent = wrapped("x", "do", kind="openapi", source="shop", trust={"tier": "inner", "flags": []})

    for text, effects in ((untold, "implied"), (silent, "declared")):
        found = linked(service(), text, catalogue(), imports=[operation("do", method)])
        expected = sorted(method_flags(method)) if effects == "implied" else []
        assert effects_of(snapshot_of(found).tools["x"]) == (effects, expected)
        assert list_codes(found) == (["effects-contradicted"] if effects == "declared" and method == "DELETE" else [])


def test_operation_without_a_known_method_counts_as_writing() -> None:
    bare = UpstreamDefinition("shop", "x", {"name": "x", "inputSchema": {"type": "object"}}, is_pinned=True)

    assert effects_of(snapshot_of(linked(service(), catalogue(), imports=[bare])).tools["shop.x"]) == (
        "implied",
        ["writes"],
    )


@pytest.mark.parametrize(
    ("method", "flags", "is_reported"),
    [("DELETE", [], True), ("PUT", ["egress"], True), ("DELETE", ["writes"], False), ("POST", [], False)],
)
def test_flags_against_the_method_are_reported_at_the_flags(method: str, flags: list[str], is_reported: bool) -> None:
    found = linked(http(method, trust={"tier": "inner", "flags": flags}), catalogue())

    assert list_codes(found) == (["effects-contradicted"] if is_reported else [])
    assert effects_of(only_tool(found)) == ("declared", flags)  # the document overrides the method
    for each in found.diagnostics:
        assert (each.severity, each.position.width) == ("warning", len('"flags"'))


def test_server_s_warning_counts_over_the_document_that_publishes_its_tool() -> None:
    mine = wrapped("drop", "delete_page", trust={"tier": "inner", "flags": []}, idempotent=True)
    claims = {"destructiveHint": True, "idempotentHint": False, "readOnlyHint": True}
    found = linked(upstream(), mine, catalogue(), imports=[make_definition("delete_page", **claims)])
    declared = snapshot_of(found).tools["drop"]

    assert effects_of(declared) == ("declared", ["destructive", "writes"])
    assert declared.trust.claimed == {"destructive", "writes"}
    assert (declared.idempotent, declared.hints["readOnly"], declared.hints["destructive"]) == (False, False, True)
    assert "idempotent" not in declared.hints
    assert list_codes(found) == ["effects-contradicted", "effects-contradicted"]
    assert {each.position.width for each in found.diagnostics} == {len('"flags"'), len("true")}


def test_server_s_reassurance_counts_for_nothing() -> None:
    reassuring = {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False, "idempotentHint": True}
    mine = wrapped("drop", "delete_page", trust=UNTOLD)
    found = linked(
        upstream(trust=MIDDLE),
        mine,
        catalogue(),
        imports=[make_definition("delete_page", **reassuring), make_definition("other", **reassuring)],
    )

    assert [effects_of(each) for each in snapshot_of(found).tools.values()] == [("unknown", WORST)] * 2
    assert list_codes(found) == ["effects-undeclared", "effects-undeclared"]


def test_patterns_with_the_most_letters_count_and_equals_add_up() -> None:
    tools = {
        "*": {"flags": ["egress"]},
        "get_*": {"flags": []},
        "*_all": {"flags": ["private-data"]},
        "get_one": {"flags": ["writes"]},
    }
    names = ("wander", "get_page", "get_all", "get_one", "drop_all")
    found = linked(upstream(tools=tools), catalogue(), imports=[make_definition(name) for name in names])

    assert {name: sorted(snapshot_of(found).tools[f"wiki.{name}"].trust.flags) for name in names} == {
        "wander": ["egress"],
        "get_page": [],
        "get_all": ["private-data"],  # both patterns have four letters
        "get_one": ["writes"],
        "drop_all": ["private-data"],
    }


def test_undeclared_imports_are_one_problem_with_a_block_to_paste() -> None:
    names = [f"get_{number:04}" for number in range(2000)]
    found = linked(upstream(trust=MIDDLE), catalogue(), imports=[make_definition(name) for name in names])

    warning = problem(found, "effects-undeclared")
    assert "2000 imported tools" in warning.message
    assert 'tools: {"get_0000": {flags: []}' in (warning.help or "")
    assert "gateway lock prints the others" in (warning.help or "")
    assert len(warning.message) + len(warning.help or "") < 1000


def test_declared_block_ends_the_problem() -> None:
    terms: dict[str, Any] = {
        "trust": MIDDLE,
        "tools": {"delete_page": {"flags": ["writes", "destructive"]}, "find": {"flags": []}},
    }
    found = linked(
        upstream(**terms),
        catalogue(),
        imports=[make_definition("delete_page", destructiveHint=True), make_definition("find")],
    )

    assert list_codes(found) == []
    assert effects_of(snapshot_of(found).tools["wiki.delete_page"]) == ("declared", ["destructive", "writes"])


def test_pattern_that_fits_no_tool_and_flag_that_is_not_there_are_reported() -> None:
    typo = linked(
        upstream(tools={"delte_*": {"flags": ["writes"]}}), catalogue(), imports=[make_definition("delete_page")]
    )
    assert list_codes(typo) == ["idle-import"]

    unknown = linked(
        upstream(tools={"*": {"flags": ["wrties"]}}), catalogue(), imports=[make_definition("delete_page")]
    )
    assert "unknown-reference" in list_codes(unknown)
    assert problem(unknown, "unknown-reference").help == "did you mean 'writes'?"


@pytest.mark.parametrize(
    ("terms", "claims", "words"),
    [
        ({"trust": {"tier": "careful", "flags": None}}, {}, "undeclared effects count as 'destructive'"),
        ({"trust": {"tier": "careful"}}, {"destructiveHint": True}, "the server declares 'destructive' for its tool"),
        ({"trust": {"tier": "careful", "flags": ["destructive"]}}, {}, "remove the flag"),
        ({"trust": {"tier": "careful"}, "tools": {"x": {"flags": ["destructive"]}}}, {}, "remove the flag"),
    ],
)
def test_tier_forbids_what_is_assumed_and_claimed_too(terms: dict[str, Any], claims: Any, words: str) -> None:
    careful = tier("careful", forbids={"flags": ["destructive"]})
    found = linked(careful, upstream(**terms), catalogue(), imports=[make_definition("x", **claims)])

    error = problem(found, "tier-forbids-flag")
    assert error.message.endswith(": x")
    assert words in (error.help or "")


def test_tier_forbids_what_a_method_implies() -> None:
    careful = tier("careful", forbids={"flags": ["writes"]})
    terms: dict[str, Any] = {"trust": {"tier": "careful"}}
    found = linked(careful, service(**terms), catalogue(), imports=[operation("x", "POST"), operation("y", "POST")])

    error = problem(found, "tier-forbids-flag")
    assert error.message.endswith(": x and 1 more")
    assert "POST implies 'writes'" in (error.help or "")


def test_terms_that_let_nothing_in_yet_have_no_unknown_effects() -> None:
    careful = tier("careful", forbids={"flags": ["destructive"]})

    assert list_codes(linked(careful, tool(), upstream(trust={"tier": "careful", "flags": None}), catalogue())) == []


def test_rule_about_tools_that_are_not_there_yet_is_not_idle() -> None:
    about = document(
        "GateRule",
        "r",
        {
            "description": "A rule.",
            "match": {"flags": ["private-data"], "upstreams": ["wiki"]},
            "check": {"type": "rate", "limit": 5, "per": "1m"},
        },
    )
    terms: dict[str, Any] = {"trust": {"tier": "middle", "flags": []}, "tools": {"get_*": {"flags": ["private-data"]}}}

    assert list_codes(linked(tool(), upstream(**terms), about, catalogue())) == []
    assert list_codes(linked(tool(), upstream(trust={"tier": "middle", "flags": []}), about, catalogue())) == [
        "idle-rule"
    ]


def test_unknown_tool_completes_forbidden_combinations_and_is_refused_by_pipelines() -> None:
    private = tool("a", trust={"tier": "inner", "flags": ["private-data"]})
    unknown = tool("b", trust=UNTOLD)
    met = linked(private, unknown, catalogue(forbidTogether=[["private-data", "egress"]]))
    assert "forbidden-combination" in list_codes(met)
    assert any("whose effects are unknown" in words for words, _ in problem(met, "forbidden-combination").related)

    refusing = pipeline(call=[{"use": "gates"}], refuses={"flags": ["writes"]})
    refused = linked(unknown, catalogue(), stages=[refusing])
    assert "its effects are unknown" in problem(refused, "pipeline-refuses").message


def test_retry_and_cache_leave_unknown_tools_alone() -> None:
    stages = pipeline(
        call=[{"use": "gates"}, {"use": "cache", "with": {"for": "1m"}}, {"use": "retry", "with": {"attempts": 3}}]
    )
    found = linked(tool(trust=UNTOLD, idempotent=True), catalogue(), stages=[stages])

    assert sorted(list_codes(found)) == ["cache-skips", "effects-undeclared"]
    assert "have unknown effects" in problem(found, "cache-skips").message


def test_effects_are_part_of_the_revision() -> None:
    flags = ["writes", "destructive", "egress"]
    declared = snapshot_of(linked(tool(trust={"tier": "inner", "flags": flags}), catalogue()))
    unknown = snapshot_of(linked(tool(trust=UNTOLD), catalogue()))
    empty = snapshot_of(linked(tool(trust={"tier": "inner", "flags": []}), catalogue()))

    assert effects_of(declared.tools["order_read"])[1] == effects_of(unknown.tools["order_read"])[1]
    assert len({compute_revision(each, []) for each in (declared, unknown, empty)}) == 3


def test_forgotten_tool_and_offers_are_what_they_were() -> None:
    """A prompt or a resource is only read: it has the flags of its import, and no unknown effects."""
    prompt = UpstreamDefinition("wiki", "greet", {"name": "greet"}, kind="prompt", is_pinned=True)
    found = linked(tool(), upstream(trust=MIDDLE, prompts=["*"]), catalogue(), imports=[prompt])
    (offer,) = snapshot_of(found).offers.values()

    assert (offer.trust.flags, offer.trust.is_unknown) == (frozenset(), False)


def test_replacement_by_a_tool_of_unknown_effects_is_refused() -> None:
    newest = policy(onCollision="replace", honourTool="never", imports={"prefix": ""})
    terms: dict[str, Any] = {"trust": {"tier": "inner", "flags": None}}
    found = linked(tool("find"), upstream(**terms), catalogue(), names=[newest], imports=[make_definition("find")])

    error = problem(found, "name-collision")
    assert "its effects are unknown" in error.message
    assert "'find' of upstream 'wiki' is taken by 'find'" in error.message
    assert "no policy can allow this" in (error.help or "")


def test_more_trusted_group_of_resources_has_a_uri() -> None:
    """Upstreams are sorted by name, but the more trusted one still comes first."""
    groups = [{"name": "notes", "uris": ["file:///notes/*"]}]
    found = linked(
        tool(),
        upstream("a", trust={"tier": "outer"}, resources=groups),
        upstream("b", trust={"tier": "middle"}, resources=groups),
        catalogue(include=[{"tools": ["*"]}, {"resources": ["*"]}]),
    )
    desk = snapshot_of(found).catalogues["desk"]

    assert desk.resources == ("resource:b.notes", "resource:a.notes")
    assert [(each.existing.source, each.incoming.source) for each in desk.collisions] == [("b", "a")]


def test_less_trusted_upstream_keeps_no_name_by_the_alphabet() -> None:
    keep = policy(onCollision="keep", imports={"prefix": ""})
    imports = [make_definition("find", "a"), make_definition("find", "b")]
    refused = linked(upstream("a", trust={"tier": "outer"}), upstream("b"), catalogue(), names=[keep], imports=imports)
    assert "may not keep a name" in problem(refused, "name-collision").message

    kept = linked(upstream("a"), upstream("b", trust={"tier": "outer"}), catalogue(), names=[keep], imports=imports)
    assert dict(snapshot_of(kept).catalogues["desk"].tools) == {"find": "a.find"}


def test_upstream_called_like_our_own_source_is_reported_as_what_it_is() -> None:
    newest = policy(onCollision="replace", imports={"prefix": ""})
    found = linked(
        tool("find"), upstream("tools"), catalogue(), names=[newest], imports=[make_definition("find", "tools")]
    )

    assert "'find' of upstream 'tools' is taken" in problem(found, "name-collision").message
