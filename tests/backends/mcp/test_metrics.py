"""Requests to upstream servers are measured by method, tool and server address."""

from pathlib import Path

import pytest
from mcp import Client

from tests.backends.mcp.servers.asgi_host import reference
from tests.backends.mcp.servers.front_gateway import gateway, project, tool, upstream

pytestmark = pytest.mark.anyio


async def test_requests_to_upstreams_are_measured(tmp_path: Path) -> None:
    async with reference("modern") as url:
        remote = upstream("remote", {"type": "streamable-http", "url": url})
        made = project(tmp_path / "project", remote, tool("echo", "text"), tool("missing"))
        async with gateway(made) as started, Client(started.url, mode="2026-07-28") as client:
            await client.call_tool("echo", {"text": "x"})
            await client.call_tool("missing")
            text, _ = await started.running.metering.render("")

    port = url.split(":")[2].split("/")[0]
    lines = [
        line for line in text.decode().splitlines() if line.startswith("mcp_client_operation_duration_seconds_count")
    ]
    [echoed] = [line for line in lines if 'gen_ai_tool_name="echo"' in line]
    [missing] = [line for line in lines if 'gen_ai_tool_name="missing"' in line]
    assert echoed.endswith(" 1")
    assert f'server_address="127.0.0.1",server_port="{port}"' in echoed
    assert 'mcp_protocol_version="2026-07-28"' in echoed
    assert "error_type" not in echoed
    assert 'error_type="tool_error"' in missing
    assert (
        'gen_ai_execute_tool_duration_seconds_count{gen_ai_operation_name="execute_tool",gen_ai_tool_name="echo",'
        in (text.decode())
    )
    assert 'gen_ai_tool_type="extension"' in text.decode()
