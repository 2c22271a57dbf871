"""Catalogues: chosen and hidden tools, combinations of abilities, and entries that choose nothing."""

from datetime import date, timedelta
from typing import Any

import pytest

from gateway.config.linking.linker import LinkResult
from gateway.registries.imported_definition import build_tool_definition
from tests.config.linking.projects import (
    TODAY,
    catalogue,
    document,
    linked,
    list_codes,
    pipeline,
    problem,
    snapshot_of,
    tier,
    tool,
    upstream,
)

TOOLS = (
    tool("a", labels={"system": "x"}, trust={"tier": "inner", "flags": ["private-data"]}),
    tool("b", labels={"system": "y"}, trust={"tier": "middle", "flags": ["destructive"]}, output={"artifact": "json"}),
    tool("c", trust={"tier": "outer", "flags": ["egress"]}),
    tool("d_remote", backend={"type": "mcp", "upstream": "wiki", "tool": "open"}),
)


def chosen(include: list[dict[str, Any]], exclude: list[dict[str, Any]] | None = None) -> set[str]:
    found = linked(*TOOLS, upstream(), catalogue(include=include, exclude=exclude or []))
    return set(snapshot_of(found).catalogues["desk"].tools)


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        ([{"tools": ["*"]}], [], "a b c d_remote"),
        ([{"tools": ["a", "c"]}], [], "a c"),
        ([{"tools": ["d*"]}], [], "d_remote"),
        ([{"labels": {"system": "x"}}], [], "a"),
        ([{"flags": ["writes"]}], [], "b"),
        ([{"flags": ["writes", "egress"]}], [], "b c"),
        ([{"flags": ["writes"], "tools": ["a", "b"]}], [], "b"),
        ([{"tiers": ["inner", "outer"]}], [], "a c d_remote"),
        ([{"tools": ["*"], "maxTier": "inner"}], [], "a d_remote"),
        ([{"tools": ["*"], "maxTier": "middle"}], [], "a b d_remote"),
        ([{"tools": ["*"], "maxTier": "outer"}], [], "a b c d_remote"),
        ([{"upstreams": ["wiki"]}], [], "d_remote"),
        ([{"upstreams": ["w*"]}], [], "d_remote"),
        ([{"artifacts": ["json"]}], [], "b"),
        ([{"tools": ["a"]}, {"tiers": ["middle"]}], [], "a b"),
        ([{"tools": ["*"]}], [{"flags": ["destructive"]}], "a c d_remote"),
        ([{"tools": ["*"]}], [{"tools": ["a"]}, {"tools": ["c"]}], "b d_remote"),
        ([{"tools": ["*"]}], [{"tools": ["*"], "maxTier": "middle"}], "c"),
    ],
)
def test_selection(include: list[dict[str, Any]], exclude: list[dict[str, Any]], expected: str) -> None:
    assert chosen(include, exclude) == set(expected.split())


def test_imported_tools_are_chosen_by_identity_and_upstream() -> None:
    imports = [build_tool_definition("wiki", "open"), build_tool_definition("wiki", "search")]

    found = linked(
        upstream(labels={"system": "docs"}),
        catalogue("by-name", include=[{"tools": ["wiki.open"]}]),
        catalogue("by-upstream", include=[{"upstreams": ["wiki"]}], exclude=[{"tools": ["*.open"]}]),
        catalogue("by-label", include=[{"labels": {"system": "docs"}}]),
        imports=imports,
    )

    tools = {name: set(each.tools) for name, each in snapshot_of(found).catalogues.items()}
    assert tools == {
        "by-name": {"wiki_open"},
        "by-upstream": {"wiki_search"},
        "by-label": {"wiki_open", "wiki_search"},
    }


def test_hidden_tools_are_in_the_catalogue_by_their_advertised_name() -> None:
    found = linked(tool(), upstream(), catalogue(hidden=["wiki_*"]), imports=[build_tool_definition("wiki", "open")])

    desk = snapshot_of(found).catalogues["desk"]
    assert desk.hidden == {"wiki_open"}
    assert set(desk.tools) == {"order_read", "wiki_open"}
    assert list_codes(found) == []


