"""A gateway that cannot check revocations admits no caller, and does not call their tokens invalid."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from tests.support.gateways.gate_projects import ANA, pay, start_gate_project
from tests.support.gateways.projects import Reply

pytestmark = pytest.mark.anyio


async def ask_until(status: int, ask: Callable[[], Awaitable[Reply]], words: bytes = b"") -> Reply:
    """Repeat the request until it gets this status: revocation checks are cached for some milliseconds."""
    with anyio.fail_after(20):
        while (reply := await ask()).status != status or words not in reply.body:
            await anyio.sleep(0)
    return reply


async def test_unknown_revocations_are_the_gateways_fault_not_the_callers(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path) as (gateway, backend):
        ana, anonymous = gateway.caller(ANA), gateway.caller(None)
        assert (await pay(ana)).status == 200
        assert (await anonymous.rest("GET", "/readyz")).status == 200
        notices = tmp_path / "data" / "gateway.db-notices"
        os.truncate(notices, 0)

        refused = await ask_until(503, lambda: pay(ana), b"E_CREDENTIAL_UNKNOWN")
        ready = await anonymous.rest("GET", "/readyz")
        over_mcp = await ana.modern("desk", "tools/list")
        without = await pay(anonymous)
        ran = len(backend.requests)

        notices.unlink()
        again = await ask_until(200, lambda: pay(ana))

    assert refused.json["code"] == "E_CREDENTIAL_UNKNOWN"
    assert refused.header("retry-after") == "1"
    assert refused.header("www-authenticate") is None
    assert (ready.status, ready.json["ready"]) == (503, False)
    assert ready.json["reasons"] == ["revocations of tokens cannot be checked"]
    assert (over_mcp.status, over_mcp.header("retry-after")) == (503, "1")
    assert without.status == 401
    assert again.status == 200
    assert len(backend.requests) == ran + 1
