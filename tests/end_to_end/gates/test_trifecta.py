"""The example configuration: an ordinary client reads an external ticket and then sends a mail; an approver decides."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import mcp_types
import pytest
from mcp import Client

from tests.support.gateways.example_project import start_example
from tests.support.gateways.forkserver import ForkServer
from tests.support.gateways.projects import MODERN, Caller, send_http

pytestmark = pytest.mark.anyio

SAM = "agw_sam_" + "5" * 43
MAIL = {"to": "someone@example.com", "subject": "Hello", "body": "Your desk has left."}
RULE = "no-egress-after-untrusted-text"


@asynccontextmanager
async def example(forks: ForkServer, data: Path) -> AsyncIterator[tuple[str, Caller]]:
    """Yield the URL of the support desk and a security approver."""
    with start_example(forks, data, digest=sha256(SAM.encode()).hexdigest()) as gateway:
        async with aiohttp.ClientSession() as session:
            yield f"{gateway.url}/support/mcp", Caller(send_http(session, gateway.url), SAM)


async def wait_for_approval(sam: Caller) -> Any:
    """Wait for the pending approval and return it."""
    found: list[Any] = []
    while not found:
        found = (await sam.rest("GET", "/v1/approvals")).json["approvals"]
    [one] = found
    return (await sam.rest("GET", one["href"])).json


def text_of(result: Any) -> str:
    [block] = [each for each in result.content if isinstance(each, mcp_types.TextContent)]
    return str(block.text)


async def test_mail_after_a_ticket_was_read_waits_for_people(forks: ForkServer, tmp_path: Path) -> None:
    async with example(forks, tmp_path) as (url, sam), Client(url, mode="legacy") as client, asyncio.timeout(40):
        ticket = await client.call_tool("ticket_search", {"query": "desk"})
        refused = asyncio.create_task(client.call_tool("mail_send", MAIL))
        asked = await wait_for_approval(sam)
        await sam.rest("POST", f"{asked['href']}/reject", {"note": "who asked for that"})
        first = await refused
        other = {**MAIL, "body": "Your chair has left."}
        granted = asyncio.create_task(client.call_tool("mail_send", other))
        again = await wait_for_approval(sam)
        await sam.rest("POST", f"{again['href']}/resolve", {"shownDigest": again["shownDigest"]})
        second = await granted

    assert not ticket.is_error
    assert (asked["rule"], asked["requester"], asked["mayDecide"]) == (RULE, "user:you", True)
    assert {each["name"] for each in asked["arguments"]} == {"to", "subject", "body"}
    assert first.is_error
    assert "an approver refused this call: 'who asked for that'" in text_of(first)
    assert not second.is_error
    assert '"number":"M-' in text_of(second).replace(" ", "")


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_waiver_is_true_in_another_session_of_a_standard_client(
    mode: Any, forks: ForkServer, tmp_path: Path
) -> None:
    async with example(forks, tmp_path) as (url, sam), asyncio.timeout(40):
        async with Client(url, mode=mode) as reader:
            await reader.call_tool("ticket_search", {"query": "desk"})
        async with Client(url, mode=mode) as sender:
            sending = asyncio.create_task(sender.call_tool("mail_send", MAIL))
            asked = await wait_for_approval(sam)
            await sam.rest("POST", f"{asked['href']}/reject", {})
            sent = await sending

    assert asked["rule"] == RULE
    assert sent.is_error


async def test_mail_without_a_ticket_goes_through(forks: ForkServer, tmp_path: Path) -> None:
    async with example(forks, tmp_path) as (url, sam), Client(url, mode="legacy") as client, asyncio.timeout(40):
        sent = await client.call_tool("mail_send", MAIL)
        asked = await sam.rest("GET", "/v1/approvals?state=any")

    assert not sent.is_error
    assert asked.json["approvals"] == []
