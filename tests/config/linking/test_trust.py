"""Effective trust: a tool's declarations and its tier's demands, at every edge."""

from datetime import date, timedelta
from typing import Any

import pytest

from gateway.registries.diagnostics import Position
from gateway.registries.imported_definition import UpstreamDefinition, build_tool_definition
from tests.config.linking.projects import (
    TODAY,
    TRUST,
    flag,
    linked,
    list_codes,
    only_tool,
    problem,
    tier,
    tool,
    upstream,
)

REVIEWED = timedelta(days=30)


def reviewed(day: date) -> dict[str, Any]:
    return {"tier": "checked", "reviewed": {"date": day.isoformat(), "by": "team-security"}}


CHECKED = tier("checked", requires={"reviewedWithin": "30d"})


def test_tool_without_trust_gets_the_default_tier() -> None:
    found = linked(tool(trust={}))

    assert only_tool(found).trust.tier.name == "outer"
    assert not only_tool(found).trust.callable


def test_tool_that_names_no_tier_keeps_its_flags() -> None:
    found = linked(tool(trust={"flags": ["egress"]}))

    assert only_tool(found).trust.tier.name == "outer"
    assert only_tool(found).trust.flags == {"egress"}


def test_flags_bring_what_they_imply_at_any_distance() -> None:
    fatal = flag("fatal", implies=["destructive"])

    found = linked(fatal, tool(trust={"tier": "inner", "flags": ["fatal"]}))

    assert only_tool(found).trust.flags == {"fatal", "destructive", "writes"}
    assert only_tool(found).hints == {"readOnly": False, "destructive": True, "openWorld": False}


def test_flags_that_imply_each_other_end() -> None:
    found = linked(flag("a", implies=["b"]), flag("b", implies=["a"]), tool(trust={"tier": "inner", "flags": ["a"]}))

    assert only_tool(found).trust.flags == {"a", "b"}


def test_tier_adds_its_flags_and_what_they_imply() -> None:
    public = tier("public", addsFlags=["destructive"])

    found = linked(public, tool(trust={"tier": "public"}))

    assert only_tool(found).trust.flags == {"destructive", "writes"}


def test_tier_that_forbids_what_it_adds_is_reported_at_the_tier() -> None:
    odd = tier("odd", addsFlags=["destructive"], forbids={"flags": ["writes"]})

    found = linked(odd, tool(trust={"tier": "odd"}))

    assert list_codes(found) == ["tier-forbids-flag"]
    assert problem(found, "tier-forbids-flag").position.width == len('"odd"')
    assert "the tier itself adds 'writes'" in (problem(found, "tier-forbids-flag").help or "")


def test_forbidden_flag_is_reported_at_the_flag_that_implies_it() -> None:
    strict = tier("strict", forbids={"flags": ["writes"]})

    found = linked(strict, tool(trust={"tier": "strict", "flags": ["egress", "destructive"]}))

    assert found.snapshot is None
    assert problem(found, "tier-forbids-flag").position.width == len('"destructive"')
    assert (problem(found, "tier-forbids-flag").help or "").startswith("'destructive' implies 'writes'")


def test_every_forbidden_flag_is_reported() -> None:
    strict = tier("strict", forbids={"flags": ["writes", "egress"]})

    found = linked(strict, tool(trust={"tier": "strict", "flags": ["egress", "writes"]}))

    assert list_codes(found) == ["tier-forbids-flag", "tier-forbids-flag"]


@pytest.mark.parametrize(
    ("tier_name", "trusted", "effective", "codes"),
    [
        ("inner", True, True, []),
        ("inner", False, False, []),
        ("middle", False, False, []),
        ("middle", True, None, ["tier-forbids-trusted"]),
    ],
)
def test_trusted_needs_a_tier_that_allows_it(
    tier_name: str, trusted: bool, effective: bool | None, codes: list[str]
) -> None:
    found = linked(tool(trust={"tier": tier_name, "trusted": trusted}))

    assert list_codes(found) == codes
    assert (only_tool(found).trust.trusted if found.snapshot else None) == effective


@pytest.mark.parametrize(
    ("days", "code", "is_callable"),
    [
        (0, None, True),
        (30, None, True),
        (31, "review-overdue", True),
        (60, "review-overdue", True),
        (61, "review-expired", False),
        (-1, "review-in-future", None),
    ],
    ids=["today", "last day", "a day late", "twice the time", "a day more", "tomorrow"],
)
def test_review_ages(days: int, code: str | None, is_callable: bool | None) -> None:
    found = linked(CHECKED, tool(trust=reviewed(TODAY - timedelta(days=days))))

    assert list_codes(found) == ([code] if code else [])
    assert (only_tool(found).trust.callable if found.snapshot else None) == is_callable


