"""Serves a conformance project on loopback: `python tests/conformance/serve.py PORT FOLDER [PROJECT]`.

`FOLDER` is where the records of the run go. Unlike in production, a native tool may publish another revision, because
the suite waits for such a notification.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from gateway.app.app import run_app
from gateway.app.settings import Settings
from gateway.server.http.asgi import AsgiApp
from gateway.server.http.middleware import EdgeMiddleware, EdgeRules
from gateway.server.http.peer_listener import PeerApps, PeerHttpProtocol
from gateway.server.mcp.endpoint import McpEndpoint
from gateway.server.mcp.sessions import SessionLimits
from tests.conformance import tools as conformance_tools
from tests.support.paths import ROOT

HERE = ROOT / "tests" / "conformance"


@asynccontextmanager
async def endpoint(project: Path, folder: Path, environ: Mapping[str, str]) -> AsyncIterator[EdgeMiddleware]:
    """Return the only catalogue of a project as an ASGI application."""
    package = conformance_tools.__name__
    environ = {**environ, "GATEWAY_DATA_DIR": str(folder), "GATEWAY_PYTHON_PACKAGES": package}
    settings = Settings.model_validate({"configs": project, "python_packages": (package,)})
    async with run_app(settings, environ=environ) as gateway:
        service = gateway.service

        def change() -> None:
            service.publish(service.published)

        conformance_tools.when_tools_change.append(change)
        made = McpEndpoint(service, "conformance", limits=SessionLimits(poll_after=1.0))
        yield EdgeMiddleware(made, EdgeRules(hosts=settings.hosts), gateway.identities.authenticate)
        await made.close()


def server(app: AsgiApp, port: int, *, peer_apps: PeerApps | None = None) -> uvicorn.Server:
    """`door` is for a listener that accepts only requests forwarded by other gateways."""
    http: Any = "auto" if peer_apps is None else partial(PeerHttpProtocol, peer_apps=peer_apps)
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


async def serve(port: int, folder: Path, project: Path) -> None:
    async with endpoint(project, folder, os.environ) as app:
        await server(app, port).serve()


if __name__ == "__main__":
    project = HERE / (sys.argv[3] if len(sys.argv) > 3 else "project")
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2]), project))
