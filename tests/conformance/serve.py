"""Serves a conformance project on loopback: `python tests/conformance/serve.py PORT FOLDER [PROJECT]`.

`FOLDER` is where the records of the run go. One thing differs from a gateway in use: a native tool may publish another
revision, because the suite wants to hear of one.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import conformance_tools
import uvicorn

from gateway.runtime.peer_listener import Door, ProvenHttp
from gateway.runtime.running import running
from gateway.runtime.settings import Settings
from gateway.web.edge import App, Edge, EdgeRules
from gateway.web.mcp.endpoint import McpEndpoint
from gateway.web.mcp.sessions import SessionLimits

HERE = Path(__file__).parent


@asynccontextmanager
async def endpoint(project: Path, folder: Path, environ: Mapping[str, str]) -> AsyncIterator[Edge]:
    """The only catalogue of a project, as an ASGI application."""
    package = conformance_tools.__name__
    environ = {**environ, "GATEWAY_DATA_DIR": str(folder), "GATEWAY_PYTHON_PACKAGES": package}
    settings = Settings.model_validate({"configs": project, "python_packages": (package,)})
    async with running(settings, environ=environ) as gateway:
        service = gateway.service

        def change() -> None:
            service.publish(service.published)

        conformance_tools.when_tools_change.append(change)
        made = McpEndpoint(service, "conformance", limits=SessionLimits(poll_after=1.0))
        yield Edge(made, EdgeRules(hosts=settings.hosts), gateway.identities.authenticate)
        await made.close()


def server(app: App, port: int, *, door: Door | None = None) -> uvicorn.Server:
    """`door` is for a listener that takes only what other gateways pass on."""
    http: Any = "auto" if door is None else partial(ProvenHttp, door=door)
    config = uvicorn.Config(
        app,
        interface="asgi3",
        http=http,
        port=port,
        loop="none",
        lifespan="off",
        ws="none",
        log_level="warning",
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)


async def served(port: int, folder: Path, project: Path) -> None:
    async with endpoint(project, folder, os.environ) as app:
        await server(app, port).serve()


if __name__ == "__main__":
    project = HERE / (sys.argv[3] if len(sys.argv) > 3 else "project")
    asyncio.run(served(int(sys.argv[1]), Path(sys.argv[2]), project))
