"""A running service and its MCP endpoint."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mcp_projects import small_service
from mcp_wire import Wire

from gateway.serving.service import Service
from gateway.web.mcp.endpoint import McpEndpoint


@pytest.fixture
async def service(tmp_path: Path, anyio_backend: str) -> AsyncIterator[Service]:
    async with small_service(tmp_path / "project") as service:
        yield service


@pytest.fixture
async def endpoint(service: Service) -> AsyncIterator[McpEndpoint]:
    endpoint = McpEndpoint(service, "all")
    yield endpoint
    await endpoint.close()


@pytest.fixture
def wire(endpoint: McpEndpoint) -> Wire:
    return Wire(endpoint)