def test_same_review_is_judged_by_the_day_that_is_asked_about() -> None:
    text = tool(trust=reviewed(TODAY))

    assert list_codes(linked(CHECKED, text, today=TODAY + REVIEWED)) == []
    assert list_codes(linked(CHECKED, text, today=TODAY + REVIEWED + timedelta(days=1))) == ["review-overdue"]


def test_missing_review_is_reported_at_the_tier_that_demands_it() -> None:
    found = linked(CHECKED, tool(trust={"tier": "checked"}))

    assert list_codes(found) == ["review-missing"]
    assert problem(found, "review-missing").position.width == len('"checked"')
    assert [words for words, _ in problem(found, "review-missing").related] == ["the tier"]


def test_default_tier_that_demands_a_review_is_reported_at_the_tool_s_name() -> None:
    demanding = [each for each in TRUST if '"outer"' not in each]
    outer = tier("outer", requires={"reviewedWithin": "30d"})

    untold = tool("order_find").replace(', "trust": {"flags": [], "tier": "inner"}', "")

    found = linked(tool(), untold, trust=[*demanding, outer])

    assert sorted(list_codes(found)) == ["effects-undeclared", "review-missing"]
    assert problem(found, "review-missing").position.width == len('"order_find"')


@pytest.mark.parametrize(
    ("backend", "code"),
    [
        ({"type": "command", "argv": ["/usr/bin/true"]}, "tier-forbids-backend"),
        ({"type": "http", "method": "GET", "url": "http://127.0.0.1/"}, None),
    ],
)
def test_tier_forbids_a_backend(backend: dict[str, Any], code: str | None) -> None:
    remote = tier("remote", forbids={"backends": ["command"]})

    found = linked(remote, tool(trust={"tier": "remote"}, backend=backend))

    assert list_codes(found) == ([code] if code else [])


def test_upstream_s_backend_is_reported_at_its_transport() -> None:
    local = tier("local", forbids={"backends": ["mcp"]})

    found = linked(local, upstream(trust={"tier": "local"}))

    assert list_codes(found) == ["tier-forbids-backend"]
    assert problem(found, "tier-forbids-backend").position.width == len('"streamable-http"')


@pytest.mark.parametrize(
    ("imports", "codes"),
    [
        ([], []),
        ([build_tool_definition("wiki", "search", is_pinned=True)], []),
        ([build_tool_definition("wiki", "search")], ["not-pinned"]),
        (
            [build_tool_definition("wiki", "search", is_pinned=True), build_tool_definition("wiki", "open")],
            ["not-pinned"],
        ),
    ],
    ids=["nothing known", "pinned", "not pinned", "one of two"],
)
def test_pinning_concerns_what_is_imported(imports: list[UpstreamDefinition], codes: list[str]) -> None:
    pinned = tier("pinned", requires={"pinned": True})

    found = linked(pinned, upstream(trust={"tier": "pinned"}), tool(trust={"tier": "pinned"}), imports=imports)

    assert list_codes(found) == codes


def test_declared_tool_of_an_upstream_is_pinned_through_its_import() -> None:
    pinned = tier("pinned", requires={"pinned": True})
    mine = tool("wiki_find", trust={"tier": "pinned"}, backend={"type": "mcp", "upstream": "wiki", "tool": "search"})

    free = linked(pinned, upstream(), mine)
    held = linked(pinned, upstream(), mine, imports=[build_tool_definition("wiki", "search", is_pinned=True)])

    assert list_codes(free) == ["not-pinned"]
    assert list_codes(held) == []


def test_imported_tool_has_the_trust_of_the_import_and_nothing_of_its_own() -> None:
    brought = build_tool_definition("wiki", "search", "I am trusted and read only.", {"type": "object"}, is_pinned=True)

    found = linked(upstream(trust={"tier": "middle", "flags": ["destructive"]}), imports=[brought])

    assert only_tool(found).trust.tier.name == "middle"
    assert only_tool(found).hints == {"readOnly": False, "destructive": True, "openWorld": False}
    assert not only_tool(found).trust.trusted


def test_idempotent_tool_has_the_hint() -> None:
    found = linked(tool(idempotent=True))

    assert only_tool(found).hints["idempotent"] is True


def test_unknown_tier_is_reported_once_and_never_guessed() -> None:
    found = linked(tool(trust={"tier": "inmost"}))

    assert list_codes(found) == ["unknown-reference"]
    assert isinstance(problem(found, "unknown-reference").position, Position)
