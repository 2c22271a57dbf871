"""Tool lists over MCP: pages, cursors, and that a long list does not stop the event loop."""

import asyncio
from pathlib import Path

import orjson
import pytest

from gateway.engine.tool_lists import SLICE
from gateway.policy.authoriser import AccessDecision, AccessRequest
from gateway.server.mcp.mcp_server import RevisionLists, ToolLists
from tests.engine.service_gateway import ANA, Gateway, Grants, Plan, running

pytestmark = pytest.mark.anyio

VERSION = "2026-07-28"


def plan_of(*names: str) -> Plan:
    plan = Plan()
    for name in names:
        plan.tool(name, "x")
    return plan


async def names_of_page(gateway: Gateway, cursor: str | None, size: int) -> tuple[list[str], str | None]:
    lists = RevisionLists(gateway.service.published, "desk")
    tools, following = await lists.build_page(gateway.service.list_tools(ANA, "desk"), VERSION, cursor, size)
    return [orjson.loads(tool)["name"] for tool in tools], following


async def test_long_list_is_sent_in_pages(tmp_path: Path) -> None:
    names = [f"tool_{number:02}" for number in range(7)]
    async with running(tmp_path, plan_of(*reversed(names))) as gateway:
        everything, end = await names_of_page(gateway, None, 100)
        seen, cursor = await names_of_page(gateway, None, 3)
        while cursor is not None:
            page, cursor = await names_of_page(gateway, cursor, 3)
            assert len(page) <= 3
            seen += page

        assert end is None
        assert seen == everything == sorted(everything)
        assert set(names) < set(seen)
        assert await names_of_page(gateway, None, 3) == await names_of_page(gateway, "", 3)


async def test_last_page_that_is_full_has_no_cursor(tmp_path: Path) -> None:
    async with running(tmp_path, plan_of("alpha", "beta")) as gateway:
        whole, _ = await names_of_page(gateway, None, 100)

        assert await names_of_page(gateway, None, len(whole)) == (whole, None)


async def test_cursor_of_a_tool_that_is_gone_goes_on_after_it(tmp_path: Path) -> None:
    async with running(tmp_path, plan_of("a", "aa", "ab")) as gateway:
        page, cursor = await names_of_page(gateway, None, 2)
        gateway.publish(tools=plan_of("a", "ab", "ac").tools)

        assert page == ["a", "aa"]
        assert (await names_of_page(gateway, cursor, 2))[0] == ["ab", "ac"]


async def test_kept_pages_are_those_of_the_caller_and_the_revision(tmp_path: Path) -> None:
    async with running(tmp_path, plan_of("echo", "secret")) as gateway:
        lists = ToolLists(gateway.service, "desk")
        first = await lists.get_page(ANA, VERSION, None)
        again = await lists.get_page(ANA, VERSION, None)
        gateway.grants.rows = {("secret", "discover"): False}
        gateway.publish()
        narrowed = await lists.get_page(ANA, VERSION, None)

        assert first == again
        assert b'"secret"' in first[0]
        assert b'"secret"' not in narrowed[0]


async def test_list_that_began_before_a_revision_changes_nothing_in_the_next(tmp_path: Path) -> None:
    names = [f"tool_{number:03}" for number in range(3 * SLICE)]
    async with running(tmp_path, plan_of(*names)) as gateway:
        lists = ToolLists(gateway.service, "desk")
        earlier = asyncio.create_task(lists.get_page(ANA, VERSION, None))
        await asyncio.sleep(0)
        gateway.grants.rows = {(names[-1], "discover"): False}
        gateway.publish()
        later = await lists.get_page(ANA, VERSION, None)
        await earlier

        assert names[-1].encode() not in later[0]
        assert await lists.get_page(ANA, VERSION, None) == later


class Counting(Grants):
    """Counts the decisions since another task ran."""

    def __init__(self) -> None:
        super().__init__()
        self.since = self.most = self.decided = 0

    def decide(self, request: AccessRequest) -> AccessDecision:
        self.decided += 1
        self.since += 1
        self.most = max(self.most, self.since)
        return super().decide(request)


async def watch(grants: Counting) -> None:
    while True:
        grants.since = 0
        await asyncio.sleep(0)


@pytest.mark.parametrize("default", [True, False], ids=["visible", "invisible"])
async def test_other_tasks_run_while_a_list_is_decided(tmp_path: Path, *, default: bool) -> None:
    count = 8 * SLICE
    async with running(tmp_path, plan_of(*(f"tool_{number:03}" for number in range(count)))) as gateway:
        for ask in (
            lambda: ToolLists(gateway.service, "desk").get_page(ANA, VERSION, None),
            lambda: gateway.service.list_tools(ANA, "desk").all(),
        ):
            gateway.grants = grants = Counting()
            grants.default = default
            gateway.publish()
            watching = asyncio.create_task(watch(grants))
            await asyncio.sleep(0)
            await ask()
            watching.cancel()

            assert grants.decided >= count
            assert grants.most <= 4 * SLICE  # a tool takes up to two decisions


async def test_page_decides_only_about_its_own_tools(tmp_path: Path) -> None:
    async with running(tmp_path, plan_of(*(f"tool_{number:03}" for number in range(8 * SLICE)))) as gateway:
        gateway.grants = grants = Counting()
        gateway.publish()
        await names_of_page(gateway, None, SLICE)

        assert grants.decided <= 3 * SLICE