@pytest.mark.parametrize(
    ("spec", "width", "times"),
    [
        ({"include": [{"tools": ["*"]}, {"flags": ["egress"]}]}, len('"flags"'), 1),
        ({"include": [{"tools": ["*"]}, {"tools": ["x*"], "tiers": ["inner"]}]}, 1, 1),
        ({"exclude": [{"flags": ["egress"]}]}, len('"flags"'), 1),
        ({"include": [{"tools": ["order_read"]}], "exclude": [{"tools": ["other_*"]}]}, len('"tools"'), 1),
        ({"hidden": ["order_reed"]}, len('"order_reed"'), 1),
        ({"hidden": ["order_*"]}, 0, 0),
    ],
)
def test_entry_that_chooses_nothing_is_reported(spec: dict[str, Any], width: int, times: int) -> None:
    found = linked(tool(), tool("other_read"), catalogue(**spec))

    idle = [each for each in found.diagnostics if each.code == "idle-selector"]
    assert [each.position.width for each in idle] == [width] * times
    assert found.snapshot is not None


@pytest.mark.parametrize(
    "include",
    [
        {"upstreams": ["wiki"]},
        {"tools": ["wiki.open"]},
        {"tools": ["wiki.*"]},
        {"tools": ["w*n"]},
        {"flags": ["egress"]},
        {"tools": ["*"], "maxTier": "middle", "upstreams": ["wiki"]},
    ],
)
def test_entry_that_awaits_an_upstream_s_tools_is_not_idle(include: dict[str, Any]) -> None:
    wiki = upstream(trust={"tier": "middle", "flags": ["egress"]})
    texts = (tool(), wiki, catalogue(include=[{"tools": ["order_read"]}, include]))

    assert list_codes(linked(*texts)) == []


@pytest.mark.parametrize(
    "include",
    [{"tools": ["order_f*"]}, {"tiers": ["outer"]}, {"upstreams": ["wiki"], "maxTier": "inner"}, {"flags": ["writes"]}],
)
def test_entry_that_no_upstream_will_meet_is_idle(include: dict[str, Any]) -> None:
    texts = (tool(), upstream(), catalogue(include=[{"tools": ["order_read"]}, include]))

    assert list_codes(linked(*texts)) == ["idle-selector"]


def test_entry_is_idle_once_the_upstream_s_tools_are_known() -> None:
    texts = (tool(), upstream(), catalogue(include=[{"tools": ["*"]}, {"tools": ["wiki.search"]}]))

    assert list_codes(linked(*texts, imports=[build_tool_definition("wiki", "open")])) == ["idle-selector"]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("order_read", None),
        ("order_reed", "unknown-reference"),
        ("wiki.open", None),
        ("wiki.secret", "unknown-reference"),
        ("docs.open", "unknown-reference"),
        ("order_x*", "idle-selector"),
    ],
)
@pytest.mark.parametrize("field", ["include", "exclude"])
def test_tool_that_an_entry_names_exists(field: str, name: str, code: str | None) -> None:
    entries: dict[str, Any] = {"include": [{"tools": ["*"]}], field: [{"tools": [name]}]}
    texts = (tool(), tool("order_find"), upstream(exclude=["secret"]), catalogue(**entries), catalogue("all"))

    assert list_codes(linked(*texts)) == ([code] if code else [])


def combined(waivers: list[dict[str, Any]], *, today: date = TODAY) -> LinkResult:
    reader = tool("order_read", trust={"tier": "inner", "flags": ["private-data"]})
    sender = tool("mail_send", trust={"tier": "inner", "flags": ["egress"]})
    forbidden = [["private-data", "egress"]]
    return linked(reader, sender, catalogue(forbidTogether=forbidden, waivers=waivers), today=today)


