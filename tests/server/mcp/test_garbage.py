"""Requests that are refused create no reference cycles: the collector would take a third of their time."""

import gc

import pytest

from tests.server.mcp.asgi_client import Wire

pytestmark = pytest.mark.anyio

CALLS = 20


async def test_request_for_an_unknown_tool_leaves_no_cycles(wire: Wire) -> None:
    await wire.call("nothing-like-it")
    gc.collect()
    gc.disable()
    try:
        for _ in range(CALLS):
            assert "error" in (await wire.call("nothing-like-it")).json
        assert gc.collect() < CALLS
    finally:
        gc.enable()
