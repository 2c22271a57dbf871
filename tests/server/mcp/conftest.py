"""A running service and its MCP endpoint."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.engine.service import Service
from gateway.server.mcp.endpoint import McpEndpoint
from tests.server.mcp.asgi_client import Wire
from tests.server.mcp.project import small_service


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