def waiver(until: date, *flags: str) -> dict[str, Any]:
    together = list(flags or ("egress", "private-data"))
    return {"forbidTogether": together, "until": until.isoformat(), "by": "team-security", "because": "We know."}


def test_combination_is_reported_with_the_tools_that_complete_it() -> None:
    found = combined([])

    assert list_codes(found) == ["forbidden-combination"]
    assert [words for words, _ in problem(found, "forbidden-combination").related] == [
        "egress is a flag of mail_send",
        "private-data is a flag of order_read",
    ]


def test_combination_counts_flags_that_are_implied_or_added() -> None:
    careless = document(
        "TrustTier", "careless", {"rank": 5, "description": "x", "origin": "first-party", "addsFlags": ["egress"]}
    )
    breaker = tool("order_break", trust={"tier": "careless", "flags": ["destructive"]})

    found = linked(careless, breaker, catalogue(forbidTogether=[["writes", "egress"]]))

    assert list_codes(found) == ["forbidden-combination"]


def test_combination_that_is_not_complete_is_fine() -> None:
    reader = tool("order_read", trust={"tier": "inner", "flags": ["private-data"]})

    assert list_codes(linked(reader, catalogue(forbidTogether=[["private-data", "egress"]]))) == []


def test_excluded_tool_completes_nothing() -> None:
    reader = tool("order_read", trust={"tier": "inner", "flags": ["private-data"]})
    sender = tool("mail_send", trust={"tier": "inner", "flags": ["egress"]})
    apart = catalogue(forbidTogether=[["private-data", "egress"]], exclude=[{"flags": ["egress"]}])

    assert list_codes(linked(reader, sender, apart, catalogue("mail", include=[{"tools": ["mail_send"]}]))) == []


@pytest.mark.parametrize(
    ("today", "codes"),
    [
        (TODAY - timedelta(days=1), []),
        (TODAY, []),
        (TODAY + timedelta(days=1), ["waiver-expired"]),
    ],
    ids=["the day before", "its last day", "the day after"],
)
def test_waiver_counts_until_the_end_of_its_last_day(today: date, codes: list[str]) -> None:
    found = combined([waiver(TODAY)], today=today)

    assert list_codes(found) == codes
    if not codes:
        (combination,) = snapshot_of(found).catalogues["desk"].combinations
        assert combination.waiver is not None
        assert combination.waiver.until == TODAY


def test_second_waiver_takes_over_where_the_first_ended() -> None:
    assert list_codes(combined([waiver(TODAY - timedelta(days=1)), waiver(TODAY)])) == []


def test_waiver_that_is_not_needed_is_reported() -> None:
    reader = tool("order_read", trust={"tier": "inner", "flags": ["private-data"]})
    desk = catalogue(forbidTogether=[["private-data", "egress"]], waivers=[waiver(TODAY)])

    found = linked(reader, desk)

    assert list_codes(found) == ["idle-waiver"]
    assert found.snapshot is not None


def test_path_belongs_to_one_catalogue() -> None:
    found = linked(tool(), catalogue("a"), catalogue("b", publish={"path": "/a"}))

    assert list_codes(found) == ["path-taken"]


def test_catalogue_carries_what_its_document_declares() -> None:
    spec: dict[str, Any] = {"publish": {"path": "/x", "as": ["mcp"], "render": "plain"}, "instructions": "Ask first."}

    desk = snapshot_of(linked(tool(), catalogue(**spec))).catalogues["desk"]

    assert (desk.path, desk.protocols, desk.render, desk.instructions) == ("/x", ("mcp",), "plain", "Ask first.")
    assert (desk.pipeline, desk.audience, desk.owner) == ("standard", frozenset({"role:clerk"}), "team-a")


