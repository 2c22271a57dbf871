"""Catalogues: what selectors choose, and combinations that are not allowed together."""

from datetime import date, timedelta
from typing import Any

import pytest

from gateway.registries.tool_flags import Combination, Waiver, find_forbidden_combinations
from gateway.registries.tool_selection import CatalogueSelection, GovernedTool, Selector, ToolIndex, select_tools

TODAY = date(2026, 11, 16)
TRIFECTA = frozenset({"private-data", "untrusted-output", "egress"})
TICKET = GovernedTool("ticket_create", "partner", 10, frozenset({"writes"}), {"system": "helpdesk"}, artifact="ticket")
LOG = GovernedTool("repo_log", "internal", 0, frozenset({"private-data"}), {"system": "git"})
SEARCH = GovernedTool(
    "github_search", "partner", 10, frozenset({"untrusted-output", "egress"}), {"system": "git"}, "github"
)
WIPE = GovernedTool("disk_wipe", "community", 20, frozenset({"writes", "destructive"}))
TOOLS = [TICKET, LOG, SEARCH, WIPE]


@pytest.mark.parametrize(
    ("fields", "chosen"),
    [
        ({}, TOOLS),
        ({"tools": ("ticket_*", "repo_log")}, [TICKET, LOG]),
        ({"labels": {"system": "git"}}, [LOG, SEARCH]),
        ({"flags": ("destructive", "egress")}, [SEARCH, WIPE]),
        ({"upstreams": ("github",)}, [SEARCH]),
        ({"upstreams": ("*",)}, [SEARCH]),
        ({"tiers": ("internal", "community")}, [LOG, WIPE]),
        ({"artifacts": ("ticket",)}, [TICKET]),
        ({"max_rank": 10}, [TICKET, LOG, SEARCH]),
        ({"labels": {"system": "git"}, "max_rank": 0}, [LOG]),
        ({"tools": ("*",), "flags": ("writes",), "max_rank": 10}, [TICKET]),
        ({"tools": ("nothing_*",)}, []),
    ],
)
def test_every_condition_of_a_selector_must_hold(fields: dict[str, Any], chosen: list[GovernedTool]) -> None:
    assert [tool for tool in TOOLS if Selector(**fields).matches(tool)] == chosen


def test_exclusion_beats_inclusion_and_order_is_kept() -> None:
    include = [Selector(tools=("disk_*",)), Selector(tools=("ticket_*",)), Selector(tools=("typo_*",))]
    exclude = [Selector(flags=("destructive",)), Selector(upstreams=("gitlab",))]

    assert select_tools(ToolIndex(TOOLS), include, exclude) == CatalogueSelection(
        (TICKET,), idle_includes=(2,), idle_excludes=(1,)
    )


def test_catalogue_without_includes_is_empty() -> None:
    assert select_tools(ToolIndex(TOOLS), []).tools == ()


def test_completed_combination_names_the_tools_that_bring_it() -> None:
    assert find_forbidden_combinations(TOOLS, [TRIFECTA], today=TODAY) == [
        Combination(
            TRIFECTA,
            {"egress": ("github_search",), "private-data": ("repo_log",), "untrusted-output": ("github_search",)},
        )
    ]


def test_incomplete_combination_is_fine() -> None:
    assert find_forbidden_combinations([TICKET, SEARCH], [TRIFECTA], today=TODAY) == []


@pytest.mark.parametrize(("days", "waived"), [(1, True), (0, True), (-1, False)])
def test_waiver_holds_until_the_end_of_its_last_day(days: int, waived: bool) -> None:
    waiver = Waiver(TRIFECTA, TODAY + timedelta(days=days), "team-security", "limited by a gate")
    other = Waiver(frozenset({"egress"}), TODAY + timedelta(days=9), "team-x", "another combination")

    [found] = find_forbidden_combinations(TOOLS, [TRIFECTA], [other, waiver], today=TODAY)

    assert found.waiver == (waiver if waived else None)