@pytest.mark.parametrize(("lifecycle", "codes"), [("active", ["unpublished-tool"]), ("draft", []), ("retired", [])])
def test_only_active_tools_are_missed(lifecycle: str, codes: list[str]) -> None:
    found = linked(tool(), tool("other", lifecycle=lifecycle), catalogue(include=[{"tools": ["order_read"]}]))

    assert list_codes(found, besides=()) == codes


def test_refused_tool_is_not_also_called_unpublished() -> None:
    found = linked(tool(), tool("Order.Read"), catalogue())

    assert list_codes(found, besides=("name-style",)) == ["name-collision"]


@pytest.mark.parametrize(
    ("stages", "spec", "codes"),
    [
        ({"refuses": {"flags": ["writes"]}}, {"trust": {"tier": "inner", "flags": ["writes"]}}, ["pipeline-refuses"]),
        (
            {"refuses": {"flags": ["writes"]}},
            {"trust": {"tier": "inner", "flags": ["destructive"]}},
            ["pipeline-refuses"],
        ),
        ({"refuses": {"flags": ["writes"]}}, {"trust": {"tier": "inner", "flags": ["egress"]}}, []),
        ({"call": [{"use": "retry"}]}, {"trust": {"tier": "inner", "flags": ["writes"]}}, ["retry-writes"]),
        ({"call": [{"use": "retry"}]}, {"trust": {"tier": "inner", "flags": ["writes"]}, "idempotent": True}, []),
        ({"call": [{"use": "retry"}]}, {"trust": {"tier": "inner", "flags": ["egress"]}}, []),
        (
            {"call": [{"use": "retry", "with": {"unlessFlags": ["writes"]}}]},
            {"trust": {"tier": "inner", "flags": ["destructive"]}},
            [],
        ),
        (
            {"call": [{"use": "retry", "with": {"unlessFlags": ["egress"]}}]},
            {"trust": {"tier": "inner", "flags": ["writes"]}},
            ["retry-writes"],
        ),
        ({"call": [{"use": "retry", "with": {"attempts": 1}}]}, {"trust": {"tier": "inner", "flags": ["writes"]}}, []),
    ],
)
def test_pipeline_and_tools_get_along(stages: dict[str, Any], spec: dict[str, Any], codes: list[str]) -> None:
    assert list_codes(linked(tool(**spec), catalogue(), stages=[pipeline(**stages)])) == codes


def test_pipeline_of_the_catalogue_is_the_one_that_refuses() -> None:
    strict = pipeline("strict", refuses={"flags": ["writes"]})
    writer = tool(trust={"tier": "inner", "flags": ["writes"]})

    found = linked(strict, writer, catalogue("a"), catalogue("b", pipeline="strict"))

    assert list_codes(found) == ["pipeline-refuses"]
    assert problem(found, "pipeline-refuses").position.width == len('"strict"')


@pytest.mark.parametrize(
    ("publish", "own", "warned"),
    [
        ({"structured": "raw"}, {}, True),
        ({}, {}, True),
        ({"structured": "off"}, {}, False),
        ({"render": "plain"}, {}, False),
        ({"as": ["http"]}, {}, False),
        ({}, {"output": {"artifact": "text"}}, False),
        ({}, {"output": {"artifact": "text", "schema": {"type": "object"}}}, True),
        ({}, {"output": {"artifact": "records"}}, True),
        ({}, {"trust": {"tier": "ours"}}, False),
    ],
    ids=["raw", "default", "off", "plain", "rest-alone", "text", "promised", "class", "own-tier"],
)
def test_json_of_third_parties_beside_an_envelope_is_reported(
    publish: dict[str, Any], own: dict[str, Any], warned: bool
) -> None:
    spec = {"trust": {"tier": "theirs"}, "output": {"artifact": "json"}, **own}
    found = linked(
        tier("theirs", origin="third-party-public"),
        tier("ours"),
        document("ArtifactClass", "records", {"base": "json", "description": "Records."}),
        tool("find", **spec),
        catalogue(publish={"path": "/desk", **publish}),
    )

    assert list_codes(found) == (["unmarked-json"] if warned else [])
